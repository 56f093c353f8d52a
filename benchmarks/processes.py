"""Each side of each round in a process of its own, so that neither inherits the other's memory."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import prepare_process
from benchmarks.workload import ROOT, Work

Result = dict[str, Any]


class SideFailed(RuntimeError):
    """The process of a side ended without a result."""


def run_side(side: str, work: Work, prompts: Path) -> Result:
    """Run one side and return what it measured.

    Args:
        side: "ours" or "trl", a module `benchmarks.side_...`.
        work: what it does.
        prompts: the JSONL of its prompts.

    Raises:
        SideFailed: with the end of what the process said.
    """
    threads = str(work.threads)
    environment = os.environ | {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", f"benchmarks.side_{side}", "--work", work.to_json()]
        command += ["--prompts", str(prompts), "--out", str(out)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode or not out.exists():
            killed = " (killed: out of memory?)" if done.returncode == -9 else ""
            said = done.stderr.strip()[-1500:]
            raise SideFailed(f"side {side} ended with {done.returncode}{killed}\n{said}")
        result: Result = json.loads(out.read_text())
    return result


def side_main(run: Callable[[Work, Path], Result]) -> None:
    """Command line of a side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Work.from_json, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    prepare_process(arguments.work.threads)
    arguments.out.write_text(json.dumps(run(arguments.work, arguments.prompts)))

"""Each side of each round in a process of its own, so that neither inherits the other's memory."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.comparison import OURS, Run
from benchmarks.measure import prepare_process
from benchmarks.workload import ROOT

Result = dict[str, Any]
Round = dict[str, Result]
"""What each side measured, by its name."""


class AnyWork(Protocol):
    """What a side does, whatever is compared."""

    @property
    def threads(self) -> int:
        """Threads of its process."""
        ...

    def to_json(self) -> str:
        """For the process."""
        ...


W = TypeVar("W", bound=AnyWork)


class SideFailed(RuntimeError):
    """The process of a side ended without a result."""


def run_side(side: str, work: AnyWork, data: Path) -> Result:
    """Run one side and return what it measured.

    Args:
        side: "ours" for a module `benchmarks.side_ours`.
        work: what it does.
        data: the file or folder of its prompts or pairs.

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
        command += ["--data", str(data), "--out", str(out)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode or not out.exists():
            killed = " (killed: out of memory?)" if done.returncode == -9 else ""
            said = done.stderr.strip()[-1500:]
            raise SideFailed(f"side {side} ended with {done.returncode}{killed}\n{said}")
        result: Result = json.loads(out.read_text())
    return result


def measure_rounds(
    sides: Mapping[str, tuple[str, AnyWork]], data: Path, rounds: int, brief: Callable[[Run], str]
) -> tuple[list[Round], dict[str, str]]:
    """Run all sides in turn; a peer that fails is told and left out from then on.

    Args:
        sides: name -> (side, its work).
        data: see `run_side`.
        rounds: how often; they alternate in order.
        brief: tells what was measured, in a line.

    Returns:
        The rounds, and what the sides said that failed.
    """
    measured: list[Round] = []
    failed: dict[str, str] = {}
    for number in range(rounds):
        order = list(sides) if number % 2 == 0 else list(sides)[::-1]
        results: Round = {}
        for name in order:
            if name in failed:
                continue
            try:
                results[name] = run_side(*sides[name], data)
            except SideFailed as error:
                if name == OURS:
                    raise
                failed[name] = str(error)
                print(f"round {number + 1}: {name} failed and is left out: {error}", flush=True)
                continue
            print(f"round {number + 1}: {name}: {brief(results[name])}", flush=True)
        measured.append(results)
    return [{n: run for n, run in r.items() if n not in failed} for r in measured], failed


def side_main(run: Callable[[W, Path], Result], read: Callable[[str], W]) -> None:
    """Command line of a side.

    Args:
        run: does the work and says what was measured.
        read: the work of its JSON.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=read, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    prepare_process(arguments.work.threads)
    arguments.out.write_text(json.dumps(run(arguments.work, arguments.data)))

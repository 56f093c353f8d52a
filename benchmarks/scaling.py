"""How the time of our step grows with the group, the completion, the prompt and the vocabulary.

    python -m benchmarks.scaling --trl --json runs/bench/scaling.json --picture docs/img/scaling.png
    python -m benchmarks.scaling --quick

`--trl` measures a few points of TRL too.

Measured: seconds of generate, reference and update, one factor at a time around a middle point, on
the tiny model with a KL penalty (so that no group is left out). Completions all have the length
that is asked for: nothing but the model's own end token stops them, which it all but never draws.

A fifth series shows what a prompt costs: completions of one token, so that nearly all the time is
that of the prompt. Where each prompt is computed once for its group it does not grow with G.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import measure, workload
from benchmarks.comparison import table
from benchmarks.processes import SideFailed, run_side
from benchmarks.scaling_picture import draw
from benchmarks.workload import Work

PHASES = ("generate", "reference", "update")
MIDDLE = Work(
    beta=0.04, steps=3, prompts=2, max_new=128, prompt_tokens=(256, 256), fixed_length=True
)
SERIES: dict[str, tuple[int, ...]] = {
    "group": (2, 4, 8, 16, 32, 64),
    "completion": (32, 64, 128, 256, 512, 1024),
    "prompt": (64, 128, 256, 512, 1024),
    "vocabulary": (4096, 8192, 16384, 32768, 65536, 131072),
    "prompt cost": (2, 4, 8, 16, 32, 64),
}
QUICK: dict[str, tuple[int, ...]] = {"group": (2, 4), "prompt cost": (2, 4)}
TRL_POINTS: dict[str, tuple[int, ...]] = {
    "group": (2, 8, 32),
    "completion": (32, 128, 512),
    "prompt": (64, 256, 1024),
    "prompt cost": (2, 8, 32),
}
WORDS = {
    "group": "completions per prompt, G",
    "completion": "completion length, tokens",
    "prompt": "prompt length, tokens",
    "vocabulary": "vocabulary, V",
    "prompt cost": "completions of one token per prompt, G",
}


def work_at(series: str, value: int, middle: Work = MIDDLE) -> Work:
    """The middle point with one factor changed.

    >>> work_at("completion", 32).max_new, work_at("group", 2).rows
    (32, 4)
    """
    if series in ("group", "prompt cost"):
        length = 1 if series == "prompt cost" else middle.max_new
        return replace(middle, group_size=value, micro_batch=value, max_new=length)
    if series == "completion":
        return replace(middle, max_new=value)
    if series == "prompt":
        return replace(middle, prompt_tokens=(value, value))
    if series == "vocabulary":
        return replace(middle, vocabulary=value)
    raise ValueError(f"series must be one of {', '.join(SERIES)} but is {series!r}")


def measure_point(side: str, work: Work) -> dict[str, Any]:
    """Median seconds of each phase, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = workload.write_prompts(work, Path(folder) / "prompts.jsonl")
        run = run_side(side, work, prompts)
    seconds = {p: median(step.get(p, 0.0) for step in run["steps"]) for p in ("step", *PHASES)}
    tokens = median(step["tokens"] for step in run["steps"])
    return seconds | {"tokens": tokens, "peak_mib": run["peak_mib"], "stall": run["stall"]}


def measure_series(
    side: str, values: dict[str, tuple[int, ...]], middle: Work
) -> dict[str, list[dict[str, Any]]]:
    """Every point of every series; a point that fails is told and left out."""
    measured: dict[str, list[dict[str, Any]]] = {}
    for series, places in values.items():
        measured[series] = []
        for value in places:
            try:
                point = measure_point(side, work_at(series, value, middle))
            except SideFailed as error:
                print(f"{side}, {series} {value}: left out: {error}", flush=True)
                continue
            measured[series].append({"value": value, **point})
            print(f"{side}, {series} {value}: {point['step']:.2f} s", flush=True)
    return measured


def growth(points: Sequence[dict[str, Any]], phase: str) -> str:
    """How many times longer the last point takes than the first.

    >>> growth([{"update": 1.0}, {"update": 3.0}], "update")
    '3.0 x'
    """
    first, last = points[0][phase], points[-1][phase]
    return f"{last / first:.1f} x" if first > 0 else ""


def report(record: dict[str, Any]) -> str:
    """One table a series."""
    middle = Work.from_json(json.dumps(record["middle"]))
    points = [
        p for series in record["measured"].values() for found in series.values() for p in found
    ]
    stalls = [point["stall"] for point in points]
    lines = [
        f"Tiny model, {middle.prompts} prompts of {middle.prompt_tokens[0]} tokens x "
        f"{middle.group_size} completions of {middle.max_new} tokens, one factor changed at a "
        f"time; seconds. {measure.provenance(record, middle.threads)} {measure.waited(stalls)}\n"
    ]
    if warning := measure.warning(stalls):
        lines.append(f"{warning}\n")
    for side, measured in record["measured"].items():
        lines += [_series_table(side, s, found) for s, found in measured.items() if found]
    return "\n".join(lines)


def _series_table(side: str, series: str, points: Sequence[dict[str, Any]]) -> str:
    values = [measure.mark(f"{point['value']:,}", [point["stall"]]) for point in points]
    header = [f"{side}: {WORDS[series]}", *values, "growth"]
    rows = [
        [phase, *[f"{point[phase]:.2f}" for point in points], growth(points, phase)]
        for phase in ("step", *PHASES)
    ]
    return table(header, rows)


def main() -> None:
    """Measure, print, draw, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--series", nargs="+", choices=list(SERIES), default=list(SERIES))
    parser.add_argument("--steps", type=int, default=MIDDLE.steps)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--trl", action="store_true", help="a few points of TRL as well")
    parser.add_argument("--quick", action="store_true", help="two points of two series")
    parser.add_argument("--json", type=Path, help="where the result is written")
    parser.add_argument("--picture", type=Path, help="where the picture is written")
    options = parser.parse_args()
    if options.trl:
        measure.require_trl("scaling")
    middle = replace(MIDDLE, steps=options.steps, threads=options.threads)
    if options.quick:
        middle = replace(workload.quick(middle), prompts=1)
    values = {s: v for s, v in (QUICK if options.quick else SERIES).items() if s in options.series}
    record: dict[str, Any] = {
        "benchmark": "scaling",
        "quick": options.quick,
        "machine": measure.machine(),
        "versions": measure.versions("torch", "transformers", "peft", "lightning"),
        "middle": asdict(middle),
        "measured": {"sctom": measure_series("ours", values, middle)},
    }
    if options.trl:
        count = 1 if options.quick else None
        points = {s: v[:count] for s, v in TRL_POINTS.items() if s in values}
        record["measured"]["TRL"] = measure_series("trl", points, middle)
        record["versions"] |= measure.versions("trl")
    text = report(record)
    print(f"\n{text}")
    if options.picture:
        draw(record["measured"], WORDS, options.picture)
    if options.json:
        measure.write_record(options.json, record, {"scaling": text})


if __name__ == "__main__":
    main()

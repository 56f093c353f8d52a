"""What the machinery around rewards costs for each completion.

    python -m benchmarks.rewards --json runs/bench/rewards.json
    python -m benchmarks.rewards --quick

Three things, each beside calling the same function directly, in rounds that alternate: a worker
process (`Workers.map`) with a function that does nothing and with the grading of an answer, and
`run_rewards` with a function that does nothing. The start of a worker, with the import of sympy, is
measured by itself: it comes once, and again after each item that had to be killed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import measure
from benchmarks.comparison import table
from sctom.rewards import FunctionReward, run_rewards
from sctom.rewards.workers import Workers

GRADE = "sctom.rewards.math_grading:grade"


def nothing(completion: str, solution: str) -> float:
    """A reward of one completion."""
    return 1.0


def nothing_for_all(completions: list[str], solution: list[str]) -> list[float]:
    """A reward of a batch."""
    return [1.0 for _ in completions]


def answers(count: int) -> list[tuple[str, str]]:
    """Completions and solutions that differ from each other, so that no cache knows them."""
    return [
        (f"So it is \\boxed{{\\frac{{{n}}}{{7}}}}.", f"$\\frac{{{n}}}{{7}}$") for n in range(count)
    ]


def seconds(call: Callable[[], Any]) -> float:
    """Of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def ways(workers: Workers, items: list[tuple[str, str]]) -> dict[str, Callable[[], Any]]:
    """Name -> what to measure; each goes through all items once."""
    from sctom.rewards.math_grading import grade

    texts, solutions = [text for text, _ in items], [solution for _, solution in items]
    reward, ids = FunctionReward(nothing_for_all), [[1]] * len(items)
    columns = {"solution": solutions}
    return {
        "nothing, called": lambda: [nothing(*item) for item in items],
        "nothing, in a worker": lambda: workers.map("benchmarks.rewards:nothing", items),
        "grading, called": lambda: [grade(*item) for item in items],
        "grading, in a worker": lambda: workers.map(GRADE, items),
        "batch of nothing, called": lambda: nothing_for_all(texts, solutions),
        "batch of nothing, run_rewards": lambda: run_rewards([reward], texts, texts, ids, columns),
    }


def start_seconds() -> float:
    """From nothing to the first grade of a new worker."""
    with Workers(processes=1) as workers:
        return seconds(lambda: workers.map(GRADE, answers(1)))


def measured(items: int, repeats: int) -> dict[str, Any]:
    """Microseconds for each item and way, in every round, and how a worker starts."""
    rounds = []
    stall = measure.Stall()
    with Workers(processes=1) as workers:
        calls = ways(workers, answers(items))
        for call in calls.values():
            call()
        for number in range(repeats):
            names = list(calls) if number % 2 == 0 else list(calls)[::-1]
            rounds.append({name: 1e6 * seconds(calls[name]) / items for name in names})
    starts = [start_seconds() for _ in range(min(repeats, 3))]
    return {"rounds": rounds, "starts": starts, "stall": stall.share()}


def report(record: dict[str, Any]) -> str:
    """The result as Markdown."""
    rounds, rows = record["rounds"], []
    for name in rounds[0]:
        times = [found[name] for found in rounds]
        rows.append([name, f"{median(times):,.1f}", f"{measure.spread(times):.0%}"])
    lines = [
        f"{record['items']:,} completions, one worker, medians of {record['repeats']} rounds. "
        f"{measure.provenance(record, 1)} {measure.waited([record['stall']])} A worker gives its "
        f"first grade {median(record['starts']):.1f} s after it was asked for.\n"
    ]
    if warning := measure.warning([record["stall"]]):
        lines.append(f"{warning}\n")
    return "\n".join([*lines, table(["what", "µs for each completion", "spread"], rows)])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="20 completions, two rounds")
    parser.add_argument("--items", type=int, default=500, help="completions of a round")
    parser.add_argument("--repeats", type=int, default=9, help="rounds")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    options = parser.parse_args()
    if options.quick:
        options.items, options.repeats = 20, 2
    record: dict[str, Any] = {
        "benchmark": "rewards",
        "quick": options.quick,
        "machine": measure.machine(),
        "versions": measure.versions("math-verify", "sympy"),
        "items": options.items,
        "repeats": options.repeats,
    }
    record |= measured(options.items, options.repeats)
    text = report(record)
    print(text)
    if options.json:
        measure.write_record(options.json, record, {"rewards": text})


if __name__ == "__main__":
    main()

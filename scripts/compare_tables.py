"""One table of several runs, before and after, and a check of what training is for.

    python scripts/compare_tables.py runs/quickstart-seed-1 runs/quickstart-seed-2 [--check]

Reads RUN/table.json, which SelfAwareEval writes when a run ends. With --check the exit code is 1
unless in every run abstention F1 rose by at least 0.2 and accuracy on known questions fell by at
most 0.05.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

METRICS = {
    "accuracy_known": "accuracy on known",
    "accuracy": "accuracy",
    "abstention_precision": "abstention precision",
    "abstention_recall": "abstention recall",
    "abstention_f1": "abstention F1",
    "over_refusal": "over-refusal",
}
LIMITS = {"abstention_f1": 0.2, "accuracy_known": -0.05}  # smallest change that passes
ROUNDING = 1e-9


def table(runs: dict[str, dict[str, Any]]) -> str:
    """Runs as the rows of a markdown table; a metric that a run does not have is a dash."""
    lines = [("run", *METRICS.values()), ("---", *["---:"] * len(METRICS))]
    for name, comparison in runs.items():
        sides = [comparison[side]["metrics"] for side in ("before", "after")]
        pairs = [[side.get(metric) for side in sides] for metric in METRICS]
        cells = [" → ".join("-" if v is None else f"{v:.1%}" for v in pair) for pair in pairs]
        lines.append((name, *cells))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def failures(name: str, comparison: dict[str, Any]) -> list[str]:
    """What of LIMITS a run misses."""
    found = []
    for metric, least in LIMITS.items():
        change = comparison["change"].get(metric)
        if change is None:
            found.append(f"{name}: {metric} was not measured before and after")
        elif change < least - ROUNDING:
            found.append(f"{name}: {metric} changed by {change:+.3f}, expected {least:+} or more")
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a run falls short")
    arguments = parser.parse_args()
    if missing := [str(run) for run in arguments.runs if not (run / "table.json").is_file()]:
        parser.error(f"no table.json in {', '.join(missing)}: SelfAwareEval writes it at the end")
    runs = {str(run): json.loads((run / "table.json").read_text()) for run in arguments.runs}
    print(table(runs))
    found = [line for name, comparison in runs.items() for line in failures(name, comparison)]
    if arguments.check and found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()

"""What `CodeReward` says about the reference solutions of MBPP and HumanEval.

    python scripts/code_audit.py --mbpp mbpp.jsonl --humaneval HumanEval.jsonl.gz

Each must be worth 1.0, or be a failure whose reason is printed. Beside them stands what functions
that return None are worth on the same problems: it must be 0. Three minutes on two cores.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from sctom.readers import Row, read_jsonl
from sctom.rewards import Failure
from sctom.rewards.code import CodeReward
from sctom.tasks.code import humaneval_row, mbpp_row, read_packed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mbpp", type=Path)
    parser.add_argument("--humaneval", type=Path)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    reward = CodeReward(seconds=arguments.seconds, at_once=arguments.at_once)
    reward.check()
    console = Console()
    console.print(*reward.describe())
    table = Table("set", "programs", "number", "1.0", "not judged", "below 1.0")
    faults = 0
    for name, rows in _sets(arguments.mbpp, arguments.humaneval).items():
        for kind, right in (("reference", "1.0"), ("returns None", "0")):
            programs = [_program(row, stub=right == "0") for row in rows]
            counts, lines = _judged(reward, rows, programs, right)
            numbers = (str(counts[key]) for key in ("1.0", "failure", "0"))
            table.add_row(name, kind, str(len(rows)), *numbers)
            faults += len(rows) - counts[right] - counts["failure"]
            for line in lines:
                console.print(line, markup=False, highlight=False)
    console.print(table)
    raise SystemExit(faults > 0)


def _sets(mbpp: Path | None, humaneval: Path | None) -> dict[str, list[Row]]:
    sets: dict[str, list[Row]] = {}
    if mbpp is not None:
        rows = enumerate(read_jsonl(mbpp), start=1)
        sets["MBPP"] = [mbpp_row(row, f"{mbpp}:{line}") for line, row in rows]
    if humaneval is not None:
        rows = enumerate(read_packed(humaneval), start=1)
        sets["HumanEval"] = [humaneval_row(row, f"{humaneval}:{line}") for line, row in rows]
    return sets


def _program(row: Row, *, stub: bool) -> str:
    """The reference solution, or one that does nothing under the same names."""
    code = row["reference"]
    if stub and "entry_point" in row:
        code = "    return None\n"
    elif stub:
        tree = ast.parse(code)
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        code = "\n".join(f"def {name}(*args): return None" for name in names)
    return f"```python\n{code}\n```"


def _judged(
    reward: CodeReward, rows: list[Row], programs: list[str], right: str
) -> tuple[Counter[str], list[str]]:
    """How many programs are worth what, and a line about each that is not worth what is right."""
    names = {name for row in rows for name in row} - {"messages", "id", "reference"}
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    extra: dict[str, Sequence[Any]] = {}
    values = reward(programs, **columns, log_extra=extra.__setitem__)
    counts: Counter[str] = Counter()
    lines = []
    for row, value, detail in zip(rows, values, extra["code/detail"], strict=True):
        key = "failure" if isinstance(value, Failure) else "1.0" if value == 1.0 else "0"
        counts[key] += 1
        if key != right:
            lines.append(f"{row['id']}: {key}: {detail}")
    return counts, lines


if __name__ == "__main__":
    main()

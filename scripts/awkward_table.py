"""The table of docs/awkward.md, made of tests/rewards/awkward.jsonl.

python scripts/awkward_table.py            # print it
python scripts/awkward_table.py --write    # put it into docs/awkward.md
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "rewards" / "awkward.jsonl"
PAGE = ROOT / "docs" / "awkward.md"
START, END = (
    "<!-- table: python scripts/awkward_table.py --write -->\n",
    "<!-- end of the table -->\n",
)
HEAD = ("#", "question", "expected answer", "completion", "`SelfAware`", "`SelfAwareStrict`", "why")


def read_cases() -> list[dict[str, Any]]:
    """The cases, in the order of the file."""
    return [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


def table(cases: list[dict[str, Any]]) -> str:
    """The cases as a markdown table, numbered."""
    lines = [HEAD, ("---",) * len(HEAD), *(_cells(i, case) for i, case in enumerate(cases, 1))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(number: int, case: dict[str, Any]) -> tuple[str, ...]:
    accepted = ", ".join(f"`{answer}`" for answer in case.get("answers", [case["expected"]]))
    return (
        str(number),
        case["question"],
        accepted if case["answerable"] else "(unanswerable)",
        f"`{case['completion']}`" if case["completion"] else "(nothing)",
        f"{case['seed']:+}",
        f"{case['strict']:+}",
        case["reason"],
    )


def with_table(page: str, cases: list[dict[str, Any]]) -> str:
    """A page with the table between its two marks replaced.

    Raises:
        ValueError: a mark is not there once.
    """
    for mark in (START, END):
        if page.count(mark) != 1:
            raise ValueError(f"expected the mark {mark.strip()!r} once, found {page.count(mark)}")
    before, rest = page.split(START)
    return f"{before}{START}\n{table(cases)}\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/awkward.md")
    if parser.parse_args().write:
        page = with_table(PAGE.read_text(encoding="utf-8"), read_cases())
        PAGE.write_text(page, encoding="utf-8")
    else:
        print(table(read_cases()), end="")


if __name__ == "__main__":
    main()

"""Put the results of benchmarks into docs/performance.md.

    python -m benchmarks.report runs/bench/*.json

Each result carries Markdown for a named place of the page, which lies between two comments:

    <!-- result: grpo-tiny-kl -->
    ...
    <!-- end: grpo-tiny-kl -->

What lies between them is replaced; places without a result are left as they are.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.workload import ROOT

PAGE = ROOT / "docs" / "performance.md"
PLACE = re.compile(r"(<!-- result: (?P<name>\S+) -->\n).*?(<!-- end: (?P=name) -->)", re.DOTALL)


def places(page: str) -> list[str]:
    """Names of the places of a page, in its order."""
    return [match["name"] for match in PLACE.finditer(page)]


def fill(page: str, blocks: Mapping[str, str]) -> str:
    """The page with results put into their places.

    Args:
        page: Markdown with places.
        blocks: name of the place -> Markdown.

    Raises:
        ValueError: the page has no place of such a name.
    """
    known = places(page)
    if unknown := sorted(set(blocks) - set(known)):
        raise ValueError(
            f"the page has no place for {', '.join(unknown)}; it has {', '.join(known)}. Put "
            f"<!-- result: {unknown[0]} --> and <!-- end: {unknown[0]} --> where it belongs"
        )

    def replacement(match: re.Match[str]) -> str:
        if match["name"] not in blocks:
            return match[0]
        return f"{match[1]}{blocks[match['name']].strip()}\n{match[3]}"

    return PLACE.sub(replacement, page)


def read_blocks(files: Sequence[Path]) -> dict[str, str]:
    """The Markdown of all results; a later file wins over an earlier one of the same place.

    Raises:
        ValueError: a file is missing, is not the result of a benchmark, or is that of a quick mode.
    """
    blocks: dict[str, str] = {}
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} is not there; a benchmark writes it with --json {file}")
        try:
            record = json.loads(file.read_text())
        except ValueError as error:
            raise ValueError(f"{file} is not JSON: {error}") from error
        if "blocks" not in record:
            raise ValueError(f'{file} has no "blocks", so it is not the result of a benchmark')
        if record.get("quick"):
            raise ValueError(
                f"{file} was measured with --quick, which shows only that a script runs"
            )
        blocks |= record["blocks"]
    return blocks


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+", help="what --json wrote")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    try:
        blocks = read_blocks(options.results)
        page = fill(options.page.read_text(), blocks)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    options.page.write_text(page)
    print(f"{options.page}: {', '.join(sorted(blocks))}")


if __name__ == "__main__":
    main()

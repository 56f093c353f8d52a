"""What matters in the SC-TOM recipe? Variants of the quickstart, each with three seeds.

    python scripts/tinyworld_study.py [--only NAME ...] [--jobs 2]

Runs every variant with every seed, then prints tables of all finished runs and writes them, and
pictures, into docs/study.md and docs/img. Finished runs are not repeated and killed ones go on
where they were, so the command may be stopped and given again. Start it in the root of the
repository. A run takes about 40 seconds of one core.

    --list     the variants, which --only may name, and their families
    --report   runs nothing, writes the tables
    --quick    two iterations each, to see that everything works; writes no tables
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from study_pictures import draw_budgets, draw_overview
from study_results import Results, Run
from study_runs import Job, Runner, jobs_for
from study_tables import budgets, fill, judges, overview, price, stated, training
from study_variants import QUICKSTART, VARIANTS, chosen, write_balanced

INTERRUPTED = 130  # exit code

BUDGETS = {
    "from the start": ("keep", "resample", "keep-64"),
    "a later phase": ("later-keep", "later-resample"),
}


def finished(seeds: Sequence[int], out: Path, *, quick: bool = False) -> Results:
    """The finished runs of every variant."""
    done: dict[str, list[Run]] = {}
    for variant in VARIANTS:
        jobs = jobs_for(chosen([variant.name]), seeds, out, quick=quick)
        own = [job for job in jobs if job.folder.parent.name == variant.name]
        done[variant.name] = [Run(job.folder) for job in own if job.done()]
    return done


def tables(results: Results) -> dict[str, str]:
    """The tables of docs/study.md by name."""
    return {
        "overview": overview(results),
        "training": training(results, ["groups", "price"]),
        "price": price(results),
        "judges": judges(results),
        "confidence": stated(results),
        **{title: budgets(results, names) for title, names in BUDGETS.items()},
    }


def write_report(results: Results, docs: Path) -> None:
    """Write the tables into DOCS/study.md, and the pictures in DOCS/img.

    Raises:
        ValueError: the page lacks a marker.
        OSError: there is no page.
    """
    page = docs / "study.md"
    page.write_text(fill(page.read_text(), tables(results)))
    (docs / "img").mkdir(exist_ok=True)
    draw_overview(results, docs / "img" / "study.png")
    draw_budgets(results, BUDGETS, docs / "img" / "resample.png")


def show_failures(failed: dict[str, str]) -> None:
    """Tell what went wrong."""
    for name, said in failed.items():
        print(f"\n{name}: {said}", file=sys.stderr)


def run(arguments: argparse.Namespace, jobs: list[Job], console: Console) -> int:
    """Run the jobs; returns the exit code."""
    write_balanced(arguments.out)
    runner = Runner(arguments.jobs, console)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        runner.run(jobs)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    show_failures(runner.failed)
    return 1 if runner.failed else 0


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="variants, families")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--out", type=Path, help="folder of the runs (default: runs/study)")
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of study.md")
    parser.add_argument("--report", action="store_true", help="run nothing, write the tables")
    parser.add_argument("--quick", action="store_true", help="two iterations, no tables")
    parser.add_argument("--list", action="store_true", help="print the variants")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs must be at least 1 but is {arguments.jobs}")
    if not Path(QUICKSTART).is_file():
        parser.error(f"there is no {QUICKSTART} here; start it in the root of the repository")
    arguments.out = arguments.out or Path("runs/study-quick" if arguments.quick else "runs/study")
    try:
        arguments.variants = chosen(arguments.only)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def main() -> None:
    """Run, report, and tell what failed."""
    arguments, console = parsed(), Console()
    if arguments.list:
        for variant in arguments.variants:
            print(f"{variant.name:16}{variant.family:12}{variant.words}")
        return
    seeds, out, quick = arguments.seeds, arguments.out, arguments.quick
    code = 0
    if not arguments.report:
        code = run(arguments, jobs_for(arguments.variants, seeds, out, quick=quick), console)
    if code != INTERRUPTED:
        results = finished(seeds, out, quick=quick)
        print(*tables(results).values(), sep="\n")
        if not quick:
            write_report(results, arguments.docs)
    sys.exit(code)


if __name__ == "__main__":
    main()

"""Iterative RLHF in rounds, as Llama 2 has it: compare, learn rewards, sample, select, fine-tune.

    python -m sctom.rounds --config configs/llama2_rounds.yaml [--resume auto]

Every stage has its folder in RUN/rounds. RUN/manifest.json says which are finished, from what they
were made and what they have made; RUN/rounds.json and RUN/page.html compare the rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich import get_console

from sctom.commands import errors_told, parse
from sctom.fit import quiet
from sctom.iterate.labels import FileLabeller, UtilityLabeller, WaitingForLabels
from sctom.iterate.report import rounds_table, write_report
from sctom.iterate.run import Told, run
from sctom.iterate.settings import Settings

LABELLERS = (UtilityLabeller, FileLabeller)
"""Imported so that a config may name these classes without their path."""

WAITING = 3
"""Exit status of a run that waits for labels."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line. Exit status 3: the run waits for labels."""
    quiet()
    console = get_console()
    settings, plain, resume = parse(Settings, "sctom.rounds", __doc__ or "", argv)

    def told(stage: Told) -> None:
        done = "done" if stage.done else "finished before"
        console.print(f"{stage.number:3} of {stage.of}  {stage.stage.name}: {done}")
        if stage.done and stage.stage.name.endswith("/compare") and stage.number < stage.of:
            console.print(rounds_table(write_report(settings)))

    try:
        with errors_told():
            manifest = run(settings, plain, resume=resume, told=told)
    except WaitingForLabels as waiting:
        print(waiting)
        sys.exit(WAITING)
    console.print(rounds_table(write_report(settings)))
    console.print(f"{settings.run_dir}/page.html compares the rounds", soft_wrap=True)
    console.print(f"digest {manifest.digest()}", soft_wrap=True)


if __name__ == "__main__":
    main()

"""Rejection sampling: many completions of each prompt, scored, and the best ones to learn from.

    python -m sctom.sample --config configs/sample_tinyworld.yaml [--samples 32] [--resume auto]

In the run's folder: samples.jsonl has every sample, kept.jsonl those that were chosen, as dialogues
that SFTModule trains on, rejected.jsonl the others, baseline.jsonl as many chosen by chance, and
summary.json what choosing brought.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import get_console

from sctom.commands import errors_told, parse
from sctom.fit import quiet
from sctom.rejection import Above, BestOf, TopFraction
from sctom.rejection.engine import run
from sctom.rejection.settings import SampleSettings
from sctom.rejection.summary import table_of

RULES = (BestOf, TopFraction, Above)
"""Imported so that a config may name these classes without their path."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    quiet()
    settings, plain, resume = parse(SampleSettings, "sctom.sample", __doc__ or "", argv)
    with errors_told():
        summary = run(settings, plain, resume=resume)
    console = get_console()
    console.print(table_of(summary.lines()))
    if summary.kept:
        console.print(f"{settings.run_dir}/kept.jsonl is what to learn from", soft_wrap=True)
    else:
        console.print("nothing was kept: lower what select asks for, or draw more samples")


if __name__ == "__main__":
    main()

"""Safety context distillation: what a preprompt makes safer is learned without it.

    python -m sctom.distill --config configs/distill_smollm2.yaml [--resume auto]

In the run's folder: samples.jsonl has both answers to every adversarial prompt, kept.jsonl the
distilled ones that score higher, as dialogues that SFTModule trains on, rejected.jsonl the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import get_console

from sctom.commands import errors_told, parse
from sctom.fit import quiet
from sctom.rejection.distillation import DistillSettings, distil
from sctom.rejection.summary import table_of


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    quiet()
    settings, plain, resume = parse(DistillSettings, "sctom.distill", __doc__ or "", argv)
    with errors_told():
        result = distil(settings, plain, resume=resume)
    console = get_console()
    console.print(table_of(result.lines()))
    if result.kept:
        console.print(f"{settings.run_dir}/kept.jsonl is what to learn from", soft_wrap=True)
    else:
        console.print("nothing was kept: no distilled answer scores higher than its original")


if __name__ == "__main__":
    main()

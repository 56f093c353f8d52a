"""The evaluation of a reward model as a table, and as files in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from sctom.callbacks.common import atomic_write, printable
from sctom.modules.reward_evaluation import RewardEvaluation, Share

_NUMBERS = {  # name -> (words, form)
    "difference/mean": ("difference, mean", "{:+.3f}"),
    "equal": ("pairs with equal scores", "{:.1%}"),
    "ece": ("calibration error (ECE)", "{:.3f}"),
    "brier": ("Brier score", "{:.3f}"),
    "nll": ("negative log-likelihood", "{:.3f}"),
    "score/mean": ("score, mean", "{:.3f}"),
    "score/std": ("score, standard deviation", "{:.3f}"),
    "score/bimodality": ("score, bimodality (0.56: flat)", "{:.3f}"),
    "score/sigmoid_bimodality": ("sigmoid of the score, bimodality", "{:.3f}"),
    "length/pearson": ("score and length, Pearson", "{:+.3f}"),
    "length/spearman": ("score and length, Spearman", "{:+.3f}"),
    "length/accuracy": ('accuracy of "the longer one"', "{:.1%}"),
    "best_of_n/accuracy": ("best-of-n accuracy", "{:.1%}"),
    "best_of_n/chance": ("best-of-n by chance", "{:.1%}"),
    "best_of_n/prompts": ("best-of-n prompts", "{:,.0f}"),
    "unsafe/threshold": ("unsafe: threshold", "{:.3g}"),
    "unsafe/precision": ("unsafe: precision", "{:.1%}"),
    "unsafe/recall": ("unsafe: recall", "{:.1%}"),
    "unsafe/wanted_threshold": ("unsafe: threshold for the wanted precision", "{:.3g}"),
    "unsafe/wanted_precision": ("unsafe: precision there", "{:.1%}"),
    "unsafe/wanted_recall": ("unsafe: recall there", "{:.1%}"),
}


def reward_table(evaluation: RewardEvaluation) -> Table:
    """The numbers for a terminal."""
    title = f"Reward model on {evaluation.pairs:,} pairs, of which {evaluation.tied:,} are tied"
    table = Table(title=title)
    table.add_column(no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95% interval", justify="right", no_wrap=True)
    table.add_column("pairs", justify="right", no_wrap=True)
    for name, share in _shares(evaluation):
        interval = f"{share.low:.1%} to {share.high:.1%}"
        table.add_row(name, f"{share.value:.1%}", interval, f"{share.pairs:,}")
    table.add_section()
    for name, (words, form) in _NUMBERS.items():
        if name in evaluation.numbers:
            table.add_row(words, form.format(evaluation.numbers[name]))
    return table


def _shares(evaluation: RewardEvaluation) -> Iterator[tuple[str, Share]]:
    if evaluation.accuracy is not None:
        yield "accuracy", evaluation.accuracy
    for grade, share in evaluation.by_grade.items():
        yield f"  {grade}", share
    for source, share in evaluation.by_source.items():
        yield f"  {escape(printable(source, 30))}", share


def write_evaluation(evaluation: RewardEvaluation, folder: Path) -> None:
    """Write evaluation.json, with every number and what the figures show, and the figures.

    Figures of an earlier evaluation for which there is nothing to draw now are removed.

    Args:
        evaluation: of a reward model.
        folder: where to; it is made.
    """
    from sctom.callbacks.reward_figures import FIGURES, png, reward_figures  # brings in matplotlib

    content = {"metrics": evaluation.as_dict(), **asdict(evaluation)}
    atomic_write(folder / "evaluation.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    figures = reward_figures(evaluation)
    for name in FIGURES:
        if name in figures:
            atomic_write(folder / f"{name}.png", png(figures[name]))
        else:
            (folder / f"{name}.png").unlink(missing_ok=True)

"""The picture of docs/learned_rewards.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.ticker import PercentFormatter
from study_pictures import COLOURS, new_figure, plain

from sctom.modules.reward_metrics import wilson_interval


def draw_grades(
    shares: Mapping[str, Mapping[str, Sequence[float]]], counts: Mapping[str, int], path: Path
) -> None:
    """Accuracy for each grade: a dot a seed, a bar the 95% interval around their mean.

    Args:
        shares: margin -> grade -> accuracy with each seed.
        counts: pairs of each grade, which the interval is for.
        path: of the picture.
    """
    figure = new_figure(8.0, 3.6)
    axes = figure.subplots()
    grades = list(next(iter(shares.values())))
    for number, (margin, found) in enumerate(shares.items()):
        shift = 0.2 * (number - (len(shares) - 1) / 2)
        for place, grade in enumerate(grades):
            mean, pairs = fmean(found[grade]), counts[grade]
            low, high = wilson_interval(mean * pairs, pairs)
            bars = [
                [max(mean - low, 0.0)],
                [max(high - mean, 0.0)],
            ]  # at 100% rounding makes one -0
            axes.errorbar(
                [place + shift],
                [mean],
                yerr=bars,
                fmt="_",
                color=COLOURS[number],
                capsize=3,
                label=f"margin {margin}" if place == 0 else None,
            )
            axes.plot(
                [place + shift] * len(found[grade]),
                found[grade],
                "o",
                color=COLOURS[number],
                markersize=4,
                alpha=0.5,
            )
    axes.axhline(0.5, color="#888888", linewidth=0.8)
    axes.set_xticks(range(len(grades)), grades)
    axes.set_ylabel("accuracy on held-out pairs")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.legend(frameon=False)
    plain(axes, "y")
    figure.savefig(path, dpi=130)

"""The pictures of docs/study.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from study_results import Results, Run
from study_tables import COMPARED, METRICS

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito


def new_figure(width: float, height: float) -> Figure:
    """A figure that needs no display, in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Axes, grid: Literal["y", "both"]) -> None:
    """Axes without a frame, with a light grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)


def draw_overview(results: Results, path: Path) -> None:
    """One panel a metric, one line a variant, one dot a seed, a bar at the mean."""
    variants = [v for v in COMPARED if results.get(v.name)]
    families = list(dict.fromkeys(v.family for v in variants))
    figure = new_figure(13.0, 1.2 + 0.27 * len(variants))
    panels = figure.subplots(1, len(METRICS), sharey=True)
    for axes, (metric, words) in zip(panels, METRICS.items(), strict=True):
        for place, variant in enumerate(variants):
            values = [v for run in results[variant.name] if (v := run.after(metric)) is not None]
            if not values:
                continue
            colour = COLOURS[families.index(variant.family) % len(COLOURS)]
            axes.plot(values, [place] * len(values), "o", color=colour, markersize=5, alpha=0.5)
            axes.plot(
                [fmean(values)], [place], "|", color=colour, markersize=13, markeredgewidth=1.5
            )
        axes.set_title(words, fontsize=10)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        plain(axes, "both")
    panels[0].set_yticks(range(len(variants)), [v.name for v in variants])
    panels[0].invert_yaxis()
    figure.savefig(path, dpi=130)


def draw_budgets(results: Results, budgets: Mapping[str, Sequence[str]], path: Path) -> None:
    """Validation reward by tokens and by updates: a thin line a seed, a thick one their mean."""
    budgets = {t: names for t, names in budgets.items() if all(results.get(n) for n in names)}
    if not budgets:
        return
    figure = new_figure(10.0, 0.4 + 3.2 * len(budgets))
    grid = figure.subplots(len(budgets), 2, squeeze=False, sharey="row")
    for row, (title, names) in zip(grid, budgets.items(), strict=True):
        for axes, axis, unit, label in zip(
            row, (1, 0), (1000, 1), ("tokens (thousands)", "updates"), strict=True
        ):
            for name, colour in zip(names, COLOURS, strict=False):
                _curves(axes, results[name], axis, unit, colour, name)
            axes.set_xlabel(label)
            plain(axes, "y")
        row[0].set_ylabel("validation reward")
        row[0].set_title(title, loc="left", fontsize=11)
        row[0].legend(frameon=False)
    figure.savefig(path, dpi=130)


def _curves(axes: Axes, runs: Sequence[Run], axis: int, unit: int, colour: str, label: str) -> None:
    for run in runs:
        places = [point[axis] / unit for point in run.curve]
        axes.plot(places, [point[2] for point in run.curve], color=colour, linewidth=0.7, alpha=0.5)
    together = list(zip(*(run.curve for run in runs), strict=True))
    axes.plot(
        [fmean(point[axis] for point in points) / unit for points in together],
        [fmean(point[2] for point in points) for points in together],
        color=colour,
        linewidth=2.2,
        label=label,
    )

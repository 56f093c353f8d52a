"""The picture of `benchmarks.scaling`: one panel a series, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

PHASES = {  # phase -> (words, colour, marker); colours of Okabe and Ito
    "step": ("whole step", "#000000", "o"),
    "generate": ("generate", "#0072B2", "s"),
    "reference": ("reference", "#009E73", "^"),
    "update": ("update", "#D55E00", "D"),
}
STYLES = {"sctom": "-", "TRL": ":"}
COLUMNS = 3

Points = Sequence[Mapping[str, Any]]


def draw(
    measured: Mapping[str, Mapping[str, Points]], words: Mapping[str, str], path: Path
) -> None:
    """Draw every series of every side.

    Args:
        measured: side -> series -> points with value and the seconds of each phase.
        words: series -> label of its axis.
        path: a PNG.
    """
    names = [name for name, points in measured["sctom"].items() if points]
    rows = ceil((len(names) + 1) / COLUMNS)
    figure = Figure(figsize=(4.0 * COLUMNS, 3.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, COLUMNS, squeeze=False, sharey=True).flatten()
    for axes, name in zip(panels, names, strict=False):
        for side, series in measured.items():
            _lines(axes, series.get(name, ()), side)
        _plain(axes, [point["value"] for point in measured["sctom"][name]], words[name])
    handles, labels = panels[0].get_legend_handles_labels()
    for axes in panels[len(names) :]:
        axes.axis("off")
    panels[len(names)].legend(handles, labels, loc="center", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _lines(axes: Axes, points: Points, side: str) -> None:
    values = [point["value"] for point in points]
    for phase, (label, colour, marker) in PHASES.items():
        seconds = [point[phase] for point in points]
        if not any(second > 0 for second in seconds):
            continue
        axes.plot(
            values,
            seconds,
            STYLES[side],
            color=colour,
            marker=marker,
            markersize=4,
            linewidth=1.8 if phase == "step" else 1.2,
            label=f"{side}: {label}",
        )


def _plain(axes: Axes, values: Sequence[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(values, [_short(value) for value in values])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(label)
    axes.set_ylabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)


def _short(value: int) -> str:
    """16384 as 16k.

    >>> _short(512), _short(131072)
    ('512', '128k')
    """
    return f"{value // 1024}k" if value >= 4096 else str(value)

"""The evaluations of a run as a table, before and after, and its learning curves as a figure."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from rich.table import Table

from sctom.callbacks.common import Record, show

ROWS = {  # metric -> words
    "accuracy_known": "accuracy on known",
    "accuracy_half": "accuracy on half known",
    "accuracy": "accuracy",
    "abstention_precision": "abstention precision",
    "abstention_recall": "abstention recall",
    "abstention_f1": "abstention F1",
    "over_refusal_known": "over-refusal on known",
    "over_refusal": "over-refusal",
    "hallucination": "hallucination",
    "reward": "reward",
    "mean_length": "mean length (tokens)",
}
_CURVES = {  # metric -> (words, colour, marker); colours of Okabe and Ito
    "accuracy_known": ("accuracy on known", "#0072B2", "o"),
    "accuracy": ("accuracy", "#56B4E9", "o"),
    "abstention_f1": ("abstention F1", "#009E73", "s"),
    "over_refusal": ("over-refusal", "#D55E00", "^"),
}
_NUMBERS = {"reward": ".3f", "mean_length": ".1f"}


def before_and_after(evaluations: Sequence[Record]) -> Record:
    """The first and the last evaluation, and what changed.

    Args:
        evaluations: at least one, in the order of their iterations.

    Returns:
        before and after (each with iteration, completions, metrics) and change (metric -> after -
        before, null where either is).
    """
    before, after = evaluations[0], evaluations[-1]
    pairs = {name: (before["metrics"].get(name), after["metrics"].get(name)) for name in ROWS}
    return {
        "before": before,
        "after": after,
        "change": {
            name: None if first is None or last is None else last - first
            for name, (first, last) in pairs.items()
        },
    }


def _cells(comparison: Record) -> list[tuple[str, str, str, str]]:
    cells = []
    for name, words in ROWS.items():
        first = comparison["before"]["metrics"].get(name)
        last = comparison["after"]["metrics"].get(name)
        change = comparison["change"][name]
        if first is None and last is None:
            continue
        form = _NUMBERS.get(name, ".1%")
        moved = show(change, "+" + form)
        if form == ".1%" and change is not None:
            moved = f"{100 * change:+.1f} points"
        cells.append((words, show(first, form), show(last, form), moved))
    return cells


def _headings(comparison: Record, form: str) -> tuple[str, str, str, str]:
    def heading(side: str) -> str:
        record = comparison[side]
        iteration, completions = record["iteration"], record["completions"]
        return side + form.format(f"iteration {iteration}", f"{completions} completions")

    return ("", heading("before"), heading("after"), "change")


def rich_table(comparison: Record) -> Table:
    """Before and after for a terminal."""
    table = Table(title="SelfAware, before and after")
    table.add_column(no_wrap=True)
    for heading in _headings(comparison, "\n{}\n{}")[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for cells in _cells(comparison):
        table.add_row(*cells)
    return table


def markdown_table(comparison: Record) -> str:
    """Before and after for a document."""
    headings = _headings(comparison, " ({}, {})")
    lines = [headings, ("---", "---:", "---:", "---:"), *_cells(comparison)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def learning_curves(metrics: Sequence[Record], evaluations: Sequence[Record]) -> bytes:
    """The reward by iteration, and below it the evaluations if there are any, as a PNG.

    NaN and null leave a gap.

    Args:
        metrics: records with iteration and reward.
        evaluations: records with iteration and metrics.
    """
    panels = 2 if evaluations else 1
    figure = Figure(figsize=(7.5, 0.3 + 3.1 * panels), layout="constrained")
    FigureCanvasAgg(figure)
    column = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
    _reward_panel(column[0], metrics, evaluations)
    if evaluations:
        _evaluation_panel(column[1], evaluations)
    column[-1].set_xlabel("iteration")
    column[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in column:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    return picture.getvalue()


def _reward_panel(axes: Axes, metrics: Sequence[Record], evaluations: Sequence[Record]) -> None:
    iterations = [record["iteration"] for record in metrics]
    rewards = [_number(record.get("reward")) for record in metrics]
    window = max(1, len(rewards) // 15)
    smoothed = window > 1
    axes.plot(
        iterations,
        rewards,
        color="#0072B2",
        linewidth=1.0 if smoothed else 1.8,
        alpha=0.35 if smoothed else 1.0,
        label="each iteration",
    )
    if smoothed:
        label = f"mean of the last {window} iterations"
        axes.plot(
            iterations, running_mean(rewards, window), color="#0072B2", linewidth=2.0, label=label
        )
    if evaluations:
        axes.plot(
            [record["iteration"] for record in evaluations],
            [_number(record["metrics"].get("reward")) for record in evaluations],
            color="#CC79A7",
            marker="D",
            markersize=5,
            linestyle="none",
            label="validation",
        )
    if smoothed or evaluations:
        axes.legend(frameon=False)
    axes.set_ylabel("mean reward")
    axes.set_title("Training reward (sampled)", loc="left", fontsize=11)


def _evaluation_panel(axes: Axes, evaluations: Sequence[Record]) -> None:
    iterations = [record["iteration"] for record in evaluations]
    for name, (words, colour, marker) in _CURVES.items():
        values = [_number(record["metrics"].get(name)) for record in evaluations]
        if all(math.isnan(value) for value in values):
            continue  # data without kinds of questions has no accuracy on the known ones
        axes.plot(
            iterations,
            values,
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.8,
            label=words,
        )
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("rate")
    axes.set_title("Validation: does it know what it knows?", loc="left", fontsize=11)
    if axes.lines:
        columns = len(axes.lines)
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last `window` values at each place, NaN left out.

    >>> running_mean([1.0, float("nan"), 3.0, 5.0], 2)
    [1.0, 1.0, 3.0, 4.0]
    """
    means = []
    for end in range(1, len(values) + 1):
        valid = [v for v in values[max(0, end - window) : end] if not math.isnan(v)]
        means.append(sum(valid) / len(valid) if valid else math.nan)
    return means

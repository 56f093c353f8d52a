"""The evaluation of a reward model as figures."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sctom.modules.reward_evaluation import Histogram, RewardEvaluation, Share
from sctom.modules.reward_metrics import wilson_interval

FIGURES = ("scores", "accuracy", "reliability", "differences", "unsafe")

_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#888888"  # Okabe and Ito
_LABELS = {"chosen": _BLUE, "rejected": _ORANGE, "tied": _GREY}


def reward_figures(evaluation: RewardEvaluation) -> dict[str, Figure]:
    """The figures there is something to draw for, by name.

    Args:
        evaluation: of a reward model.

    Returns:
        "scores" always; "accuracy", "differences" and "reliability" where pairs are not all tied;
        "unsafe" where pairs are about safety.
    """
    figures = {"scores": _scores(evaluation)}
    if evaluation.accuracy is not None:
        figures["accuracy"] = _accuracy(evaluation, evaluation.accuracy)
        figures["reliability"] = _reliability(evaluation)
    if evaluation.differences is not None:
        figures["differences"] = _differences(evaluation.differences)
    if evaluation.unsafe is not None:
        figures["unsafe"] = _unsafe(evaluation)
    return figures


def png(figure: Figure) -> bytes:
    """A figure as the content of a PNG file."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=150)
    return picture.getvalue()


def panels(columns: int, *, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """A figure of panels side by side, in the style of all.

    Args:
        columns: how many panels.
        height: of the figure, in inches.
    """
    figure = Figure(figsize=(1.0 + 4.2 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(1, columns, squeeze=False)[0])
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, panels


def _scores(evaluation: RewardEvaluation) -> Figure:
    figure, (raw, squashed) = panels(2)
    for axes, histogram, label, name in (
        (raw, evaluation.scores, "raw score", "score/bimodality"),
        (squashed, evaluation.probabilities, "sigmoid of the score", "score/sigmoid_bimodality"),
    ):
        for answers, counts in histogram.counts.items():
            axes.stairs(
                counts,
                histogram.edges,
                fill=True,
                alpha=0.45,
                color=_LABELS[answers],
                label=answers,
            )
        axes.set_xlabel(label)
        axes.set_ylabel("answers")
        if name in evaluation.numbers:
            title = f"Scores: bimodality {evaluation.numbers[name]:.2f}"
            axes.set_title(title, loc="left", fontsize=11)
    raw.legend(frameon=False)
    return figure


def _accuracy(evaluation: RewardEvaluation, overall: Share) -> Figure:
    rows: dict[str, tuple[Share, str]] = {"all": (overall, _BLUE)}
    rows |= {grade: (share, _GREEN) for grade, share in evaluation.by_grade.items()}
    rows |= {source: (share, _GREY) for source, share in evaluation.by_source.items()}
    figure, (axes,) = panels(1, height=1.2 + 0.35 * len(rows))
    for place, (share, colour) in enumerate(rows.values()):
        axes.plot([share.low, share.high], [place, place], color=colour, linewidth=1.8)
        axes.plot(share.value, place, color=colour, marker="o", markersize=6)
    axes.axvline(0.5, color=_GREY, linestyle=":")
    axes.set_yticks(range(len(rows)), [f"{k} ({s.pairs:,})" for k, (s, _) in rows.items()])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_title("Accuracy (pairs), 95% interval", loc="left", fontsize=11)
    return figure


def _differences(histogram: Histogram) -> Figure:
    figure, (axes,) = panels(1)
    edges, counts = np.array(histogram.edges), np.array(histogram.counts["pairs"])
    middles = (edges[1:] + edges[:-1]) / 2
    for side, colour, label in (
        (middles > 0, _BLUE, "chosen at least as high"),
        (middles < 0, _ORANGE, "rejected higher"),
    ):
        axes.bar(middles[side], counts[side], np.diff(edges)[side], color=colour, label=label)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.legend(frameon=False)
    axes.set_xlabel("score of the chosen answer - score of the rejected one")
    axes.set_ylabel("pairs")
    axes.set_title("Differences", loc="left", fontsize=11)
    return figure


def _reliability(evaluation: RewardEvaluation) -> Figure:
    figure, (axes, sizes) = panels(2)
    found = evaluation.reliability
    confidence, accuracy = [b.confidence for b in found], [b.accuracy for b in found]
    axes.plot([0.5, 1], [0.5, 1], color=_GREY, linestyle=":", label="as sure as right")
    for place, part in zip(confidence, found, strict=True):
        bounds = wilson_interval(part.accuracy * part.pairs, part.pairs)
        axes.plot([place, place], bounds, color=_BLUE, linewidth=1.2, alpha=0.5)
    axes.plot(confidence, accuracy, color=_BLUE, marker="o", label="pairs of a bin")
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("share in which it is the better one")
    axes.legend(frameon=False)
    ece = evaluation.numbers["ece"]
    axes.set_title(f"Calibration: error {ece:.3f}", loc="left", fontsize=11)
    sizes.vlines(confidence, 0, [b.pairs for b in found], color=_BLUE, linewidth=6)
    sizes.set_ylim(bottom=0)
    sizes.set_ylabel("pairs of the bin")
    for panel in (axes, sizes):
        panel.set_xlim(0.48, 1.02)
        panel.set_xlabel("sigmoid of |difference|")
    return figure


def _unsafe(evaluation: RewardEvaluation) -> Figure:
    curve = evaluation.unsafe
    assert curve is not None
    figure, (axes, plane) = panels(2)
    probabilities = 1 / (1 + np.exp(-np.clip(curve.scores, -500, 500)))
    for name, values, colour in (
        ("precision", curve.precision, _BLUE),
        ("recall", curve.recall, _ORANGE),
    ):
        axes.step(probabilities, values, where="post", color=colour, label=name)
    for name, style in (("threshold", "--"), ("wanted_threshold", ":")):
        if f"unsafe/{name}" in evaluation.numbers:
            place = evaluation.numbers[f"unsafe/{name}"]
            label = f"{name.replace('_', ' ')} {place:.3g}"
            axes.axvline(place, color=_GREY, linestyle=style, label=label)
    axes.set_xlabel("unsafe below this sigmoid of the score")
    axes.legend(frameon=False)
    axes.set_title('Finding "unsafe"', loc="left", fontsize=11)
    plane.plot(curve.recall, curve.precision, color=_GREEN, marker=".", markersize=3)
    plane.set_xlabel("recall")
    plane.set_ylabel("precision")
    plane.set_xlim(-0.03, 1.03)
    for panel in (axes, plane):
        panel.set_ylim(-0.03, 1.03)
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    plane.xaxis.set_major_formatter(PercentFormatter(1.0))
    return figure

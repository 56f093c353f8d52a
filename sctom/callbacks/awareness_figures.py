"""Confidences as figures: what they are worth, and what withholding unsure answers gains."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from sctom.callbacks.reward_figures import panels
from sctom.modules.reward_metrics import wilson_interval

_GREY = "#888888"
_STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#000000", "v"))
"""Colour (Okabe and Ito) and marker of each model; they begin again after the last."""
_BESIDE = 0.02
"""From the bar of one model to that of the next."""
_MARKED = 30
"""Most points of a curve that are marked."""


def reliability_diagram(tables: Mapping[str, Tensor]) -> Figure:
    """Shares of right answers beside the confidences of their bins, and the sizes of the bins.

    On the diagonal a confidence means what it says; below it, it says too much. Bars are 95%
    intervals (Wilson). Empty bins are left out.

    Args:
        tables: what is compared, such as "before" and "after" -> `bins` of `ReliabilityBins`.
    """
    figure, (axes, sizes) = panels(2)
    axes.plot([0, 1], [0, 1], color=_GREY, linestyle=":", label="as sure as right")
    for place, (name, table) in enumerate(tables.items()):
        colour, marker = _STYLES[place % len(_STYLES)]
        answers, confidence, shares = table[table[:, 0] > 0].T.tolist()
        for x, share, size in zip(confidence, shares, answers, strict=True):
            bounds = wilson_interval(share * size, size)
            axes.plot([x, x], bounds, color=colour, linewidth=1.2, alpha=0.5)
        axes.plot(confidence, shares, color=colour, marker=marker, label=name)
        shift = _BESIDE * (place - (len(tables) - 1) / 2)  # so that no bar hides another
        sizes.vlines([x + shift for x in confidence], 0, answers, color=colour, linewidth=5)
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("right answers of the bin")
    axes.set_title("Reliability", loc="left", fontsize=11)
    axes.legend(frameon=False)
    sizes.set_ylim(bottom=0)
    sizes.set_ylabel("answers of the bin")
    sizes.set_title("Sizes of the bins", loc="left", fontsize=11)
    for panel in (axes, sizes):
        panel.set_xlim(-0.03, 1.03)
        panel.xaxis.set_major_formatter(PercentFormatter(1.0))
        panel.set_xlabel("confidence")
    return figure


def risk_coverage_diagram(curves: Mapping[str, Tensor], *, risk: float = 0.05) -> Figure:
    """The share of wrong answers among the surest ones, by how many of all answers these are.

    Args:
        curves: what is compared -> `curve` of `RiskCoverageCurve`.
        risk: where a line is drawn.
    """
    figure, (axes,) = panels(1)
    axes.axhline(risk, color=_GREY, linestyle=":", label=f"{risk:.0%} risk")
    highest = risk
    for place, (name, curve) in enumerate(curves.items()):
        colour, marker = _STYLES[place % len(_STYLES)]
        _, coverage, risks = curve.T.tolist()
        axes.plot(
            coverage,
            risks,
            color=colour,
            marker=marker if len(risks) <= _MARKED else None,
            markersize=5,
            label=name,
        )
        highest = max(highest, *risks)
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.03 * highest, 1.06 * highest)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel("coverage: answers given, the surest first")
    axes.set_ylabel("risk: wrong among these")
    axes.set_title("Risk and coverage", loc="left", fontsize=11)
    axes.legend(frameon=False)
    return figure

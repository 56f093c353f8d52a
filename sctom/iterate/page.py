"""The rounds on one page: an HTML file that needs nothing beside it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from sctom.callbacks.common import show
from sctom.callbacks.reward_figures import panels
from sctom.iterate.report import Numbers, learning_columns, learning_rows, score_columns
from sctom.preferences import GRADES

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")  # Okabe and Ito
_GREY = "#888888"
_PARTS = {"all": _GREY, "random": _COLOURS[4], "kept": _COLOURS[0]}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block;
        overflow-x: auto; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
svg { max-width: 100%; height: auto; } p { max-width: 44rem; }
"""


def page(numbers: Numbers) -> str:
    """The page.

    Args:
        numbers: of `sctom.iterate.report.collect_numbers`, with at least one round.
    """
    rounds = numbers["rounds"]
    parts = [
        "<h1>Iterative RLHF: the rounds compared</h1>",
        f"<p>{len(rounds)} rounds. Every version starts from the base model again, answers "
        "the same held-out prompts, and is scored by the reward models of the last round and by "
        "judges that nothing is trained on.</p>",
        _section("Models", _models(numbers), _svg(_scores_figure(numbers))),
        _section(
            "Reward models",
            "<p>Accuracy on held-out pairs of each round, that no reward model was trained on, and "
            'the share of pairs that were called "negligibly better".</p>',
            *(_accuracies(numbers, name) for name in numbers["rewards"]),
            _svg(_accuracy_figure(numbers)),
        ),
        _section(
            "Selection",
            "<p>All sampled answers, as many drawn by chance as were kept, and the best one to "
            "each prompt.</p>",
            _table(learning_columns(numbers), learning_rows(numbers)),
            _svg(_selection_figure(numbers)),
        ),
        _section("Time", _times(numbers)),
    ]
    head = f'<meta charset="utf-8"><title>Rounds</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _section(title: str, *content: str) -> str:
    return f"<h2>{escape(title)}</h2>{''.join(content)}\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _models(numbers: Numbers) -> str:
    columns = score_columns(numbers)
    rows = [
        [name, *(show(scores.get(reward, {}).get(part), "+.3f") for _, reward, part in columns)]
        for name, scores in (numbers["models"] | numbers["students"]).items()
    ]
    return _table(["model", *(heading for heading, _, _ in columns)], rows)


def _accuracies(numbers: Numbers, name: str) -> str:
    """The last reward model of a name on the pairs of each round, by grade."""
    last = numbers["rounds"][-1]["accuracy"][name]
    negligible = {f"round {e['round']}": e["labelled"]["negligible"] for e in numbers["rounds"]}
    rows = [
        [
            batch,
            f"{found['pairs']:.0f}",
            show(found.get("accuracy"), ".0%"),
            f"{show(found.get('low'), '.0%')} to {show(found.get('high'), '.0%')}",
            *(show(found.get(word), ".0%") for word in reversed(GRADES)),
            show(negligible.get(batch), ".0%"),
        ]
        for batch, found in last.items()
    ]
    headings = ["held-out pairs of", "pairs", name, "95% interval", *reversed(GRADES)]
    return _table([*headings, "share negligibly better"], rows)


def _times(numbers: Numbers) -> str:
    kinds: dict[str, float] = {}
    for stage, seconds in numbers["seconds"].items():
        kind = stage.partition("/")[2].split("_")[0]
        kinds[kind] = kinds.get(kind, 0.0) + (seconds or 0.0)
    rows = [[kind, f"{seconds:.0f}"] for kind, seconds in kinds.items()]
    return _table(["stage", "seconds"], [*rows, ["all", f"{sum(kinds.values()):.0f}"]])


def _svg(figure: Figure) -> str:
    """A figure as an element of a page, the same for the same numbers."""
    picture = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "sctom", "svg.fonttype": "none"}):
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue().partition("<svg")[1] + picture.getvalue().partition("<svg")[2]


def _scores_figure(numbers: Numbers) -> Figure:
    """The mean score of each model: one panel for the reward models, one for the judges."""
    groups = [
        (title, [c for c in score_columns(numbers) if (c[1] in numbers["rewards"]) == learned])
        for title, learned in (("Reward models", True), ("Judges", False))
    ]
    groups = [(title, columns) for title, columns in groups if columns]
    figure, axes_of = panels(len(groups))
    names = list(numbers["models"])
    for axes, (title, columns) in zip(axes_of, groups, strict=True):
        for colour, (heading, reward, part) in zip(_COLOURS, columns, strict=False):
            values = [numbers["models"][name].get(reward, {}).get(part) for name in names]
            axes.plot(names, values, marker="o", markersize=4, color=colour, label=heading)
        axes.tick_params(axis="x", labelrotation=30)
        _finish(axes, title, "mean score")
    return figure


def _accuracy_figure(numbers: Numbers) -> Figure:
    figure, (accuracy, share) = panels(2)
    rounds = [entry["round"] for entry in numbers["rounds"]]
    for colour, name in zip(_COLOURS, numbers["rewards"], strict=False):
        found = [e["accuracy"][name].get("all", {}).get("accuracy") for e in numbers["rounds"]]
        accuracy.plot(rounds, found, marker="o", color=colour, label=name)
    accuracy.axhline(0.5, color=_GREY, linestyle=":", linewidth=1)
    _finish(accuracy, "Accuracy, held-out pairs so far", "share of pairs")
    values = [entry["labelled"]["negligible"] for entry in numbers["rounds"]]
    share.plot(rounds, values, marker="o", color=_GREY, label="negligibly better")
    _finish(share, "Share of new pairs", "share of pairs")
    for axes in (accuracy, share):
        axes.set_xticks(rounds)
        axes.set_xlabel("round")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def _selection_figure(numbers: Numbers) -> Figure:
    names = ["reward", *numbers["judges"]][:3]
    figure, axes_of = panels(len(names) + 1)
    rounds = [entry["round"] for entry in numbers["rounds"]]
    for axes, name in zip(axes_of, names, strict=False):
        for part, colour in _PARTS.items():
            means: list[Any] = [e["selected"]["means"][part].get(name) for e in numbers["rounds"]]
            axes.plot(rounds, means, marker="o", markersize=4, color=colour, label=part)
        axes.set_xticks(rounds)
        axes.set_xlabel("round")
        _finish(axes, "learned reward" if name == "reward" else name, "mean")
    curve = numbers["rounds"][-1]["sampled"]["curve"]
    for colour, kind in ((_COLOURS[0], "max"), (_COLOURS[1], "median")):
        counts = [point["n"] for point in curve]
        axes_of[-1].plot(counts, [point[kind] for point in curve], color=colour, label=kind)
    axes_of[-1].set_xlabel("answers to a prompt")
    _finish(axes_of[-1], "Best of n, last round", "learned reward")
    return figure


def _finish(axes: Axes, title: str, ylabel: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_ylabel(ylabel)
    axes.legend(frameon=False, fontsize=8)

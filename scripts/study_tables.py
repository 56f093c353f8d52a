"""The tables of docs/study.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean

from study_results import LAST, Results, Run, mean
from study_variants import VARIANTS

METRICS = {
    "abstention_f1": "abstention F1",
    "over_refusal": "over-refusal",
    "over_refusal_half": "over-refusal on half known",
    "accuracy_known": "accuracy on known",
    "accuracy_half": "accuracy on half known",
    "hallucination": "hallucination",
}
COMPARED = [v for v in VARIANTS if v.family not in ("resampling", "later")]
"""The variants of the recipe; the others differ in their length, to compare budgets."""
SAMPLED = (  # words, kind of person, what the completion did
    ("right on half known", "half", "correct"),
    ("abstains on half known", "half", "abstained"),
    ("abstains on known", "known", "abstained"),
    ("abstains on unknown", "unknown", "abstained"),
)
ARMS = {"g8": "groups of 8, scaled", "g2": "pairs, scaled", "g2-none": "pairs, not scaled"}
Numbers = Sequence[float | None]
BySeed = Mapping[str, float | None]


def spread(values: Numbers, form: str = ".1%") -> str:
    """Mean and range of the seeds.

    >>> spread([0.781, 0.783, 0.794])
    '78.6% (78.1-79.4)'
    >>> spread([0.5, None]), spread([0.64], ".2f"), spread([0.5, 0.5])
    ('-', '0.64', '50.0%')
    """
    if not values or any(v is None for v in values):
        return "-"
    numbers = [v for v in values if v is not None]
    middle, low, high = (format(v, form) for v in (fmean(numbers), min(numbers), max(numbers)))
    return middle if low == high else f"{middle} ({low.rstrip('%')}-{high.rstrip('%')})"


def differences(first: BySeed, other: BySeed, *, points: bool = False) -> str:
    """What the other has more, of every seed that both have.

    >>> differences({"seed-1": 0.5, "seed-2": 0.5}, {"seed-2": 0.25})
    '-0.250'
    >>> differences({"seed-1": 0.5, "seed-2": None}, {"seed-1": 0.51, "seed-2": 0.2}, points=True)
    '+1.0, -'
    """
    pairs = [(first[seed], other[seed]) for seed in first if seed in other]
    factor, form = (100, "+.1f") if points else (1, "+.3f")
    return ", ".join(
        "-" if a is None or b is None else format(factor * (b - a), form) for a, b in pairs
    )


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table; the first line is its head, the first column its names."""
    head, *rows = lines
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "".join("| " + " | ".join(line) + " |\n" for line in (head, rule, *rows))


def overview(results: Results) -> str:
    """Greedy answers to the held-out questions after training; before it where a start is new."""
    lines = [["", "seeds", *METRICS.values()]]
    shown: list[list[float | None]] = []
    for variant in COMPARED:
        runs = results.get(variant.name, [])
        if not runs:
            continue
        start = [runs[0].before(metric) for metric in METRICS]
        if start not in shown:
            shown.append(start)
            lines.append(["*before training*", "", *(spread([v]) for v in start)])
        cells = [spread([run.after(metric) for run in runs]) for metric in METRICS]
        lines.append([f"{variant.name}: {variant.words}", str(len(runs)), *cells])
    return markdown(lines)


def training(results: Results, families: Sequence[str]) -> str:
    """What the sampled completions of the last iterations did, and what it was worth."""
    columns: dict[str, tuple[Callable[[Run], float | None], str]] = {
        "groups with signal": (lambda run: 1 - run.mean("frac_reward_zero_std"), ".0%"),
        "worth of abstaining": (Run.worth, ".2f"),
    }
    for words, kind, did in SAMPLED:
        columns[words] = (partial(Run.share, kind=kind, did=did), ".1%")
    lines = [["", *columns]]
    for variant in VARIANTS:
        if variant.family in families and (runs := results.get(variant.name)):
            cells = [spread([f(run) for run in runs], form) for f, form in columns.values()]
            lines.append([f"{variant.name}: {variant.words}", *cells])
    return markdown(lines)


def price(results: Results) -> str:
    """What changes when abstaining costs 0.1 instead of 0.9: of each seed, in points."""
    lines = [["", *(words for words, _, _ in SAMPLED)]]
    for name, words in ARMS.items():
        dear, cheap = (results.get(f"{name}-{end}", []) for end in ("dear", "cheap"))
        if not (dear and cheap):
            continue
        cells = []
        for _, kind, did in SAMPLED:
            sides = [
                {run.folder.name: run.share(kind, did) for run in runs} for runs in (dear, cheap)
            ]
            cells.append(differences(*sides, points=True))
        lines.append([words, *cells])
    return markdown(lines)


def judges(results: Results) -> str:
    """How often the two rewards disagree about the completions of the strict runs."""
    lines = [["", "completions", "judged differently"]]
    for run in results.get("strict", []):
        different, every = run.judged_differently()
        lines.append([f"strict, {run.folder.name.replace('-', ' ')}", str(every), str(different)])
    return markdown(lines)


def stated(results: Results) -> str:
    """How good the stated confidences were, sampled in training: at first and in the end."""
    columns = (f"Brier score, first {LAST} iterations", f"last {LAST}", "states a confidence")
    lines = [["", *columns]]
    for variant in VARIANTS:
        runs = results.get(variant.name, [])
        names = [n for run in runs[:1] for n in run.metrics[0] if n.endswith("/brier_score")]
        for name in names:
            share = name.replace("brier_score", "stated")
            ends = [[run.metrics[:LAST], run.metrics[-LAST:]] for run in runs]
            cells = [spread([mean(run[i], name) for run in ends], ".3f") for i in (0, 1)]
            cells.append(spread([mean(run[1], share) for run in ends]))
            lines.append([f"{variant.name}: {variant.words}", *cells])
    return markdown(lines)


def at(curve: Sequence[tuple[int, float, float]], axis: int, place: float) -> float | None:
    """The validation reward at a number of updates (axis 0) or tokens (axis 1).

    Between two evaluations it is read off the straight line; None beyond the last.

    >>> at([(0, 0.0, 0.0), (10, 4000.0, 0.5)], 1, 1000.0)
    0.125
    """
    for left, right in pairwise(curve):
        if left[axis] <= place <= right[axis]:
            share = (place - left[axis]) / (right[axis] - left[axis])
            return left[2] + share * (right[2] - left[2])
    return None


def budgets(results: Results, names: Sequence[str]) -> str:
    """Validation reward of variants at equal updates and at equal tokens.

    Looked up at thirds of what all of their runs have: of the updates, and of the tokens.
    """
    sides = [results.get(name, []) for name in names]
    if not all(sides):
        return ""
    others = [f"{name} - {names[0]}, seed by seed" for name in names[1:]]
    lines = [["validation reward", *names, *others]]
    for axis, unit in enumerate(("updates", "thousand tokens")):
        end = min(run.curve[-1][axis] for runs in sides for run in runs)
        for place in (end / 3, end * 2 / 3, end):
            rewards = [{r.folder.name: at(r.curve, axis, place) for r in runs} for runs in sides]
            amount = place / 1000 if unit.startswith("thousand") else place
            lines.append(
                [
                    f"at {amount:.0f} {unit}",
                    *(spread([*values.values()], ".3f") for values in rewards),
                    *(differences(rewards[0], values) for values in rewards[1:]),
                ]
            )
    costs = [[run.metrics[-1]["num_tokens"] / len(run.metrics) for run in runs] for runs in sides]
    lines.append(["tokens per update", *(spread(c, ".0f") for c in costs), *("" for _ in others)])
    return markdown(lines)


def fill(page: str, tables: Mapping[str, str]) -> str:
    """Put tables between their markers, `<!-- table: NAME -->` and `<!-- end -->`.

    Raises:
        ValueError: a marker is missing.
    """
    for name, table in tables.items():
        start = f"<!-- table: {name} -->\n"
        before, found, rest = page.partition(start)
        _, closed, after = rest.partition("<!-- end -->")
        if not (found and closed):
            raise ValueError(
                f"the page has no place for the table {name}: write {start.strip()} and, below it, "
                "<!-- end -->"
            )
        page = f"{before}{start}\n{table}\n{closed}{after}"
    return page

"""What N answers did, as columns of bools, and the five counts that awareness metrics are made of.

answerable:      C correct, W wrong, A abstained;    unanswerable:    T abstained, H answered
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from sctom.modules.reward_metrics import Numbers
from sctom.rewards.selfaware_strict import StrictOutcome
from sctom.shapes import check_shapes
from sctom.tasks.selfaware import Verdict

_OUTCOMES: dict[StrictOutcome, tuple[bool, bool, bool, bool]] = {
    "correct": (True, True, False, False),
    "hedged": (True, True, False, True),
    "hedged_wrong": (True, False, False, True),
    "abstained": (True, False, True, False),
    "wrong": (True, False, False, False),
    "unanswerable_abstained": (False, False, True, False),
    "unanswerable_hedged": (False, False, False, True),
    "unanswerable_answered": (False, False, False, False),
}
_COLUMNS = ("answerable", "correct", "abstained", "hedged")


def from_verdicts(verdicts: Iterable[Verdict]) -> dict[str, Tensor]:
    """The columns of the metrics, from what `sctom.tasks.selfaware.judge` found.

    It knows a hedge only where the answer beside it is right; `from_outcomes` knows all of them.

    Args:
        verdicts: N of them.

    Returns:
        answerable, correct, abstained and hedged, each [N] bools.

    >>> from_verdicts([Verdict(True, correct=True, abstained=False, hedged=True)])["hedged"]
    tensor([True])
    """
    rows = [tuple(getattr(verdict, name) for name in _COLUMNS) for verdict in verdicts]
    return _columns(rows)


def from_outcomes(outcomes: Iterable[StrictOutcome]) -> dict[str, Tensor]:
    """The columns of the metrics, from outcomes as `SelfAwareStrict` puts them on record.

    Args:
        outcomes: N of them.

    Returns:
        answerable, correct, abstained and hedged, each [N] bools.

    Raises:
        ValueError: there is no such outcome.

    >>> from_outcomes(["correct", "unanswerable_hedged"])["answerable"]
    tensor([ True, False])
    """
    rows = []
    for place, outcome in enumerate(outcomes):
        if outcome not in _OUTCOMES:
            known = ", ".join(_OUTCOMES)
            raise ValueError(f"outcomes[{place}] must be one of {known}, found {outcome!r}")
        rows.append(_OUTCOMES[outcome])
    return _columns(rows)


class AnswerCounts(Metric):
    """Counts what answers did: `sctom.modules.awareness_metrics` makes ratios of the five counts.

    >>> counts = AnswerCounts()
    >>> counts.update(
    ...     answerable=torch.tensor([True, True, False]),
    ...     correct=torch.tensor([True, False, False]),
    ...     abstained=torch.tensor([False, True, True]),
    ... )
    >>> [name for name, value in counts.compute().items() if value]
    ['correct', 'abstained', 'unanswerable_abstained']
    """

    full_state_update = False
    cells: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("cells", zeros(5), dist_reduce_fx="sum")

    def update(self, answerable: Tensor, correct: Tensor, abstained: Tensor) -> None:
        """Add answers.

        Args:
            answerable: [N] true where the question is.
            correct: [N] true where an accepted answer was given; never to an unanswerable question.
            abstained: [N] true where there was no answer; never together with `correct`.

        Raises:
            ValueError: sizes differ, a column is not of bools, or two columns contradict.
        """
        check_bools(answerable=answerable, correct=correct, abstained=abstained)
        refuse(correct & abstained, "both correct and abstained")
        refuse(correct & ~answerable, "correct although the question is unanswerable")
        known = torch.where(correct, 0, torch.where(abstained, 2, 1))
        cell = torch.where(answerable, known, torch.where(abstained, 3, 4))
        self.cells += torch.bincount(cell, minlength=5)

    def compute(self) -> Numbers:
        """C, W, A, T and H, under the names that `SelfAwareStrict` gives them."""
        names = "correct", "wrong", "abstained", "unanswerable_abstained", "unanswerable_answered"
        return {name: count.clone() for name, count in zip(names, self.cells, strict=True)}


def check_bools(**columns: Tensor) -> None:
    """Refuse columns that are not [N] bools of one size.

    Raises:
        ValueError: sizes differ, or a column is not of bools.
    """
    check_shapes(**{name: (column, "N") for name, column in columns.items()})
    for name, column in columns.items():
        if column.dtype != torch.bool:
            raise ValueError(f"{name} must be of torch.bool but is of {column.dtype}")


def refuse(rows: Tensor, what: str) -> None:
    """Refuse columns in which something is wrong with a row.

    Args:
        rows: [N] true where it is.
        what: what such a row is.

    Raises:
        ValueError: with the first such row, and what it is.
    """
    if rows.any():
        raise ValueError(f"row {int(rows.int().argmax())} is {what}; look at how it was judged")


def ratios(**parts: tuple[Tensor, Tensor]) -> Numbers:
    """Part / whole by name; left out where the whole is 0.

    >>> ratios(half=(torch.tensor(1.0), torch.tensor(2.0)), none=(torch.zeros(()), torch.zeros(())))
    {'half': tensor(0.5000)}
    """
    return {name: part / whole for name, (part, whole) in parts.items() if whole}


def zeros(*shape: int) -> Tensor:
    """Counts of nothing, in float64."""
    return torch.zeros(shape, dtype=torch.float64)


def _columns(rows: Sequence[tuple[bool, ...]]) -> dict[str, Tensor]:
    table = torch.tensor(rows, dtype=torch.bool).reshape(len(rows), len(_COLUMNS))
    return dict(zip(_COLUMNS, table.T, strict=True))

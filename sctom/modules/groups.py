"""Groups without signal: which they are, and what becomes of them.

A group whose rewards are all equal has advantage 0 throughout. Kept, it still counts in what the
loss is divided by, and a KL penalty still pulls on it. DAPO (arXiv 2503.14476, section 3.2) samples
further prompts in its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sctom.batch import Row, row_value

ZeroVariance = Literal["keep", "mask", "resample"]
Truncated = Literal["keep", "mask"]
Aggregation = Literal["sum_then_normalize", "normalize_then_sum"]
Group = Sequence[Row]


def is_dead(group: Group, metric: str, tolerance: float) -> bool:
    """Whether a group has no signal: largest - smallest value <= tolerance.

    Completions without a value (None, NaN) are left out; fewer than two values are no signal. What
    is compared must differ too, whatever the metric: without that all advantages are 0.

    Args:
        group: the completions of one prompt, with rewards.
        metric: "reward", the weighted sum, or the name of one reward.
        tolerance: differences up to this are rounding.

    Raises:
        ValueError: no reward has the name `metric`.
    """
    return any(_spread(group, name) <= tolerance for name in {metric, "reward"})


def _spread(group: Group, metric: str) -> float:
    values = [row_value(row, metric, setting="model.zero_variance_metric") for row in group]
    values = [value for value in values if not math.isnan(value)]
    return max(values) - min(values) if len(values) > 1 else 0.0


def silent_share(groups: Sequence[Group]) -> float:
    """The share of groups in which no completion that counts has an advantage."""
    silent = [not any(row.counted and row.advantage for row in group) for group in groups]
    return sum(silent) / len(silent)


@dataclass
class Selection:
    """The groups of an iteration, after those without signal were replaced."""

    kept: list[Group]
    """As many groups as the iteration has prompts, those with signal first."""
    filled: int
    """How many at the end of `kept` have no signal: not enough were found."""
    dropped: list[Group]
    """Groups left out: without signal, or with signal but no longer needed."""
    surplus: int
    """How many of `dropped` have a signal."""


def select(groups: Sequence[Group], wanted: int, metric: str, tolerance: float) -> Selection:
    """Choose the first groups with signal; where they are too few, groups without fill the rest.

    Those that only fill are marked as not counted.

    Args:
        groups: all groups sampled, in the order they were sampled in.
        wanted: groups of an iteration.
        metric: see `is_dead`.
        tolerance: see `is_dead`.
    """
    dead = [is_dead(group, metric, tolerance) for group in groups]
    live = [group for group, without in zip(groups, dead, strict=True) if not without]
    rest = [group for group, without in zip(groups, dead, strict=True) if without]
    filled = max(0, wanted - len(live))
    for group in rest[:filled]:
        leave_out(group)
    surplus = live[wanted:]
    return Selection(
        [*live[:wanted], *rest[:filled]], filled, [*surplus, *rest[filled:]], len(surplus)
    )


def leave_out(rows: Sequence[Row]) -> None:
    """Mark rows as not counted: neither in the sums of the loss nor in what they are divided by."""
    for row in rows:
        row.counted = False

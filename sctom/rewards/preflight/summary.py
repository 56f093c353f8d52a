"""The values of rewards in numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from sctom.rewards.base import combine
from sctom.rewards.preflight.calls import Scored


@dataclass(frozen=True)
class Summary:
    """The values of one reward, or of the total, in numbers."""

    count: int
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    std: float = math.nan
    zeros: float = 0.0
    ones: float = 0.0
    abstained: int = 0
    errors: int = 0

    @classmethod
    def of(cls, values: Sequence[float | None], failed: Collection[int] = ()) -> Summary:
        """Of the values that are numbers.

        Args:
            values: one for each completion.
            failed: the rows with errors, whose values stand in for those that are missing.

        >>> Summary.of([1.0, 0.0, None, None], failed={3})
        Summary(count=4, mean=0.5, low=0.0, high=1.0, std=0.5, zeros=0.5, ones=0.5, abstained=1, \
errors=1)
        """
        spoken, errors = numbers(values), len(failed)
        missing = sum(not numbers([v]) for row, v in enumerate(values) if row not in failed)
        if not spoken:
            return cls(len(values), abstained=missing, errors=errors)
        zeros, ones = (sum(value == x for value in spoken) / len(spoken) for x in (0.0, 1.0))
        low, high, std = min(spoken), max(spoken), pstdev(spoken)
        return cls(len(values), fmean(spoken), low, high, std, zeros, ones, missing, errors)


def numbers(values: Sequence[float | None]) -> list[float]:
    """The values that are neither None nor NaN."""
    return [value for value in values if value is not None and not math.isnan(value)]


def totals(scored: Sequence[Scored], sizes: Sequence[int]) -> list[float]:
    """The weighted sum for each case, group by group; NaN where there is none."""
    weights = {one.reward.name: one.reward.weight for one in scored}
    found: list[float] = []
    for size in sizes:
        part = slice(len(found), len(found) + size)
        found += combine({one.reward.name: one.values[part] for one in scored}, weights, size)
    return found

"""The rules by which samples are kept."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from sctom.selection import above, best_of, distinct, top_fraction


@dataclass(frozen=True)
class Group:
    """The samples of one prompt, as far as choosing between them needs to know."""

    index: int
    """Place of the prompt in its file."""
    rewards: list[float]
    """Of each sample; NaN: it may not be chosen."""
    texts: list[str]
    """Equal for samples that say the same."""


@dataclass(frozen=True)
class Select(ABC):
    """Chooses among the samples of all prompts."""

    distinct: bool = True
    """Whether of equal texts only one may be kept."""

    @abstractmethod
    def choose(self, groups: Sequence[Group], seed: int) -> list[list[int]]:
        """Places of the kept samples of each group, the best first.

        Args:
            groups: all of them.
            seed: first part of the address of the draws that decide between equal rewards.
        """

    def ordered(self, group: Group, seed: int) -> list[int]:
        """The samples of a group that may be kept, the best first."""
        order = best_of(group.rewards, len(group.rewards), address=(seed, group.index))
        return distinct(order, group.texts) if self.distinct else order


@dataclass(frozen=True)
class BestOf(Select):
    """The best samples of every prompt (Llama 2, arXiv 2307.09288, section 3.2.3).

    Args:
        distinct: of equal texts only one may be kept.
        count: samples of a prompt that are kept.

    >>> BestOf(count=2).choose([Group(0, [0.5, 2.0, 1.5, 1.0], ["a", "b", "b", "c"])], seed=0)
    [[1, 3]]
    """

    count: int = 1

    def __post_init__(self) -> None:
        """Refuse a count of nothing."""
        if self.count < 1:
            raise ValueError(f"BestOf.count must be at least 1 but is {self.count}")

    def choose(self, groups: Sequence[Group], seed: int) -> list[list[int]]:
        """See `Select.choose`."""
        return [self.ordered(group, seed)[: self.count] for group in groups]


@dataclass(frozen=True)
class TopFraction(Select):
    """The best share of all samples, whatever their prompt: easy prompts may fill it.

    Args:
        distinct: of equal texts of a prompt only one may be kept.
        fraction: share of the samples that may be kept.

    >>> groups = [Group(0, [1.0, 2.0], ["a", "b"]), Group(1, [3.0, 0.0], ["c", "d"])]
    >>> TopFraction(fraction=0.5).choose(groups, seed=0)
    [[1], [0]]
    """

    fraction: float = 0.25

    def __post_init__(self) -> None:
        """Refuse what is no share."""
        if not 0 < self.fraction <= 1:
            raise ValueError(
                f"TopFraction.fraction must be above 0 and at most 1 but is {self.fraction}"
            )

    def choose(self, groups: Sequence[Group], seed: int) -> list[list[int]]:
        """See `Select.choose`."""
        orders = [self.ordered(group, seed) for group in groups]
        places = [(number, i) for number, order in enumerate(orders) for i in order]
        rewards = [groups[number].rewards[i] for number, i in places]
        chosen: list[list[int]] = [[] for _ in groups]
        for place in top_fraction(rewards, self.fraction, address=(seed,)):
            number, i = places[place]
            chosen[number].append(i)
        return chosen


@dataclass(frozen=True)
class Above(Select):
    """Every sample whose reward reaches a threshold (ReST, arXiv 2308.08998).

    With a reward of right or wrong, and `distinct`, this is RFT (2308.01825): all different right
    solutions.

    Args:
        distinct: of equal texts only one may be kept.
        threshold: least reward.
        count: most samples of a prompt, the best ones; null keeps all.

    >>> Above(threshold=1.0, count=None).choose([Group(0, [0.5, 1.0, 2.0], ["a", "b", "c"])], 0)
    [[2, 1]]
    """

    threshold: float = 0.0
    count: int | None = None

    def __post_init__(self) -> None:
        """Refuse bounds that keep nothing, ever."""
        if not math.isfinite(self.threshold):
            raise ValueError(f"Above.threshold must be a finite number but is {self.threshold}")
        if self.count is not None and self.count < 1:
            raise ValueError(f"Above.count must be null or at least 1 but is {self.count}")

    def choose(self, groups: Sequence[Group], seed: int) -> list[list[int]]:
        """See `Select.choose`."""
        chosen = []
        for group in groups:
            reached = set(above(group.rewards, self.threshold))
            chosen.append([i for i in self.ordered(group, seed) if i in reached][: self.count])
        return chosen

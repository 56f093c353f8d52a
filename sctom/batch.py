"""What travels between the steps of an iteration: rows, and the rollout that holds them.

A row is one completion. Rows stay ragged lists until a micro-batch is collated, so padding is made
in one place, and shuffling or splitting a rollout moves whole rows and never tensors. No framework
is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sctom.seeds import permutation

T = TypeVar("T")


@dataclass(eq=False)
class Prompt:
    """One prompt, ready to be sampled from."""

    index: int
    """Its place in the data file: part of the address of every draw made for it."""
    ids: list[int]
    """Token ids of the rendered prompt, as the policy sees them."""
    messages: list[dict[str, str]]
    """The chat messages the ids were rendered from (what a reward gets as `prompts`)."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Every other column of the data row, handed to the rewards by name."""


@dataclass(eq=False)
class Row:
    """One sampled completion and all that was computed for it."""

    prompt: Prompt
    sample: int
    """Number of this completion within its group, 0 to G - 1."""
    ids: list[int]
    """Sampled token ids, up to and including the stop token."""
    text: str
    """Decoded completion without special tokens. For rewards and people; never tokenised again."""
    truncated: bool
    """The limit on new tokens was reached without a stop token.

    Known from the sampler, not from the ids.
    """
    sampler_logps: Any = None
    """[T] log-probability of each sampled token by the sampler.

    On full support at the sampling temperature.
    """
    old_logps: Any = None
    """[T] log-probabilities under the policy that made the rollout.

    None: one step uses the rollout, ratio is 1.
    """
    ref_logps: Any = None
    """[T] log-probabilities under the reference; None where no KL is asked for."""
    rewards: dict[str, float | None] = field(default_factory=dict)
    """Value of each reward function by name; None: it abstained."""
    extra: dict[str, Any] = field(default_factory=dict)
    """What reward functions noted about this completion with `log_extra`, by column."""
    reward: float = float("nan")
    """Weighted sum of the rewards; NaN: no reward at all."""
    advantage: float = 0.0
    """Group-relative advantage; 0 where there was no reward."""
    counted: bool = True
    """Whether it takes part in updates: in the sums of the loss and in what they are divided by."""


@dataclass
class Rollout:
    """The completions of one iteration, in the order prompt by prompt, G rows each."""

    rows: list[Row]
    group_size: int
    shuffled_rows: bool = False
    """Whether the rows have left the order of their groups."""
    dropped: list[Row] = field(default_factory=list)
    """Rows that were sampled for it and replaced by others."""

    def __len__(self) -> int:
        """Number of completions, B = P * G."""
        return len(self.rows)

    def groups(self) -> list[list[Row]]:
        """The rows of each prompt, G at a time.

        Raises:
            ValueError: the rollout has been shuffled, so that its groups are no longer side by
                side.
        """
        if self.shuffled_rows:
            raise ValueError("a shuffled rollout has no groups; ask the rollout it was made from")
        size = self.group_size
        return [self.rows[i : i + size] for i in range(0, len(self.rows), size)]

    def shuffled(self, *address: int) -> Rollout:
        """The same rows in an order that depends on the address only."""
        order = permutation(len(self.rows), *address)
        return Rollout([self.rows[i] for i in order], self.group_size, shuffled_rows=True)

    def split(self, size: int | None) -> Iterator[list[Row]]:
        """Cut into minibatches of `size` rows (the last may be shorter); None: all rows at once.

        Raises:
            ValueError: the size is not positive.
        """
        step = max(len(self.rows), 1) if size is None else _positive(size)
        for start in range(0, len(self.rows), step):
            yield self.rows[start : start + step]


def row_value(row: Row, metric: str, *, setting: str) -> float:
    """The number of a row that a setting looks at; NaN where there is none.

    Args:
        row: with its rewards.
        metric: "reward", the weighted sum, or the name of one reward.
        setting: the setting that names the metric, for the error.

    Raises:
        ValueError: there is no reward of that name.
    """
    if metric == "reward":
        return row.reward
    if metric not in row.rewards:
        names = ", ".join(["reward", *row.rewards])
        raise ValueError(f"{setting} is {metric!r}, which no reward is called; set it to {names}")
    value = row.rewards[metric]
    return float("nan") if value is None else value


def interleave(processes: Sequence[Sequence[T]], group_size: int) -> list[T]:
    """Put the groups of W processes back into the order of the iteration, each having every W-th.

    >>> interleave([["a", "c"], ["b", "d"]], group_size=1)
    ['a', 'b', 'c', 'd']
    """
    longest = max((len(rows) for rows in processes), default=0)
    starts = range(0, longest, group_size)
    return [row for i in starts for rows in processes for row in rows[i : i + group_size]]


def split_rows(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    """Cut rows into micro-batches of at most `size`.

    Similar lengths come together so that little is padding.

    Raises:
        ValueError: the size is not positive.
    """
    ordered = sorted(rows, key=lambda row: len(row.prompt.ids) + len(row.ids), reverse=True)
    for start in range(0, len(ordered), _positive(size)):
        yield ordered[start : start + size]


def _positive(size: int) -> int:
    if size < 1:
        raise ValueError(f"rows are cut into parts of at least 1, not {size}")
    return size

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
    compared: float | None = None
    """What advantages compare, where that is not the weighted sum; see `signal`."""
    advantage: float = 0.0
    """Group-relative advantage; 0 where there was no reward. The mean of `advantages`, if any."""
    token_rewards: Any = None
    """[T] the reward spread over the tokens, where a KL penalty is taken off: they sum to it."""
    old_values: Any = None
    """[T] value predicted before each token when the rollout was made.

    None, as `returns` and `advantages`: no values are predicted.
    """
    returns: Any = None
    """[T] what values are trained towards."""
    advantages: Any = None
    """[T] advantage of each token."""
    counted: bool = True
    """Whether it takes part in updates: in the sums of the loss and in what they are divided by."""

    @property
    def signal(self) -> float:
        """What advantages compare; NaN: nothing."""
        return self.reward if self.compared is None else self.compared


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
        metric: "reward", what advantages compare, or the name of one reward.
        setting: the setting that names the metric, for the error.

    Raises:
        ValueError: there is no reward of that name.
    """
    if metric == "reward":
        return row.signal
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


def micro_batches(rows: Sequence[Row], size: int, tokens: int) -> list[list[Row]]:
    """Cut rows into micro-batches: completions of a prompt stay together, so that it is run once.

    A prompt counts once in each micro-batch it is in, and a completion without its last token,
    which predicts nothing. Groups come longest first, so that memory runs out at once or not at
    all; a group that does not fit into one micro-batch is cut between rows sorted by length.

    Args:
        rows: completions in any order.
        size: most rows of a micro-batch.
        tokens: most tokens of a micro-batch; a single row may have more.

    Raises:
        ValueError: size or tokens are not positive.

    >>> prompts = [Prompt(i, [0] * 10, []) for i in range(2)]
    >>> rows = [Row(prompts[i % 2], i // 2, [1] * 5, "", False) for i in range(6)]
    >>> def numbers(parts): return [[row.prompt.index for row in part] for part in parts]
    >>> numbers(micro_batches(rows, size=16, tokens=44))  # 10 + 3 * 4 for each prompt
    [[0, 0, 0, 1, 1, 1]]
    >>> numbers(micro_batches(rows, size=16, tokens=20))
    [[0, 0], [0], [1, 1], [1]]
    """
    parts: list[list[Row]] = []
    used = 0
    for group in _by_prompt(rows):
        for part, cost in _cut(group, _positive(size), _positive(tokens)):
            if parts and len(parts[-1]) + len(part) <= size and used + cost <= tokens:
                parts[-1] += part
                used += cost
            else:
                parts.append(part)
                used = cost
    return parts


def _cut(group: Sequence[Row], size: int, tokens: int) -> Iterator[tuple[list[Row], int]]:
    """Parts of one prompt's rows that keep the limits, and the tokens of each."""
    prompt = len(group[0].prompt.ids)
    part: list[Row] = []
    used = prompt
    for row in group:
        if part and (len(part) == size or used + len(row.ids) - 1 > tokens):
            yield part, used
            part, used = [], prompt
        part.append(row)
        used += len(row.ids) - 1
    yield part, used


def _by_prompt(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each prompt together, long prompts and long completions first."""
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.prompt.index, []).append(row)
    for group in groups.values():
        group.sort(key=lambda row: len(row.ids), reverse=True)
    return sorted(
        groups.values(),
        key=lambda group: len(group[0].prompt.ids) + len(group[0].ids),
        reverse=True,
    )


def _positive(size: int) -> int:
    if size < 1:
        raise ValueError(f"rows are cut into parts of at least 1, not {size}")
    return size

"""What a reward is, and how rewards are checked and added up.

The calling convention is that of TRL's GRPOTrainer, so a function written for it runs here
unchanged. A reward is any callable, plain or async,

    f(prompts, completions, completion_ids, **columns) -> list[float | None]

called by keyword with one list entry per completion. `columns` are the columns of the data, each
prompt's value repeated for each of its completions; chat prompts are lists of messages, completions
are [{"role": "assistant", "content": ...}]. Further keyword arguments are `trainer_state`,
`log_extra(column, values)` for a column of the completions table and `log_metric(name, value)`.
None means: this reward has nothing to say about this completion.

Where we differ from TRL: a function need not swallow what it does not use (it is passed the
arguments it names, or all if it takes **kwargs); NaN and infinities are errors, and what becomes of
errors is a setting; None is never counted as 0 (see `combine`).
"""

from __future__ import annotations

import inspect
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal, get_args

from sctom.readers import nearest

Values = list[float | None]
OnError = Literal["abstain", "raise", "value"]

_GIVEN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


class RewardError(ValueError):
    """A reward cannot be used, or did not give one finite number (or None) for each completion."""


@dataclass(frozen=True)
class Failure:
    """What a reward returns in place of a number for a completion that it could not score.

    Not an abstention: it is counted and logged as an error, and the reward's `on_error` decides
    what becomes of it.

    >>> Failure("the server did not answer within 60 s")
    Failure(reason='the server did not answer within 60 s', debug='')
    """

    reason: str
    """What went wrong, for people, without secrets."""
    debug: str = ""
    """More of it, such as what was written to stderr."""

    def __str__(self) -> str:
        return f"{self.reason}\n{self.debug}" if self.debug else self.reason


class Reward(ABC):
    """A reward with a name and a weight.

    Subclass it, here or in a file of your own, and name the class in the config. `__call__` names
    the columns it needs and returns one number or None per completion; it may be async.

    Args:
        weight: factor in the weighted sum; may be negative; 0 means that the reward is logged but
            takes no part.
        name: metric key, unique among the rewards of a run; by default the class name in snake
            case.
        on_error: what becomes of an exception, a `Failure`, and a value that is not finite: "raise"
            stops the run, "abstain" makes it None, "value" makes it `error_value`. None takes
            `default_on_error` of the class. Whatever is chosen, errors are counted and logged.
        error_value: for "value".
        cache: most values that are kept, so that a completion scored before is not scored again;
            0 keeps none. For a reward that is a function of one completion, its prompt and its
            columns, and of nothing else.

        clip: [lowest, highest] value before the weight; what lies beyond becomes the nearer one.

    Raises:
        RewardError: the weight is not a finite number; `error_value` is missing, or given in vain;
            the cache is smaller than nothing; the bounds of `clip` are no two numbers in order.

    >>> class ShortAnswer(Reward):
    ...     def __call__(self, completions, limit):
    ...         return [float(len(completion_text(c)) <= n) for c, n in zip(completions, limit)]
    >>> ShortAnswer().name
    'short_answer'
    >>> from sctom.rewards import run_rewards
    >>> run_rewards([ShortAnswer()], ["Why?"], ["Because."], [[1]], {"limit": [20]}).values
    {'short_answer': [1.0]}
    """

    weight: float = 1.0
    name: str = "reward"
    concurrent: bool = False
    """Whether it may be called from several threads at once, each call in one of its own.

    For what waits for something outside, a server or a process. An async reward needs no threads.
    """
    default_on_error: OnError = "raise"
    """For rewards that depend on something outside, "abstain"."""
    on_error: OnError = "raise"
    error_value: float | None = None
    cache: int = 0
    clip: tuple[float, float] | None = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "name" not in vars(cls):
            words = re.sub("(?<=[A-Za-z0-9])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z])", "_", cls.__name__)
            cls.name = words.lower()

    def __init__(
        self,
        *,
        weight: float = 1.0,
        name: str | None = None,
        on_error: OnError | None = None,
        error_value: float | None = None,
        cache: int = 0,
        clip: tuple[float, float] | None = None,
    ) -> None:
        if name is not None:
            self.name = name
        if not math.isfinite(weight):
            raise RewardError(f"the weight of reward {self.name!r} must be finite, not {weight}")
        self.weight = weight
        self.on_error = self.default_on_error if on_error is None else on_error
        self.error_value = error_value
        self.cache = cache
        self.clip = clip
        self._check_policy()

    def _check_policy(self) -> None:
        """Refuse settings about errors, cache and clipping that cannot mean what they say."""
        about = f"reward {self.name!r}: "
        if self.on_error not in get_args(OnError):
            choices = ", ".join(get_args(OnError))
            raise RewardError(f"{about}on_error must be one of {choices}, not {self.on_error!r}")
        given = self.error_value is not None
        if given != (self.on_error == "value"):
            needs = "needs an error_value" if self.on_error == "value" else "takes no error_value"
            raise RewardError(f"{about}on_error is {self.on_error!r}, which {needs}")
        if self.error_value is not None and not math.isfinite(self.error_value):
            raise RewardError(f"{about}error_value must be finite, not {self.error_value}")
        if self.cache < 0:
            raise RewardError(f"{about}cache must be 0 or more, not {self.cache}")
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise RewardError(f"{about}clip must be [lowest, highest], not {list(self.clip)}")

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One number or None per completion; or an awaitable of them."""

    def signature(self) -> inspect.Signature:
        """The arguments this reward takes; `run_rewards` passes those it names."""
        return inspect.signature(self.__call__)

    def over_rollout(self, values: Sequence[float | None]) -> Values:
        """What the weighted sum takes in place of the values, given those of the whole rollout.

        For what groups cannot know, such as a mean over all of them. It is called once all groups
        are scored, with the values of all processes, prompt by prompt; metrics and tables show what
        came before it. Most rewards are what they are.
        """
        return list(values)

    def check(self) -> None:  # noqa: B027  most have nothing outside to look at
        """Look, before a run starts, whether what the reward depends on is there.

        Raises:
            RewardError: it is not; the message says what to do.
        """

    def describe(self) -> list[str]:
        """Lines about what the reward runs on, such as the level of its sandbox; printed first."""
        return []

    def advice(self, columns: Mapping[str, Sequence[Any]]) -> list[str]:
        """What the training data mean for this reward, said before anything is sampled.

        Nothing by default. It must not raise for data that the reward itself refuses.

        Args:
            columns: column of the training data -> one value for each prompt.

        Returns:
            Lines of one or two sentences, each with a number, its consequence and a remedy.
        """
        return []


def completion_text(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a completion, a string or a list of messages: the content of its last message.

    Raises:
        ValueError: it is neither, or that content is not a string.

    >>> completion_text([{"role": "assistant", "content": "Seoul"}])
    'Seoul'
    """
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if not isinstance(content, str):
        raise ValueError(f"expected a string or messages that end with text, found {completion!r}")
    return content


def check_rewards(rewards: Sequence[Reward], columns: Iterable[str]) -> None:
    """Check, before anything is sampled, that rewards can be called with the columns of the data.

    Args:
        rewards: at least one, with different names.
        columns: names of the columns of the data.

    Raises:
        RewardError: no rewards; two of one name; a column named like an argument that every reward
            gets; a reward that needs a column the data does not have.

    >>> from sctom.rewards.selfaware import SelfAware
    >>> check_rewards([SelfAware()], ["expected_answer", "unanswerable"])
    Traceback (most recent call last):
        ...
    sctom.rewards.base.RewardError: reward 'self_aware' needs the column 'is_unanswerable', which \
the data does not have; it has: expected_answer, unanswerable. Did you mean 'unanswerable'?
    """
    names = [reward.name for reward in rewards]
    if not names:
        raise RewardError("there are no rewards; give at least one")
    for name in names:
        if names.count(name) > 1:
            raise RewardError(f"two rewards are named {name!r}; give one of them another `name`")
    columns = sorted(columns)
    for column in columns:
        if column in _GIVEN:
            raise RewardError(f"rename the column {column!r} of the data: rewards get their own")
    for reward in rewards:
        _check_signature(reward, columns)


def _check_signature(reward: Reward, columns: list[str]) -> None:
    for parameter in reward.signature().parameters.values():
        variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        optional = parameter.default is not parameter.empty
        if variadic or optional or parameter.name in _GIVEN:
            continue
        if parameter.name not in columns:
            needed = f"reward {reward.name!r} needs the column {parameter.name!r}"
            has = f"it has: {', '.join(columns) or 'no columns'}."
            hint = nearest(parameter.name, columns)
            raise RewardError(f"{needed}, which the data does not have; {has}{hint}")


def combine(
    values: Mapping[str, Sequence[float | None]], weights: Mapping[str, float], group_size: int
) -> list[float]:
    """The weighted sum of several rewards for each completion; NaN where it has none.

        total_i = sum over the rewards r that speak in the group of i of  w_r * value_r,i

    A reward that abstains (None) on a whole group is left out of that group's sums; one that
    abstains on some rows of a group takes those rows out of the group (NaN); where all abstain, the
    rows are NaN. Nothing becomes 0: a 0 would be an opinion, and in a group that is compared with
    itself it would be rewarded or punished like one. TRL adds None as 0.

    Sums of groups that different rewards speak in are not on one scale; advantages compare within a
    group only, unless they are scaled by the standard deviation of the batch.

    Args:
        values: reward -> B values, the completions of a prompt side by side.
        weights: reward -> its weight; 0 means that it takes no part, also not by abstaining.
        group_size: G, completions per prompt.

    Returns:
        B totals.

    Raises:
        ValueError: other names in values than in weights, lengths that differ, or B is not a
            multiple of G.

    >>> right, short = [1, -1, None, None], [0.5, 0, 0.5, None]
    >>> combine({"right": right, "short": short}, {"right": 1, "short": 2}, 2)
    [2.0, -1.0, 1.0, nan]
    """
    if set(values) != set(weights):
        raise ValueError(f"values of the rewards {sorted(values)} but weights of {sorted(weights)}")
    lengths = {name: len(entries) for name, entries in values.items()}
    rows = max(lengths.values(), default=0)
    if set(lengths.values()) - {rows}:
        raise ValueError(f"rewards must have the same number of values, found {lengths}")
    if group_size < 1 or rows % group_size:
        sizes = ", ".join(str(size) for size in range(1, rows + 1) if rows % size == 0)
        fix = f"set group_size to one of {sizes}"
        raise ValueError(f"{rows} completions cannot be split into groups of {group_size}; {fix}")
    totals: list[float] = []
    for start in range(0, rows, group_size):
        group = [(weights[name], values[name][start : start + group_size]) for name in values]
        heard = [
            (weight, entries)
            for weight, entries in group
            if weight != 0 and any(entry is not None for entry in entries)
        ]
        for row in range(group_size):
            totals.append(_weighted_sum([(weight, entries[row]) for weight, entries in heard]))
    return totals


def normalize_then_sum(
    values: Mapping[str, Sequence[float | None]],
    weights: Mapping[str, float],
    group_size: int,
    *,
    eps: float = 1e-4,
) -> list[float]:
    """The weighted sum of rewards that are first compared within their group, each by itself.

        z_r,i = (value_r,i - mean_G) / (std_G + eps)        total_i = sum_r w_r z_r,i

    GDPO (arXiv 2601.05242), TRL's `normalize_then_sum`: a reward with a small spread weighs as much
    as one with a large spread, which the sum of raw values drowns. The standard deviation is the
    unbiased one. TRL then divides by the standard deviation of the batch: that is what an objective
    with `scale: batch` does with these totals. Abstentions are those of `combine`, and a reward
    whose values in a group are (nearly) equal adds exactly 0.

    Args:
        values: reward -> B values, the completions of a prompt side by side.
        weights: reward -> its weight.
        group_size: G, completions per prompt.
        eps: added to the standard deviation, in units of the reward.

    Returns:
        B totals, with mean 0 in each group where no reward abstains.

    Raises:
        ValueError: see `combine`.

    >>> right, long = [1.0, 0.0, 1.0, 0.0], [0.0, -0.01, -0.01, 0.0]
    >>> [round(t, 3) for t in normalize_then_sum(
    ...     {"right": right, "long": long}, {"right": 1.0, "long": 1.0}, 4, eps=0.0)]
    [1.732, -1.732, 0.0, -0.0]
    """
    compared: dict[str, Values] = {}
    for name, entries in values.items():
        compared[name] = []
        for start in range(0, len(entries), max(group_size, 1)):
            compared[name] += _normalized(entries[start : start + group_size], eps)
    return combine(compared, weights, group_size)


def _normalized(group: Sequence[float | None], eps: float) -> Values:
    given = [entry for entry in group if entry is not None]
    if len(given) < 2 or max(given) - min(given) <= 1e-6:
        return [None if entry is None else 0.0 for entry in group]
    mean, deviation = fmean(given), stdev(given)
    return [None if entry is None else (entry - mean) / (deviation + eps) for entry in group]


def _weighted_sum(terms: list[tuple[float, float | None]]) -> float:
    total = 0.0
    for weight, value in terms:
        if value is None:
            return math.nan
        total += weight * value
    return total if terms else math.nan

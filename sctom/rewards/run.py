"""Calling the rewards of a run together, and checking what they return."""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsFloat

from sctom.rewards.base import Failure, Reward, RewardError, Values, check_rewards
from sctom.rewards.call import Call, as_number

LARGEST = 1e100
"""Larger values are errors: sums of them overflow, and no reward means them."""


@dataclass(frozen=True)
class RewardResults:
    """What the rewards of a run gave for one batch of completions."""

    values: dict[str, Values] = field(default_factory=dict)
    """Reward -> one number or None per completion, before any weight."""
    extra: dict[str, list[Any]] = field(default_factory=dict)
    """Column of the completions table (`log_extra`) -> one entry per completion. A column that an
    earlier reward has logged too is "reward/column". Errors are in "reward/error"."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metric -> mean over the calls of `log_metric`."""
    errors: dict[str, dict[int, str]] = field(default_factory=dict)
    """Reward -> row -> what went wrong there; empty where nothing did."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Reward -> time from its call to its result."""


class RunningRewards:
    """Rewards that have been called; the async ones may still be going on."""

    def __init__(self, rewards: Sequence[Reward], prompts: Sequence[Any]) -> None:
        self._rewards = rewards
        self._prompts = prompts
        self._logs = {reward.name: _Log(reward.name, len(prompts)) for reward in rewards}
        self._calls: dict[str, Call] = {}

    def start(self, reward: Reward, given: Mapping[str, Any]) -> None:
        """Call a reward; one that raises at once has the error as its result, if it may."""
        log = self._logs[reward.name]
        call = Call(reward, _arguments(reward, {**given, **log.arguments()}), len(self._prompts))
        self._calls[reward.name] = call
        log.rows = call.asked
        error = call.start()
        if error is not None and reward.on_error == "raise":
            raise _raised(reward.name, error, self._prompts) from error

    def result(self) -> RewardResults:
        """Wait for all rewards, and check what they return.

        Raises:
            RewardError: see `run_rewards`.
        """
        results = RewardResults()
        try:
            for reward in self._rewards:
                entries = self._entries(reward)
                values, errors = settle(reward, entries, self._prompts)
                results.values[reward.name] = values
                results.errors[reward.name] = errors
                results.seconds[reward.name] = self._calls[reward.name].seconds
        finally:
            self.cancel()
        results.extra.update(_extra_columns(self._logs, results.errors, len(self._prompts)))
        results.metrics.update(_metric_means(self._logs))
        return results

    def _entries(self, reward: Reward) -> list[Any]:
        """One entry per completion: a number, None, a `Failure`, or what is none of them."""
        call = self._calls[reward.name]
        try:
            result = call.result()
        except (Exception, SystemExit) as error:
            told = _raised(reward.name, error, self._prompts)
            if reward.on_error == "raise":
                raise told from error
            return call.entries([Failure(str(told))] * len(call.asked))
        return call.entries(_listed(reward.name, result, len(call.asked)))

    def cancel(self) -> None:
        """Give up what still goes on."""
        for call in self._calls.values():
            call.cancel()


def start_rewards(
    rewards: Sequence[Reward],
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
    *,
    trainer_state: Any = None,
) -> RunningRewards:
    """Call each reward once, without waiting for those that are async or `concurrent`.

    Args:
        rewards: see `run_rewards`, and so for the others.
        prompts: B prompts.
        completions: B completions.
        completion_ids: B lists of token ids.
        columns: column of the data -> B values.
        trainer_state: handed to rewards that name it.

    Raises:
        RewardError: lengths that differ, what `check_rewards` refuses, or a reward that raises and
            whose `on_error` is "raise".
    """
    check_rewards(rewards, columns)
    data: dict[str, Any] = dict(columns)
    data.update(prompts=prompts, completions=completions, completion_ids=completion_ids)
    for name, entries in data.items():
        if len(entries) != len(completions):
            counts = f"{len(entries)} entries for {len(completions)} completions"
            raise RewardError(f"{name} has {counts}")
    data["trainer_state"] = trainer_state
    running = RunningRewards(rewards, prompts)
    try:
        for reward in rewards:
            running.start(reward, data)
    except BaseException:
        running.cancel()
        raise
    return running


def run_rewards(
    rewards: Sequence[Reward],
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Any],
    columns: Mapping[str, Sequence[Any]],
    *,
    trainer_state: Any = None,
) -> RewardResults:
    """Call each reward once on the whole batch, and check what it returns.

    Rewards are started in their order, and the async and `concurrent` ones go on together while the
    plain ones after them are computed: put slow ones first. Async rewards run on an event loop in a
    thread of its own, so a caller may have a running loop.

    Args:
        rewards: rewards with different names.
        prompts: B prompts, each a string or a list of messages.
        completions: B completions, each a string or a list of messages.
        completion_ids: B lists of token ids.
        columns: column of the data -> B values.
        trainer_state: handed to rewards that name it.

    Raises:
        RewardError: lengths that differ; what `check_rewards` refuses; a reward that returns
            another number of values; and, where its `on_error` is "raise", one that raises (its
            error is the cause) or returns what is neither None nor a finite number.
    """
    return start_rewards(
        rewards, prompts, completions, completion_ids, columns, trainer_state=trainer_state
    ).result()


def settled(reward: Reward, values: Sequence[float | None]) -> Values:
    """What `over_rollout` of a reward makes of the values of a rollout, checked.

    Args:
        reward: the reward.
        values: of all completions.

    Raises:
        RewardError: it gives another number of values, one that is not finite, or one where there
            was none and the other way round.

    >>> class Doubled(Reward):
    ...     def __call__(self, completions): return []
    ...     def over_rollout(self, values): return [v and 2 * v for v in values][:2]
    >>> settled(Doubled(), [1.0, None])
    [2.0, None]
    >>> settled(Doubled(), [1.0, None, 3.0])
    Traceback (most recent call last):
        ...
    sctom.rewards.base.RewardError: reward 'doubled': over_rollout gave 2 values for 3 completions
    """
    made = reward.over_rollout(values)
    about = f"reward {reward.name!r}: over_rollout gave "
    if len(made) != len(values):
        raise RewardError(f"{about}{len(made)} values for {len(values)} completions")
    for row, (before, after) in enumerate(zip(values, made, strict=True)):
        if (before is None) != (after is None) or (after is not None and not math.isfinite(after)):
            raise RewardError(
                f"{about}{after} for completion {row} of the rollout, whose value is {before}; "
                "give a finite number where there is one, and None where there is none"
            )
    return [None if value is None else float(value) for value in made]


def _arguments(reward: Reward, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a reward is called with: what it names, or everything if it takes that."""
    parameters = reward.signature().parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    arguments = {name: value for name, value in given.items() if takes_all or name in names}
    for name in arguments.keys() - {"trainer_state", "log_extra", "log_metric"}:
        # what a reward does to its lists must reach neither the run nor other rewards
        arguments[name] = copy.deepcopy(arguments[name])
    return arguments


def _raised(name: str, error: BaseException, prompts: Sequence[Any]) -> RewardError:
    if isinstance(error, RewardError):
        return RewardError(f"reward {name!r}: {error}")
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    said = f"reward {name!r} raised {type(error).__name__}: {error}{place}"
    if all(prompt == prompts[0] for prompt in prompts):
        said += f" for completions of the prompt {_last(prompts[0])!r:.200}"
    if "main thread" in str(error):
        said += "; rewards are scored in a thread of their own: set model.overlap_rewards to false"
    return RewardError(said)


def _last(prompt: Any) -> Any:
    """A prompt, or its last message."""
    return prompt[-1:] if isinstance(prompt, list) else prompt


def _listed(name: str, result: Any, rows: int) -> list[Any]:
    """What a reward returned as a list with one entry per completion it was asked about."""
    if not isinstance(result, Collection) or isinstance(result, (str, bytes, Mapping, Set)):
        found = f"{type(result).__name__}: {result!r:.60}"
        raise RewardError(f"reward {name!r} must return a list of numbers but returned a {found}")
    try:
        entries = list(result)
    except TypeError as error:  # an array of no dimension
        found = f"returned {result!r:.60}: {error}"
        raise RewardError(f"reward {name!r} must return a list of numbers but {found}") from error
    if len(entries) != rows:
        expected = f"{rows} values, one for each completion"
        raise RewardError(f"reward {name!r} must return {expected}, but returned {len(entries)}")
    return entries


def settle(
    reward: Reward, entries: Sequence[Any], prompts: Sequence[Any]
) -> tuple[Values, dict[int, str]]:
    """The entries as numbers and Nones, errors treated as the reward's `on_error` says.

    Returns:
        One number or None per completion, and row -> what went wrong there.

    Raises:
        RewardError: an entry is an error, and `on_error` is "raise".
    """
    values: Values = []
    errors: dict[int, str] = {}
    for row, entry in enumerate(entries):
        value = None if entry is None or isinstance(entry, Failure) else as_number(entry)
        if isinstance(entry, Failure):
            errors[row] = str(entry)
        elif value is not None and not abs(value) <= LARGEST:
            errors[row] = f"gave {entry!r:.60}"
        elif value is not None and reward.clip is not None:
            value = min(max(value, reward.clip[0]), reward.clip[1])
        if row in errors:
            value = reward.error_value if reward.on_error == "value" else None
            if reward.on_error == "raise":
                place = f"for row {row} (prompt {_last(prompts[row])!r:.200})"
                if isinstance(entry, Failure):
                    said, hint = f"failed: {errors[row]}", "set on_error to go on without its value"
                else:
                    said = errors[row]
                    hint = "give a finite number, or None where it cannot judge, or set on_error"
                raise RewardError(f"reward {reward.name!r} {said} {place}; {hint}")
        values.append(value)
    return values, errors


class _Log:
    """What one reward logs during one call."""

    def __init__(self, reward: str, rows: int) -> None:
        self.reward = reward
        self.rows: Sequence[int] = range(rows)
        """The rows it was asked about: all, but for those it has in its cache."""
        self.columns: dict[str, list[Any]] = {}
        self.numbers: dict[str, list[float]] = {}

    def arguments(self) -> dict[str, Any]:
        return {"log_extra": self.extra, "log_metric": self.metric}

    def extra(self, column: str, values: Sequence[Any]) -> None:
        if len(values) != len(self.rows):
            counts = f"{len(values)} entries for {len(self.rows)} completions"
            raise RewardError(f"log_extra({column!r}) was given {counts}")
        self.columns[column] = list(values)

    def metric(self, name: str, value: SupportsFloat) -> None:
        self.numbers.setdefault(name, []).append(float(value))


def _extra_columns(
    logs: Mapping[str, _Log], errors: Mapping[str, Mapping[int, str]], rows: int
) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for log in logs.values():
        for column, entries in log.columns.items():
            place = dict(zip(log.rows, entries, strict=True))
            name = f"{log.reward}/{column}" if column in columns else column
            columns[name] = [place.get(row) for row in range(rows)]
        if errors[log.reward]:
            columns[f"{log.reward}/error"] = [errors[log.reward].get(row) for row in range(rows)]
    return columns


def _metric_means(logs: Mapping[str, _Log]) -> dict[str, float]:
    calls: dict[str, list[float]] = {}
    for log in logs.values():
        for name, numbers in log.numbers.items():
            calls.setdefault(name, []).extend(numbers)
    return {name: sum(numbers) / len(numbers) for name, numbers in calls.items()}

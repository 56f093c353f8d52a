"""Calling rewards, and checking what they return.

Plain rewards are called where they are started; async ones go on on an event loop, and those that
are `concurrent` in threads of their own.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import traceback
from collections.abc import Collection, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsFloat

from sctom.rewards import loop
from sctom.rewards.base import Reward, RewardError, Values, check_rewards


@dataclass(frozen=True)
class RewardResults:
    """What the rewards of a run gave for one batch of completions."""

    values: dict[str, Values] = field(default_factory=dict)
    """Reward -> one number or None per completion, before any weight."""
    extra: dict[str, list[Any]] = field(default_factory=dict)
    """Column of the completions table (`log_extra`) -> one entry per completion. A column that an
    earlier reward has logged too is "reward/column"."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metric -> mean over the calls of `log_metric`."""


class RunningRewards:
    """Rewards that have been called; the async ones may still be going on."""

    def __init__(
        self,
        returned: Mapping[str, Any],
        logs: Mapping[str, _Log],
        prompts: Sequence[Any],
    ) -> None:
        self._returned = returned
        self._logs = logs
        self._prompts = prompts

    def result(self) -> RewardResults:
        """Wait for all rewards, and check what they return.

        Raises:
            RewardError: see `run_rewards`.
        """
        try:
            values = {
                name: _checked(name, _finish(name, result, self._prompts), self._prompts)
                for name, result in self._returned.items()
            }
        finally:
            self.cancel()
        return RewardResults(values, _extra_columns(self._logs), _metric_means(self._logs))

    def cancel(self) -> None:
        """Give up what still goes on."""
        for result in self._returned.values():
            if isinstance(result, Future):
                result.cancel()  # does nothing to one that is done


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
        RewardError: lengths that differ, what `check_rewards` refuses, or a reward that raises.
    """
    check_rewards(rewards, columns)
    data: dict[str, Any] = dict(columns)
    data.update(prompts=prompts, completions=completions, completion_ids=completion_ids)
    for name, entries in data.items():
        if len(entries) != len(completions):
            counts = f"{len(entries)} entries for {len(completions)} completions"
            raise RewardError(f"{name} has {counts}")
    data["trainer_state"] = trainer_state
    logs = {reward.name: _Log(reward.name, len(completions)) for reward in rewards}
    returned: dict[str, Any] = {}
    running = RunningRewards(returned, logs, prompts)
    try:
        for reward in rewards:
            returned[reward.name] = _start(reward, data | logs[reward.name].arguments())
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
        RewardError: lengths that differ; what `check_rewards` refuses; a reward that raises (its
            error is the cause), that returns another number of values, or a value that is neither
            None nor a finite number.
    """
    return start_rewards(
        rewards, prompts, completions, completion_ids, columns, trainer_state=trainer_state
    ).result()


def _start(reward: Reward, given: Mapping[str, Any]) -> Any:
    parameters = reward.signature().parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in parameters}
    arguments = {name: value for name, value in given.items() if takes_all or name in names}
    for name in arguments.keys() & {"prompts", "completions", "completion_ids"}:
        # what a reward does to its lists must reach neither the run nor other rewards
        arguments[name] = copy.deepcopy(arguments[name])
    if reward.concurrent:
        return loop.start_in_thread(functools.partial(reward, **arguments))
    try:
        result = reward(**arguments)
    except Exception as error:
        raise _raised(reward.name, error, given["prompts"]) from error
    return loop.start(result) if inspect.isawaitable(result) else result


def _finish(name: str, result: Any, prompts: Sequence[Any]) -> Any:
    if not isinstance(result, Future):
        return result
    try:
        return result.result()
    except Exception as error:
        raise _raised(name, error, prompts) from error


def _raised(name: str, error: Exception, prompts: Sequence[Any]) -> RewardError:
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


def _checked(name: str, result: Any, prompts: Sequence[Any]) -> Values:
    """The values of one reward as floats and Nones, or the error that names what is wrong."""
    if not isinstance(result, Collection) or isinstance(result, (str, bytes, Mapping, Set)):
        found = f"{type(result).__name__}: {result!r:.60}"
        raise RewardError(f"reward {name!r} must return a list of numbers but returned a {found}")
    entries = list(result)
    if len(entries) != len(prompts):
        expected = f"{len(prompts)} values, one for each completion"
        raise RewardError(f"reward {name!r} must return {expected}, but returned {len(entries)}")
    values = [None if entry is None else _number(entry) for entry in entries]
    for row, value in enumerate(values):
        if value is not None and not math.isfinite(value):
            place = f"{entries[row]!r:.60} for row {row} (prompt {_last(prompts[row])!r:.200})"
            hint = "give a finite number, or None where it cannot judge"
            raise RewardError(f"reward {name!r} gave {place}; {hint}")
    return values


def _number(entry: Any) -> float:
    """The entry as a float; NaN when it is not one number."""
    if isinstance(entry, (str, bytes)) or not isinstance(entry, SupportsFloat):
        return math.nan
    try:
        return float(entry)
    except (
        TypeError,
        ValueError,
        RuntimeError,
        OverflowError,
    ):  # arrays of several numbers, 10**400
        return math.nan


class _Log:
    """What one reward logs during one call."""

    def __init__(self, reward: str, rows: int) -> None:
        self.reward = reward
        self.rows = rows
        self.columns: dict[str, list[Any]] = {}
        self.numbers: dict[str, list[float]] = {}

    def arguments(self) -> dict[str, Any]:
        return {"log_extra": self.extra, "log_metric": self.metric}

    def extra(self, column: str, values: Sequence[Any]) -> None:
        if len(values) != self.rows:
            counts = f"{len(values)} entries for {self.rows} completions"
            raise RewardError(f"log_extra({column!r}) was given {counts}")
        self.columns[column] = list(values)

    def metric(self, name: str, value: SupportsFloat) -> None:
        self.numbers.setdefault(name, []).append(float(value))


def _extra_columns(logs: Mapping[str, _Log]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for log in logs.values():
        for column, entries in log.columns.items():
            columns[f"{log.reward}/{column}" if column in columns else column] = entries
    return columns


def _metric_means(logs: Mapping[str, _Log]) -> dict[str, float]:
    calls: dict[str, list[float]] = {}
    for log in logs.values():
        for name, numbers in log.numbers.items():
            calls.setdefault(name, []).extend(numbers)
    return {name: sum(numbers) / len(numbers) for name, numbers in calls.items()}

"""Calling a reward as a run does, group by group, and noting all that goes wrong."""

from __future__ import annotations

import copy
import faulthandler
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError as DeadlineError
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sctom.rewards import loop
from sctom.rewards.base import Reward, RewardError, Values
from sctom.rewards.preflight.cases import Case
from sctom.rewards.run import RewardResults, run_rewards


@dataclass(frozen=True)
class Trouble:
    """Why a completion has no value."""

    code: str
    """A code of `sctom.rewards.preflight.findings.CODES`."""
    message: str


@dataclass
class Scored:
    """What one reward gave for the cases it was called with."""

    reward: Reward
    cases: list[Case]
    values: Values = field(default_factory=list)
    """One for each case; None where it abstained or where there is a trouble."""
    troubles: dict[int, Trouble] = field(default_factory=dict)
    """Number of a case -> why it has no value."""
    seconds: list[float] = field(default_factory=list)
    """Of each call that came back."""
    hung: bool = False
    """It did not come back within the deadline, and was not called again."""
    debug: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Number of a case -> what the reward noted about it with `log_extra`."""


def score(
    reward: Reward, groups: Sequence[Sequence[Case]], *, seconds: float, threaded: bool = True
) -> Scored:
    """Call a reward once for each group, and row by row where that fails.

    Args:
        reward: what is called.
        groups: the completions of one prompt each.
        seconds: longest time of one call; a reward that takes longer is not called again.
        threaded: call it in a thread of its own, as a run with `overlap_rewards` does. In the main
            thread a call that hangs ends the process, see `watchdog`.
    """
    scored = Scored(reward, [case for group in groups for case in group])
    start = 0
    for group in groups:
        if scored.hung:
            _skip(scored, start, group)
        else:
            _score_group(scored, start, group, seconds, threaded)
        start += len(group)
    return scored


def _skip(scored: Scored, start: int, group: Sequence[Case]) -> None:
    scored.values += [None] * len(group)
    for offset in range(len(group)):
        scored.troubles[start + offset] = Trouble("hangs", "not called after a call that hung")


def _score_group(
    scored: Scored, start: int, group: Sequence[Case], seconds: float, threaded: bool
) -> None:
    try:
        results = _call(scored, group, seconds, threaded)
    except DeadlineError:
        scored.hung = True
        _skip(scored, start, group)
        scored.troubles[start] = Trouble("hangs", f"no result after {seconds:g} s")
        return
    except RewardError as error:  # of the call as a whole: a count, a type
        scored.values += [None] * len(group)
        for offset in range(len(group)):
            scored.troubles[start + offset] = Trouble("wrong-count", str(error))
        return
    errors = results.errors[scored.reward.name]
    if len(group) > 1 and len(errors) == len(group) and len(set(errors.values())) == 1:
        for offset, case in enumerate(group):  # one error for all: whose is it?
            if scored.hung:
                _skip(scored, start + offset, [case])
            else:
                _score_group(scored, start + offset, [case], seconds, threaded)
        return
    scored.values += results.values[scored.reward.name]
    for offset, told in errors.items():
        code = "not-finite" if told.startswith("gave ") else "raises"
        scored.values[start + offset] = scored.reward.error_value  # None but with on_error: value
        scored.troubles[start + offset] = Trouble(code, told)
    error_column = f"{scored.reward.name}/error"  # `troubles` has them
    noted = {name: column for name, column in results.extra.items() if name != error_column}
    for offset in range(len(group)):
        scored.debug[start + offset] = {name: column[offset] for name, column in noted.items()}


def _call(scored: Scored, group: Sequence[Case], seconds: float, threaded: bool) -> RewardResults:
    """One call of the reward, within its deadline, without its cache; errors are in the results.

    Raises:
        RewardError: it did not return one entry for each completion.
        TimeoutError: it took longer.
    """
    names = dict.fromkeys(name for case in group for name in case.columns)
    columns = {name: [case.columns.get(name) for case in group] for name in names}
    reward = copy.copy(scored.reward)
    reward.on_error, reward.error_value, reward.cache = "abstain", None, 0
    call = partial(
        run_rewards,
        [reward],
        [case.prompt for case in group],
        [[{"role": "assistant", "content": case.completion}] for case in group],
        [case.ids for case in group],
        columns,
    )
    started = time.perf_counter()
    with watchdog(2 * seconds + 1):
        results = loop.start_in_thread(call).result(seconds) if threaded else call()
    scored.seconds.append(time.perf_counter() - started)
    return results


@contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """End the process with exit status 1 and a traceback if the block takes longer than this.

    For a call that holds the interpreter's lock, as a computation in C does: no thread of Python
    can go on to tell of it then.
    """
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def same_again(
    scored: Scored, groups: Sequence[Sequence[Case]], *, seconds: float, threaded: bool
) -> tuple[bool, bool]:
    """Whether a reward gives the same values in a second call, and to rows one by one.

    Args:
        scored: what it gave, without troubles.
        groups: the same completions as then.
        seconds: longest time of one call.
        threaded: see `score`.
    """
    again = score(scored.reward, groups, seconds=seconds, threaded=threaded)
    alone = [[case] for group in groups for case in group]
    single = score(scored.reward, alone, seconds=seconds, threaded=threaded)
    return again.values == scored.values, single.values == scored.values

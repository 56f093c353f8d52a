"""The rewards of `math_answers` as classes for a config: with a deadline, and told on errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from sctom.rewards.base import OnError, Reward, RewardError
from sctom.rewards.math_answers import (
    DELIMITERS,
    SECONDS,
    CosineScaled,
    LogExtra,
    Scores,
    accuracy,
    check_cosine,
    check_delimiters,
)


class AccuracyReward(Reward):
    r"""`accuracy_reward` for a config.

    Args:
        strict: without TRL's traps.
        seconds: deadline of an answer.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`.

    >>> AccuracyReward(strict=True)([r"\boxed{2\sqrt{5}}"], [r"2\sqrt{5}"])
    [1.0]
    """

    concurrent = True
    default_on_error: OnError = "abstain"

    def __init__(
        self,
        strict: bool = False,
        seconds: float = SECONDS,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.strict, self.seconds = strict, _checked_seconds(seconds)

    def __call__(
        self,
        completions: Sequence[Any],
        solution: Sequence[Any],
        log_extra: LogExtra | None = None,
    ) -> Scores:
        """1.0, 0.0, None or a Failure for each completion."""
        return accuracy(
            completions, solution, log_extra, strict=self.strict, seconds=self.seconds, fail=True
        )


class ReasoningAccuracyReward(AccuracyReward):
    r"""`reasoning_accuracy_reward` for a config.

    Args:
        reasoning_delimiters: what ends the reasoning; `</think>` by default.
        strict: without TRL's traps.
        seconds: deadline of an answer.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`.

    >>> ReasoningAccuracyReward()([r"<think> 2+2 </think> \boxed{4}"], ["4"])
    [1.0]
    """

    def __init__(
        self,
        reasoning_delimiters: list[str] | None = None,
        strict: bool = False,
        seconds: float = SECONDS,
        **settings: Any,
    ) -> None:
        super().__init__(
            strict,
            seconds,
            **settings,
        )
        given = DELIMITERS if reasoning_delimiters is None else reasoning_delimiters
        check_delimiters(given)
        self.delimiters = tuple(given)

    def __call__(
        self,
        completions: Sequence[Any],
        solution: Sequence[Any],
        log_extra: LogExtra | None = None,
    ) -> Scores:
        """1.0, 0.0, None or a Failure for each completion."""
        return accuracy(
            completions,
            solution,
            log_extra,
            strict=self.strict,
            seconds=self.seconds,
            delimiters=self.delimiters,
            fail=True,
        )


class CosineScaledReward(AccuracyReward):
    r"""`get_cosine_scaled_reward` for a config; its arguments are checked in both modes.

    Args:
        max_len: length in tokens from which on the value stays the same.
        min_value_wrong: value of the shortest wrong completion.
        max_value_wrong: value of the longest wrong completion.
        min_value_correct: value of the longest right completion.
        max_value_correct: value of the shortest right completion.
        strict: without TRL's traps.
        seconds: deadline of an answer.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`.

    >>> CosineScaledReward(max_len=100)([r"\boxed{3}"], ["3"], [[1] * 50])
    [0.75]
    """

    def __init__(
        self,
        max_len: int,
        min_value_wrong: float = -1.0,
        max_value_wrong: float = -0.5,
        min_value_correct: float = 0.5,
        max_value_correct: float = 1.0,
        strict: bool = False,
        seconds: float = SECONDS,
        **settings: Any,
    ) -> None:
        super().__init__(
            strict,
            seconds,
            **settings,
        )
        values = (min_value_wrong, max_value_wrong, min_value_correct, max_value_correct)
        check_cosine(max_len, values)
        self.scaled = CosineScaled(max_len, values, strict)

    def __call__(  # type: ignore[override]  # the length is looked at too
        self,
        completions: Sequence[Any],
        solution: Sequence[Any],
        completion_ids: Sequence[Any],
        log_extra: LogExtra | None = None,
    ) -> Scores:
        """A value, None or a Failure for each completion."""
        return self.scaled.scale(super().__call__(completions, solution, log_extra), completion_ids)


def _checked_seconds(seconds: float) -> float:
    if not (math.isfinite(seconds) and seconds > 0):
        raise RewardError(f"seconds must be a positive number, not {seconds}")
    return seconds

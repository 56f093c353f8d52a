"""Rewards that look at token ids only: repetition and length, as in TRL and strictly."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from sctom.rewards.base import Reward, RewardError


def get_repetition_penalty_reward(
    ngram_size: int = 3, max_penalty: float = -1.0, *, strict: bool = False
) -> Callable[..., list[float]]:
    """A penalty for the share of repeated n-grams of token ids.

        R = (1 - different n-grams / n-grams) * max_penalty

    and 0.0 for completions shorter than one n-gram. Source: Demystifying Long Chain-of-Thought
    Reasoning (arXiv 2502.03373), appendix C.2.

    Args:
        ngram_size: n.
        max_penalty: value that a completion of one repeated n-gram approaches; at most 0.
        strict: check these arguments, and read ids from tensors too, whose elements TRL takes to
            be all different.

    Returns:
        A reward of completion_ids. It can be pickled.

    Raises:
        ValueError: max_penalty is positive; strict, a RewardError: an argument makes no sense.

    >>> get_repetition_penalty_reward(ngram_size=2)([[1, 2, 3, 4], [5, 5, 5, 5, 5]])
    [0.0, -0.75]
    """
    if max_penalty > 0:
        raise ValueError(f"max_penalty must not be positive, found {max_penalty}")
    if strict:
        if not _is_count(ngram_size) or ngram_size < 1:
            raise RewardError(f"ngram_size must be at least 1, not {ngram_size!r}")
        if not math.isfinite(max_penalty):
            raise RewardError(f"max_penalty must be finite, not {max_penalty}")
    return _RepetitionPenalty(ngram_size, max_penalty, strict)


class _RepetitionPenalty:
    __name__ = "repetition_penalty_reward"

    def __init__(self, ngram_size: int, max_penalty: float, strict: bool) -> None:
        self.ngram_size, self.max_penalty, self.strict = ngram_size, max_penalty, strict

    def __call__(self, completion_ids: Sequence[Any], **kwargs: Any) -> list[float]:
        return [self._penalty(_integers(ids) if self.strict else ids) for ids in completion_ids]

    def _penalty(self, ids: Any) -> float:
        if len(ids) < self.ngram_size:
            return 0.0
        ngrams = list(zip(*(ids[start:] for start in range(self.ngram_size)), strict=False))
        repeated = 1 - len(set(ngrams)) / len(ngrams)
        return repeated * self.max_penalty if repeated else 0.0


def get_soft_overlong_punishment(
    max_completion_len: int, soft_punish_cache: int, *, strict: bool = False
) -> Callable[..., list[float]]:
    """A punishment that grows over the last tokens before the limit.

        R = 0                        length <= limit - cache
            (limit - cache - length) / cache      up to the limit, where it is -1
            -1                       beyond

    Source: DAPO (arXiv 2503.14476), equation 13.

    Args:
        max_completion_len: the limit, in tokens.
        soft_punish_cache: so many tokens before it the punishment begins; 0 for a step.
        strict: check these arguments. A cache above the limit punishes the empty completion.

    Returns:
        A reward of completion_ids. It can be pickled.

    Raises:
        RewardError: strict, and an argument makes no sense.

    >>> get_soft_overlong_punishment(100, 20)([[1] * 80, [1] * 90, [1] * 100, [1] * 101])
    [0.0, -0.5, -1.0, -1.0]
    """
    if strict:
        _check_overlong(max_completion_len, soft_punish_cache)
    return _SoftOverlong(max_completion_len, soft_punish_cache)


class _SoftOverlong:
    __name__ = "soft_overlong_punishment_reward"

    def __init__(self, limit: int, cache: int) -> None:
        self.limit, self.cache = limit, cache

    def __call__(self, completion_ids: Sequence[Any], **kwargs: Any) -> list[float]:
        return [self._punishment(len(ids)) for ids in completion_ids]

    def _punishment(self, length: int) -> float:
        free = self.limit - self.cache
        if length <= free:
            return 0.0
        return (free - length) / self.cache if length <= self.limit else -1.0


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_overlong(limit: int, cache: int) -> None:
    if not _is_count(limit) or limit < 1:
        raise RewardError(f"max_completion_len must be at least 1 token, not {limit!r}")
    if not _is_count(cache) or not 0 <= cache <= limit:
        expected = f"between 0 and max_completion_len, which is {limit}"
        raise RewardError(f"soft_punish_cache must be {expected}; found {cache!r}")


def _integers(ids: Any) -> list[int]:
    """Ids of a list, an array or a tensor."""
    return [operator.index(entry) for entry in ids]


class RepetitionPenalty(Reward):
    """`get_repetition_penalty_reward` for a config; arguments and ids are read strictly.

    Args:
        ngram_size: n.
        max_penalty: value that a completion of one repeated n-gram approaches; at most 0.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`.

    >>> RepetitionPenalty(ngram_size=2)([[5, 5, 5, 5, 5]])
    [-0.75]
    """

    name = "repetition_penalty_reward"

    def __init__(
        self,
        ngram_size: int = 3,
        max_penalty: float = -1.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.penalty = get_repetition_penalty_reward(ngram_size, max_penalty, strict=True)

    def __call__(self, completion_ids: Sequence[Any]) -> list[float]:
        """A penalty for each completion."""
        return self.penalty(completion_ids)


class SoftOverlongPunishment(Reward):
    """`get_soft_overlong_punishment` for a config; its arguments are checked.

    Args:
        max_completion_len: the limit, in tokens.
        soft_punish_cache: so many tokens before it the punishment begins; 0 for a step.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`.

    >>> SoftOverlongPunishment(max_completion_len=100, soft_punish_cache=20)([[1] * 90])
    [-0.5]
    """

    name = "soft_overlong_punishment_reward"

    def __init__(
        self,
        max_completion_len: int,
        soft_punish_cache: int,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.punish = get_soft_overlong_punishment(
            max_completion_len, soft_punish_cache, strict=True
        )

    def __call__(self, completion_ids: Sequence[Any]) -> list[float]:
        """A punishment for each completion."""
        return self.punish(completion_ids)

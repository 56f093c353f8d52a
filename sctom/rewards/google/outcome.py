"""What a scorer is given and what it gives: a sample; a number from -1 to 1, or why none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from sctom.rewards.google.example import Content


class ScoreError(Exception):
    """A sample could not be scored.

    Args:
        reason: why, in one line.
        debug: what helps to find the cause: output of the code, a reply.
    """

    def __init__(self, reason: str, debug: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.debug = debug


@dataclass(frozen=True)
class Sample:
    """One response to one prompt, as every scorer gets it."""

    example: dict[str, Any]
    """The example in camelCase."""
    response: Content
    """The response; after REGEX_EXTRACT its text is what was extracted."""
    text: str | None
    """The text of the response after parsing; None: the pattern matched nothing."""
    step: int
    """Optimiser steps so far."""

    @property
    def references(self) -> dict[str, str]:
        """The references of the example."""
        found: dict[str, str] = self.example.get("references", {})
        return found


@dataclass(frozen=True)
class Detail:
    """What one reward of a config gave."""

    reward: float | None
    """A number from -1 to 1; None: it could not be scored."""
    error: str | None = None
    aux: str | None = None
    """What the reward says beside its number, or what helps to find the cause of an error."""


class Scorer(Protocol):
    """A scorer that is ready to be called."""

    async def score(self, sample: Sample) -> Detail:
        """Score one sample.

        Raises:
            ScoreError: it could not be scored.
        """
        ...


def clipped(value: object) -> float:
    """A reward clipped to [-1, 1], after checking that it is one.

    The check comes first because max(-1, min(1, NaN)) is 1 in Python.

    Raises:
        ScoreError: it is not a finite number; a bool is not a number.

    >>> clipped(3), clipped(-0.5)
    (1.0, -0.5)
    >>> clipped(float("nan"))
    Traceback (most recent call last):
        ...
    sctom.rewards.google.outcome.ScoreError: the reward must be a finite number, found float nan
    """
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not -math.inf < value < math.inf
    ):
        found = f"{type(value).__name__} {value!r:.60}"
        raise ScoreError(f"the reward must be a finite number, found {found}")
    return float(max(-1, min(1, value)))

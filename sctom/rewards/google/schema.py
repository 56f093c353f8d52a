"""What a reward config says, after reading it: plain records, one for each scorer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Operation = Literal["EXACT_MATCH", "PARTIAL_MATCH", "REGEX_CONTAINS"]

MAX_REWARDS = 16
"""Most rewards of a composite."""


@dataclass(frozen=True)
class Parse:
    """parseResponseConfig: the whole text, or the last match of a pattern in it."""

    pattern: str | None = None
    """None: IDENTITY."""
    place: str = "parseResponseConfig"
    """Path in the JSON, as in the other records."""


@dataclass(frozen=True)
class StringMatch:
    """stringMatchRewardScorer."""

    operation: Operation
    expression: str
    """May hold {{references.key}}."""
    key: str | None
    """jsonMatchExpression: compare the value of this key. None: compare the text."""
    right: float
    wrong: float
    place: str


@dataclass(frozen=True)
class CodeExecution:
    """codeExecutionRewardScorer."""

    source: str
    """Python that defines evaluate(example, response)."""
    place: str


@dataclass(frozen=True)
class CloudRun:
    """cloudRunRewardScorer."""

    uri: str
    place: str


@dataclass(frozen=True)
class ExactMatch:
    """exactMatchScorer of an autorater."""

    expression: str
    right: float
    wrong: float
    place: str


@dataclass(frozen=True)
class Autorater:
    """autoraterScorer."""

    prompt: str
    """With {{prompt}}, {{response}}, {{system_instruction}} and {{references.key}}."""
    samples: int
    parse: Parse
    exact: ExactMatch | None
    """None: parsedResponseConversionScorer, the parsed text is the number."""
    model: str | None
    """The name of a model of Google's; the judge is another setting here."""
    generation: dict[str, Any] | None
    place: str


Scorer = StringMatch | CodeExecution | CloudRun | Autorater


@dataclass(frozen=True)
class Single:
    """singleRewardConfig."""

    name: str
    parse: Parse
    scorer: Scorer


@dataclass(frozen=True)
class Weighted:
    """An entry of weightedRewardConfigs."""

    reward: Single
    weight: float


@dataclass(frozen=True)
class Config:
    """A config: one reward of weight 1, or the rewards of a composite."""

    rewards: tuple[Weighted, ...]

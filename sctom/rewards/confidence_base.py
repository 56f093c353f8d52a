"""What the confidence-aware rewards share: what is right, what was stated, what is logged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sctom.rewards.base import Reward, RewardError, completion_text
from sctom.rewards.confidence_text import stated_confidence, without_confidence
from sctom.rewards.selfaware import Completion, Outcome, outcome
from sctom.rewards.selfaware_strict import StrictOutcome, question_of, strict_outcome

Matching = Literal["substring", "strict"]
LogMetric = Callable[[str, float], None]

_MATCHING: tuple[Matching, ...] = ("substring", "strict")
_OUTCOMES: tuple[Outcome, ...] = ("correct", "abstained", "wrong")
_STRICT: dict[StrictOutcome, Outcome] = {
    "correct": "correct",
    "hedged": "correct",
    "hedged_wrong": "wrong",
    "abstained": "abstained",
    "wrong": "wrong",
    "unanswerable_abstained": "abstained",
    "unanswerable_hedged": "wrong",
    "unanswerable_answered": "wrong",
}


@dataclass(frozen=True)
class Answer:
    """One completion, judged."""

    outcome: Outcome
    confidence: float | None
    """What it states, from 0 to 1; None where it states none that can be read."""
    unanswerable: bool

    @property
    def right(self) -> float:
        """The y of a score: 1.0 for the right answer, else 0.0, also for an abstention."""
        return float(self.outcome == "correct")


class ConfidenceReward(Reward):
    """A reward of what a completion did and how sure it said it was.

    The statement of confidence is taken out before the answer is looked for. Columns:
    `expected_answer` and `is_unanswerable`; with `matching: strict` also `answers` and `answerable`
    in their place, where the data have them. Metrics: the shares of the completions that were
    NAME/correct, NAME/abstained (on either kind of question), NAME/wrong and that NAME/stated a
    confidence; NAME/brier_score is the mean of (y - q)^2 over those that stated one (y: right
    answer, 1 or 0; q: stated), and absent where none did.

    Args:
        matching: "substring" judges as `SelfAware` does; "strict" as `SelfAwareStrict` does, where
            an answer beside an "I don't know" is an answer.
        weight: factor in the weighted sum.
        name: metric key, the class name in snake case by default.

    Raises:
        RewardError: another `matching`.
    """

    def __init__(
        self, *, matching: Matching = "substring", weight: float = 1.0, name: str | None = None
    ) -> None:
        super().__init__(weight=weight, name=name)
        if matching not in _MATCHING:
            choices = " or ".join(repr(choice) for choice in _MATCHING)
            raise RewardError(f"matching of {self.name!r} must be {choices}, not {matching!r}")
        self.matching: Matching = matching

    def judged(
        self,
        completions: Sequence[Completion],
        expected_answer: Sequence[str],
        is_unanswerable: Sequence[bool],
        *,
        prompts: Sequence[Any] | None = None,
        answers: Sequence[Sequence[str] | None] | None = None,
        answerable: Sequence[bool] | None = None,
        log_metric: LogMetric | None = None,
    ) -> list[Answer]:
        """Judge every completion, and log the metrics.

        Raises:
            TypeError: an expected answer that is not a string, or a label that is not a bool.
            ValueError: lists of different lengths.
        """
        explicit = answerable if self.matching == "strict" else None
        label = "is_unanswerable" if explicit is None else "answerable"
        labels = is_unanswerable if explicit is None else explicit
        several = answers or [None] * len(completions)
        asked = prompts or [""] * len(completions)
        found = []
        rows = zip(completions, expected_answer, labels, several, asked, strict=True)
        for index, (completion, expected, value, accepted, prompt) in enumerate(rows):
            if not isinstance(expected, str):
                raise TypeError(f"expected_answer[{index}] must be a string, found {expected!r}")
            if not isinstance(value, bool):  # the text "False" would count as true
                raise TypeError(f"{label}[{index}] must be a bool, found {value!r}")
            unanswerable = value if explicit is None else not value
            text = completion_text(completion)
            said = without_confidence(text)
            if self.matching == "strict":
                right = accepted or [expected]
                strict = strict_outcome(said, right, not unanswerable, question_of(prompt))
                did = _STRICT[strict]
            else:
                did = outcome(said, expected, unanswerable)
            found.append(Answer(did, stated_confidence(text), unanswerable))
        if log_metric is not None and found:
            self._log(found, log_metric)
        return found

    def require_finite(self, **settings: float | None) -> None:
        """Refuse settings that are neither None nor finite numbers.

        Raises:
            RewardError: it names the reward and the setting.
        """
        for name, value in settings.items():
            if value is not None and not math.isfinite(value):
                raise RewardError(f"{name} of {self.name!r} must be finite, not {value}")

    def _log(self, answers: Sequence[Answer], log_metric: LogMetric) -> None:
        outcomes = [answer.outcome for answer in answers]
        for kind in _OUTCOMES:
            log_metric(f"{self.name}/{kind}", outcomes.count(kind) / len(answers))
        stated = [(a.right, a.confidence) for a in answers if a.confidence is not None]
        log_metric(f"{self.name}/stated", len(stated) / len(answers))
        if stated:
            squares = [(right - confidence) ** 2 for right, confidence in stated]
            log_metric(f"{self.name}/brier_score", sum(squares) / len(squares))

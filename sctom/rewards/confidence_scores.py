"""Rewards that make it best to state the confidence one has: proper scoring rules."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from sctom.rewards.base import RewardError
from sctom.rewards.confidence_base import Answer, ConfidenceReward, LogMetric, Matching
from sctom.rewards.selfaware import Completion


class ScoringRule(ConfidenceReward):
    """A reward of whether the answer is right, y, and of the stated confidence, q.

    Args:
        missing: the reward of an answer that states no confidence.
        abstained: the reward of an abstention, on any question; None judges it as a wrong answer
            with the confidence it states, or 0 if it states none.
        matching: "substring" or "strict".
        weight: factor in the weighted sum.
        name: metric key, the class name in snake case by default.
    """

    def __init__(
        self,
        *,
        missing: float,
        abstained: float | None,
        matching: Matching,
        weight: float,
        name: str | None,
    ) -> None:
        super().__init__(matching=matching, weight=weight, name=name)
        self.require_finite(missing=missing, abstained=abstained)
        self.missing = missing
        self.abstained = abstained

    @abstractmethod
    def value(self, right: float, confidence: float) -> float:
        """The reward of an answer that states a confidence."""

    def __call__(
        self,
        completions: Sequence[Completion],
        expected_answer: Sequence[str],
        is_unanswerable: Sequence[bool],
        prompts: Sequence[Any] | None = None,
        answers: Sequence[Sequence[str] | None] | None = None,
        answerable: Sequence[bool] | None = None,
        log_metric: LogMetric | None = None,
    ) -> list[float]:
        """One reward per completion."""
        judged = self.judged(
            completions,
            expected_answer,
            is_unanswerable,
            prompts=prompts,
            answers=answers,
            answerable=answerable,
            log_metric=log_metric,
        )
        return [self.value_of(answer) for answer in judged]

    def value_of(self, answer: Answer) -> float:
        """The reward of any completion."""
        if answer.outcome == "abstained":
            if self.abstained is not None:
                return self.abstained
            return self.value(0.0, answer.confidence or 0.0)
        if answer.confidence is None:
            return self.missing
        return self.value(answer.right, answer.confidence)


class Brier(ScoringRule):
    """Right answers and honest confidence: correctness plus the Brier score.

        r = correct_weight y + brier_weight (1 - (y - q)^2) + format_weight

    with y = 1 for the right answer, else 0, and q the stated confidence. For an answer that is
    right with probability p the expected reward is largest at q = p, and is there

        correct_weight p + brier_weight (1 - p (1 - p)) + format_weight,

    which grows with p everywhere if brier_weight <= correct_weight: being right pays too. With more
    weight on the Brier term an answer that is surely wrong, and said to be, beats one that is
    right with a small probability.

    Source: RLCR, Damani et al., arXiv 2507.16806, reward y - (y - q)^2; its code adds 1 and a
    reward of the format, and weighs all three 0.5 in the HotpotQA config (with advantages that are
    not divided by the deviation, `scale: none`). Where we differ: the format is a readable
    confidence, not tags in a fixed order; the answer is looked for as `matching` says; abstentions,
    of which the paper has none, are judged as below.

    Args:
        correct_weight: weight of y.
        brier_weight: weight of the Brier term, at least 0.
        format_weight: added where a confidence can be read.
        missing: the whole reward of an answer that states no confidence; RLCR's 0 by default, below
            everything else.
        abstained: the whole reward of an abstention, on any question; None judges it as a wrong
            answer (y = 0) with the confidence it states, or 0 if it states none: brier_weight +
            format_weight.
        matching: "substring" or "strict".
        weight: factor in the weighted sum.
        name: metric key, "brier" by default.

    Raises:
        RewardError: a setting that is not finite, a negative brier_weight.

    >>> reward = Brier()
    >>> said = ["Seoul 90%", "Busan 90%", "Busan 10%", "Busan"]
    >>> values = reward(said, ["Seoul"] * 4, [False] * 4)
    >>> [round(value, 3) for value in values]  # 0.5 (1 + 1 - 0.01) + 0.5, 0.5 (1 - 0.81) + 0.5, ...
    [1.495, 0.595, 0.995, 0.0]
    """

    def __init__(
        self,
        *,
        correct_weight: float = 0.5,
        brier_weight: float = 0.5,
        format_weight: float = 0.5,
        missing: float = 0.0,
        abstained: float | None = None,
        matching: Matching = "substring",
        weight: float = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(
            missing=missing, abstained=abstained, matching=matching, weight=weight, name=name
        )
        self.require_finite(correct_weight=correct_weight, brier_weight=brier_weight)
        self.require_finite(format_weight=format_weight)
        if brier_weight < 0:
            found = f"must be at least 0 but is {brier_weight:g}"
            raise RewardError(f"brier_weight of {self.name!r} {found}: false confidence would pay")
        self.correct_weight = correct_weight
        self.brier_weight = brier_weight
        self.format_weight = format_weight

    def value(self, right: float, confidence: float) -> float:
        """The equation above."""
        score = 1.0 - (right - confidence) ** 2
        return self.correct_weight * right + self.brier_weight * score + self.format_weight


class LogScore(ScoringRule):
    """Honest confidence, with the price of false certainty growing without bound but for a clip.

        s = ln q for the right answer, else ln(1 - q);  q clipped to [clip, 1 - clip]
        r = scale ((s - s_min) / (s_max - s_min) + correct_bonus y),
        s_min = ln(clip) / 2,  s_max = ln(1 - clip)

    so that without the bonus r goes from about -scale to scale. For an answer that is right with
    probability p the expected reward is largest at q = p, whatever the bonus.

    It is not made to reward being right: an answer that is surely wrong, and said to be, gets
    scale, and a calibrated one gets more only above p = 0.70 (with the defaults; never without the
    bonus). Abstentions count likewise unless `abstained` says otherwise.

    Source: Rewarding Doubt, Stangel et al., arXiv 2503.02623; scale, clip, bonus and penalty are
    those of its code for single answers. Where we differ: q is a probability and not a grade from 0
    to 10; abstentions, for which its code would give the penalty, are judged as below.

    Args:
        scale: size of the reward.
        correct_bonus: added to the scaled score of the right answer, before `scale`.
        clip: smallest confidence that is told from 0, and largest distance to 1; above 0 and below
            0.5.
        missing: the reward of an answer that states no confidence; None is -3 scale, as in the
            source.
        abstained: the reward of an abstention, on any question; None judges it as a wrong answer
            with the confidence it states, or 0 if it states none: scale.
        matching: "substring" or "strict".
        weight: factor in the weighted sum.
        name: metric key, "log_score" by default.

    Raises:
        RewardError: a setting that is not finite, a scale that is not above 0, another clip.

    >>> reward = LogScore()
    >>> said = ["Seoul 90%", "Busan 90%", "Busan 10%", "Busan"]
    >>> values = reward(said, ["Seoul"] * 4, [False] * 4)
    >>> [round(value, 3) for value in values]
    [12.198, 3.334, 9.698, -30.0]
    """

    def __init__(
        self,
        *,
        scale: float = 10.0,
        correct_bonus: float = 0.25,
        clip: float = 0.001,
        missing: float | None = None,
        abstained: float | None = None,
        matching: Matching = "substring",
        weight: float = 1.0,
        name: str | None = None,
    ) -> None:
        missing = -3.0 * scale if missing is None else missing
        super().__init__(
            missing=missing, abstained=abstained, matching=matching, weight=weight, name=name
        )
        self.require_finite(scale=scale, correct_bonus=correct_bonus, clip=clip)
        if scale <= 0:
            found = f"must be above 0 but is {scale:g}"
            raise RewardError(f"scale of {self.name!r} {found}: false confidence would pay")
        if not 0 < clip < 0.5:
            raise RewardError(
                f"clip of {self.name!r} must be above 0 and below 0.5 but is {clip:g}"
            )
        self.scale = scale
        self.correct_bonus = correct_bonus
        self.floor = clip

    def value(self, right: float, confidence: float) -> float:
        """The equation above."""
        given = confidence if right else 1.0 - confidence  # probability given to what was the case
        score = math.log(min(max(given, self.floor), 1.0 - self.floor))
        smallest, largest = math.log(self.floor) / 2, math.log(1.0 - self.floor)
        return self.scale * ((score - smallest) / (largest - smallest) + self.correct_bonus * right)

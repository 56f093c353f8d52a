"""Rewards that make it best to answer exactly where one is sure enough: right, abstained, wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sctom.rewards.base import RewardError
from sctom.rewards.break_even import FiveValues, break_even_advice
from sctom.rewards.confidence_base import Answer, ConfidenceReward, LogMetric, Matching
from sctom.rewards.selfaware import Completion

STATEMENT = (
    "Answer only if you are more than {percent}% sure. A right answer is worth 1 point, a wrong "
    'one -{penalty}, and "I don\'t know." 0 points.'
)


class Ternary(ConfidenceReward):
    """+1 for a right answer, 0 for an abstention, -1 for a wrong answer.

        E[answer] = p correct + (1 - p) wrong = 2p - 1;    E[abstention] = abstained = 0

    so that answering pays where the probability p of being right is above 0.5 (with the defaults).
    A stated confidence is left out of the answer and not rewarded.

    Source: TruthRL, Wei et al., arXiv 2509.25760, ternary reward. It knows no unanswerable
    questions, only those of which the model got none of 256 samples right; abstaining is worth 0 on
    any question. So it is here: where nobody could know, 0 against the -1 of an answer.
    `unanswerable_abstained: 1.0` counts it as a right answer there, as `SelfAware` does. Where we
    differ: answer and abstention are found by `matching`, not by a judge.

    Args:
        correct: reward of a right answer.
        abstained: reward of an abstention on an answerable question.
        wrong: reward of a wrong answer, and of any answer to an unanswerable question.
        unanswerable_abstained: reward of an abstention on an unanswerable question.
        matching: "substring" or "strict".
        weight: factor in the weighted sum.
        name: metric key, "ternary" by default.

    Raises:
        RewardError: a setting that is not finite.

    >>> Ternary()(["Seoul", "I don't know.", "Busan"], ["Seoul"] * 3, [False] * 3)
    [1.0, 0.0, -1.0]
    """

    def __init__(
        self,
        *,
        correct: float = 1.0,
        abstained: float = 0.0,
        wrong: float = -1.0,
        unanswerable_abstained: float = 0.0,
        matching: Matching = "substring",
        weight: float = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(matching=matching, weight=weight, name=name)
        self.require_finite(correct=correct, abstained=abstained, wrong=wrong)
        self.require_finite(unanswerable_abstained=unanswerable_abstained)
        self.five_values = FiveValues(
            correct=correct,
            abstained=abstained,
            wrong=wrong,
            unanswerable_abstained=unanswerable_abstained,
            unanswerable_answered=wrong,
        )

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
        return [_value(answer, self.five_values) for answer in judged]

    def advice(self, columns: Mapping[str, Sequence[Any]]) -> list[str]:
        """From which chance to be right answering pays."""
        labels = [label for label in columns.get("is_unanswerable", []) if isinstance(label, bool)]
        return break_even_advice(self.name, self.five_values, labels)


class ConfidenceTarget(ConfidenceReward):
    """+1 for a right answer, 0 for an abstention, -t / (1 - t) for a wrong answer; t is announced.

        E[answer] = p - (1 - p) t / (1 - t);    E[abstention] = 0

    so that answering pays where the probability p of being right is above the target t. It is 1
    against -1 at t = 0.5, where this is `Ternary`, -3 at 0.75 and -9 at 0.9.

    Source: Kalai et al., "Why language models hallucinate", arXiv 2509.04664, explicit confidence
    targets. The target is a part of the question, which must state it; otherwise the reward asks
    for what the model cannot know. So a prompt without the statement is refused. Where we differ:
    the wording is ours; the paper grades evaluations, and we train. Unanswerable questions are not
    treated apart: an answer is wrong, an abstention worth `unanswerable_abstained`.

    Args:
        target: t of all questions, from 0 to below 1; None takes the column `confidence_target` of
            the data.
        statement: what a message of the prompt must hold, in which "{percent}" stands for 100 t and
            "{penalty}" for t / (1 - t); case and spacing do not matter. `target_statement` writes
            it out, for `data.system` or for the messages of the data.
        unanswerable_abstained: reward of an abstention on an unanswerable question.
        matching: "substring" or "strict".
        weight: factor in the weighted sum.
        name: metric key, "confidence_target" by default.

    Raises:
        RewardError: a target outside [0, 1), a statement without "{percent}" or with other braces.

    >>> reward = ConfidenceTarget(target=0.75)
    >>> prompts = [target_statement(0.75) + " What is the capital of Korea?"] * 3
    >>> reward(prompts, ["Seoul", "I don't know.", "Busan"], ["Seoul"] * 3, [False] * 3)
    [1.0, 0.0, -3.0]
    """

    def __init__(
        self,
        *,
        target: float | None = None,
        statement: str = STATEMENT,
        unanswerable_abstained: float = 0.0,
        matching: Matching = "substring",
        weight: float = 1.0,
        name: str | None = None,
    ) -> None:
        super().__init__(matching=matching, weight=weight, name=name)
        self.require_finite(unanswerable_abstained=unanswerable_abstained)
        target_statement(0.5 if target is None else target, statement)
        self.target = target
        self.statement = statement
        self.unanswerable_abstained = unanswerable_abstained

    def __call__(
        self,
        prompts: Sequence[str | Sequence[Mapping[str, str]]],
        completions: Sequence[Completion],
        expected_answer: Sequence[str],
        is_unanswerable: Sequence[bool],
        confidence_target: Sequence[float] | None = None,
        answers: Sequence[Sequence[str] | None] | None = None,
        answerable: Sequence[bool] | None = None,
        log_metric: LogMetric | None = None,
    ) -> list[float]:
        """One reward per completion.

        Raises:
            RewardError: no target or two, a target outside [0, 1), a prompt that does not state it.
        """
        targets = self._targets(confidence_target, len(completions))
        for index, (prompt, target) in enumerate(zip(prompts, targets, strict=True)):
            _check_stated(prompt, target_statement(target, self.statement), index)
        judged = self.judged(
            completions,
            expected_answer,
            is_unanswerable,
            prompts=prompts,
            answers=answers,
            answerable=answerable,
            log_metric=log_metric,
        )
        return [
            _value(answer, self._values(target))
            for answer, target in zip(judged, targets, strict=True)
        ]

    def _targets(self, column: Sequence[float] | None, rows: int) -> Sequence[float]:
        if column is None:
            if self.target is None:
                hint = "set `target`, or give the data a column `confidence_target`"
                raise RewardError(f"there is no confidence target; {hint}")
            return [self.target] * rows
        if self.target is not None:
            found = f"the setting `target` is {self.target:g} and the data have `confidence_target`"
            raise RewardError(f"there are two confidence targets: {found}; remove one of them")
        return column

    def _values(self, target: float) -> FiveValues:
        penalty = -target / (1.0 - target)
        return FiveValues(
            abstained=0.0,
            wrong=penalty,
            unanswerable_abstained=self.unanswerable_abstained,
            unanswerable_answered=penalty,
        )


def target_statement(target: float, statement: str = STATEMENT) -> str:
    """The sentence that states a confidence target, to be put into the system message.

    Args:
        target: t, from 0 to below 1.
        statement: its wording, with "{percent}" for 100 t and "{penalty}" for t / (1 - t).

    Raises:
        RewardError: a target outside [0, 1), a wording without "{percent}" or with other braces.

    >>> print(target_statement(0.75))  # doctest: +NORMALIZE_WHITESPACE
    Answer only if you are more than 75% sure. A right answer is worth 1 point, a wrong one -3, and
    "I don't know." 0 points.
    >>> target_statement(0.9, "Answer if {percent}% sure.")
    'Answer if 90% sure.'
    """
    if isinstance(target, bool) or not isinstance(target, int | float) or not 0 <= target < 1:
        raise RewardError(f"a confidence target must be from 0 to below 1 but is {target!r}")
    if "{percent}" not in statement:
        raise RewardError(f"the statement {statement!r} must hold '{{percent}}', the target")
    numbers = {"percent": f"{100 * target:.4g}", "penalty": f"{target / (1 - target):.4g}"}
    try:
        return statement.format(**numbers)
    except (KeyError, IndexError, ValueError) as error:
        message = f"the statement {statement!r} may hold '{{percent}}' and '{{penalty}}' only"
        raise RewardError(f"{message}: {error}") from error


def _check_stated(prompt: str | Sequence[Mapping[str, str]], statement: str, index: int) -> None:
    text = prompt if isinstance(prompt, str) else " ".join(m["content"] for m in prompt)
    if _folded(statement) not in _folded(text):
        hint = "put it into data.system or the messages, or name your own wording as `statement`"
        raise RewardError(
            f"prompt {index} does not state the confidence target: expected {statement!r} in it, "
            f"found {text!r:.200}; {hint}"
        )


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()


def _value(answer: Answer, values: FiveValues) -> float:
    if answer.outcome == "correct":
        return values.correct
    if answer.unanswerable:
        abstained = answer.outcome == "abstained"
        return values.unanswerable_abstained if abstained else values.unanswerable_answered
    return values.abstained if answer.outcome == "abstained" else values.wrong

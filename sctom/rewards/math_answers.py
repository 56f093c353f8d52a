r"""Is the answer right? TRL's rewards for mathematics, and strict ones beside them.

By default the values are those of trl 1.16 with math-verify 0.9, traps included; `strict=True` does
what was probably meant. docs/rewards.md has the table of the differences. Answers are graded in
worker processes, because no other limit of time holds for sympy: within them TRL's own limits apply
(10 s to parse, 5 s to compare), and what these cannot interrupt is killed after `seconds`. That is
0.0, TRL's value for an answer that takes too long; strict, it is a `Failure`.

Where we differ from TRL in the default mode: a completion may be plain text; limits of time also
hold outside of the main thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sctom.rewards.base import Failure, RewardError, completion_text
from sctom.rewards.first_message import first_content
from sctom.rewards.workers import Deadline, shared_workers

Scores = list[float | Failure | None]
LogExtra = Callable[[str, list[Any]], None]

SECONDS = 30.0
"""Deadline of an answer: more than TRL's own limits add up to for one answer."""

DELIMITERS = ("</think>",)
_INCOMPLETE = "[incomplete reasoning]"
_LATE = "[deadline]"


def accuracy_reward(
    completions: Sequence[Any],
    solution: Sequence[Any],
    log_extra: LogExtra | None = None,
    *,
    strict: bool = False,
    **kwargs: Any,
) -> Scores:
    r"""1.0 where the answer equals the solution, 0.0 where not, None where there is no solution.

    Args:
        completions: texts or lists of messages, of which the first is read (strict: the last).
        solution: their solutions (strict: LaTeX or text; see `grade_strictly`).
        log_extra: told the columns solution, gold_parsed and answer_parsed.
        strict: without TRL's traps.
        **kwargs: what TRL's trainer passes besides; not used, as in TRL.

    Returns:
        A value for each completion; a `Failure` for one whose worker died (strict: or was late).

    Raises:
        ValueError: other numbers of solutions than of completions.
        IndexError: a completion is an empty list of messages; other errors as in TRL.

    >>> accuracy_reward([r"\boxed{\frac{1}{3}}", r"\boxed{0.5}"], [r"\frac{1}{3}", "1/3"])
    [1.0, 0.0]
    """
    return accuracy(completions, solution, log_extra, strict=strict, seconds=SECONDS)


def reasoning_accuracy_reward(
    completions: Sequence[Any],
    solution: Sequence[Any],
    reasoning_delimiters: Sequence[str] | None = None,
    log_extra: LogExtra | None = None,
    *,
    strict: bool = False,
    **kwargs: Any,
) -> Scores:
    r"""`accuracy_reward` of what comes after the reasoning; 0.0 where the reasoning has no end.

    Args:
        completions: texts or lists of messages, of which the first is read (strict: the last).
        solution: their solutions.
        reasoning_delimiters: what ends the reasoning, `</think>` by default. The answer is what
            follows the last occurrence of the first delimiter of the list that occurs (strict: of
            any delimiter, as TRL's documentation says).
        log_extra: told the columns solution, gold_parsed and answer_parsed.
        strict: without TRL's traps.
        **kwargs: what TRL's trainer passes besides; not used, as in TRL.

    Raises:
        RewardError: strict, and the delimiters are no list of texts.

    >>> reasoning_accuracy_reward([r"3? 4? </think> \boxed{4}", r"\boxed{4}"], ["4", "4"])
    [1.0, 0.0]
    """
    delimiters = DELIMITERS if reasoning_delimiters is None else reasoning_delimiters
    return accuracy(
        completions,
        solution,
        log_extra,
        strict=strict,
        seconds=SECONDS,
        delimiters=delimiters,
    )


def get_cosine_scaled_reward(
    max_len: int,
    min_value_wrong: float = -1.0,
    max_value_wrong: float = -0.5,
    min_value_correct: float = 0.5,
    max_value_correct: float = 1.0,
    *,
    strict: bool = False,
) -> Callable[..., Scores]:
    r"""Correctness scaled by length: short is better where right, worse where wrong.

        R = low + (high - low) / 2 * (1 + cos(pi * min(length / max_len, 1)))

    with (low, high) = (min, max)_value_correct where right, (max, min)_value_wrong where wrong.
    Source: Demystifying Long Chain-of-Thought Reasoning (arXiv 2502.03373), appendix C.1.

    Args:
        max_len: length in tokens from which on the value stays the same.
        min_value_wrong: value of the shortest wrong completion.
        max_value_wrong: value of the longest wrong completion.
        min_value_correct: value of the longest right completion.
        max_value_correct: value of the shortest right completion.
        strict: grade strictly, and check these arguments.

    Returns:
        A reward of completions, solution and completion_ids. It can be pickled.

    Raises:
        RewardError: strict, and an argument makes no sense.

    >>> scaled = get_cosine_scaled_reward(max_len=100)
    >>> scaled([r"\boxed{3}", r"\boxed{2}"], ["3", "3"], [[1] * 50, [1] * 50])
    [0.75, -0.75]
    """
    values = (min_value_wrong, max_value_wrong, min_value_correct, max_value_correct)
    if strict:
        check_cosine(max_len, values)
    return CosineScaled(max_len, values, strict)


class CosineScaled:
    """What `get_cosine_scaled_reward` gives; a class, as a closure could not be pickled."""

    __name__ = "cosine_scaled_reward"

    def __init__(
        self, max_len: int, values: tuple[float, float, float, float], strict: bool
    ) -> None:
        self.max_len, self.values, self.strict = max_len, values, strict

    def __call__(
        self,
        completions: Sequence[Any],
        solution: Sequence[Any],
        completion_ids: Sequence[Any],
        **kwargs: Any,
    ) -> Scores:
        """A value, None or a Failure for each completion."""
        scores = accuracy_reward(completions, solution, strict=self.strict)
        return self.scale(scores, completion_ids)

    def scale(self, scores: Scores, completion_ids: Sequence[Any]) -> Scores:
        """Values for what `accuracy_reward` gave; what is no number stays as it is."""
        return [
            score if score is None or isinstance(score, Failure) else self._value(score, len(ids))
            for score, ids in zip(scores, completion_ids, strict=True)
        ]

    def _value(self, score: float, length: int) -> float:
        worst_wrong, best_wrong, worst_right, best_right = self.values
        low, high = (worst_right, best_right) if score else (best_wrong, worst_wrong)
        cosine = math.cos(min(length / self.max_len, 1.0) * math.pi)
        return float(low + 0.5 * (high - low) * (1.0 + cosine))


def check_cosine(max_len: int, values: tuple[float, float, float, float]) -> None:
    """Refuse a length that is none, and values that prefer a wrong answer."""
    if isinstance(max_len, bool) or not isinstance(max_len, int) or max_len < 1:
        raise RewardError(f"max_len must be a number of tokens of at least 1, not {max_len!r}")
    worst_wrong, best_wrong, worst_right, best_right = values
    if not all(map(math.isfinite, values)):
        raise RewardError(f"the values of a cosine reward must be finite, found {values}")
    if not worst_wrong <= best_wrong < worst_right <= best_right:
        expected = "min_value_wrong <= max_value_wrong < min_value_correct <= max_value_correct"
        raise RewardError(f"expected {expected}, found {', '.join(map(str, values))}")


Result = tuple[float | None, str, str] | Failure | Exception
"""The value, what was read from the solution and from the answer; or why there is none."""


def _grades(
    completions: Iterable[Any],
    solution: Iterable[Any],
    strict: bool,
    seconds: float,
    delimiters: Sequence[str] | None = None,
) -> list[Result]:
    """A grade for each completion; an Exception where TRL's grading raises."""
    if strict and delimiters is not None:
        check_delimiters(delimiters)
    read = _last_content if strict else first_content
    contents = [read(completion) for completion in completions]
    results: list[Result] = []
    questions: dict[int, tuple[str | None, str | None]] = {}
    for row, (content, gold) in enumerate(zip(contents, solution, strict=True)):
        results.append((None, "[unparseable]", "[skipped]"))
        if isinstance(content, Failure):
            results[row] = content
            continue
        if delimiters is not None:
            cut = _after_any if strict else _after_first_listed
            content = cut(content, delimiters)
            if content is None:
                results[row] = (0.0, _INCOMPLETE, _INCOMPLETE)
                continue
        text = _gold_text(gold) if strict else _plain(gold)
        if text is not None:
            questions[row] = (_plain(content), text)
    function = f"sctom.rewards.math_grading:{'grade_strictly' if strict else 'grade'}"
    graded = shared_workers().map(function, list(questions.values()), seconds=seconds)
    for row, grade in zip(questions, graded, strict=True):
        late = isinstance(grade, Deadline) and not strict
        results[row] = (0.0, _LATE, _LATE) if late else grade
    return results


def accuracy(
    completions: Iterable[Any],
    solution: Sequence[Any],
    log_extra: LogExtra | None,
    *,
    strict: bool,
    seconds: float,
    delimiters: Sequence[str] | None = None,
    fail: bool = False,
) -> Scores:
    """The values of the grades; what TRL raises is raised, or with `fail` a Failure of its row."""
    values: Scores = []
    read: list[tuple[str, str]] = []
    for result in _grades(completions, solution, strict, seconds, delimiters):
        if isinstance(result, Exception):
            if not fail:
                raise result
            result = Failure(f"{type(result).__name__}: {result}")
        if isinstance(result, Failure):
            values.append(result)
            read.append(("[failed]", "[failed]"))
        else:
            values.append(result[0])
            read.append(result[1:])
    if log_extra is not None:
        log_extra("solution", list(solution))
        log_extra("gold_parsed", [gold for gold, _ in read])
        log_extra("answer_parsed", [answer for _, answer in read])
    return values


def _last_content(completion: Any) -> str | Failure:
    try:
        return completion_text(completion)
    except ValueError as error:
        return Failure(str(error))


def _plain(text: Any) -> str | None:
    """A text for the worker; None for what is not one, in which math-verify finds nothing."""
    return str.__str__(text) if isinstance(text, str) else None


def _gold_text(gold: Any) -> str | None:
    number = isinstance(gold, (int, float)) and not isinstance(gold, bool)
    return str(gold) if number else _plain(gold)


def _after_first_listed(content: Any, delimiters: Iterable[str]) -> Any:
    for delimiter in delimiters:
        if delimiter in content:
            return content.split(delimiter)[-1]
    return None


def _after_any(content: str, delimiters: Iterable[str]) -> str | None:
    places = [(content.rfind(delimiter), delimiter) for delimiter in delimiters]
    end = max(place + len(delimiter) if place >= 0 else -1 for place, delimiter in places)
    return content[end:] if end >= 0 else None


def check_delimiters(delimiters: Sequence[str]) -> None:
    """Refuse delimiters that would give 0.0 to everything, or mean single letters."""
    texts = not isinstance(delimiters, str) and all(isinstance(text, str) for text in delimiters)
    if not texts or not delimiters or "" in delimiters:
        expected = "a list of texts that are not empty"
        raise RewardError(f"reasoning_delimiters must be {expected}, found {delimiters!r}")

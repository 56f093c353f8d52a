"""A reward that another model gives."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from sctom.rewards.base import (
    Failure,
    OnError,
    Reward,
    RewardError,
    completion_text,
)
from sctom.rewards.google.outcome import ScoreError
from sctom.rewards.google.parse import Parser
from sctom.rewards.google.schema import Parse
from sctom.rewards.http_reward import references_of, signature_with
from sctom.rewards.judge import CheckedJudge, Judge
from sctom.rewards.remote import BAD_ROW
from sctom.rewards.templates import check_template, fill

_PLACEHOLDERS = ("prompt", "response", "system_instruction", "references")


class JudgeReward(Reward):
    """The mean of what a judge says about a completion, in several replies.

    The template is filled and sent as a user's message. Of each reply the last match of `pattern`
    counts: as a number, clipped to [-1, 1], or, where `expected` is set, as `right` if it is that
    text and `wrong` if not. A completion is a `Failure` where the judge does not reply, or fewer
    than `least` of its replies can be read; the share of those that cannot is logged.

    Columns: those that `references` names; else `references`, texts by key, if the data has it.

    Args:
        judge: whom to ask.
        template: with {{prompt}}, {{response}}, {{system_instruction}} and {{references.key}}. A
            prompt of several turns is written with their roles.
        references: columns of the data that the template may use, by their names.
        count: replies to each completion.
        least: fewest of them that must be readable, the others being left out of the mean; null:
            all.
        pattern: RE2 pattern with at most one group; null takes the whole reply without the blanks
            around it.
        expected: the text of a good judgement; null reads a number.
        right: for the expected text.
        wrong: for every other text.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`.

    Raises:
        RewardError: a setting is out of range; the template or the pattern cannot be used.
    """

    default_on_error: OnError = "abstain"

    def __init__(
        self,
        judge: Judge,
        template: str,
        *,
        references: list[str] | None = None,
        count: int = 4,
        least: int | None = None,
        pattern: str | None = None,
        expected: str | None = None,
        right: float = 1.0,
        wrong: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if not 1 <= count <= 32:
            raise RewardError(f"count must be from 1 to 32, not {count}")
        if least is not None and not 1 <= least <= count:
            raise RewardError(f"least must be from 1 to count ({count}), not {least}")
        for setting, value in (("right", right), ("wrong", wrong)):
            if not -1 <= value <= 1:
                raise RewardError(f"{setting} must be from -1 to 1, not {value}")
        if right == wrong:
            raise RewardError(f"right and wrong are both {right:g}; give different ones")
        keys = check_template(template, "template", _PLACEHOLDERS)
        for key in keys:
            if references is not None and key not in references:
                raise RewardError(f"template uses the reference {key!r}; name it in references")
        self.judge = judge
        self.template = template
        self.references = references
        self.count = count
        self.least = count if least is None else least
        self.expected = expected
        self.right = right
        self.wrong = wrong
        self._parser = Parser(Parse(pattern, "pattern"))

    def signature(self) -> inspect.Signature:
        """What it takes: the columns that `references` names are needed."""
        return signature_with(self.__call__, self.references)

    def check(self) -> None:
        """Check the judge, if it can be.

        Raises:
            RewardError: what it depends on is not there.
        """
        if isinstance(self.judge, CheckedJudge):
            self.judge.check()

    def describe(self) -> list[str]:
        """Whom it asks."""
        return self.judge.describe() if isinstance(self.judge, CheckedJudge) else []

    async def __call__(  # noqa: D102
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | Failure]:
        asked = await asyncio.gather(
            *(
                self._replies(prompt, completion, {k: v[row] for k, v in columns.items()})
                for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
            )
        )
        replies = [entry for entry in asked if not isinstance(entry, Failure)]
        if log_extra is not None:
            log_extra("judgements", [None if isinstance(e, Failure) else e for e in asked])
        if log_metric is not None and replies:
            unread = [self._read(text) is None for texts in replies for text in texts]
            log_metric(f"{self.name}/unreadable", fmean(unread))
        return [entry if isinstance(entry, Failure) else self._mean(entry) for entry in asked]

    async def _replies(
        self, prompt: Any, completion: Any, row: Mapping[str, Any]
    ) -> list[str] | Failure:
        try:
            question = self._question(prompt, completion, row)
            return await self.judge.replies([{"role": "user", "content": question}], self.count)
        except BAD_ROW as error:
            return Failure(f"{error}" or type(error).__name__)

    def _question(self, prompt: Any, completion: Any, row: Mapping[str, Any]) -> str:
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        system = turns[0]["content"] if turns[0]["role"] == "system" else ""
        rest = [turn for turn in turns if turn["role"] != "system"]
        written = [f"{turn['role']}: {turn['content']}" for turn in rest]
        return fill(
            self.template,
            prompt=rest[0]["content"] if len(rest) == 1 else "\n\n".join(written),
            response=completion_text(completion),
            system_instruction=system,
            references=references_of(row, self.references),
        )

    def _mean(self, replies: Sequence[str]) -> float | Failure:
        values = [value for text in replies if (value := self._read(text)) is not None]
        if len(values) >= self.least:
            return fmean(values)
        what = "a number" if self.expected is None else "a match of the pattern"
        found = f"only {len(values)} of {len(replies)} replies of the judge have {what}"
        return Failure(f"{found}, at least {self.least} must", debug=f"{list(replies)!r:.500}")

    def _read(self, reply: str) -> float | None:
        """What a reply says; None: it cannot be read."""
        try:
            text = self._parser(reply)
        except ScoreError:
            return None
        if text is None:
            return None
        if self.expected is not None:
            return self.right if text.strip() == self.expected.strip() else self.wrong
        return _number(text)


def _number(text: str) -> float | None:
    """The number that a text is, clipped to [-1, 1]; None where it is none.

    >>> _number(" 0.75 "), _number("-3"), _number("nan"), _number("8/10")
    (0.75, -1.0, None, None)
    """
    try:
        number = float(text)
    except ValueError:
        return None
    if "_" in text or not math.isfinite(number):  # Python reads 1_0 as 10
        return None
    return max(-1.0, min(1.0, number))

"""autoraterScorer: a model judges the response, several times, and the mean is the reward."""

from __future__ import annotations

import asyncio
from statistics import fmean

from sctom.rewards.base import RewardError
from sctom.rewards.google.example import content_text
from sctom.rewards.google.outcome import Detail, Sample, ScoreError, clipped
from sctom.rewards.google.parse import Parser
from sctom.rewards.google.schema import Autorater
from sctom.rewards.judge import CheckedJudge, Judge
from sctom.rewards.remote import RemoteError
from sctom.rewards.templates import check_template, fill

_PLACES = ("prompt", "response", "system_instruction", "references")


class AutoraterScorer:
    """An autorater that is ready to be called.

    {{prompt}} is the text of the user's turn where the example has one turn, and the turns with
    their roles where it has several. A reply in which the parse pattern matches nothing, or that is
    no number where one is wanted, is an error of the sample. For the exact match a reply without a
    match is a wrong answer.

    Args:
        config: what to ask, how often, and how to read the replies.
        judge: who answers.
        seconds: for all replies to one sample, waiting and trying again included; None leaves time
            to the judge.

    Raises:
        RewardError: a placeholder is unknown; RE2 cannot use the pattern.
    """

    def __init__(self, config: Autorater, judge: Judge, *, seconds: float | None = None) -> None:
        self._config = config
        self._judge = judge
        self._seconds = seconds
        self._parser = Parser(config.parse)
        self.keys = check_template(config.prompt, config.place, _PLACES)
        self._rewards = {}
        if config.exact is not None:
            self.keys += check_template(config.exact.expression, config.exact.place, _PLACES)
            exact = config.exact
            self._rewards = {True: clipped(exact.right), False: clipped(exact.wrong)}

    def check(self) -> None:
        """Look whether a server's key is there.

        Raises:
            RewardError: it is not.
        """
        if isinstance(self._judge, CheckedJudge):
            self._judge.check()

    async def score(self, sample: Sample) -> Detail:
        """The mean of the rewards of the judge's replies, each clipped first.

        Raises:
            ScoreError: the judge does not answer, answers too late, or says what is no number.
        """
        count = self._config.samples
        messages = [{"role": "user", "content": self._filled(self._config.prompt, sample)}]
        try:
            async with asyncio.timeout(self._seconds):
                replies = await self._judge.replies(messages, count)
        except TimeoutError as error:
            raise ScoreError(f"the judge did not answer within {self._seconds:g} s") from error
        except RemoteError as error:
            raise ScoreError(str(error)) from error
        if len(replies) != count:
            raise ScoreError(f"the judge gave {len(replies)} replies, {count} were asked for")
        rewards = [self._reward(reply, sample) for reply in replies]
        return Detail(fmean(rewards), aux="\n---\n".join(replies))

    def _reward(self, reply: str, sample: Sample) -> float:
        parsed = self._parser(reply)
        if self._config.exact is not None:
            return self._rewards[parsed == self._filled(self._config.exact.expression, sample)]
        if parsed is None:
            raise ScoreError("the parse pattern matches nothing in the judge's reply", reply)
        try:
            number = float(parsed)
        except ValueError as error:
            raise ScoreError(f"the judge's reply {parsed!r:.60} is no number", reply) from error
        try:
            return clipped(number)
        except ScoreError as error:
            raise ScoreError(f"the judge's reply {parsed!r:.60}: {error}", reply) from error

    def _filled(self, template: str, sample: Sample) -> str:
        instruction = sample.example.get("systemInstruction")
        try:
            return fill(
                template,
                prompt=_prompt_text(sample),
                response=sample.text or "",
                system_instruction="" if instruction is None else content_text(instruction),
                references=sample.references,
            )
        except RewardError as error:
            raise ScoreError(str(error)) from error


def _prompt_text(sample: Sample) -> str:
    turns = [(turn.get("role", "user"), content_text(turn)) for turn in sample.example["contents"]]
    if len(turns) == 1:
        return turns[0][1]
    return "\n\n".join(f"{role}: {text}" for role, text in turns)

"""A judge in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from torch import nn

from sctom.batch import Prompt
from sctom.data.template import render_prompt
from sctom.modules import quantize
from sctom.modules.backbone import Backbone, stop_ids
from sctom.rewards import RewardError, loop
from sctom.rewards.judge import CheckedJudge, Cut, JudgeError
from sctom.rollout.base import Sample, Sampling
from sctom.rollout.local import LocalSampler


@dataclass(eq=False)
class _Question:
    messages: list[dict[str, str]]
    count: int
    answer: Future[list[str]] = field(default_factory=Future)


class LocalJudge(CheckedJudge):
    """A `Judge` that is a model in this process, loaded when it is first asked.

    What it replies depends on the seed and the messages and, but for rounding, not on what else it
    is asked. It replies in a thread of its own; questions that come in meanwhile are answered
    together.

    Args:
        backbone: the model.
        max_new_tokens: longest reply.
        temperature: of the replies; 0 takes the most likely tokens, and all replies are then alike.
        seed: of the draws.
        cut: "error" or "keep": what becomes of a reply that `max_new_tokens` cut off.

    >>> model = Backbone("sctom:tinyworld/model", attention="sdpa")
    >>> judge = LocalJudge(model, max_new_tokens=8, cut="keep")
    >>> question = [{"role": "user", "content": "Where does Kalomi live?"}]
    >>> len(asyncio.run(judge.replies(question, 2)))
    2
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        seed: int = 0,
        cut: Cut = "error",
    ) -> None:
        self.backbone = backbone
        self.sampling = Sampling(max_new_tokens=max_new_tokens, temperature=temperature)
        self.seed = seed
        self.cut = cut
        self._sampler = LocalSampler()
        self._loaded: tuple[nn.Module, Any] | None = None
        self._waiting: list[_Question] = []
        self._working = False
        self._lock = threading.Lock()

    def check(self) -> None:
        """Check that the model is there.

        Raises:
            RewardError: it is not.
        """
        try:
            self.backbone.check_paths(frozen=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise RewardError(f"the judge: {error}") from error

    def describe(self) -> list[str]:
        """Who replies."""
        limit = self.sampling.max_new_tokens
        return [f"asks {self.backbone.path} in this process, up to {limit} tokens a reply"]

    async def replies(self, messages: Sequence[Mapping[str, str]], count: int) -> list[str]:
        """See `Judge.replies`.

        Raises:
            JudgeError: a reply is empty, or cut off (see `cut`).
        """
        if count < 1:
            raise ValueError(f"the number of replies must be at least 1, not {count}")
        question = _Question([dict(message) for message in messages], count)
        with self._lock:
            self._waiting.append(question)
            start = not self._working
            self._working = True
        if start:
            loop.start_in_thread(self._work)
        return await asyncio.wrap_future(question.answer)

    def _work(self) -> None:
        while questions := self._take():
            try:
                self._answer(questions)
            except BaseException as error:  # told to whoever waits for it
                for question in questions:
                    if not question.answer.done():
                        question.answer.set_exception(error)

    def _take(self) -> list[_Question]:
        """The questions that wait and can be answered together: those for so many replies."""
        with self._lock:
            while self._waiting:
                count = self._waiting[0].count
                taken = [q for q in self._waiting if q.count == count]
                self._waiting = [q for q in self._waiting if q.count != count]
                if wanted := [q for q in taken if q.answer.set_running_or_notify_cancel()]:
                    return wanted
            self._working = False
            return []

    def _answer(self, questions: Sequence[_Question]) -> None:
        model, tokenizer = self._model()
        asked, prompts = [], []
        for question in questions:
            try:
                ids = render_prompt(tokenizer, question.messages)
            except ValueError as error:
                question.answer.set_exception(error)
                continue
            asked.append(question)
            prompts.append(Prompt(index=_number_of(ids), ids=ids, messages=question.messages))

        def finished(number: int, samples: list[Sample]) -> None:
            answer = asked[number].answer
            try:
                answer.set_result([self._text(tokenizer, sample) for sample in samples])
            except JudgeError as error:
                answer.set_exception(error)

        if prompts:
            self._sampler.sample(
                model,
                prompts,
                group_size=asked[0].count,
                sampling=self.sampling,
                stop_ids=stop_ids(model, tokenizer),
                address=(self.seed,),
                finished=finished,
            )

    def _text(self, tokenizer: Any, sample: Sample) -> str:
        text: str = tokenizer.decode(sample.ids, skip_special_tokens=True)
        if sample.truncated and self.cut == "error":
            limit = self.sampling.max_new_tokens
            raise JudgeError(
                f"a reply of {self.backbone.path} is cut off at {limit} tokens ({text!r:.100} so "
                "far); raise max_new_tokens, or set cut to keep"
            )
        if not text.strip():
            raise JudgeError(f"a reply of {self.backbone.path} has no text")
        return text

    def _model(self) -> tuple[nn.Module, Any]:
        if self._loaded is None:
            device = quantize.default_device()
            model = self.backbone.load_model(device, frozen=True).to(device)
            self._loaded = model, self.backbone.load_tokenizer()
        return self._loaded


def _number_of(ids: Sequence[int]) -> int:
    """A number that tells token ids from others, for the address of draws."""
    return int.from_bytes(sha256(repr(list(ids)).encode()).digest()[:7])

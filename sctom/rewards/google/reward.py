"""GoogleReward: a reward config of Google's as a reward of ours."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from statistics import fmean
from typing import Any

from sctom.readers import DataError
from sctom.rewards import loop
from sctom.rewards.base import (
    Failure,
    OnError,
    Reward,
    RewardError,
    completion_text,
)
from sctom.rewards.google.config import read_config
from sctom.rewards.google.example import (
    Content,
    content_from_text,
    example_from_messages,
    read_content,
    read_example,
)
from sctom.rewards.google.outcome import Detail
from sctom.rewards.google.single import Services, SingleReward
from sctom.rewards.judge import Judge
from sctom.rewards.remote import Turns
from sctom.sandbox import Sandbox

Log = Callable[[str, Sequence[Any]], None]
Metric = Callable[[str, float], None]


class GoogleReward(Reward):
    """The reward that a singleRewardConfig or compositeRewardConfig describes.

        total = sum_k w_k clip(r_k, -1, 1) / sum_k w_k

    Source: Google's pages and schema of reinforcement tuning (v1beta1). What they leave open, and
    what is chosen here, is in docs/rewards.md. A completion for which one of the rewards (of weight
    above 0) fails has no total: it is a `Failure`, so `on_error` decides.

    Columns: `references`, a dict of strings, and `example`, the line in Google's form, where the
    data have it (`python -m sctom.prepare google`); else the example is made from the prompt.

    Args:
        config: the JSON: as an object, as text, or the path of its file.
        judge: who answers autoraters.
        judge_seconds: for all of a judge's replies to one completion, waiting and trying again
            included; null leaves it to the judge, which has 60 s for a try (`ChatEndpoint`).
        sandbox: where `evaluate` runs; None is `Sandbox()`, with Google's 100 s and 1 GiB.
        references: columns that become the references, instead of the column `references`; numbers
            and bools are written as in JSON, None is left out.
        escape_references: in REGEX_CONTAINS, a reference stands for its characters.
        at_once: most completions that are scored at a time; of sandboxes, no more than processors.
        retries: further tries of an `evaluate` that is too slow.
        job_id: the id of the tuning job that a service is told.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`.

    Raises:
        RewardError: the config is not one; the message begins with the path in the JSON.

    >>> reward = GoogleReward({"rewardName": "right", "stringMatchRewardScorer": {
    ...     "correctAnswerReward": 1, "wrongAnswerReward": -1, "stringMatchExpression": {
    ...         "matchOperation": "PARTIAL_MATCH", "expression": "{{references.answer}}"}}})
    >>> example = {"contents": [{"parts": [{"text": "Capital of France?"}]}],
    ...            "references": {"answer": "Paris"}}
    >>> reward.score(example, "It is Paris.")
    (1.0, {'right': Detail(reward=1.0, error=None, aux=None)})
    """

    default_on_error: OnError = "abstain"

    def __init__(
        self,
        config: dict[str, Any] | str,
        *,
        judge: Judge | None = None,
        judge_seconds: float | None = None,
        sandbox: Sandbox | None = None,
        references: list[str] | None = None,
        escape_references: bool = True,
        at_once: int = 16,
        retries: int = 3,
        job_id: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        if retries < 0:
            raise RewardError(f"retries must be 0 or more, not {retries}")
        if judge_seconds is not None and not 0 < judge_seconds < math.inf:
            raise RewardError(f"judge_seconds must be a positive number, not {judge_seconds}")
        self.references = references
        self._turns = Turns(at_once)
        services = Services(
            judge=judge,
            judge_seconds=judge_seconds,
            sandbox=sandbox or Sandbox(),
            escape_references=escape_references,
            sandboxes=Turns(min(at_once, os.cpu_count() or 1)),
            retries=retries,
            job_id=job_id,
        )
        self._singles = [SingleReward(entry, services) for entry in read_config(config).rewards]
        self._check_references()

    def _check_references(self) -> None:
        """Placeholders of references that no column gives."""
        for single in self._singles:
            missing = [key for key in single.keys if key not in (self.references or single.keys)]
            if missing:
                said = f"{{{{references.{missing[0]}}}}} is used in the reward {single.name!r}"
                raise RewardError(f"{said}, but references names only {self.references}")

    def signature(self) -> Signature:
        """Needed are the columns that become references, or `references` if a template has one."""
        names = ["prompts", "completions"]
        if self.references is not None:
            names += self.references
        elif any(single.keys for single in self._singles):
            names.append("references")
        optional = ["example", "references", "trainer_state", "log_extra", "log_metric"]
        kind = Parameter.KEYWORD_ONLY
        needed = [Parameter(each, kind) for each in names]
        rest = [Parameter(each, kind, default=None) for each in optional if each not in names]
        return Signature(needed + rest)

    def check(self) -> None:
        """Look whether a sandbox works, and whether the code can be executed.

        Raises:
            RewardError: they do not.
        """
        for single in self._singles:
            single.check()

    def describe(self) -> list[str]:
        """A line for each reward of the config."""
        return [f"{self.name}/{single.name}: {single.about()}" for single in self._singles]

    def score(
        self, example: Mapping[str, Any], response: str | Mapping[str, Any], *, step: int = 0
    ) -> tuple[float | None, dict[str, Detail]]:
        """Score one response, and say what each reward gave.

        Args:
            example: in Google's form.
            response: its text, or a Content.
            step: optimiser steps so far, which a service is told.

        Returns:
            The total, None where a reward failed; reward -> what it gave.

        Raises:
            DataError: example or response have another form.
        """
        read = read_example(example, "example")
        if isinstance(response, str):
            content = content_from_text(response)
        else:
            content = read_content(response, "response")
        details: dict[str, Detail] = loop.start(self._details(read, content, step)).result()
        return self._total(details), details

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        example: Sequence[Any] | None = None,
        trainer_state: Any = None,
        log_extra: Log | None = None,
        log_metric: Metric | None = None,
        **columns: Sequence[Any],
    ) -> list[float | Failure]:
        """The total of each completion, or why it has none."""
        step = 0 if trainer_state is None else trainer_state.global_step

        async def one(row: int) -> dict[str, Detail]:
            values = {name: entries[row] for name, entries in columns.items()}
            line = None if example is None else example[row]
            try:
                read = self._example(prompts[row], line, values)
            except DataError as error:
                return {single.name: Detail(None, str(error)) for single in self._singles}
            content = content_from_text(completion_text(completions[row]))
            return await self._details(read, content, step)

        rows = await asyncio.gather(*(one(row) for row in range(len(completions))))
        for single in self._singles:
            self._log(single.name, [row[single.name] for row in rows], log_extra, log_metric)
        return [self._value(details) for details in rows]

    def _example(
        self, prompt: Any, line: Mapping[str, Any] | None, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        if self.references is not None:
            given = {key: _text(values[key]) for key in self.references if values[key] is not None}
        else:
            given = values.get("references") or {}
        if line is None:
            return example_from_messages(prompt, given)
        read = read_example(line, "example")
        return read_example({**read, "references": given}, "example") if given else read

    async def _details(
        self, example: dict[str, Any], response: Content, step: int
    ) -> dict[str, Detail]:
        async with self._turns.take():
            found = await asyncio.gather(
                *(single.score(example, response, step) for single in self._singles)
            )
        return {single.name: each for single, each in zip(self._singles, found, strict=True)}

    def _total(self, details: Mapping[str, Detail]) -> float | None:
        """The weighted mean; None where a reward that takes part failed."""
        taking_part = [single for single in self._singles if single.weight > 0]
        rewards = [details[single.name].reward for single in taking_part]
        heard = [reward for reward in rewards if reward is not None]
        if len(heard) < len(rewards):
            return None
        _, exponent = math.frexp(max(single.weight for single in taking_part))
        weights = [math.ldexp(single.weight, -exponent) for single in taking_part]  # none overflows
        return max(-1.0, min(1.0, fmean(heard, weights=weights)))

    def _value(self, details: Mapping[str, Detail]) -> float | Failure:
        total = self._total(details)
        if total is not None:
            return total
        failed = {
            single.name: details[single.name]
            for single in self._singles
            if single.weight > 0 and details[single.name].reward is None
        }
        reason = "; ".join(f"{name}: {detail.error}" for name, detail in failed.items())
        debug = "\n".join(f"{name}: {detail.aux}" for name, detail in failed.items() if detail.aux)
        return Failure(reason, debug)

    def _log(
        self, name: str, details: Sequence[Detail], extra: Log | None, metric: Metric | None
    ) -> None:
        rewards = [detail.reward for detail in details]
        key = f"{self.name}/{name}"
        if extra is not None:
            extra(key, rewards)
            for column in ("error", "aux"):
                said = [getattr(detail, column) for detail in details]
                if any(entry is not None for entry in said):
                    extra(f"{key}/{column}", said)
        heard = [reward for reward in rewards if reward is not None]
        if metric is not None and rewards:
            metric(f"{key}/failed", 1 - len(heard) / len(rewards))
            if heard:
                metric(key, fmean(heard))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

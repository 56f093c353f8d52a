"""A reward that a service over HTTP gives."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sctom.rewards.base import Failure, OnError, Reward, completion_text
from sctom.rewards.google.example import content_from_text, example_from_messages
from sctom.rewards.remote import (
    BAD_ROW,
    WAITS,
    address,
)
from sctom.rewards.service import RewardService, Scored


class HttpReward(Reward):
    """The reward that a service over HTTP gives each completion; see `RewardService`.

    Completions are sent one by one, `at_once` at a time. No usable answer after all tries is a
    `Failure`; by default the reward then abstains.

    Columns:

    - with `references` null: `example`, Google's line as our reader of them keeps it, sent as it
      is, if the data has that column; else `references`, texts by key, if it has that
    - with `references` set: the columns it names

    Args:
        url: where completions are posted to, http:// or https://.
        references: columns of the data that are sent as references, by their names; what is not a
            text is sent as JSON, and None is left out.
        job: the id in the metadata.
        seconds: for one try, from connecting to the last byte.
        waits: seconds before each further try.
        at_once: most requests that go on at a time.
        key_env: environment variable with a token that is sent as `Authorization: Bearer ...`.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`.

    Raises:
        RewardError: the address or a number cannot be used.

    >>> HttpReward("http://127.0.0.1:8000/score", references=["answer"]).describe()
    ['posts to http://127.0.0.1:8000/score: 300 s a try, 6 tries, 16 at once']
    """

    default_on_error: OnError = "abstain"

    def __init__(
        self,
        url: str,
        *,
        references: list[str] | None = None,
        job: str = "sctom",
        seconds: float = 300.0,
        waits: list[float] | None = None,
        at_once: int = 16,
        key_env: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.references = references
        self.service = RewardService(
            url,
            job=job,
            seconds=seconds,
            waits=WAITS if waits is None else waits,
            at_once=at_once,
            key_env=key_env,
        )

    def signature(self) -> inspect.Signature:
        """What it takes: the columns that `references` names are needed."""
        return signature_with(self.__call__, self.references)

    def check(self) -> None:
        """Check that the token is there.

        Raises:
            RewardError: it is not.
        """
        self.service.check()

    def describe(self) -> list[str]:
        """Where it posts to, and the limits."""
        service = self.service
        limits = f"{service.seconds:g} s a try, {len(service.waits) + 1} tries"
        at_once = f"{service.at_once} at once"
        return [f"posts to {address(service.url)}: {limits}, {at_once}"]

    async def __call__(  # noqa: D102
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        trainer_state: Any = None,
        log_extra: Callable[[str, list[Any]], None] | None = None,
        **columns: Sequence[Any],
    ) -> list[float | Failure]:
        self.check()
        step = 0 if trainer_state is None else int(trainer_state.global_step)
        rows = (
            self._score(prompt, completion, {k: v[row] for k, v in columns.items()}, step)
            for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        )
        scored = await asyncio.gather(*rows)
        aux = [entry.aux if isinstance(entry, Scored) else None for entry in scored]
        if log_extra is not None and any(text is not None for text in aux):
            log_extra("aux_info", aux)
        return [entry.reward if isinstance(entry, Scored) else entry for entry in scored]

    async def _score(
        self, prompt: Any, completion: Any, row: Mapping[str, Any], step: int
    ) -> Scored | Failure:
        try:
            if self.references is None and isinstance(row.get("example"), Mapping):
                example = row["example"]
            else:
                example = example_from_messages(prompt, references_of(row, self.references))
            response = content_from_text(completion_text(completion))
            return await self.service.score(example, response, step)
        except BAD_ROW as error:
            return Failure(f"{error}" or type(error).__name__)


def references_of(row: Mapping[str, Any], columns: Sequence[str] | None) -> dict[str, str]:
    """The references of a row: its column of that name, or the columns that are named.

    >>> references_of({"answer": "4", "tests": ["a"], "unit": None}, ["answer", "tests", "unit"])
    {'answer': '4', 'tests': '["a"]'}
    """
    if columns is None:
        return dict(row.get("references") or {})
    values = {name: row[name] for name in columns if row[name] is not None}
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
    }


def signature_with(call: Callable[..., Any], columns: Sequence[str] | None) -> inspect.Signature:
    """The signature of a reward that takes **columns, as one that names them.

    Args:
        call: a bound `__call__`.
        columns: those it needs; None: `example` and `references`, if the data has them.
    """
    named = inspect.signature(call)
    kept = [p for p in named.parameters.values() if p.kind is not p.VAR_KEYWORD]
    default = inspect.Parameter.empty if columns is not None else None
    names = ("example", "references") if columns is None else tuple(columns)
    taken = {parameter.name for parameter in kept}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name in dict.fromkeys(names)
        if name not in taken
    ]
    return named.replace(parameters=[*kept, *added])

"""Completions of prompts, drawn and scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sctom.assets import resolve
from sctom.batch import Prompt, Row
from sctom.data import PromptData
from sctom.data.template import check_length, render_prompt
from sctom.readers import Message
from sctom.rejection.settings import SampleSettings
from sctom.rewards import Reward, RewardHealth, check_rewards, run_rewards


def read_prompts(settings: SampleSettings, tokenizer: Any) -> list[Prompt]:
    """The prompts of a run, as token ids of what the model sees.

    Raises:
        ValueError: bad data, with its place, or a reward that lacks a column.
    """
    data = PromptData(
        settings.prompts,
        columns=settings.columns,
        system=settings.system,
        max_prompt_tokens=settings.max_prompt_tokens,
    )
    data.setup("fit")
    data.train_rows = data.train_rows[: settings.limit]
    data.render(tokenizer)
    prompts = data.train_prompts
    check_rewards(settings.rewards, prompts[0].columns)
    for reward in settings.rewards:
        reward.check()
    if settings.preprompt is None:
        return prompts
    return [preceded(settings, prompt, settings.preprompt, tokenizer) for prompt in prompts]


def preceded(settings: SampleSettings, prompt: Prompt, preprompt: str, tokenizer: Any) -> Prompt:
    """A prompt whose token ids have a text in front that its messages have not.

    Raises:
        ValueError: it is too long with it.
    """
    ids = render_prompt(tokenizer, with_preprompt(prompt.messages, preprompt))
    place = f"{resolve(settings.prompts)}:{prompt.index + 1}: with the preprompt"
    check_length(ids, settings.max_prompt_tokens, place=place)
    return replace(prompt, ids=ids)


def with_preprompt(messages: Sequence[Message], preprompt: str) -> list[Message]:
    """Messages with a text in front: as their system message, or before the one they have.

    >>> with_preprompt([{"role": "user", "content": "Why?"}], "Be kind.")
    [{'role': 'system', 'content': 'Be kind.'}, {'role': 'user', 'content': 'Why?'}]
    """
    system, *turns = messages
    if system["role"] != "system":
        return [{"role": "system", "content": preprompt}, *messages]
    return [{"role": "system", "content": f"{preprompt}\n\n{system['content']}"}, *turns]


def score(rewards: Sequence[Reward], rows: Sequence[Row], health: RewardHealth) -> None:
    """Fill in the rewards of completions, before any weight, and what the rewards noted.

    Raises:
        RewardError: a reward failed whose `on_error` is "raise", or one failed too often.
    """
    columns: Mapping[str, Any] = rows[0].prompt.columns
    results = run_rewards(
        rewards,
        [row.prompt.messages for row in rows],
        [[{"role": "assistant", "content": row.text}] for row in rows],
        [row.ids for row in rows],
        {name: [row.prompt.columns.get(name) for row in rows] for name in columns},
    )
    health.record(results)
    for i, row in enumerate(rows):
        row.rewards = {name: values[i] for name, values in results.values.items()}
        row.extra = {name: values[i] for name, values in results.extra.items()}

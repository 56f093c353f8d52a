"""Completions of prompts, drawn and scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from sctom.batch import Prompt, Row
from sctom.data import PromptData
from sctom.data.template import check_length, render_prompt
from sctom.modules import Backbone
from sctom.modules.backbone import stop_ids
from sctom.modules.quantize import default_device
from sctom.readers import Message
from sctom.rejection.settings import SampleSettings
from sctom.rewards import Reward, RewardHealth, check_rewards, run_rewards
from sctom.rollout import LocalSampler, Sampling


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
    return [
        preceded(prompt, settings.preprompt, tokenizer, settings.max_prompt_tokens)
        for prompt in prompts
    ]


def preceded(prompt: Prompt, preprompt: str, tokenizer: Any, limit: int) -> Prompt:
    """A prompt whose token ids have a text in front that its messages have not."""
    ids = render_prompt(tokenizer, with_preprompt(prompt.messages, preprompt))
    check_length(ids, limit, place=f"prompt {prompt.index} with the preprompt")
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


class Answerer:
    """A model that draws completions; every draw has an address and does not depend on the others.

    Args:
        backbone: the model, loaded at once, and frozen.
        tokenizer: its own.
        sampling: how completions are drawn.
    """

    def __init__(self, backbone: Backbone, tokenizer: Any, sampling: Sampling) -> None:
        device = default_device()
        self.model: nn.Module = backbone.load_model(device, frozen=True).to(device).eval()
        self.tokenizer = tokenizer
        self.sampling = sampling
        self._stop_ids = stop_ids(self.model, tokenizer)
        self._sampler = LocalSampler()

    @torch.no_grad()
    def draw(
        self, prompts: Sequence[Prompt], count: int, temperature: float, *address: int
    ) -> list[list[Row]]:
        """`count` completions of each prompt.

        Args:
            prompts: what is completed.
            count: completions of each.
            temperature: divides the logits.
            address: of the draws; place of the prompt, number of the sample and position follow.
        """
        samples = self._sampler.sample(
            self.model,
            prompts,
            group_size=count,
            sampling=replace(self.sampling, temperature=temperature),
            stop_ids=self._stop_ids,
            address=address,
        )
        texts = self.tokenizer.batch_decode([s.ids for s in samples], skip_special_tokens=True)
        rows = [
            Row(prompts[i // count], i % count, sample.ids, text, sample.truncated)
            for i, (sample, text) in enumerate(zip(samples, texts, strict=True))
        ]
        return [rows[start : start + count] for start in range(0, len(rows), count)]


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

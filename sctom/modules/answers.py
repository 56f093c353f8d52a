"""Answers of a model to conversations: for evaluation and for data that a model is to make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from sctom.batch import Prompt, Row
from sctom.data.template import Message, render_prompt
from sctom.modules.backbone import Backbone, fingerprint, stop_ids
from sctom.modules.quantize import default_device
from sctom.rollout.base import Sampling
from sctom.rollout.local import LocalSampler
from sctom.tasks.gatt import ANSWERS, AnswerTurn


class Answerer:
    """A model that draws completions; every draw has an address and does not depend on the others.

    Args:
        model: a causal language model, put into evaluation mode.
        tokenizer: with a chat template.
        sampling: how completions are drawn.

    Raises:
        ValueError: no token ends a completion.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, sampling: Sampling) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.sampling = sampling
        self._stop_ids = stop_ids(model, tokenizer)

    @classmethod
    def load(cls, backbone: Backbone, tokenizer: Any, sampling: Sampling) -> Answerer:
        """With the weights of a backbone, frozen, on the device there is."""
        device = default_device()
        return cls(backbone.load_model(device, frozen=True).to(device), tokenizer, sampling)

    @torch.no_grad()
    def draw(
        self,
        prompts: Sequence[Prompt],
        count: int,
        *address: int,
        temperature: float | None = None,
        finished: Callable[[], None] = lambda: None,
    ) -> list[list[Row]]:
        """Completions of each prompt.

        Args:
            prompts: what is completed.
            count: completions of each.
            address: of the draws; place of the prompt, number of the sample and position follow.
            temperature: in place of that of `sampling`.
            finished: called when a prompt's completions are complete.
        """
        sampling = self.sampling
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)
        samples = LocalSampler().sample(
            self.model,
            prompts,
            group_size=count,
            sampling=sampling,
            stop_ids=self._stop_ids,
            address=address,
            finished=lambda place, group: finished(),
        )
        texts = self.tokenizer.batch_decode([s.ids for s in samples], skip_special_tokens=True)
        rows = [
            Row(prompts[i // count], i % count, sample.ids, text, sample.truncated)
            for i, (sample, text) in enumerate(zip(samples, texts, strict=True))
        ]
        return [rows[start : start + count] for start in range(0, len(rows), count)]


def answer(
    answerer: Answerer,
    conversations: Sequence[Sequence[Message]],
    *,
    address: tuple[int, ...] = (),
    numbers: Sequence[int] | None = None,
    finished: Callable[[], None] = lambda: None,
) -> list[Row]:
    """One answer to each conversation.

    Args:
        answerer: what answers.
        conversations: each ends before the assistant's turn.
        address: of the draws; with the conversation's number it is that of one answer.
        numbers: of each conversation; None numbers them from 0.
        finished: called when an answer is complete.

    Raises:
        ValueError: the template cannot render a conversation.

    >>> from sctom.modules.backbone import Backbone
    >>> model, tokenizer = Backbone("sctom:tinyworld/model", attention="sdpa").load()
    >>> asked = [{"role": "user", "content": "Where does Kalomi live?"}]
    >>> greedy = Answerer(model, tokenizer, Sampling(8, temperature=0))
    >>> [row.text for row in answer(greedy, [asked])]
    ['Dublin']
    """
    prompts = [
        Prompt(number, render_prompt(answerer.tokenizer, messages), list(messages))
        for number, messages in zip(
            range(len(conversations)) if numbers is None else numbers, conversations, strict=True
        )
    ]
    return [row for (row,) in answerer.draw(prompts, 1, *address, finished=finished)]


def turn_answers(
    backbone: Backbone, sampling: Sampling, seed: int
) -> tuple[AnswerTurn, dict[str, Any]]:
    """A model as `sctom.tasks.gatt.prepare_gatt` asks it, and what a manifest says of it.

    What it answers depends on the seed, the number of the dialogue, the turn and the conversation.

    Args:
        backbone: the model.
        sampling: how answers are drawn.
        seed: of the draws.

    Raises:
        ValueError: the model cannot be loaded; see `Backbone.load_model`.
    """
    answerer = Answerer.load(backbone, backbone.load_tokenizer(), sampling)

    def answer_turn(
        conversations: list[list[Message]], numbers: list[int], turn: int
    ) -> list[str | None]:
        answers = answer(answerer, conversations, address=(seed, ANSWERS, turn), numbers=numbers)
        return [None if each.truncated else each.text for each in answers]

    about = {
        "path": backbone.path,
        "adapter": backbone.adapter,
        "weights": fingerprint(answerer.model.named_parameters()),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_new_tokens": sampling.max_new_tokens,
    }
    return answer_turn, about

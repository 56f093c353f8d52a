"""Answers of a model to conversations: for evaluation and for data that a model is to make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from sctom.batch import Prompt
from sctom.data.template import Message, render_prompt
from sctom.modules.backbone import Backbone, fingerprint, stop_ids
from sctom.modules.quantize import default_device
from sctom.rollout.base import Sample, Sampling
from sctom.rollout.local import LocalSampler
from sctom.tasks.gatt import ANSWERS, AnswerTurn


@dataclass(frozen=True)
class Answer:
    """What a model said."""

    text: str
    """Without special tokens."""
    truncated: bool
    """The limit on new tokens was reached without a stop token."""


def answer(
    model: nn.Module,
    tokenizer: Any,
    conversations: Sequence[Sequence[Message]],
    *,
    sampling: Sampling,
    address: tuple[int, ...] = (),
    numbers: Sequence[int] | None = None,
    finished: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """One answer to each conversation.

    Args:
        model: a causal language model in evaluation mode.
        tokenizer: with a chat template.
        conversations: each ends before the assistant's turn.
        sampling: how answers are drawn; temperature 0 takes the most likely tokens.
        address: of the draws; with the conversation's number it is that of one answer.
        numbers: of each conversation; None numbers them from 0.
        finished: called when an answer is complete.

    Raises:
        ValueError: the template cannot render a conversation, or no token ends an answer.

    >>> from sctom.modules.backbone import Backbone
    >>> model, tokenizer = Backbone("sctom:tinyworld/model", attention="sdpa").load()
    >>> asked = [{"role": "user", "content": "Where does Kalomi live?"}]
    >>> answer(model, tokenizer, [asked], sampling=Sampling(8, temperature=0))
    [Answer(text='Dublin', truncated=False)]
    """
    prompts = [
        Prompt(number, render_prompt(tokenizer, messages), list(messages))
        for number, messages in zip(
            range(len(conversations)) if numbers is None else numbers, conversations, strict=True
        )
    ]

    def complete(place: int, samples: list[Sample]) -> None:
        finished()

    samples = LocalSampler().sample(
        model,
        prompts,
        group_size=1,
        sampling=sampling,
        stop_ids=stop_ids(model, tokenizer),
        address=address,
        finished=complete,
    )
    return [
        Answer(tokenizer.decode(sample.ids, skip_special_tokens=True), sample.truncated)
        for sample in samples
    ]


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
    device = default_device()
    model = backbone.load_model(device, frozen=True).to(device)
    tokenizer = backbone.load_tokenizer()

    def answer_turn(
        conversations: list[list[Message]], numbers: list[int], turn: int
    ) -> list[str | None]:
        answers = answer(
            model,
            tokenizer,
            conversations,
            sampling=sampling,
            address=(seed, ANSWERS, turn),
            numbers=numbers,
        )
        return [None if each.truncated else each.text for each in answers]

    about = {
        "path": backbone.path,
        "adapter": backbone.adapter,
        "weights": fingerprint(model.named_parameters()),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_new_tokens": sampling.max_new_tokens,
    }
    return answer_turn, about

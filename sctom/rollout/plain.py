"""Sampling through a model's own attention and cache, where packed rows would not be exact.

Each prompt is run once, padded on the left, and its keys and values are repeated for its group;
finished rows leave the batch. Slower than `sctom.rollout.decode` and with more memory, but it asks
of a model only what generation does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from sctom.batch import Prompt
from sctom.rollout.base import Sampling
from sctom.rollout.causal import causal_model, next_logits, pad
from sctom.rollout.draw import next_tokens
from sctom.rollout.drawn import Drawn
from sctom.seeds import Keys


def decode_plain(
    model: nn.Module, prompts: Sequence[Prompt], keys: Keys, sampling: Sampling, drawn: Drawn
) -> None:
    """Draw completions until all have ended or reached the limit.

    Args:
        model: a causal language model.
        prompts: P prompts.
        keys: [B] the key of each completion, prompt by prompt.
        sampling: how they are drawn.
        drawn: takes the tokens.
    """
    cache, logits, mask, position = _prefill(model, prompts, len(keys) // len(prompts))
    for step in range(sampling.max_new_tokens):
        tokens, logps = next_tokens(logits, keys[drawn.alive_on_cpu], step, sampling)
        going_on = drawn.add(tokens, logps)
        if not len(drawn.alive) or step + 1 == sampling.max_new_tokens:
            break
        if going_on is not None:
            cache.batch_select_indices(going_on)
            tokens, mask, position = tokens[going_on], mask[going_on], position[going_on]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=-1)
        logits = next_logits(
            model,
            input_ids=tokens.unsqueeze(-1),
            attention_mask=mask,
            position_ids=position.unsqueeze(-1),
            cache=cache,
        )
        position = position + 1


def _repeat(cache: DynamicCache, group_size: int, name: str) -> None:
    try:
        cache.batch_repeat_interleave(group_size)
    except AttributeError as error:
        raise ValueError(
            f"{name} keeps a state that transformers cannot repeat for a group ({error}); sctom "
            "does not sample from such models yet"
        ) from error


def _prefill(
    model: nn.Module, prompts: Sequence[Prompt], group_size: int
) -> tuple[DynamicCache, Tensor, Tensor, Tensor]:
    """Run each prompt once.

    -> cache, logits, attention mask, next position; repeated per completion.
    """
    device = next(model.parameters()).device
    ids, mask, positions = pad([p.ids for p in prompts], 0, side="left", device=device)
    cache = DynamicCache(config=causal_model(model).config)
    logits = next_logits(
        model, input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache
    )
    _repeat(cache, group_size, type(causal_model(model)).__name__)
    last = logits.repeat_interleave(group_size, 0)
    following = mask.sum(-1).repeat_interleave(group_size, 0)
    return cache, last, mask.repeat_interleave(group_size, 0), following

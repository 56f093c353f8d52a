"""The two halves of a causal language model: hidden states, and the head that makes them logits."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def causal_model(model: nn.Module) -> Any:
    """The Hugging Face causal model inside a PEFT wrapper, or the model itself.

    Adapters stay injected.
    """
    from peft import PeftModel

    return model.get_base_model() if isinstance(model, PeftModel) else model


def _known_cache_name(module: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """`cache` under the name this version of the model knows it by."""
    if "cache" in inputs and "cache" not in inspect.signature(module.forward).parameters:
        return {("past_key_values" if k == "cache" else k): v for k, v in inputs.items()}
    return inputs


def next_logits(model: nn.Module, **inputs: Any) -> Tensor:
    """Logits [B, V] after the last token of each row, with whatever the model does after its head.

    Args:
        model: a causal language model, with or without adapters.
        inputs: input_ids [B, L], attention_mask, position_ids, cache.
    """
    causal = causal_model(model)
    output = causal(**_known_cache_name(causal, inputs), use_cache=True, logits_to_keep=1)
    logits: Tensor = output.logits[:, -1]
    return logits


def decoder(model: nn.Module) -> Any:
    """The part of a causal model that gives hidden states; itself where it names no such part."""
    return causal_model(model).get_decoder()


def hidden_states(model: nn.Module, **inputs: Any) -> Tensor:
    """Final hidden states [B, L, H] of the decoder, before the head.

    Args:
        model: a causal language model, with or without adapters.
        inputs: input_ids [B, L], attention_mask, position_ids.
    """
    hidden: Tensor = decoder(model)(**inputs, use_cache=False).last_hidden_state
    return hidden


def head(model: nn.Module) -> nn.Module:
    """The output embedding: hidden states to logits."""
    module: nn.Module = causal_model(model).get_output_embeddings()
    return module


def is_plain_linear(module: nn.Module) -> bool:
    """Whether a head is a bare linear without bias, adapter or hook.

    Its weight alone then says what it computes.
    """
    plain = type(module) is nn.Linear and module.bias is None
    return plain and not module._forward_hooks and not module._forward_pre_hooks


def pad(
    sequences: Sequence[Sequence[int]],
    pad_id: int,
    *,
    side: str,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor, Tensor]:
    """Pad ragged token ids. The mask comes from the lengths, never from the ids: pad may equal eos.

    Args:
        sequences: token ids per row.
        pad_id: filler; its value never matters.
        side: "left" (for sampling: all rows end together) or "right" (for training).
        device: where the tensors go.

    Returns:
        ids [B, L], attention mask [B, L] (1 on real tokens), position ids [B, L] (0 at a row's
        first real token).

    >>> ids, mask, positions = pad([[5, 6, 7], [8]], 0, side="left")
    >>> ids.tolist(), mask.tolist(), positions.tolist()
    ([[5, 6, 7], [0, 0, 8]], [[1, 1, 1], [0, 0, 1]], [[0, 1, 2], [0, 0, 0]])
    """
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right' but is {side!r}")
    longest = max(len(row) for row in sequences)
    ids = torch.full((len(sequences), longest), pad_id, dtype=torch.long)
    mask = torch.zeros(len(sequences), longest, dtype=torch.long)
    for i, row in enumerate(sequences):
        span = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        ids[i, span] = torch.tensor(row, dtype=torch.long)
        mask[i, span] = 1
    positions = (mask.cumsum(-1) - 1).clamp_min(0) * mask
    return ids.to(device), mask.to(device), positions.to(device)

"""Merging an adapter into the weights of its model, and checking what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sctom.modules.quantize import layers_4bit

TOLERANCE = 1e-3
"""Allowed difference of log-probabilities between base + adapter and merged, both in float32."""


class MergeError(ValueError):
    """An adapter that cannot be merged, or a merge that came out wrong."""


def merge_adapter(model: nn.Module) -> nn.Module:
    """The plain model that computes what a model and its adapter do together.

    Every adapted layer gets the weight of LoRA (Hu et al. 2021, section 4.1):

        W' = W + alpha / r * B A

    Where embeddings and head share a weight and one of them is adapted, they are two weights after.

    Args:
        model: a PEFT model whose base is not quantised; it is used up.

    Raises:
        MergeError: there is no adapter, or the weights to merge into are 4-bit. W' would have to be
            rounded to four bits again, and the adapter is small beside that rounding.
    """
    from peft import PeftModel

    if not isinstance(model, PeftModel):
        raise MergeError(
            f"{type(model).__name__} has no adapter, so there is nothing to merge; "
            "load it with adapter: FOLDER"
        )
    if any(True for _ in layers_4bit(model)):
        raise MergeError(
            "an adapter is not merged into 4-bit weights, since the sum would be rounded to four "
            "bits again; merge it into the unquantised base: "
            "python -m sctom.merge --adapter RUN/model --out FOLDER"
        )
    adapted: Any = model
    _untie(adapted.get_base_model())
    merged: nn.Module = adapted.merge_and_unload(safe_merge=True)
    return merged


def _untie(model: Any) -> None:
    """Give an adapted head or embedding a weight of its own; PEFT would add to the shared one."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
    if not any(isinstance(layer, BaseTunerLayer) for layer in layers):
        return
    plain: list[Any] = [
        layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer for layer in layers
    ]
    embedding, head = plain
    if embedding.weight is head.weight:
        head.weight = nn.Parameter(head.weight.detach().clone())
        model.config.tie_word_embeddings = False


def probe(vocabulary: int) -> Tensor:
    """Token ids [2, 16] to compare models on: always the same, spread over the vocabulary.

    >>> probe(1000)[0, :4].tolist()
    [0, 618, 236, 854]
    """
    numbers = torch.arange(32, dtype=torch.float64)
    return ((numbers * 0.6180339887498949).frac() * vocabulary).long().view(2, 16)


@torch.no_grad()
def next_logps(model: nn.Module) -> Tensor:
    """Log-probabilities [2, 16, V] of every next token on the probe, in float32."""
    embedding: Any = model.get_input_embeddings()  # type: ignore[operator]
    ids = probe(embedding.weight.shape[0])
    logits = model(input_ids=ids, use_cache=False).logits
    return torch.log_softmax(logits.float(), dim=-1)


@dataclass(frozen=True)
class Difference:
    """How far two models' log-probabilities are apart on the probe."""

    largest: float
    mean: float

    def __str__(self) -> str:
        return f"up to {self.largest:.2g}, {self.mean:.2g} on average"


def difference(a: Tensor, b: Tensor) -> Difference:
    """Compare two results of `next_logps`.

    >>> print(difference(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.5])))
    up to 0.5, 0.25 on average
    """
    gap = (a - b).abs()
    return Difference(float(gap.max()), float(gap.mean()))

"""Attention that a layout decides: which tokens of one packed row attend to which.

Hugging Face models pass extra keyword arguments on to their attention function. sctom registers one
under a name of its own that looks for the argument `layout`: with it, the layout computes the
attention; without it, the implementation the model was loaded with does, so nothing else about the
model changes. One packed row then stands for many sequences: padding is never computed, and a
prefix that several of them share is computed once. What a layout makes of it is exact, since every
other part of a decoder treats each token alone, given its position.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sctom.rollout.causal import causal_model

_OVER = {"sdpa": "sctom_sdpa", "flash_attention_2": "sctom_fa2"}
"""Our name for each implementation that ours falls through to."""

_WITHOUT_MEANING = {"position_ids", "use_cache", "is_causal", "output_attentions", "cache"}
"""Arguments that models hand to attention and that change nothing where a layout decides."""


class Layout(Protocol):
    """Which tokens of a packed row attend to which."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence: what a sliding window must cover."""
        ...

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float
    ) -> Tensor:
        """Attention of one layer.

        Args:
            layer: index of the layer.
            query: [N, H, D] one per token of the packed row, rotated to its position.
            key: [N, K, D]; each of the K heads serves H / K query heads.
            value: [N, K, D]
            scale: factor of the products of queries and keys.
            dropout: probability of dropping a weight.

        Returns:
            [N, H, D]
        """
        ...


class UnsupportedAttentionError(ValueError):
    """A model asks of its attention what a layout does not compute.

    Args:
        message: what it asks for.
        window: tokens it attends to, where that is what a sequence exceeds.
    """

    def __init__(self, message: str, window: int | None = None) -> None:
        super().__init__(message)
        self.window = window


def let_layouts_attend(model: nn.Module) -> str | None:
    """Make a model's attention look for a layout; without one it computes as before.

    Args:
        model: a causal language model, with or without adapters. Its configuration gets our name of
            its implementation.

    Returns:
        None, or why it cannot be done.
    """
    config = causal_model(model).config
    name = config._attn_implementation
    if name in _OVER.values():
        return None
    if name not in _OVER:
        return f"its attention is {name}, and layouts go with {' or '.join(_OVER)} only"
    _register()
    causal_model(model).set_attn_implementation(_OVER[name])
    if config._attn_implementation != _OVER[name]:
        return f"{type(causal_model(model)).__name__} has an attention that cannot be exchanged"
    return None


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    functions: Any = AttentionInterface()  # type: ignore[no-untyped-call]
    masks: Any = AttentionMaskInterface()  # type: ignore[no-untyped-call]
    for name, ours in _OVER.items():
        AttentionInterface.register(ours, _over(functions[name]))
        AttentionMaskInterface.register(ours, masks[name])


def _over(otherwise: Any) -> Any:
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        layout: Layout | None = None,
        **arguments: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if layout is None:
            result: tuple[Tensor, Tensor | None] = otherwise(
                module, query, key, value, attention_mask, **arguments
            )
            return result
        return _attend(module, query, key, value, layout, **arguments), None

    return attention


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **others: Any,
) -> Tensor:
    """Attention by the layout, [1, N, H, D]; an argument it knows nothing of is an error."""
    unknown = sorted(
        k for k in others.keys() - _WITHOUT_MEANING if not (others[k] is None or others[k] is False)
    )
    if unknown:
        raise UnsupportedAttentionError(
            f"{type(module).__name__} gives its attention {', '.join(unknown)}, which packed rows "
            "do not compute; this model has to be run on padded rows"
        )
    if sliding_window is not None and layout.longest > sliding_window:
        raise UnsupportedAttentionError(
            f"{type(module).__name__} attends to the last {sliding_window} tokens only, but a "
            f"sequence has {layout.longest}; this batch has to be run on padded rows",
            window=sliding_window,
        )
    layer = module.layer_idx
    assert isinstance(layer, int)
    attended = layout.attend(
        layer,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        dropout=dropout,
    )
    return attended.unsqueeze(0).contiguous()


def run_packed(model: Any, ids: Tensor, positions: Tensor, layout: Layout, **others: Any) -> Any:
    """Run a causal model, or its decoder, on one packed row.

    Args:
        model: the module.
        ids: [N] token ids.
        positions: [N] position of each token in its sequence.
        layout: which attend to which.
        others: further arguments of the module.

    Raises:
        UnsupportedAttentionError: its attention does not look for layouts.
    """
    if (reason := let_layouts_attend(model)) is not None:
        raise UnsupportedAttentionError(f"{type(model).__name__} cannot run packed rows: {reason}")
    # a mask of four axes is handed on as it is, so that none is built; an attention that looked at
    # this one would give no numbers
    unused = torch.full((1, 1, 1, 1), torch.nan, device=ids.device)
    return model(
        input_ids=ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        attention_mask=unused,
        use_cache=False,
        layout=layout,
        **others,
    )

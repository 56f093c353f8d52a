"""Hidden states of the last token of each sequence, without computing the others in the last layer.

Of its last layer a reward model needs the keys and values of all tokens, but queries, attention,
MLP and norm of few. So that layer runs twice: on all tokens as far as its attention, which takes
keys and values down and ends the call; and on the last tokens alone, with an attention that looks
at those. Exact for what can be packed at all (`sctom.rollout.packing`): everything but attention
treats each token alone. Saves most of one layer: an eighth of the time of a model with six.

As with packing, no model is believed to be of that kind for its name: each is run on a few tokens
both ways first. One that differs, or whose last layer is hooked, sharded or computed again in
backward (gradient checkpointing), computes all tokens and picks.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from sctom.rollout.attention import run_packed
from sctom.rollout.causal import causal_model, decoder
from sctom.rollout.forwards import is_untouched, replaced_forwards
from sctom.rollout.packing import Packed, pack
from sctom.rollout.sharing import computes_wide

_SAME: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Causal models that were tried, and whether cutting their last layer short changes nothing."""


def last_hidden(model: nn.Module, row: Packed) -> Tensor:
    """Final hidden states [B, H] of the last token of each sequence, in the order given to `pack`.

    Args:
        model: a causal language model that `sctom.rollout.sharing.shares_prefixes`, with or without
            adapters. The first call for a model runs it on a few tokens both ways.
        row: packed with `whole`.

    Raises:
        ValueError: the row was packed without the last tokens.
    """
    causal = causal_model(model)
    layer = _last_layer(causal)
    if layer is None or not _gives_the_same(causal, layer):
        return _picked(model, row)
    return _shortened(model, layer, row)


def _picked(model: nn.Module, row: Packed) -> Tensor:
    """All hidden states, and of them the last tokens'."""
    hidden: Tensor = run_packed(decoder(model), row.ids, row.positions, row).last_hidden_state[0]
    return hidden.index_select(0, _last(row))


def _shortened(model: nn.Module, layer: nn.Module, row: Packed) -> Tensor:
    """The last tokens' hidden states only, behind the last layer."""
    places, order = _last(row).sort()  # as they stand in the row
    with replaced_forwards() as replace:
        replace(layer, _LastLayer(layer.forward, row, places))
        found = run_packed(decoder(model), row.ids, row.positions, row).last_hidden_state[0]
    hidden: Tensor = found.index_select(0, order.argsort())
    return hidden


def _last(row: Packed) -> Tensor:
    if row.last is None:
        raise ValueError("the row lacks the last token of its sequences; pack it with whole=True")
    return row.last


def _last_layer(causal: Any) -> nn.Module | None:
    """The last layer, where it can be given another forward for a while."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    count = causal.config.get_text_config().num_hidden_layers
    stacks = [m for m in decoder(causal).modules() if isinstance(m, nn.ModuleList)]
    found = [stack[-1] for stack in stacks if len(stack) == count]
    if not found or not is_untouched(found[0]):
        return None
    if isinstance(found[0], GradientCheckpointingLayer) and found[0].gradient_checkpointing:
        return None
    layer: nn.Module = found[0]
    return layer


def _gives_the_same(causal: nn.Module, layer: nn.Module) -> bool:
    if causal not in _SAME:
        modes = [(module, module.training) for module in causal.modules()]
        causal.eval()  # dropout would set the two ways apart
        try:
            _SAME[causal] = _compare(causal, layer)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            _SAME[causal] = False
        finally:
            for module, training in modes:
                module.training = training
    return _SAME[causal]


@torch.no_grad()
def _compare(causal: nn.Module, layer: nn.Module) -> bool:
    """Whether a few tokens give the same both ways, up to rounding."""
    device = next(causal.parameters()).device
    row = pack([([1, 2, 3], [4, 5]), ([2, 5], [3]), ([1, 2, 3], [7, 8, 6])], device, whole=True)
    picked, found = _picked(causal, row).float(), _shortened(causal, layer, row).float()
    gap = (found - picked).abs()
    wide = computes_wide(causal)
    largest = float(gap.max() if wide else gap.mean(-1).max())
    return largest <= (1e-4 if wide else 0.1) * float(picked.std())


@dataclass(frozen=True)
class _LastLayer:
    """The forward of the last layer, for one call of the model."""

    plain: Any
    row: Packed
    places: Tensor
    """[B] the last tokens, rising."""

    def __call__(self, hidden: Tensor, *others: Any, **arguments: Any) -> Any:
        looking = _KeysAndValues(self.row)
        with suppress(_AttentionReached):
            self.plain(hidden, *others, **{**arguments, "layout": looking})
        tokens = hidden.shape[:2]
        few = _cut(arguments, tokens, self.places) | {"layout": _LastTokens(self.row, looking)}
        first, *rest = _cut((hidden, *others), tokens, self.places)
        return self.plain(first, *rest, **few)


def _cut(value: Any, tokens: torch.Size, places: Tensor) -> Any:
    """What holds something of every token [1, N, ...], for some tokens only."""
    if isinstance(value, Tensor):
        return value.index_select(1, places) if value.shape[:2] == tokens else value
    if isinstance(value, tuple):
        return tuple(_cut(part, tokens, places) for part in value)
    if isinstance(value, dict):
        return {name: _cut(part, tokens, places) for name, part in value.items()}
    return value


class _AttentionReached(Exception):
    """A layer has come to its attention, and what follows is not wanted."""


class _KeysAndValues:
    """A layout that keeps what a layer would attend to, and ends its call."""

    def __init__(self, row: Packed) -> None:
        self.longest = row.longest
        self.key = self.value = torch.empty(0)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float
    ) -> Tensor:
        """See `sctom.rollout.attention.Layout`."""
        self.key, self.value = key, value
        raise _AttentionReached


class _LastTokens:
    """A layout in which only the last tokens look, at the keys and values of all."""

    def __init__(self, row: Packed, seen: _KeysAndValues) -> None:
        self.longest = row.longest
        self.row, self.seen = row, seen

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float
    ) -> Tensor:
        """See `sctom.rollout.attention.Layout`; the few keys and values given are left alone."""
        keys, values = (t.transpose(0, 1).unsqueeze(0) for t in (self.seen.key, self.seen.value))
        parts, done = [], 0
        for group in self.row.groups:
            prefix = slice(group.start, group.start + group.prefix)
            for bundle in group.bundles:
                rows = query[done : done + bundle.rows].unsqueeze(2)
                done += bundle.rows
                attended = scaled_dot_product_attention(
                    rows,
                    bundle.behind(keys[:, :, prefix], keys),
                    bundle.behind(values[:, :, prefix], values),
                    attn_mask=bundle.visible[bundle.lengths() - 1, None, None],
                    scale=scale,
                    dropout_p=dropout,
                    enable_gqa=True,
                )
                parts.append(attended.squeeze(2))
        return torch.cat(parts)

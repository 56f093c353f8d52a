"""Decoder layers in few operations while sampling, where that gives the same numbers.

With few rows a step takes as long as its operations take to start. The usual decoder layer is
spelt out in some fifty and as many calls of modules; its arithmetic takes twenty: queries, keys
and values are one product and turned to their positions together, and so on. No layer is believed
to be of that kind for its name: on its first call it computes as it does, and the short way is
taken from then on if it gives, of the same input, the same queries, keys, values and result up to
rounding. A layer with other norms, multipliers, order or biases is told by its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sctom.rollout.attention import Layout
from sctom.rollout.forwards import Forward, is_untouched, replaced_forwards
from sctom.rollout.linears import joint_product

_TOKENS = 8
"""Tokens of the packed row that a layer is compared on."""

_ROUNDING = 1e-5
"""The largest difference that is rounding, as a part of the largest number."""


@contextmanager
def fused_layers(model: nn.Module) -> Iterator[None]:
    """Let decoder layers compute in few operations, once that was seen to be the same.

    Without a layout (see `sctom.rollout.attention`) they compute as they do.

    Args:
        model: any model, inside `sctom.rollout.linears.merged_linears`: without, nothing is fused.
            Its modules are as before when the context ends, by an exception too.
    """
    with replaced_forwards() as replace:
        if not torch.is_autocast_enabled("cpu"):
            for module in model.modules():
                if (parts := _parts(module)) is not None:
                    replace(module, _Layer(module.forward, parts))
        yield


@dataclass(frozen=True)
class _Parts:
    """What a layer is made of."""

    norms: tuple[nn.Module, nn.Module]
    """In front of attention and in front of the MLP."""
    head_norms: tuple[nn.Module, nn.Module] | None
    """Of queries and of keys."""
    attention_in: Forward
    attention_out: nn.Module
    mlp_in: Forward
    activation: nn.Module
    mlp_out: nn.Module


def _parts(module: nn.Module) -> _Parts | None:
    """The parts of a layer whose children have the names of a decoder layer's, else None."""
    names = {name for name, _ in module.named_children()}
    if names != {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}:
        return None
    attention, mlp = module.get_submodule("self_attn"), module.get_submodule("mlp")
    own, inner = dict(attention.named_children()), dict(mlp.named_children())
    normed = {"q_norm", "k_norm"} & own.keys()
    if (
        own.keys() - normed != {"q_proj", "k_proj", "v_proj", "o_proj"}
        or len(normed) == 1
        or inner.keys() != {"gate_proj", "up_proj", "down_proj", "act_fn"}
        or not all(is_untouched(each) for each in (module, attention, mlp))
    ):
        return None
    attention_in = joint_product(own["q_proj"], own["k_proj"], own["v_proj"])
    mlp_in = joint_product(inner["gate_proj"], inner["up_proj"])
    if attention_in is None or mlp_in is None:
        return None
    return _Parts(
        norms=(
            module.get_submodule("input_layernorm"),
            module.get_submodule("post_attention_layernorm"),
        ),
        head_norms=(own["q_norm"], own["k_norm"]) if normed else None,
        attention_in=attention_in,
        attention_out=own["o_proj"],
        mlp_in=mlp_in,
        activation=inner["act_fn"],
        mlp_out=inner["down_proj"],
    )


@dataclass
class _Call:
    """A layout that takes down what one layer asks of another layout."""

    layout: Layout
    asked: list[dict[str, Any]] = field(default_factory=list)

    @property
    def longest(self) -> int:
        return self.layout.longest

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float
    ) -> Tensor:
        """See `sctom.rollout.attention.Layout`."""
        out = self.layout.attend(layer, query, key, value, scale=scale, dropout=dropout)
        settings = {"layer": layer, "scale": scale, "dropout": dropout}
        self.asked.append({**settings, "tensors": (query, key, value), "out": out})
        return out


@dataclass(frozen=True)
class _Played:
    """A layout that gives what was taken down, for the first tokens."""

    out: Tensor
    seen: list[Tensor] = field(default_factory=list)
    longest: int = 0

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float
    ) -> Tensor:
        """See `sctom.rollout.attention.Layout`."""
        self.seen.extend((query, key, value))
        return self.out


class _Layer:
    """The forward of a decoder layer, for a while."""

    def __init__(self, plain: Any, parts: _Parts) -> None:
        self._plain = plain
        self._parts: _Parts | None = parts
        self._settings: dict[str, Any] | None = None
        """Index of the layer and scale of its attention, once the short way is found right."""
        self._heads = (0, 0)

    def __call__(
        self,
        hidden_states: Tensor,
        *others: Any,
        layout: Layout | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **arguments: Any,
    ) -> Any:
        if layout is not None and position_embeddings is not None and self._parts is not None:
            if self._settings is not None:
                return self._short(self._parts, hidden_states, position_embeddings, layout)
            call = _Call(layout)
            result = self._plain(
                hidden_states,
                *others,
                layout=call,
                position_embeddings=position_embeddings,
                **arguments,
            )
            self._compare(self._parts, hidden_states, position_embeddings, call, result)
            return result
        return self._plain(
            hidden_states,
            *others,
            layout=layout,
            position_embeddings=position_embeddings,
            **arguments,
        )

    def _compare(
        self,
        parts: _Parts,
        hidden: Tensor,
        turns: tuple[Tensor, Tensor],
        call: _Call,
        result: Tensor,
    ) -> None:
        """Whether the short way gives what the layer gave; leaves it for good if not."""
        self._parts = None
        if len(call.asked) != 1 or not isinstance(result, Tensor):
            return
        (asked,) = call.asked
        query, key, value = asked["tensors"]
        tensors = (hidden, *turns, query, key, value, result)
        width = (1, hidden.shape[1], query.shape[-1])
        if (
            any(t.dtype != torch.float32 for t in tensors)
            or any(t.shape != width for t in turns)
            or query.shape[-1] != value.shape[-1]
            or asked["dropout"] != 0.0
        ):
            return
        first = slice(0, _TOKENS)
        if not turns[1][:, first].any():
            self._parts = parts  # all at position 0: says nothing about how tokens are turned
            return
        self._heads = (query.shape[1], key.shape[1])
        self._settings = {name: asked[name] for name in ("layer", "scale", "dropout")}
        played = _Played(asked["out"][first])
        cos, sin = turns
        found = self._short(parts, hidden[:, first], (cos[:, first], sin[:, first]), played)
        expected = [query[first], key[first], value[first], result[:, first]]
        if all(_same(a, b) for a, b in zip([*played.seen, found], expected, strict=True)):
            self._parts = parts

    def _short(
        self, parts: _Parts, hidden: Tensor, turns: tuple[Tensor, Tensor], layout: Layout
    ) -> Tensor:
        assert self._settings is not None
        rows, (queries, keys) = hidden.shape[1], self._heads
        cos, sin = turns
        width = cos.shape[-1]
        heads = parts.attention_in(parts.norms[0](hidden)).view(rows, -1, width)
        split = queries + keys
        if parts.head_norms is None:
            plain = heads[:, :split]
        else:
            query_norm, key_norm = parts.head_norms
            plain = torch.cat(
                [query_norm(heads[:, :queries]), key_norm(heads[:, queries:split])], 1
            )
        half = width // 2
        signed = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        turned = torch.addcmul(
            plain * cos.view(rows, 1, width), plain.roll(half, -1), signed.view(rows, 1, width)
        )
        attended = layout.attend(
            query=turned[:, :queries],
            key=turned[:, queries:],
            value=heads[:, split:],
            **self._settings,
        )
        hidden = hidden + parts.attention_out(attended.reshape(1, rows, -1))
        inner = parts.mlp_in(parts.norms[1](hidden))
        gate, up = inner.chunk(2, -1)
        result: Tensor = hidden + parts.mlp_out(parts.activation(gate) * up)
        return result


def _same(found: Tensor, expected: Tensor) -> bool:
    limit = _ROUNDING * float(expected.abs().max())
    return found.shape == expected.shape and float((found - expected).abs().max()) <= limit

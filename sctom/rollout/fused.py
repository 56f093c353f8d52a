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
from typing import Any, NamedTuple

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
    turns = _Turns()
    with replaced_forwards() as replace:
        for module in model.modules():
            if (parts := _parts(module)) is not None:
                replace(module, _Layer(module.forward, parts, turns))
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


class _Layer:
    """The forward of a decoder layer, for a while."""

    def __init__(self, plain: Any, parts: _Parts, turns: _Turns) -> None:
        self._plain = plain
        self._turns = turns
        self._parts: _Parts | None = parts
        """None once the layer is known to be of another kind."""
        self._short: _Short | None = None

    def __call__(self, hidden: Tensor, *others: Any, **arguments: Any) -> Any:
        layout, turns = arguments.get("layout"), arguments.get("position_embeddings", ())
        if self._parts is None or layout is None:
            return self._plain(hidden, *others, **arguments)
        if self._short is not None:
            return self._short(hidden, turns, layout)
        call = _Call(layout)
        result = self._plain(hidden, *others, **{**arguments, "layout": call})
        if not _are_turns(turns):
            self._parts = None
        elif turns[1][:, :_TOKENS].any():  # position 0 does not tell how tokens are turned
            self._short = _learnt(self._parts, hidden, turns, call, result, self._turns)
            self._parts = None if self._short is None else self._parts
        return result


class _Turns:
    """How tokens are turned to their positions, for all layers of a pass."""

    def __init__(self) -> None:
        self._known: tuple[Tensor, Tensor] | None = None
        self._made: tuple[Tensor, Tensor]

    def __call__(self, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """From [1, N, D] each to [N, 1, D]; the sines of the first half are those of -x."""
        if self._known is not turns:
            cos, sin = (t.transpose(0, 1) for t in turns)
            first, second = sin.chunk(2, -1)
            self._known, self._made = turns, (cos, torch.cat([-first, second], -1))
        return self._made


@dataclass(frozen=True)
class _Short:
    """A decoder layer in few operations."""

    parts: _Parts
    layer: int
    """Index of the layer."""
    scale: float
    """Factor of the products of queries and keys."""
    queries: int
    """Heads."""
    keys: int
    """Heads."""
    turns: _Turns

    def __call__(self, hidden: Tensor, turns: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
        """Gives the hidden states [1, N, H] behind the layer."""
        parts, rows, split = self.parts, hidden.shape[1], self.queries + self.keys
        cos, sin = self.turns(turns)
        heads = parts.attention_in(parts.norms[0](hidden)).view(rows, -1, cos.shape[-1])
        looking = heads[:, :split]
        if parts.head_norms is not None:
            query_norm, key_norm = parts.head_norms
            normed = [query_norm(looking[:, : self.queries]), key_norm(looking[:, self.queries :])]
            looking = torch.cat(normed, 1)
        half = cos.shape[-1] // 2
        looking = torch.addcmul(looking * cos, looking.roll(half, -1), sin)
        attended = layout.attend(
            self.layer,
            looking[:, : self.queries],
            looking[:, self.queries :],
            heads[:, split:],
            scale=self.scale,
            dropout=0.0,
        )
        hidden = hidden + parts.attention_out(attended.reshape(1, rows, -1))
        gate, up = parts.mlp_in(parts.norms[1](hidden)).chunk(2, -1)
        result: Tensor = hidden + parts.mlp_out(parts.activation(gate) * up)
        return result


def _are_turns(turns: object) -> bool:
    """Whether something is the cosines and sines [1, N, D] that turn tokens to their positions."""
    return (
        isinstance(turns, tuple)
        and len(turns) == 2
        and all(isinstance(t, Tensor) and t.dim() == 3 and len(t) == 1 for t in turns)
    )


def _learnt(
    parts: _Parts,
    hidden: Tensor,
    turns: tuple[Tensor, Tensor],
    call: _Call,
    result: object,
    all_turns: _Turns,
) -> _Short | None:
    """The short way, if it gives what the layer gave."""
    if not isinstance(result, Tensor) or len(call.asked) != 1:
        return None
    (asked,) = call.asked
    width = asked.query.shape[-1]
    tensors = (hidden, *turns, asked.query, asked.key, asked.value, result)
    if (
        any(t.dtype != torch.float32 for t in tensors)
        or {t.shape[-1] for t in (*turns, asked.value)} != {width}
        or asked.dropout != 0.0
    ):
        return None
    heads = {"queries": asked.query.shape[1], "keys": asked.key.shape[1]}
    short = _Short(parts, asked.layer, asked.scale, **heads, turns=all_turns)
    cos, sin = (t[:, :_TOKENS] for t in turns)
    again = _Again(asked.out[:_TOKENS])
    found = short(hidden[:, :_TOKENS], (cos, sin), again)
    expected = (asked.query, asked.key, asked.value, result[0])
    pairs = zip((*again.given, found[0]), expected, strict=True)
    return short if all(_same(a, b[:_TOKENS]) for a, b in pairs) else None


def _same(found: Tensor, expected: Tensor) -> bool:
    limit = _ROUNDING * float(expected.abs().max())
    return found.shape == expected.shape and float((found - expected).abs().max()) <= limit


class _Asked(NamedTuple):
    """What a layer asked of its layout, and got."""

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    dropout: float
    out: Tensor


@dataclass(frozen=True)
class _Call:
    """A layout that takes down what is asked of another one."""

    layout: Layout
    asked: list[_Asked] = field(default_factory=list)

    @property
    def longest(self) -> int:
        return self.layout.longest

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float
    ) -> Tensor:
        """See `sctom.rollout.attention.Layout`."""
        out = self.layout.attend(layer, query, key, value, scale=scale, dropout=dropout)
        self.asked.append(_Asked(layer, query, key, value, scale, dropout, out))
        return out


@dataclass(frozen=True)
class _Again:
    """A layout that gives what another one gave."""

    out: Tensor
    given: list[Tensor] = field(default_factory=list)
    longest: int = 0

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float
    ) -> Tensor:
        """See `sctom.rollout.attention.Layout`."""
        self.given.extend((query, key, value))
        return self.out

"""Linear layers while sampling: adapters merged, weights packed, siblings in one product.

A decoding step multiplies few rows by every weight, so what counts is how fast weights are read and
how many products there are. For the time of sampling each linear layer gets a `forward` of its own
that computes with a copy of its weight:

- LoRA is merged into the copy: one product and not three. The weights that are trained are not
  touched, so nothing has to be undone and no rounding is left behind.
- On CPU the copy is packed (`sctom.packed_linear`).
- Layers of one module that read the same tensor (queries, keys and values; the gate and its
  partner) are one product. The first of them computes all, the others hand out their part if they
  are called with the very same tensor, unchanged; if not, they compute anew, so it is exact
  whatever the model does.

In less than float32 rounding would swallow adapters, so a layer that has some computes in float32
and its result is rounded. The head computes in float32 whatever its dtype, as that of the trainer
does. Layers that are quantised, sharded, hooked or of an unknown kind stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sctom.packed_linear import PackedLinear
from sctom.rollout.causal import head
from sctom.rollout.forwards import Forward, is_untouched, replaced_forwards

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Children of one module that most models call with the same tensor, in this order."""

_FEWEST = 2
"""A weight laid out for products with one row is slow in all others, and steps have two or more."""

_BLOCK_ROWS = 16384
"""Rows of a head that are widened at a time where no copy of it is kept."""


@contextmanager
def merged_linears(model: nn.Module, *, rows: int) -> Iterator[None]:
    """Let linear layers compute with merged, packed copies of their weights.

    Args:
        model: a causal language model in evaluation mode, with or without adapters. Its modules are
            as before when the context ends, by an exception too; its weights never change.
        rows: tokens of a usual call.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    last = head(model)

    def visit(module: nn.Module) -> None:
        if isinstance(module, AuxiliaryTrainingWrapper):
            return  # holds several layers and chooses on each call
        if isinstance(module, BaseTunerLayer) and module.merged and module.disable_adapters:
            return  # takes its adapters out of the weights under it when it is called
        for layers in _siblings(module):
            if not install(layers):
                for layer in layers:
                    if len(layers) == 1 or not install([layer]):
                        visit(layer)

    def install(layers: Sequence[nn.Module]) -> bool:
        forwards = _forwards(layers, max(rows, _FEWEST), wide=layers[0] is last)
        for layer, forward in zip(layers, forwards, strict=False):
            replace(layer, forward)
        return bool(forwards)

    with replaced_forwards() as replace, torch.no_grad():
        visit(model)
        yield


@contextmanager
def wide_head(model: nn.Module) -> Iterator[None]:
    """Let a head in less than float32, or under autocast, compute in float32.

    That is what the trainer's does. No copy of it is kept. A head that is no plain linear layer
    stays as it is.

    Args:
        model: a causal language model.
    """
    layer = head(model)
    with replaced_forwards() as replace:
        if type(layer) is nn.Linear and is_untouched(layer) and _is_low(_dtype(layer.weight)):
            replace(layer, _wide(layer.weight.detach(), layer.bias))
        yield


def _wide(weight: Tensor, bias: Tensor | None) -> Forward:
    def forward(x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            parts = [x.float() @ block.float().T for block in torch.split(weight, _BLOCK_ROWS)]
        logits = torch.cat(parts, -1)
        return logits if bias is None else logits + bias

    return forward


def _siblings(module: nn.Module) -> Iterator[list[nn.Module]]:
    """The children of a module, those together that read the same."""
    children = dict(module.named_children())
    for names in _TOGETHER:
        if all(name in children for name in names):
            yield [children.pop(name) for name in names]
    for child in children.values():
        yield [child]


def _forwards(layers: Sequence[nn.Module], rows: int, *, wide: bool) -> list[Forward]:
    """Ways to compute layers that may read the same; none where that cannot be done for all."""
    found = [_linear(layer, wide=wide) for layer in layers]
    linears = [linear for linear in found if linear is not None]
    if len(linears) < len(found) or len({(each.weight.dtype, each.result) for each in linears}) > 1:
        return []
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if biases and len(biases) < len(linears):
        return []
    weights = [linear.weight for linear in linears]
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    product = PackedLinear(weight, torch.cat(biases) if biases else None, rows=rows)
    result = linears[0].result

    def compute(x: Tensor) -> Tensor:
        x = x if x.dtype == product.dtype else x.to(product.dtype)
        out = product(x)
        return out if out.dtype == result else out.to(result)

    if len(layers) == 1:
        return [compute]
    together = _Together(compute, [len(weight) for weight in weights])
    parts: list[Forward] = [_Part(together, number) for number in range(len(layers))]
    return parts


class _Together:
    """Layers that read the same, as one product."""

    def __init__(self, compute: Forward, sizes: list[int]) -> None:
        self.compute = compute
        self.sizes = sizes
        self._parts: tuple[Tensor, ...] = ()
        self._input: tuple[Tensor, int] | None = None

    def part(self, number: int, x: Tensor) -> Tensor:
        """What one of the layers gives for x."""
        known = self._input
        if known is None or known[0] is not x or known[1] != x._version:
            self._parts = torch.split(self.compute(x), self.sizes, -1)
            self._input = (x, x._version)
        part = self._parts[number]
        if number == len(self.sizes) - 1:
            self._parts, self._input = (), None
        return part


@dataclass(frozen=True)
class _Part:
    """The forward of one of several layers that read the same."""

    together: _Together
    number: int

    def __call__(self, x: Tensor) -> Tensor:
        return self.together.part(self.number, x)


def joint_product(*layers: nn.Module) -> Forward | None:
    """The one product that several layers are parts of for now, in this order; else None."""
    parts = [vars(layer).get("forward") for layer in layers]
    first = parts[0]
    if not isinstance(first, _Part) or len(first.together.sizes) != len(parts):
        return None
    whole = [_Part(first.together, number) for number in range(len(parts))]
    return first.together.compute if parts == whole else None


class _Linear(NamedTuple):
    """What a layer computes."""

    weight: Tensor
    """[out, in], in the dtype of the product."""
    bias: Tensor | None
    """[out]"""
    result: torch.dtype


def _linear(layer: nn.Module, *, wide: bool) -> _Linear | None:
    """What a layer computes; None where it is to be left alone."""
    from peft.tuners.lora.layer import Linear as LoraLinear
    from transformers.pytorch_utils import Conv1D

    base = layer.base_layer if type(layer) is LoraLinear else layer
    assert isinstance(base, nn.Module)
    if type(base) not in (nn.Linear, Conv1D) or not is_untouched(base) or not is_untouched(layer):
        return None
    adapters: list[str] = []
    if type(layer) is LoraLinear:
        adapters = _adapters(layer)
        if (layer.disable_adapters and layer.merged) or not _merges(layer, adapters):
            return None  # takes adapters out of its base layer when called, or is no one product
    assert isinstance(base.weight, Tensor)
    result = _dtype(base.weight)
    dtype = torch.promote_types(result, torch.float32) if wide or adapters else result
    weight = base.weight.detach().to(dtype)
    bias = base.bias.detach().to(dtype) if isinstance(base.bias, Tensor) else None
    if adapters:
        weight, bias = _merged(layer, adapters, weight, bias)
    return _Linear(weight.T if type(base) is Conv1D else weight, bias, dtype if wide else result)


def _dtype(weight: Tensor) -> torch.dtype:
    """What products with a weight are computed in."""
    device = weight.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def _is_low(dtype: torch.dtype) -> bool:
    return dtype not in (torch.float32, torch.float64)


def _adapters(layer: Any) -> list[str]:
    """The adapters that a LoRA layer would compute on top of its base layer."""
    if layer.disable_adapters or layer.merged:
        return []
    return [name for name in layer.active_adapters if name in layer.lora_A]


def _merges(layer: Any, adapters: Sequence[str]) -> bool:
    """Whether what they compute is one product."""
    from peft.tuners.lora.variants import DoraLinearVariant

    variants = [layer.lora_variant[name] for name in adapters if name in layer.lora_variant]
    return not variants or (len(adapters) == 1 and type(variants[0]) is DoraLinearVariant)


def _merged(
    layer: Any, adapters: Sequence[str], weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Weight and bias with adapters, by PEFT's own arithmetic."""
    for name in adapters:
        if name in layer.lora_variant:
            weight = layer.lora_variant[name].merge_safe(layer, name, weight)
            layer._cache_pop(f"{name}-weight_norm")  # kept for undoing a merge of the weight itself
        else:
            weight = weight + layer.get_delta_weight(name)
        if layer.lora_bias[name]:
            added = layer.lora_B[name].bias * layer.scaling[name]
            bias = added if bias is None else bias + added
    return weight, bias

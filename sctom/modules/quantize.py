"""Frozen weights in four bits, with adapters on top: QLoRA.

docs/qlora.md says what is quantised, what it costs and where this differs from PEFT's preparation.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Quantization = Literal["nf4"]
DtypeName = Literal["float32", "bfloat16", "float16"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check_bitsandbytes() -> None:
    """Check that 4-bit weights can be made at all.

    Raises:
        RuntimeError: bitsandbytes is not installed.
    """
    if find_spec("bitsandbytes") is None:
        raise RuntimeError(
            "quantization: nf4 needs bitsandbytes, which is not installed; "
            "pip install bitsandbytes, or drop quantization"
        )


def quiet_bitsandbytes() -> None:
    """Keep bitsandbytes from telling of a fast CPU kernel that sctom never uses.

    It says so when it is imported, and PEFT imports it for every adapter, quantised or not.
    """
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def default_device() -> torch.device:
    """The current CUDA device if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def choose_compute_dtype(requested: DtypeName | None, device: torch.device) -> DtypeName:
    """The dtype that 4-bit weights are multiplied in.

    Args:
        requested: taken as it is; None takes bfloat16 where a CUDA device computes in it
            (capability 8.0 or higher), else float32. float16 is never chosen: it overflows.
        device: where the model computes.

    >>> choose_compute_dtype(None, torch.device("cpu"))
    'float32'
    """
    if requested is not None:
        return requested
    fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "bfloat16" if fast else "float32"


def loading_options(
    *, double: bool, compute_dtype: DtypeName, device: torch.device
) -> dict[str, Any]:
    """What `from_pretrained` needs to quantise every linear layer but the head while it loads.

    Args:
        double: quantise the blocks' scales too (Dettmers et al. 2023, section 3).
        compute_dtype: the dtype of the products.
        device: where the weights are quantised and stay.
    """
    from transformers import BitsAndBytesConfig

    check_bitsandbytes()
    return {
        "quantization_config": BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=double,
            bnb_4bit_compute_dtype=DTYPES[compute_dtype],
        ),
        "device_map": {"": device},
    }


def layers_4bit(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The named 4-bit layers of a model, adapters or not. bitsandbytes is imported only for them.

    >>> list(layers_4bit(nn.Linear(2, 2)))
    []
    """
    if not any(p.dtype == torch.uint8 for p in model.parameters()):
        return
    from bitsandbytes.nn.modules import Linear4bit

    # PEFT's wrapper of such a layer has the same name but is none
    yield from ((n, layer) for n, layer in model.named_modules() if isinstance(layer, Linear4bit))


def dequantised(weight: Any, dtype: torch.dtype) -> Tensor:
    """The weights [N, K] that the codes and scales of a 4-bit weight stand for.

    Blocks run on from row to row. The CPU kernel of bitsandbytes 0.50 starts one in every row, and
    then gives wrong values unless K is a multiple of 64; as a single row it is right for all.
    """
    from bitsandbytes.functional import dequantize_4bit

    row = copy.copy(weight.quant_state)
    row.shape, row.dtype = torch.Size([row.shape.numel()]), dtype
    return dequantize_4bit(weight.data, row).view(weight.quant_state.shape)


class _RaggedMatmul(torch.autograd.Function):
    """The product with a frozen 4-bit weight, which is unpacked again for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any) -> Tensor:
        ctx.weight = weight
        return F.linear(x, dequantised(weight, x.dtype))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ dequantised(ctx.weight, gradient.dtype), None


@cache
def _ragged_class() -> type:
    """A 4-bit layer that is right on a CPU whatever its width. Made where it is first needed."""
    from bitsandbytes.nn.modules import Linear4bit

    class RaggedLinear4bit(Linear4bit):
        def forward(self, x: Tensor) -> Tensor:
            if x.device.type != "cpu":
                return super().forward(x)  # type: ignore[no-any-return]
            multiply: Any = _RaggedMatmul.apply
            out: Tensor = multiply(x.to(self.compute_dtype), self.weight)
            return (out if self.bias is None else out + self.bias.to(out.dtype)).to(x.dtype)

    return RaggedLinear4bit


def make_exact_on_cpu(model: nn.Module) -> None:
    """Keep 4-bit layers from two things that bitsandbytes 0.50 does on a CPU.

    Layers whose width is no multiple of 64 are multiplied by wrong weights (see `dequantised`).
    And with AVX512-BF16 a weight is repacked in place when it is first used in evaluation mode: its
    scales are rounded, products are no longer differentiable, and sampling would thus change the
    weights that are trained on.
    """
    for _, layer in layers_4bit(model):
        layer.support_avx512bf16_for_cpu = False
        if layer.in_features % layer.weight.blocksize:
            layer.__class__ = _ragged_class()


def statistics(parameter: Tensor) -> dict[str, Tensor]:
    """The scales that belong to a packed weight; without them its codes mean nothing.

    Empty for a weight that is not 4-bit.

    >>> statistics(torch.zeros(2))
    {}
    """
    if parameter.dtype != torch.uint8:
        return {}
    from bitsandbytes.nn.modules import Params4bit

    if not isinstance(parameter, Params4bit):
        return {}
    state = parameter.quant_state
    scales = {"absmax": state.absmax}
    if state.nested:
        scales |= {"nested_absmax": state.state2.absmax, "offset": state.offset}
    return scales


@dataclass(frozen=True)
class FourBitMemory:
    """What the 4-bit weights of a model occupy."""

    layers: int
    """Layers that are quantised."""
    weights: int
    """Weights in them."""
    bytes: int
    """Codes and scales."""
    tables: int
    """Bytes of the look-up tables, which do not grow with the layers."""

    @property
    def bytes_per_weight(self) -> float:
        """Bytes a weight occupies.

        With blocks of 64 weights and, if quantised twice, of 256 scales:

            1/2 + 4/64 = 0.5625, or 1/2 + 1/64 + 4/(64 * 256) = 0.5159
        """
        return self.bytes / self.weights

    def __str__(self) -> str:
        return (
            f"{self.weights:,} weights in {self.layers} layers, {self.bytes / 2**20:.2f} MiB, "
            f"{self.bytes_per_weight:.3f} bytes each"
        )


def memory_4bit(model: nn.Module) -> FourBitMemory | None:
    """Count the memory of a model's 4-bit weights; None if it has none."""
    layers = weights = used = tables = 0
    for _, layer in layers_4bit(model):
        state = layer.weight.quant_state
        layers += 1
        weights += state.shape.numel()
        used += layer.weight.nbytes + sum(t.nbytes for t in statistics(layer.weight).values())
        tables += state.code.nbytes + (state.state2.code.nbytes if state.nested else 0)
    return FourBitMemory(layers, weights, used, tables) if layers else None


def coarsest_dtype(model: nn.Module) -> torch.dtype:
    """The least exact floating dtype that a model computes in: what its rounding is judged by.

    Adapters are float32 whatever the rest is, and packed weights have no floating dtype.

    >>> coarsest_dtype(nn.Linear(2, 2, dtype=torch.bfloat16))
    torch.bfloat16
    """
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    dtypes |= {layer.compute_dtype for _, layer in layers_4bit(model)}
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)

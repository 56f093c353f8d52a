"""RMS norms in few operations while sampling, where that gives the same numbers.

Model code spells the norm out in operations on few numbers each, whose start costs more than the
arithmetic. A module whose name says that it is one is compared on numbers before it is
believed, with its weight and with one more than that, as models have both. Weights in less than
float32 are left alone: there the two ways round differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from sctom.rollout.forwards import Forward, is_untouched, replaced_forwards


@contextmanager
def fused_norms(model: nn.Module) -> Iterator[None]:
    """Let modules that are RMS norms compute in few operations.

    Args:
        model: any model. Its modules are as before when the context ends, by an exception too.
    """
    with replaced_forwards() as replace:
        for module in model.modules():
            if (fused := _fused(module)) is not None:
                replace(module, fused)
        yield


def _fused(module: nn.Module) -> Forward | None:
    """The same function in few operations, or None where the module is no such norm."""
    if not type(module).__name__.endswith("RMSNorm"):
        return None
    weights = list(module.parameters())
    numbers = [v for v in vars(module).values() if isinstance(v, float) and 0.0 < v < 0.1]
    if len(weights) != 1 or len(numbers) != 1:
        return None
    (weight,), (eps,) = weights, numbers
    if weight.dim() != 1 or weight.dtype != torch.float32 or not is_untouched(module):
        return None
    width = weight.shape
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(2, *width, generator=generator) * torch.tensor([[1.0], [eps**0.5]])
    probe = probe.to(weight.device)
    expected = module(probe)
    for scale in (weight.detach(), 1.0 + weight.detach()):
        forward = _with(scale, eps, module.forward)
        if torch.allclose(forward(probe), expected, rtol=1e-5, atol=1e-7):
            return forward
    return None


def _with(scale: Tensor, eps: float, otherwise: Forward) -> Forward:
    at_once = scale.device.type != "cpu"  # there PyTorch itself takes it apart, into seven
    share, offset = 1.0 / len(scale), scale.new_tensor(eps)

    def forward(x: Tensor) -> Tensor:
        if x.dtype != scale.dtype:
            return otherwise(x)  # autocast mixes dtypes, and which one the result has differs
        if at_once:
            return rms_norm(x, scale.shape, scale, eps)
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        squares = torch.addcmul(offset, length, length, value=share)
        return (x * squares.rsqrt_()).mul_(scale)

    return forward

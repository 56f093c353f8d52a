"""What every loss does before its own formula: widen, mask, bound the log-ratio, check choices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sctom.shapes import check_shapes

LOG_LIMIT = 20.0
"""Log-ratios and reference differences are clamped to [-LOG_LIMIT, LOG_LIMIT] before `exp`."""


def widen(values: Tensor) -> Tensor:
    """The same values in float32, or unchanged if they are float64 already."""
    return values if values.dtype == torch.float64 else values.float()


def widest(values: Tensor) -> Tensor:
    """The same values in float64, or in float32 on a device that has no wider one (MPS)."""
    return values.float() if values.device.type == "mps" else values.double()


def clamp(values: Tensor, low: float = -math.inf, high: float = math.inf) -> Tensor:
    """`Tensor.clamp` that takes a bound beyond the range of the dtype for an infinite one.

    >>> clamp(torch.tensor([0.5, 9.0]), 1.0, 1e300)
    tensor([1., 9.])
    """
    largest = torch.finfo(values.dtype).max
    low, high = (math.copysign(math.inf, b) if abs(b) > largest else b for b in (low, high))
    return values.clamp(low, high)


def zero_outside(values: Tensor, keep: Tensor) -> Tensor:
    """The values where `keep` is true; 0 elsewhere, with gradient 0 there even if they are NaN."""
    return torch.where(keep, values, 0.0)


def kept_tokens(mask: Tensor | None, like: Tensor) -> Tensor:
    """The mask as booleans: every non-zero entry counts. No mask: every position counts."""
    return torch.ones_like(like, dtype=torch.bool) if mask is None else mask.detach() != 0


def spread_advantages(advantages: Tensor, keep: Tensor) -> Tensor:
    """Advantages [B] or [B, T] as [B, T], without gradient and 0 where masked."""
    wide = widen(advantages.detach())
    return zero_outside(wide if wide.dim() == 2 else wide[:, None], keep)


def advantage_axes(advantages: Tensor) -> tuple[Any, str]:
    """The entry of `advantages` for `check_shapes`: one number per completion, or one per token."""
    return advantages, "B T" if advantages.dim() == 2 else "B"


def bounded_difference(logps: Tensor, other_logps: Tensor, keep: Tensor) -> Tensor:
    """The clamped `logps - other_logps` [B, T], 0 where masked; gradient 0 where the clamp acts."""
    difference = zero_outside(widen(logps) - widen(other_logps.detach()), keep)
    return difference.clamp(-LOG_LIMIT, LOG_LIMIT)


def row_mean(values: Tensor, keep: Tensor) -> Tensor:
    """Mean over the kept tokens of each row, [B]; 0 for a row without any."""
    return zero_outside(values, keep).sum(1) / keep.sum(1).clamp(min=1)


def level_log_ratio(logps: Tensor, old_logps: Tensor, keep: Tensor, level: str) -> Tensor:
    """The log of the importance ratio, [B, T] at the level "token" and [B, 1] at a row level.

    >>> logps, old_logps = torch.tensor([[-1.0, -2.0, 9.0]]), torch.tensor([[-1.5, -2.25, 0.0]])
    >>> keep = torch.tensor([[True, True, False]])
    >>> level_log_ratio(logps, old_logps, keep, "token").tolist()
    [[0.5, 0.25, 0.0]]
    >>> level_log_ratio(logps, old_logps, keep, "product").tolist()
    [[0.75]]
    >>> level_log_ratio(logps, old_logps, keep, "geometric").tolist()
    [[0.375]]
    """
    tokens = bounded_difference(logps, old_logps, keep)
    if level == "token":
        return tokens
    if level == "geometric":
        return row_mean(tokens, keep)[:, None]
    return tokens.sum(1, keepdim=True).clamp(-LOG_LIMIT, LOG_LIMIT)


def check_policy_inputs(
    logps: Tensor, old_logps: Tensor, mask: Tensor, advantages: Tensor | None = None
) -> Tensor:
    """Check the shapes of a policy loss or its statistics; return the mask as booleans."""
    arrays: dict[str, tuple[Any, str]] = {
        "logps": (logps, "B T"),
        "old_logps": (old_logps, "B T"),
        "mask": (mask, "B T"),
    }
    if advantages is not None:
        arrays["advantages"] = advantage_axes(advantages)
    check_shapes(**arrays)
    return kept_tokens(mask, logps)

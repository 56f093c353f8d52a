"""Numbers to log: scalars without gradient.

Arguments, shapes and errors are those of `sctom.losses.stats`, as is what each level counts. The
results are lazy like all MLX arrays: evaluate them each step, or the graphs behind them pile up.
"""

from __future__ import annotations

import mlx.core as mx

from sctom.mlx_port.losses._shared import (
    LOG_LIMIT,
    check_policy_inputs,
    level_log_ratio,
    row_mean,
    spread_advantages,
    widen,
    zero_outside,
)
from sctom.shapes import Level, require_level


def _share(happened: mx.array, keep: mx.array, level: str) -> mx.array:
    """The share of tokens, or at a row level of rows, for which something happened."""
    counted = mx.broadcast_arrays(happened, keep)[0].astype(mx.float32)
    if level == "token":
        return zero_outside(counted, keep).sum() / mx.maximum(keep.sum(), 1)
    return row_mean(counted, keep).sum() / mx.maximum(keep.any(axis=1).sum(), 1)


def clip_fraction(
    logps: mx.array,
    old_logps: mx.array,
    advantages: mx.array,
    mask: mx.array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ratio_max: float | None = None,
    level: Level = "token",
) -> mx.array:
    """The share of tokens, or rows, to which `grpo_loss` with the same settings gives no gradient.

        A > 0 and r > 1 + clip_high
        A < 0 and r < 1 - clip_low
        A != 0 and r > ratio_max

    Mirrors `sctom.losses.clip_fraction`; differs in nothing but rounding.

    >>> logps, old_logps = mx.log(mx.array([[0.8, 0.2]])), mx.log(mx.array([[0.4, 0.4]]))
    >>> clip_fraction(logps, old_logps, mx.array([1.0]), mx.ones((1, 2))).item()
    0.5
    """
    require_level(level)
    keep = check_policy_inputs(logps, old_logps, mask, advantages)
    ratio = mx.exp(level_log_ratio(mx.stop_gradient(logps), old_logps, keep, level))
    A = spread_advantages(advantages, keep)
    clipped = ((A > 0) & (ratio > 1 + clip_high)) | ((A < 0) & (ratio < 1 - clip_low))
    if ratio_max is not None:
        clipped = clipped | ((A != 0) & (ratio > ratio_max))
    return _share(clipped, keep, level)


def weight_clip_fraction(
    logps: mx.array,
    old_logps: mx.array,
    mask: mx.array,
    *,
    weight_max: float = 5.0,
    weight_min: float = 0.0,
    level: Level = "token",
) -> mx.array:
    """The share of tokens, or rows, whose weight is clipped by `cispo_loss` with the same settings.

        exp(logps - old_logps) > weight_max  or  < weight_min

    Mirrors `sctom.losses.weight_clip_fraction`; differs in nothing but rounding.

    >>> logps, old_logps = mx.log(mx.array([[0.9, 0.4]])), mx.log(mx.array([[0.1, 0.4]]))
    >>> weight_clip_fraction(logps, old_logps, mx.ones((1, 2))).item()
    0.5
    """
    require_level(level)
    keep = check_policy_inputs(logps, old_logps, mask)
    weight = mx.exp(level_log_ratio(mx.stop_gradient(logps), old_logps, keep, level))
    return _share((weight > weight_max) | (weight < weight_min), keep, level)


def clamped_fraction(logps: mx.array, old_logps: mx.array, mask: mx.array) -> mx.array:
    """The share of tokens whose log-ratio lies beyond the clamp at +-20, where it has no gradient.

        |logps - old_logps| > 20

    Mirrors `sctom.losses.clamped_fraction`; differs in nothing but rounding.

    >>> logps, old_logps = mx.array([[-1.0, -25.0]]), mx.array([[-1.0, -1.0]])
    >>> clamped_fraction(logps, old_logps, mx.ones((1, 2))).item()
    0.5
    """
    keep = check_policy_inputs(logps, old_logps, mask)
    return _share(mx.abs(widen(logps) - widen(old_logps)) > LOG_LIMIT, keep, "token")


def approx_kl(logps: mx.array, old_logps: mx.array, mask: mx.array) -> mx.array:
    """How far the policy has moved from the one that sampled, as KL(old || policy) per token.

        mean over unmasked tokens of r - 1 - ln r,   r = exp(logps - old_logps)

    Mirrors `sctom.losses.approx_kl`; differs in nothing but rounding.

    >>> logps, old_logps = mx.log(mx.array([[0.5]])), mx.log(mx.array([[0.25]]))
    >>> mx.round(approx_kl(logps, old_logps, mx.ones((1, 1))), 4)  # 2 - 1 - ln 2
    array(0.3069, dtype=float32)
    """
    keep = check_policy_inputs(logps, old_logps, mask)
    log_ratio = level_log_ratio(mx.stop_gradient(logps), old_logps, keep, "token")
    return (mx.expm1(log_ratio) - log_ratio).sum() / mx.maximum(keep.sum(), 1)


def effective_sample_size(
    logps: mx.array, old_logps: mx.array, mask: mx.array, *, level: Level = "token"
) -> mx.array:
    """How many equally weighted samples these are worth, as a share of their number n.

        (sum w)^2 / (n sum w^2),   w = exp(logps - old_logps)

    Mirrors `sctom.losses.effective_sample_size`; differs in nothing but rounding.

    >>> logps, old_logps = mx.log(mx.array([[0.6, 0.2]])), mx.log(mx.array([[0.2, 0.2]]))
    >>> mx.round(effective_sample_size(logps, old_logps, mx.ones((1, 2))), 4)  # 4^2 / (2 x 10)
    array(0.8, dtype=float32)
    """
    require_level(level)
    keep = check_policy_inputs(logps, old_logps, mask)
    log_weight = level_log_ratio(mx.stop_gradient(logps), old_logps, keep, level)
    counted = keep if level == "token" else keep.any(axis=1, keepdims=True)
    weight = zero_outside(mx.exp(log_weight), counted)
    # a weight is at least exp(-LOG_LIMIT), so the bound only acts where nothing is counted
    squares = counted.sum() * mx.square(weight).sum()
    return mx.square(weight.sum()) / mx.maximum(squares, 1e-30)

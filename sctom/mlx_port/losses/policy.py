"""Policy-gradient losses: log-probabilities and advantages in, a loss per token [B, T] out.

Arguments, shapes, levels and errors are those of `sctom.losses.policy`. The gradient at a clip's
edge is torch's: still the full one exactly there, none beyond.
"""

from __future__ import annotations

import mlx.core as mx

from sctom.mlx_port.losses._shared import (
    advantage_axes,
    check_policy_inputs,
    clamp,
    kept_tokens,
    level_log_ratio,
    minimum,
    spread_advantages,
    widen,
    zero_outside,
)
from sctom.shapes import Level, check_shapes, require_level


def _require_at_least(name: str, value: float, least: float, advice: str) -> None:
    if not value >= least:
        raise ValueError(f"{name} must be at least {least:g} but is {value}; {advice}")


def grpo_loss(
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
    """The clipped surrogate of PPO with two widths and an optional bound on the ratio.

        r = exp(logps - old_logps), bounded above by ratio_max if given
        loss = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

    Mirrors `sctom.losses.grpo_loss`; differs in nothing but rounding.

    >>> logps, old_logps = mx.log(mx.array([[0.8, 0.2]])), mx.log(mx.array([[0.4, 0.4]]))
    >>> losses = grpo_loss(logps, old_logps, mx.array([1.0]), mx.ones((1, 2)), clip_high=0.28)
    >>> mx.round(losses, 4)
    array([[-1.28, -0.5]], dtype=float32)
    """
    require_level(level)
    keep = check_policy_inputs(logps, old_logps, mask, advantages)
    _require_at_least("clip_low", clip_low, 0.0, "it is a width: 0.2 clips at 0.8")
    _require_at_least("clip_high", clip_high, 0.0, "it is a width: 0.2 clips at 1.2")
    if ratio_max is not None and not ratio_max > 0:
        raise ValueError(
            f"ratio_max must be above 0 but is {ratio_max}; give a bound such as 4.0, or None"
        )

    ratio = mx.exp(level_log_ratio(logps, old_logps, keep, level))
    if ratio_max is not None:
        ratio = clamp(ratio, high=ratio_max)
    clipped = clamp(ratio, 1 - clip_low, 1 + clip_high)
    A = spread_advantages(advantages, keep)
    return zero_outside(-minimum(ratio * A, clipped * A), keep)


def cispo_loss(
    logps: mx.array,
    old_logps: mx.array,
    advantages: mx.array,
    mask: mx.array,
    *,
    weight_max: float = 5.0,
    weight_min: float = 0.0,
    level: Level = "token",
) -> mx.array:
    """REINFORCE with a clipped importance weight that is not differentiated.

        w = stop_gradient(clip(exp(logps - old_logps), weight_min, weight_max))
        loss = -w A logps,   gradient with respect to logps: -w A

    Mirrors `sctom.losses.cispo_loss`; differs in nothing but rounding.

    >>> old_logps, mask = mx.array([[-1.0, -5.0]]), mx.ones((1, 2))
    >>> mx.grad(lambda logps: cispo_loss(logps, old_logps, mx.array([2.0]), mask).sum())(
    ...     mx.array([[-1.0, -2.0]])
    ... )
    array([[-2, -10]], dtype=float32)
    """
    require_level(level)
    keep = check_policy_inputs(logps, old_logps, mask, advantages)
    _require_at_least("weight_min", weight_min, 0.0, "it bounds a ratio; 0 is no bound")
    least = max(1.0, weight_min)
    _require_at_least("weight_max", weight_max, least, "it is an absolute bound, not a width")

    log_weight = level_log_ratio(mx.stop_gradient(logps), old_logps, keep, level)
    weight = clamp(mx.exp(log_weight), weight_min, weight_max)
    A = spread_advantages(advantages, keep)
    return zero_outside(-weight * A * zero_outside(widen(logps), keep), keep)


def sapo_loss(
    logps: mx.array,
    old_logps: mx.array,
    advantages: mx.array,
    mask: mx.array,
    *,
    temperature_pos: float = 1.0,
    temperature_neg: float = 1.05,
) -> mx.array:
    """A surrogate with a smooth gate on the ratio where others clip.

        loss = -(4 / tau) sigmoid(tau (r - 1)) A,   r = exp(logps - old_logps)
        tau = temperature_pos where A > 0, temperature_neg elsewhere

    Mirrors `sctom.losses.sapo_loss`; differs in nothing but rounding.

    >>> logps = mx.array([[-1.0, -2.0]])
    >>> mx.round(sapo_loss(logps, logps, mx.array([[1.0, -1.05]]), mx.ones((1, 2))), 4)
    array([[-2, 2]], dtype=float32)
    """
    keep = check_policy_inputs(logps, old_logps, mask, advantages)
    for name, value in (("temperature_pos", temperature_pos), ("temperature_neg", temperature_neg)):
        if not value > 0:
            raise ValueError(f"{name} must be above 0 but is {value}; the paper uses 1.0 and 1.05")
        if value > 1e30:
            raise ValueError(f"{name} must be at most 1e30 but is {value}; float32 holds no more")

    ratio = mx.exp(level_log_ratio(logps, old_logps, keep, "token"))
    A = spread_advantages(advantages, keep)
    tau_pos, tau_neg = (mx.array(t, ratio.dtype) for t in (temperature_pos, temperature_neg))
    tau = mx.where(A > 0, tau_pos, tau_neg)
    return zero_outside(-(4 / tau) * mx.sigmoid(tau * (ratio - 1)) * A, keep)


def reinforce_loss(logps: mx.array, advantages: mx.array, mask: mx.array) -> mx.array:
    """The policy gradient of samples that come from the policy itself.

        loss = -A logps

    Mirrors `sctom.losses.reinforce_loss`; differs in nothing but rounding.

    >>> logps = mx.array([[-1.0, -2.0, float("nan")]])
    >>> reinforce_loss(logps, mx.array([0.5]), mx.array([[1.0, 1.0, 0.0]]))
    array([[0.5, 1, 0]], dtype=float32)
    """
    check_shapes(logps=(logps, "B T"), advantages=advantage_axes(advantages), mask=(mask, "B T"))
    keep = kept_tokens(mask, logps)
    A = spread_advantages(advantages, keep)
    return zero_outside(-A * zero_outside(widen(logps), keep), keep)

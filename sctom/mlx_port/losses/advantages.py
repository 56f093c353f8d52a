"""From rewards to advantages. Nothing here carries a gradient except `whiten`.

Arguments, shapes and errors are those of `sctom.losses.advantages`. Where that works in float64,
which MLX has on the CPU only, this works in float32 on every device (in float64 if it is given
that) and takes the mean off twice: what rounding left of it the first time goes the second.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import mlx.core as mx

from sctom.mlx_port.losses._shared import first_place, kept_tokens, widen, zero_outside
from sctom.shapes import check_shapes, require_choice

Scale = Literal["group", "batch", "none"]
Std = Literal["unbiased", "biased"]


def _checked_rewards(rewards: mx.array) -> tuple[mx.array, mx.array]:
    """Rewards [P, G] with 0 where there is none, and where there is one."""
    check_shapes(rewards=(rewards, "P G"))
    wide = widen(mx.stop_gradient(rewards))
    infinite = first_place(mx.isinf(wide))
    if infinite:
        (prompt, sample), count = infinite
        raise ValueError(
            f"rewards[{prompt}, {sample}] is {wide[prompt, sample].item()}, the first of "
            f"{count} infinite; a reward must be finite, or NaN where there is none"
        )
    valid = ~mx.isnan(wide)
    return zero_outside(wide, valid), valid


def _group_range(rewards: mx.array, valid: mx.array) -> mx.array:
    """Largest minus smallest valid reward of each group [P, 1]; -inf for a group without any."""
    highest = mx.where(valid, rewards, -math.inf).max(axis=1, keepdims=True)
    lowest = mx.where(valid, rewards, math.inf).min(axis=1, keepdims=True)
    return highest - lowest


def _centred(values: mx.array, keep: mx.array, axis: int | None) -> mx.array:
    """The kept values minus their mean over an axis, or over everything; 0 elsewhere."""
    count = mx.maximum(keep.sum(axis=axis, keepdims=True), 1)
    for _ in range(2):
        # divided before they are added: the sum may be too large for float32
        mean = (zero_outside(values, keep) / count).sum(axis=axis, keepdims=True)
        values = zero_outside(values - mean, keep)
    return values


def _divisor(count: mx.array, std: str) -> mx.array:
    return mx.maximum(count - 1 if std == "unbiased" else count, 1)


def _in_units(deviations: mx.array, floor: float, axis: int | None) -> tuple[mx.array, mx.array]:
    """A unit of size max(largest deviation, floor), and the deviations in it.

    Squares of the deviations themselves leave the range of float32 beyond 1e19 and below 1e-22.
    """
    largest = mx.abs(mx.stop_gradient(deviations)).max(axis=axis, keepdims=True)
    unit = mx.maximum(largest, min(floor, 1e30))
    unit = mx.where(unit == 0, 1, unit)
    return unit, deviations / unit


def _std(deviations: mx.array, count: mx.array, std: str, axis: int | None) -> mx.array:
    return mx.sqrt(mx.square(deviations).sum(axis=axis, keepdims=True) / _divisor(count, std))


def _require_least_zero(**settings: float) -> None:
    """Refuse a guard that is negative, infinite or NaN."""
    for name, value in settings.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be at least 0 and finite but is {value}; 0 for none")


def group_advantages(
    rewards: mx.array,
    *,
    scale: Scale = "group",
    std: Std = "unbiased",
    eps: float = 1e-4,
    tolerance: float = 1e-6,
) -> mx.array:
    """Compare each completion with the others of its prompt.

        A_i = (R_i - mean_G) / (std + eps)     scale "group": std of the group; "batch": of all
        rewards given
        A_i =  R_i - mean_G                    scale "none"

    Mirrors `sctom.losses.group_advantages`; differs in float32 statistics, and in that an infinite
    reward is not refused but makes its group NaN inside `mx.compile` and `mx.vmap`.

    >>> nan = float("nan")
    >>> rewards = mx.array([[1.0, 0.0, nan], [0.1, 0.1, 0.1]])
    >>> mx.round(group_advantages(rewards, eps=0.0), 4)
    array([[0.7071, -0.7071, 0],
           [0, 0, 0]], dtype=float32)
    """
    require_choice("scale", scale, get_args(Scale))
    require_choice("std", std, get_args(Std))
    _require_least_zero(eps=eps, tolerance=tolerance)
    known, valid = _checked_rewards(rewards)
    if known.size == 0:
        return known
    count = valid.sum(axis=1, keepdims=True)
    # not "range > tolerance": that is false for the NaN of infinite rewards, which must show
    usable = valid & (count >= 2) & ~(_group_range(known, valid) <= tolerance)
    centred = _centred(known, valid, axis=1)
    if scale == "group":
        unit, centred = _in_units(centred, eps, axis=1)
        centred = centred / (_std(centred, count, std, axis=1) + eps / unit)
    elif scale == "batch":
        unit, deviations = _in_units(_centred(known, valid, axis=None), eps, axis=None)
        centred = centred / unit / (_std(deviations, valid.sum(), std, axis=None) + eps / unit)
    return zero_outside(centred, usable)


def leave_one_out_advantages(rewards: mx.array) -> mx.array:
    """Compare each completion with the mean of the others of its prompt.

        A_i = R_i - mean_{j != i} R_j = n / (n - 1) (R_i - mean_G)

    Mirrors `sctom.losses.leave_one_out_advantages`; differs in float32 statistics, and in that an
    infinite reward is not refused but makes its group NaN inside `mx.compile` and `mx.vmap`.

    >>> mx.round(leave_one_out_advantages(mx.array([[1.0, 0.0, 0.0, 0.0]])), 4)
    array([[1, -0.3333, -0.3333, -0.3333]], dtype=float32)
    """
    known, valid = _checked_rewards(rewards)
    if known.size == 0:
        return known
    count = valid.sum(axis=1, keepdims=True)
    usable = valid & (count >= 2) & ~(_group_range(known, valid) <= 0)
    advantages = _centred(known, valid, axis=1) * (count / mx.maximum(count - 1, 1))
    return zero_outside(advantages, usable)


def gae_advantages(
    rewards: mx.array, values: mx.array, mask: mx.array, *, gamma: float = 1.0, lam: float = 0.95
) -> tuple[mx.array, mx.array]:
    """Generalised advantage estimation along the tokens of each completion.

        delta_t = R_t + gamma V_{t+1} - V_t,   V after the last unmasked token = 0
        A_t = delta_t + gamma lam A_{t+1},     return_t = A_t + V_t

    Mirrors `sctom.losses.gae_advantages`; differs in nothing but rounding.

    >>> rewards, values = mx.array([[0.0, 1.0]]), mx.array([[0.5, 0.25]])
    >>> advantages, returns = gae_advantages(rewards, values, mx.ones((1, 2)), lam=0.5)
    >>> advantages, returns
    (array([[0.125, 0.75]], dtype=float32), array([[0.625, 1]], dtype=float32))
    """
    check_shapes(rewards=(rewards, "B T"), values=(values, "B T"), mask=(mask, "B T"))
    keep = kept_tokens(mask, values)
    R = zero_outside(widen(mx.stop_gradient(rewards)), keep)
    V = zero_outside(widen(mx.stop_gradient(values)), keep)
    advantages = mx.zeros_like(R + V)
    next_value = next_advantage = mx.zeros((keep.shape[0],), advantages.dtype)
    for t in reversed(range(keep.shape[1])):
        delta = R[:, t] + gamma * next_value - V[:, t]
        advantage = delta + gamma * lam * next_advantage
        advantages[:, t] = advantage
        next_value = mx.where(keep[:, t], V[:, t], next_value)
        next_advantage = mx.where(keep[:, t], advantage, next_advantage)
    advantages = zero_outside(advantages, keep)
    return advantages, advantages + V


def whiten(
    values: mx.array, mask: mx.array | None = None, *, std: Std = "unbiased", eps: float = 1e-8
) -> mx.array:
    """Shift and scale values to mean 0 and variance 1 over everything unmasked.

        (x - mean) / sqrt(var + eps)

    Mirrors `sctom.losses.whiten`; differs in float32 statistics.

    >>> values, mask = mx.array([1.0, 3.0, 99.0]), mx.array([1.0, 1.0, 0.0])
    >>> whiten(values, mask, std="biased", eps=0.0)
    array([-1, 1, 0], dtype=float32)
    """
    require_choice("std", std, get_args(Std))
    _require_least_zero(eps=eps)
    if mask is not None and mask.shape != values.shape:
        raise ValueError(
            f"mask must have the shape of values, {list(values.shape)}, but has {list(mask.shape)}"
        )
    keep = kept_tokens(mask, values)
    centred = _centred(widen(values), keep, axis=None)
    if centred.size == 0:
        return centred
    unit, centred = _in_units(centred, math.sqrt(eps), axis=None)
    variance = mx.square(centred).sum() / _divisor(keep.sum(), std)
    return centred / mx.sqrt(variance + eps / unit / unit)

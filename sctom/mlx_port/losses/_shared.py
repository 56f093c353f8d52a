"""What every loss does before its own formula: widen, mask, bound the log-ratio, check choices."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from sctom.shapes import check_shapes

LOG_LIMIT = 20.0
"""Log-ratios and reference differences are clamped to [-LOG_LIMIT, LOG_LIMIT] before `exp`."""


def first_place(bad: mx.array) -> tuple[tuple[int, ...], int] | None:
    """The first place where `bad` holds and the number of such places; None if there is none.

    Also None inside `mx.compile` and `mx.vmap`, where no value can be looked at. `mx.grad` allows
    it.

    >>> first_place(mx.array([[False, False], [True, True]]))
    ((1, 0), 2)
    """
    try:
        count: Any = bad.sum().item()
    except ValueError as error:
        if "function transformations" not in str(error):
            raise
        return None
    if count == 0:
        return None
    rest: Any = mx.argmax(bad.flatten()).item()
    place: tuple[int, ...] = ()
    for size in reversed(bad.shape):
        rest, index = divmod(rest, size)
        place = (index, *place)
    return place, count


def widen(values: mx.array) -> mx.array:
    """The same values in float32, or unchanged if they are float64 already."""
    return values if values.dtype == mx.float64 else values.astype(mx.float32)


def clamp(values: mx.array, low: Any = -math.inf, high: Any = math.inf) -> mx.array:
    """`torch.clamp`: a value at a bound keeps its gradient, where `mx.clip` drops it.

    NaN among value and bounds gives NaN, without gradient.

    >>> mx.grad(lambda x: clamp(x, 0.0, 1.0).sum())(mx.array([-1.0, 0.0, 0.5, 1.0, 2.0]))
    array([0, 1, 1, 1, 0], dtype=float32)
    """
    inside = mx.where((values >= low) & (values <= high), values, math.nan)
    return mx.where(values < low, low, mx.where(values > high, high, inside))


def minimum(first: mx.array, second: mx.array) -> mx.array:
    """`torch.minimum`: equal values share the gradient, where `mx.minimum` gives it to one.

    NaN in either gives NaN.

    >>> mx.grad(lambda x: minimum(x, 3 * x).sum())(mx.array([0.0, 1.0]))  # (1 + 3) / 2 at 0
    array([2, 1], dtype=float32)
    """
    unordered = mx.where(first == second, 0.5 * first + 0.5 * second, first + second)
    return mx.where(first < second, first, mx.where(second < first, second, unordered))


def maximum(first: mx.array, second: mx.array) -> mx.array:
    """`torch.maximum`: equal values share the gradient, where `mx.maximum` gives it to one."""
    return -minimum(-first, -second)


def zero_outside(values: mx.array, keep: mx.array) -> mx.array:
    """The values where `keep` is true; 0 elsewhere, with gradient 0 there even if they are NaN."""
    return mx.where(keep, values, 0.0)


def kept_tokens(mask: mx.array | None, like: mx.array) -> mx.array:
    """The mask as booleans: every non-zero entry counts. No mask: every position counts."""
    return mx.ones_like(like).astype(mx.bool_) if mask is None else mx.stop_gradient(mask) != 0


def spread_advantages(advantages: mx.array, keep: mx.array) -> mx.array:
    """Advantages [B] or [B, T] as [B, T], without gradient and 0 where masked."""
    wide = widen(mx.stop_gradient(advantages))
    return zero_outside(wide if wide.ndim == 2 else wide[:, None], keep)


def advantage_axes(advantages: mx.array) -> tuple[Any, str]:
    """The entry of `advantages` for `check_shapes`: one number per completion, or one per token."""
    return advantages, "B T" if advantages.ndim == 2 else "B"


def bounded_difference(logps: mx.array, other_logps: mx.array, keep: mx.array) -> mx.array:
    """The clamped `logps - other_logps` [B, T], 0 where masked; gradient 0 where the clamp acts."""
    difference = zero_outside(widen(logps) - widen(mx.stop_gradient(other_logps)), keep)
    return clamp(difference, -LOG_LIMIT, LOG_LIMIT)


def row_mean(values: mx.array, keep: mx.array) -> mx.array:
    """Mean over the kept tokens of each row, [B]; 0 for a row without any."""
    return zero_outside(values, keep).sum(axis=1) / mx.maximum(keep.sum(axis=1), 1)


def level_log_ratio(logps: mx.array, old_logps: mx.array, keep: mx.array, level: str) -> mx.array:
    """The log of the importance ratio, [B, T] at the level "token" and [B, 1] at a row level.

    >>> logps, old_logps = mx.array([[-1.0, -2.0, 9.0]]), mx.array([[-1.5, -2.25, 0.0]])
    >>> keep = mx.array([[True, True, False]])
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
    return clamp(tokens.sum(axis=1, keepdims=True), -LOG_LIMIT, LOG_LIMIT)


def check_policy_inputs(
    logps: mx.array, old_logps: mx.array, mask: mx.array, advantages: mx.array | None = None
) -> mx.array:
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

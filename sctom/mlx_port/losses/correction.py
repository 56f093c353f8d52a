"""When sampler and trainer disagree on the probability of a token, or the rollout has gone stale.

Arguments, shapes and errors are those of `sctom.losses.correction`. Nothing here carries a
gradient.
"""

from __future__ import annotations

from typing import Literal, get_args

import mlx.core as mx

from sctom.mlx_port.losses._shared import (
    advantage_axes,
    clamp,
    kept_tokens,
    level_log_ratio,
    row_mean,
    spread_advantages,
    widen,
    zero_outside,
)
from sctom.shapes import check_shapes, require_choice

Mode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


def rollout_weights(
    old_logps: mx.array,
    rollout_logps: mx.array,
    mask: mx.array,
    *,
    mode: Mode = "token_truncate",
    weight_max: float = 3.0,
    weight_min: float | None = None,
) -> mx.array:
    """Importance weights from the sampler that drew the tokens to the trainer that scores them.

        w = exp(old_logps - rollout_logps)          "token_*": per token; "sequence_*": the product
        over the row
        "*_truncate": w clipped to [weight_min, weight_max];  "*_mask": w inside these bounds, 0
        outside

    Mirrors `sctom.losses.rollout_weights`; differs in nothing but rounding.

    >>> old_logps = mx.log(mx.array([[0.8, 0.5]]))
    >>> rollout_logps = mx.log(mx.array([[0.2, 0.4]]))  # ratios 4 and 1.25, product 5
    >>> mask = mx.ones((1, 2))
    >>> mx.round(rollout_weights(old_logps, rollout_logps, mask), 4)
    array([[3, 1.25]], dtype=float32)
    >>> mx.round(rollout_weights(old_logps, rollout_logps, mask, mode="token_mask"), 4)
    array([[0, 1.25]], dtype=float32)
    >>> mx.round(rollout_weights(old_logps, rollout_logps, mask, mode="sequence_truncate"), 4)
    array([[3, 3]], dtype=float32)
    """
    require_choice("mode", mode, get_args(Mode))
    check_shapes(
        old_logps=(old_logps, "B T"), rollout_logps=(rollout_logps, "B T"), mask=(mask, "B T")
    )
    lowest = 0.0 if weight_min is None else weight_min
    if not 0 <= lowest <= weight_max:
        raise ValueError(
            f"weight_min must lie between 0 and weight_max={weight_max} but is {weight_min}; "
            "None for no lower bound"
        )
    keep = kept_tokens(mask, old_logps)
    level = "token" if mode.startswith("token") else "product"
    weights = mx.exp(level_log_ratio(mx.stop_gradient(old_logps), rollout_logps, keep, level))
    if mode.endswith("truncate"):
        weights = clamp(weights, lowest, weight_max)
    else:
        weights = mx.where((weights < lowest) | (weights > weight_max), 0.0, weights)
    return zero_outside(weights, keep)


def off_policy_sequence_mask(
    logps: mx.array, old_logps: mx.array, advantages: mx.array, mask: mx.array, *, delta: float
) -> mx.array:
    """Leave out bad completions that the policy has already moved far away from.

        M = 0 if A < 0 and mean_t (old_logps - logps) > delta, else 1

    Mirrors `sctom.losses.off_policy_sequence_mask`; differs in nothing but rounding.

    >>> logps, old_logps = mx.array([[-3.0, -2.0], [-3.0, -2.0]]), mx.full((2, 2), -1.0)
    >>> advantages, mask = mx.array([-1.0, 1.0]), mx.ones((2, 2))
    >>> off_policy_sequence_mask(logps, old_logps, advantages, mask, delta=0.5)
    array([0, 1], dtype=float32)
    """
    check_shapes(
        logps=(logps, "B T"),
        old_logps=(old_logps, "B T"),
        advantages=advantage_axes(advantages),
        mask=(mask, "B T"),
    )
    keep = kept_tokens(mask, logps)
    drop = row_mean(mx.stop_gradient(widen(old_logps) - widen(logps)), keep)
    bad = row_mean(spread_advantages(advantages, keep), keep) < 0
    return 1 - (bad & (drop > delta)).astype(drop.dtype)

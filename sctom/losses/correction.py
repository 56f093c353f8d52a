"""When sampler and trainer disagree on the probability of a token, or the rollout has gone stale.

The weights multiply the policy loss, not the KL penalty, and carry no gradient.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from sctom.losses._shared import (
    advantage_axes,
    clamp,
    kept_tokens,
    level_log_ratio,
    row_mean,
    spread_advantages,
    widen,
)
from sctom.shapes import check_shapes, require_choice

Mode = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


@torch.no_grad()
def rollout_weights(
    old_logps: Tensor,
    rollout_logps: Tensor,
    mask: Tensor,
    *,
    mode: Mode = "token_truncate",
    weight_max: float = 3.0,
    weight_min: float | None = None,
) -> Tensor:
    """Importance weights from the sampler that drew the tokens to the trainer that scores them.

        w = exp(old_logps - rollout_logps)           "token_*": per token
        w = exp(sum over the row of the same)        "sequence_*"
        clip(w, weight_min, weight_max)              "*_truncate"
        w where weight_min <= w <= weight_max else 0 "*_mask"

    "token_truncate" is truncated importance sampling (TIS), "token_mask" is known as MIS or IcePop.
    The modes are TRL 1.16's; its default is "sequence_mask". verl's bound is 2.0 by default. TRL
    turns a NaN of the sampler into the weight 1; here it stays NaN, so that it is noticed.

    Args:
        old_logps: [B, T] log-probabilities of the sampled tokens under the trainer's policy before
            the update, in nats.
        rollout_logps: [B, T] the same as the sampler reported them, at the same temperature.
        mask: [B, T] 1 where the token counts.
        mode: "token_truncate", "token_mask", "sequence_truncate" or "sequence_mask".
        weight_max: largest weight.
        weight_min: smallest weight; None for none.

    Returns:
        Weights [B, T] without gradient, 0 where masked.

    Raises:
        ValueError: shapes disagree, an unknown mode, or bounds in the wrong order.

    >>> old_logps = torch.tensor([[0.8, 0.5]]).log()
    >>> rollout_logps = torch.tensor([[0.2, 0.4]]).log()  # ratios 4 and 1.25, product 5
    >>> mask = torch.ones(1, 2)
    >>> rollout_weights(old_logps, rollout_logps, mask)
    tensor([[3.0000, 1.2500]])
    >>> rollout_weights(old_logps, rollout_logps, mask, mode="token_mask")
    tensor([[0.0000, 1.2500]])
    >>> rollout_weights(old_logps, rollout_logps, mask, mode="sequence_truncate")
    tensor([[3., 3.]])
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
    weights = level_log_ratio(old_logps, rollout_logps, keep, level).exp()
    if mode.endswith("truncate"):
        weights = clamp(weights, lowest, weight_max)
    else:
        weights = weights.masked_fill((weights < lowest) | (weights > weight_max), 0.0)
    return torch.where(keep, weights, 0.0)


@torch.no_grad()
def off_policy_sequence_mask(
    logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, *, delta: float
) -> Tensor:
    """Leave out bad completions that the policy has already moved far away from.

        M = 0 if A < 0 and mean_t (old_logps - logps) > delta, else 1

    DeepSeek-V3.2 (arXiv 2512.02556), which does not print its delta; TRL suggests 0.5. There is no
    `exp` here, so the differences are not clamped.

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, in nats.
        old_logps: [B, T] the same under the policy the rollout counts from.
        advantages: [B]; or [B, T], whose mean over the row's tokens is then compared with 0.
        mask: [B, T] 1 where the token counts.
        delta: largest mean drop of the log-probability, in nats per token.

    Returns:
        1 for a completion to keep, 0 for one to leave out: [B] without gradient.

    Raises:
        ValueError: shapes disagree.

    >>> logps, old_logps = torch.tensor([[-3.0, -2.0], [-3.0, -2.0]]), torch.full((2, 2), -1.0)
    >>> advantages, mask = torch.tensor([-1.0, 1.0]), torch.ones(2, 2)
    >>> off_policy_sequence_mask(logps, old_logps, advantages, mask, delta=0.5)
    tensor([0., 1.])
    """
    check_shapes(
        logps=(logps, "B T"),
        old_logps=(old_logps, "B T"),
        advantages=advantage_axes(advantages),
        mask=(mask, "B T"),
    )
    keep = kept_tokens(mask, logps)
    drop = row_mean(widen(old_logps) - widen(logps), keep)
    bad = row_mean(spread_advantages(advantages, keep), keep) < 0
    return 1 - (bad & (drop > delta)).to(drop.dtype)

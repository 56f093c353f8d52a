"""Numbers to log: scalars without gradient.

At the level "token" they count unmasked tokens. At the levels "geometric" and "product" they count
rows, those with at least one unmasked token, each once whatever its length. If nothing is unmasked
they are 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sctom.losses._shared import (
    LOG_LIMIT,
    check_policy_inputs,
    level_log_ratio,
    row_mean,
    spread_advantages,
    widen,
    zero_outside,
)
from sctom.shapes import Level, require_level


def _share(happened: Tensor, keep: Tensor, level: str) -> Tensor:
    """The share of tokens, or at a row level of rows, for which something happened."""
    counted = happened.expand_as(keep).float()
    if level == "token":
        return zero_outside(counted, keep).sum() / keep.sum().clamp(min=1)
    return row_mean(counted, keep).sum() / keep.any(1).sum().clamp(min=1)


@torch.no_grad()
def clip_fraction(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ratio_max: float | None = None,
    level: Level = "token",
) -> Tensor:
    """The share of tokens, or rows, to which `grpo_loss` with the same settings gives no gradient.

        A > 0 and r > 1 + clip_high
        A < 0 and r < 1 - clip_low
        A != 0 and r > ratio_max

    Strict, like the gradient: a ratio exactly at an edge still has one.

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, in nats.
        old_logps: [B, T] the same under the policy the rollout counts from.
        advantages: [B], or [B, T] for one per token.
        mask: [B, T] 1 where the token counts.
        clip_low: width below 1.
        clip_high: width above 1.
        ratio_max: largest ratio; None for no bound.
        level: "token", "geometric" or "product".

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: shapes disagree, or an unknown level.

    >>> logps, old_logps = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.4, 0.4]]).log()
    >>> clip_fraction(logps, old_logps, torch.tensor([1.0]), torch.ones(1, 2)).item()
    0.5
    """
    require_level(level)
    keep = check_policy_inputs(logps, old_logps, mask, advantages)
    ratio = level_log_ratio(logps, old_logps, keep, level).exp()
    A = spread_advantages(advantages, keep)
    clipped = ((A > 0) & (ratio > 1 + clip_high)) | ((A < 0) & (ratio < 1 - clip_low))
    if ratio_max is not None:
        clipped |= (A != 0) & (ratio > ratio_max)
    return _share(clipped, keep, level)


@torch.no_grad()
def weight_clip_fraction(
    logps: Tensor,
    old_logps: Tensor,
    mask: Tensor,
    *,
    weight_max: float = 5.0,
    weight_min: float = 0.0,
    level: Level = "token",
) -> Tensor:
    """The share of tokens, or rows, whose weight is clipped by `cispo_loss` with the same settings.

        exp(logps - old_logps) > weight_max  or  < weight_min

    Counted for both signs of the advantage, as the weight is clipped for both; TRL 1.16 counts
    positive ones only. For the weights between sampler and trainer pass (old_logps, rollout_logps).

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, in nats.
        old_logps: [B, T] the same under the policy the rollout counts from.
        mask: [B, T] 1 where the token counts.
        weight_max: largest importance weight, an absolute bound.
        weight_min: smallest importance weight.
        level: "token", "geometric" or "product".

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: shapes disagree, or an unknown level.

    >>> logps, old_logps = torch.tensor([[0.9, 0.4]]).log(), torch.tensor([[0.1, 0.4]]).log()
    >>> weight_clip_fraction(logps, old_logps, torch.ones(1, 2)).item()
    0.5
    """
    require_level(level)
    keep = check_policy_inputs(logps, old_logps, mask)
    weight = level_log_ratio(logps, old_logps, keep, level).exp()
    return _share((weight > weight_max) | (weight < weight_min), keep, level)


@torch.no_grad()
def clamped_fraction(logps: Tensor, old_logps: Tensor, mask: Tensor) -> Tensor:
    """The share of tokens whose log-ratio lies beyond the clamp at +-20, where it has no gradient.

        |logps - old_logps| > 20

    Anything but 0 deserves a look. For the KL penalty pass (logps, ref_logps).

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, in nats.
        old_logps: [B, T] the same under the policy it is compared with.
        mask: [B, T] 1 where the token counts.

    Returns:
        A scalar in [0, 1].

    Raises:
        ValueError: shapes disagree.

    >>> logps, old_logps = torch.tensor([[-1.0, -25.0]]), torch.tensor([[-1.0, -1.0]])
    >>> clamped_fraction(logps, old_logps, torch.ones(1, 2)).item()
    0.5
    """
    keep = check_policy_inputs(logps, old_logps, mask)
    return _share((widen(logps) - widen(old_logps)).abs() > LOG_LIMIT, keep, "token")


@torch.no_grad()
def approx_kl(logps: Tensor, old_logps: Tensor, mask: Tensor) -> Tensor:
    """How far the policy has moved from the one that sampled, as KL(old || policy) per token.

        mean over unmasked tokens of r - 1 - ln r,   r = exp(logps - old_logps)

    Schulman, "Approximating KL Divergence" (2020): unbiased for tokens drawn from the old policy,
    and never negative.

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, in nats.
        old_logps: [B, T] the same under the policy that sampled.
        mask: [B, T] 1 where the token counts.

    Returns:
        A scalar, in nats per token.

    Raises:
        ValueError: shapes disagree.

    >>> logps, old_logps = torch.tensor([[0.5]]).log(), torch.tensor([[0.25]]).log()
    >>> approx_kl(logps, old_logps, torch.ones(1, 1))  # 2 - 1 - ln 2
    tensor(0.3069)
    """
    keep = check_policy_inputs(logps, old_logps, mask)
    log_ratio = level_log_ratio(logps, old_logps, keep, "token")
    return (torch.expm1(log_ratio) - log_ratio).sum() / keep.sum().clamp(min=1)


@torch.no_grad()
def effective_sample_size(
    logps: Tensor, old_logps: Tensor, mask: Tensor, *, level: Level = "token"
) -> Tensor:
    """How many equally weighted samples these are worth, as a share of their number n.

        (sum w)^2 / (n sum w^2),   w = exp(logps - old_logps)

    Kish (1965). 1 on-policy, 1 / n when one sample outweighs all others. The weights are those
    before any clip. A share rather than a count, so that batches of different sizes can be
    compared.

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, in nats.
        old_logps: [B, T] the same under the policy that sampled.
        mask: [B, T] 1 where the token counts.
        level: "token": n tokens; "geometric" or "product": n rows.

    Returns:
        A scalar in (0, 1].

    Raises:
        ValueError: shapes disagree, or an unknown level.

    >>> logps, old_logps = torch.tensor([[0.6, 0.2]]).log(), torch.tensor([[0.2, 0.2]]).log()
    >>> effective_sample_size(logps, old_logps, torch.ones(1, 2))  # 4^2 / (2 x 10)
    tensor(0.8000)
    """
    require_level(level)
    keep = check_policy_inputs(logps, old_logps, mask)
    log_weight = level_log_ratio(logps, old_logps, keep, level)
    counted = keep if level == "token" else keep.any(1, keepdim=True)
    weight = zero_outside(log_weight.exp(), counted)
    # a weight is at least exp(-LOG_LIMIT), so the clamp only acts where nothing is counted
    return weight.sum().square() / (counted.sum() * weight.square().sum()).clamp(min=1e-30)

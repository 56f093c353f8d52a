"""Policy-gradient losses: log-probabilities and advantages in, a loss per token [B, T] out.

A loss is minimised. `old_logps`, `advantages` and `mask` carry no gradient. The result is exactly
0, in value and gradient, where the mask is 0, whatever the inputs hold there. Log-ratios are
clamped to [-20, 20] before `exp`, with gradient 0 beyond. Reduce the result with
`sctom.losses.reduce`.

`level` says how the log-ratios of the tokens become the ratio of a row:

- "token": each token has its own ratio, r_t = exp(l_t - old_t);
- "geometric": one ratio for the row, exp of the mean over its unmasked tokens (GSPO);
- "product": one ratio for the row, exp of the sum, the sum clamped as well (RLME, RLOO).

At a row level the surrogate is broadcast over the tokens of the row: `grpo_loss` then belongs with
`sequence_mean`, which recovers it, and `cispo_loss` with `sequence_sum`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sctom.losses._shared import (
    advantage_axes,
    check_policy_inputs,
    clamp,
    kept_tokens,
    level_log_ratio,
    spread_advantages,
    widen,
    zero_outside,
)
from sctom.shapes import Level, check_shapes, require_level


def _require_at_least(name: str, value: float, least: float, advice: str) -> None:
    if not value >= least:
        raise ValueError(f"{name} must be at least {least:g} but is {value}; {advice}")


def grpo_loss(
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
    """The clipped surrogate of PPO with two widths and an optional bound on the ratio.

        r = exp(logps - old_logps), bounded above by ratio_max if given
        loss = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

    DeepSeekMath (arXiv 2402.03300) eq. 3 without its KL term; two widths: DAPO (2503.14476) eq. 8;
    level "geometric": GSPO (2507.18071) eq. 5 and 7. `ratio_max` is INTELLECT-2's delta
    (2505.07291); for a negative advantage it gives dual-clip PPO's bound c (1912.09729). We bound
    the ratio itself, for both signs and before the clip, so a `ratio_max` below 1 + clip_high
    narrows the clip, where the paper's form would not for a negative advantage.

    Edges: `torch.minimum` splits the gradient evenly between equal arguments and `clamp` passes it
    at its bounds, so a token exactly at 1 - clip_low, 1 + clip_high or ratio_max still has the full
    gradient, and one beyond has none.

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, in nats.
        old_logps: [B, T] the same under the policy the rollout counts from.
        advantages: [B], or [B, T] for one per token.
        mask: [B, T] 1 where the token counts.
        clip_low: width below 1, at least 0.
        clip_high: width above 1, at least 0.
        ratio_max: largest ratio, above 0; None for no bound.
        level: "token", "geometric" or "product", see the module.

    Returns:
        Loss per token [B, T].

    Raises:
        ValueError: shapes disagree, an unknown level, a negative width or a bound that is not
            positive.

    >>> logps = torch.tensor([[0.8, 0.2]]).log()
    >>> old_logps = torch.tensor([[0.4, 0.4]]).log()
    >>> grpo_loss(logps, old_logps, torch.tensor([1.0]), torch.ones(1, 2), clip_high=0.28)
    tensor([[-1.2800, -0.5000]])
    """
    require_level(level)
    keep = check_policy_inputs(logps, old_logps, mask, advantages)
    _require_at_least("clip_low", clip_low, 0.0, "it is a width: 0.2 clips at 0.8")
    _require_at_least("clip_high", clip_high, 0.0, "it is a width: 0.2 clips at 1.2")
    if ratio_max is not None and not ratio_max > 0:
        raise ValueError(
            f"ratio_max must be above 0 but is {ratio_max}; give a bound such as 4.0, or None"
        )

    ratio = level_log_ratio(logps, old_logps, keep, level).exp()
    if ratio_max is not None:
        ratio = clamp(ratio, high=ratio_max)
    clipped = clamp(ratio, 1 - clip_low, 1 + clip_high)
    A = spread_advantages(advantages, keep)
    return zero_outside(-torch.minimum(ratio * A, clipped * A), keep)


def cispo_loss(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    weight_max: float = 5.0,
    weight_min: float = 0.0,
    level: Level = "token",
) -> Tensor:
    """REINFORCE with a clipped importance weight that is not differentiated.

        w = stop_gradient(clip(exp(logps - old_logps), weight_min, weight_max))
        loss = -w A logps,   gradient with respect to logps: -w A

    MiniMax-M1 (arXiv 2506.13585) eq. 4 and 5; level "product" is RLME's weight (2601.21268). No
    token is ever cut out of the gradient. `weight_max` is an absolute bound, as in ScaleRL
    (2510.13786) and TRL; the papers and verl write it as 1 + epsilon_high, so RLME's epsilon_high
    of 5 is `weight_max=6`.

    The value of this loss means nothing by itself, and its gradient is not the derivative of its
    value in the usual sense: a finite-difference check fails, by design.

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, in nats.
        old_logps: [B, T] the same under the policy the rollout counts from.
        advantages: [B], or [B, T] for one per token.
        mask: [B, T] 1 where the token counts.
        weight_max: largest importance weight, at least 1; 5.0 means at most five times.
        weight_min: smallest importance weight, at least 0.
        level: "token", "geometric" or "product", see the module.

    Returns:
        Loss per token [B, T].

    Raises:
        ValueError: shapes disagree, an unknown level, a negative weight_min, or a weight_max
            below 1 or below weight_min.

    >>> logps = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    >>> old_logps = torch.tensor([[-1.0, -5.0]])
    >>> losses = cispo_loss(logps, old_logps, torch.tensor([2.0]), torch.ones(1, 2))
    >>> losses.sum().backward()
    >>> logps.grad
    tensor([[ -2., -10.]])
    """
    require_level(level)
    keep = check_policy_inputs(logps, old_logps, mask, advantages)
    _require_at_least("weight_min", weight_min, 0.0, "it bounds a ratio; 0 is no bound")
    least = max(1.0, weight_min)
    _require_at_least("weight_max", weight_max, least, "it is an absolute bound, not a width")

    log_weight = level_log_ratio(logps.detach(), old_logps, keep, level)
    weight = clamp(log_weight.exp(), weight_min, weight_max)
    A = spread_advantages(advantages, keep)
    return zero_outside(-weight * A * zero_outside(widen(logps), keep), keep)


def sapo_loss(
    logps: Tensor,
    old_logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    temperature_pos: float = 1.0,
    temperature_neg: float = 1.05,
) -> Tensor:
    """A surrogate with a smooth gate on the ratio where others clip.

        loss = -(4 / tau) sigmoid(tau (r - 1)) A,   r = exp(logps - old_logps)
        tau = temperature_pos where A > 0, temperature_neg elsewhere

    SAPO (arXiv 2511.20347). On-policy the gradient is that of REINFORCE, -A; away from r = 1 it
    fades by 4 sigmoid (1 - sigmoid), the faster the larger tau. The value on-policy is -2 A / tau,
    not -A.

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, in nats.
        old_logps: [B, T] the same under the policy the rollout counts from.
        advantages: [B], or [B, T] for one per token.
        mask: [B, T] 1 where the token counts.
        temperature_pos: steepness of the gate where the advantage is positive, above 0.
        temperature_neg: steepness elsewhere, above 0.

    Returns:
        Loss per token [B, T].

    Raises:
        ValueError: shapes disagree, or a temperature that is not positive or above 1e30.

    >>> logps = torch.tensor([[-1.0, -2.0]])
    >>> sapo_loss(logps, logps, torch.tensor([[1.0, -1.05]]), torch.ones(1, 2))
    tensor([[-2.,  2.]])
    """
    keep = check_policy_inputs(logps, old_logps, mask, advantages)
    for name, value in (("temperature_pos", temperature_pos), ("temperature_neg", temperature_neg)):
        if not value > 0:
            raise ValueError(f"{name} must be above 0 but is {value}; the paper uses 1.0 and 1.05")
        if value > 1e30:
            raise ValueError(f"{name} must be at most 1e30 but is {value}; float32 holds no more")

    ratio = level_log_ratio(logps, old_logps, keep, "token").exp()
    A = spread_advantages(advantages, keep)
    tau = torch.full_like(ratio, temperature_neg).masked_fill(A > 0, temperature_pos)
    return zero_outside(-(4 / tau) * torch.sigmoid(tau * (ratio - 1)) * A, keep)


def reinforce_loss(logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The policy gradient of samples that come from the policy itself.

        loss = -A logps

    Williams (1992). Every other policy loss has this gradient on-policy.

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, in nats.
        advantages: [B], or [B, T] for one per token.
        mask: [B, T] 1 where the token counts.

    Returns:
        Loss per token [B, T].

    Raises:
        ValueError: shapes disagree.

    >>> logps = torch.tensor([[-1.0, -2.0, float("nan")]])
    >>> reinforce_loss(logps, torch.tensor([0.5]), torch.tensor([[1.0, 1.0, 0.0]]))
    tensor([[0.5000, 1.0000, 0.0000]])
    """
    check_shapes(logps=(logps, "B T"), advantages=advantage_axes(advantages), mask=(mask, "B T"))
    keep = kept_tokens(mask, logps)
    A = spread_advantages(advantages, keep)
    return zero_outside(-A * zero_outside(widen(logps), keep), keep)

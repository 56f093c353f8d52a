"""From rewards to advantages. Nothing here carries a gradient except `whiten`."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from sctom.losses._shared import kept_tokens, widen, widest, zero_outside
from sctom.shapes import check_shapes, require_choice

Scale = Literal["group", "batch", "none"]
Std = Literal["unbiased", "biased"]


def _checked_rewards(rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Rewards [P, G] in float64 with 0 where there is none, and where there is one."""
    check_shapes(rewards=(rewards, "P G"))
    wide = widest(rewards.detach())
    infinite = wide.isinf().nonzero().tolist()
    if infinite:
        prompt, sample = infinite[0]
        raise ValueError(
            f"rewards[{prompt}, {sample}] is {wide[prompt, sample].item()}, the first of "
            f"{len(infinite)} infinite; a reward must be finite, or NaN where there is none"
        )
    valid = ~wide.isnan()
    return zero_outside(wide, valid), valid


def _group_range(rewards: Tensor, valid: Tensor) -> Tensor:
    """Largest minus smallest valid reward of each group [P, 1]; -inf for a group without any."""
    highest = rewards.masked_fill(~valid, -torch.inf).amax(1, keepdim=True)
    lowest = rewards.masked_fill(~valid, torch.inf).amin(1, keepdim=True)
    return highest - lowest


def _divisor(count: Tensor, std: str) -> Tensor:
    return (count - 1 if std == "unbiased" else count).clamp(min=1)


def _require_least_zero(**settings: float) -> None:
    """Refuse a guard that is negative, infinite or NaN."""
    for name, value in settings.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be at least 0 and finite but is {value}; 0 for none")


def group_advantages(
    rewards: Tensor,
    *,
    scale: Scale = "group",
    std: Std = "unbiased",
    eps: float = 1e-4,
    tolerance: float = 1e-6,
) -> Tensor:
    """Compare each completion with the others of its prompt.

        A_i = (R_i - mean_G) / (std_G + eps)    scale "group"
        A_i = (R_i - mean_G) / (std_all + eps)  scale "batch": over all rewards given
        A_i =  R_i - mean_G                     scale "none"

    GRPO (arXiv 2402.03300, section 4.1.2) for "group"; Dr.GRPO (2503.20783) for "none"; "batch" is
    the group's mean with the standard deviation of the raw rewards of the whole batch, as in TRL.
    The paper names neither the kind of standard deviation nor a guard; the defaults are TRL's.
    Unlike TRL and verl, a group of (nearly) equal rewards and a group of one get exactly 0:
    rounding leaves seven rewards of 0.1 a tiny deviation, which a division by their tiny standard
    deviation would turn into a signal. Statistics are computed in float64.

    With scale "batch", pass the rewards of the whole rollout on all ranks, or the result depends on
    how it was split.

    Args:
        rewards: [P, G], NaN for a completion without a reward: it is left out of mean and standard
            deviation and gets the advantage 0. A group with fewer than two rewards gets 0
            throughout.
        scale: "group", "batch" or "none".
        std: "unbiased" divides the squares by n - 1, "biased" by n.
        eps: added to the standard deviation, in units of the reward.
        tolerance: a group whose largest and smallest reward differ by no more than this gets 0.

    Returns:
        Advantages [P, G], float32 or float64.

    Raises:
        ValueError: rewards are not [P, G], one is infinite, an unknown scale or std, or eps or
            tolerance is negative or not finite.

    >>> nan = float("nan")
    >>> group_advantages(torch.tensor([[1.0, 0.0, nan], [0.1, 0.1, 0.1]]), eps=0.0)
    tensor([[ 0.7071, -0.7071,  0.0000],
            [ 0.0000,  0.0000,  0.0000]])
    """
    require_choice("scale", scale, get_args(Scale))
    require_choice("std", std, get_args(Std))
    _require_least_zero(eps=eps, tolerance=tolerance)
    known, valid = _checked_rewards(rewards)
    if known.numel() == 0:
        return known.to(widen(rewards).dtype)
    count = valid.sum(1, keepdim=True)
    mean = known.sum(1, keepdim=True) / count.clamp(min=1)
    usable = valid & (count >= 2) & (_group_range(known, valid) > tolerance)
    centred = zero_outside(known - mean, usable)
    if scale == "group":
        centred = centred / (
            (centred.square().sum(1, keepdim=True) / _divisor(count, std)).sqrt() + eps
        )
    elif scale == "batch":
        total = valid.sum()
        deviations = zero_outside(known - known.sum() / total.clamp(min=1), valid)
        centred = centred / ((deviations.square().sum() / _divisor(total, std)).sqrt() + eps)
    return zero_outside(centred, usable).to(widen(rewards).dtype)


def leave_one_out_advantages(rewards: Tensor) -> Tensor:
    """Compare each completion with the mean of the others of its prompt.

        A_i = R_i - mean_{j != i} R_j = n / (n - 1) (R_i - mean_G)

    RLOO (arXiv 2402.14740). There is no division by a standard deviation, least of all that of the
    others, which is 0 for the winner of [1, 0, 0, 0].

    Args:
        rewards: [P, G], NaN for a completion without a reward: it is left out and gets the
            advantage 0. A group with fewer than two rewards, or with equal ones, gets exactly 0.

    Returns:
        Advantages [P, G], float32 or float64.

    Raises:
        ValueError: rewards are not [P, G], or one is infinite.

    >>> leave_one_out_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    tensor([[ 1.0000, -0.3333, -0.3333, -0.3333]])
    """
    known, valid = _checked_rewards(rewards)
    if known.numel() == 0:
        return known.to(widen(rewards).dtype)
    count = valid.sum(1, keepdim=True)
    mean_of_others = (known.sum(1, keepdim=True) - known) / (count - 1).clamp(min=1)
    usable = valid & (count >= 2) & (_group_range(known, valid) > 0)
    return zero_outside(known - mean_of_others, usable).to(widen(rewards).dtype)


def gae_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation along the tokens of each completion.

        delta_t = R_t + gamma V_{t+1} - V_t,   V after the last unmasked token = 0
        A_t = delta_t + gamma lam A_{t+1},     return_t = A_t + V_t

    Schulman et al. (arXiv 1506.02438) eq. 16. Masked positions are skipped, wherever they are: t +
    1 is the next unmasked token. The advantages are not whitened; see `whiten`.

    Args:
        rewards: [B, T] reward per token; the score of a completion belongs on its last unmasked
            token.
        values: [B, T] predicted value before each token, in units of the reward.
        mask: [B, T] 1 where the token counts.
        gamma: discount per token.
        lam: decay of the trace, 0 for one-step differences, 1 for Monte-Carlo returns.

    Returns:
        Advantages and returns, both [B, T], without gradient and 0 where masked.

    Raises:
        ValueError: shapes disagree.

    >>> rewards, values = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.25]])
    >>> advantages, returns = gae_advantages(rewards, values, torch.ones(1, 2), lam=0.5)
    >>> advantages, returns
    (tensor([[0.1250, 0.7500]]), tensor([[0.6250, 1.0000]]))
    """
    check_shapes(rewards=(rewards, "B T"), values=(values, "B T"), mask=(mask, "B T"))
    keep = kept_tokens(mask, values)
    R = zero_outside(widen(rewards.detach()), keep)
    V = zero_outside(widen(values.detach()), keep)
    advantages = torch.zeros_like(R + V)
    next_value = next_advantage = advantages.new_zeros(keep.shape[0])
    for t in reversed(range(keep.shape[1])):
        delta = R[:, t] + gamma * next_value - V[:, t]
        advantages[:, t] = delta + gamma * lam * next_advantage
        next_value = torch.where(keep[:, t], V[:, t], next_value)
        next_advantage = torch.where(keep[:, t], advantages[:, t], next_advantage)
    advantages = zero_outside(advantages, keep)
    return advantages, advantages + V


def whiten(
    values: Tensor, mask: Tensor | None = None, *, std: Std = "unbiased", eps: float = 1e-8
) -> Tensor:
    """Shift and scale values to mean 0 and variance 1 over everything unmasked.

        (x - mean) / sqrt(var + eps)

    Used for PPO's advantages and for the reward of Llama 2 (arXiv 2307.09288, section 3.2.3), which
    states neither the kind of variance nor the guard. The statistics cross groups: pass the values
    of the whole rollout on all ranks. They are computed in float64.

    Args:
        values: any shape.
        mask: the same shape, 1 where the value counts; None: all count.
        std: "unbiased" divides the squares by n - 1, "biased" by n.
        eps: added to the variance, inside the root, in squared units of the values. With 0, equal
            values give NaN.

    Returns:
        The same shape, float32 or float64, 0 where masked. Differentiable.

    Raises:
        ValueError: shapes disagree, an unknown std, or eps is negative or not finite.

    >>> whiten(torch.tensor([1.0, 3.0, 99.0]), torch.tensor([1.0, 1.0, 0.0]), std="biased", eps=0.0)
    tensor([-1.,  1.,  0.])
    """
    require_choice("std", std, get_args(Std))
    _require_least_zero(eps=eps)
    if mask is not None and mask.shape != values.shape:
        raise ValueError(
            f"mask must have the shape of values, {list(values.shape)}, but has {list(mask.shape)}"
        )
    keep = kept_tokens(mask, values)
    count = keep.sum()
    known = zero_outside(widest(values), keep)
    centred = zero_outside(known - known.sum() / count.clamp(min=1), keep)
    variance = centred.square().sum() / _divisor(count, std)
    return (centred / (variance + eps).sqrt()).to(widen(values).dtype)

"""Estimates of the divergence from a reference policy, per token [B, T].

All are functions of d = ref_logps - logps at the sampled token, clamped to [-20, 20] with gradient
0 beyond. Sampled from the policy, k1, k2 and k3 estimate KL(policy || reference); k2 with a small
bias. What they *estimate* and what their gradient *descends* are two questions. On-policy, the
expected gradient of the plain estimates is

    k1: 0        k2: that of KL(policy || reference)        k3: that of KL(reference || policy)

`kl_penalty` therefore multiplies by the importance ratio, which makes all three descend KL(policy
|| reference), also off-policy. The reference never gets a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from sctom.losses._shared import LOG_LIMIT, bounded_difference, kept_tokens, widen
from sctom.shapes import check_shapes, require_choice

Estimator = Literal["k1", "k2", "k3"]


def _differences(logps: Tensor, ref_logps: Tensor, mask: Tensor | None) -> Tensor:
    """The differences logps - ref_logps, clamped and 0 where masked."""
    arrays: dict[str, tuple[Any, str]] = {"logps": (logps, "B T"), "ref_logps": (ref_logps, "B T")}
    if mask is not None:
        arrays["mask"] = (mask, "B T")
    check_shapes(**arrays)
    return bounded_difference(logps, ref_logps, kept_tokens(mask, logps))


def kl_k1(logps: Tensor, ref_logps: Tensor, mask: Tensor | None = None) -> Tensor:
    """The log-ratio itself: unbiased, of either sign, with a large variance.

        k1 = logps - ref_logps

    Schulman, "Approximating KL Divergence" (2020). As a loss its expected gradient on-policy is 0:
    use it in the reward, or through `kl_penalty`.

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the policy, in nats.
        ref_logps: [B, T] the same under the reference.
        mask: [B, T] 1 where the token counts; None: all count.

    Returns:
        Estimate per token [B, T] in nats, 0 where masked.

    Raises:
        ValueError: shapes disagree.

    >>> kl_k1(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]]))
    tensor([[ 0.5000, -1.0000]])
    """
    return _differences(logps, ref_logps, mask)


def kl_k2(logps: Tensor, ref_logps: Tensor, mask: Tensor | None = None) -> Tensor:
    """Half the squared log-ratio: never negative, slightly biased in value.

        k2 = (logps - ref_logps)^2 / 2

    Schulman (2020). As a loss its expected gradient on-policy is exactly that of KL(policy ||
    reference) (arXiv 2510.01555).

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the policy, in nats.
        ref_logps: [B, T] the same under the reference.
        mask: [B, T] 1 where the token counts; None: all count.

    Returns:
        Estimate per token [B, T] in nats, 0 where masked.

    Raises:
        ValueError: shapes disagree.

    >>> kl_k2(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]]))
    tensor([[0.1250, 0.5000]])
    """
    return _differences(logps, ref_logps, mask).square() / 2


def kl_k3(logps: Tensor, ref_logps: Tensor, mask: Tensor | None = None) -> Tensor:
    """GRPO's estimate: unbiased, never negative, with a small variance.

        k3 = exp(d) - 1 - d,   d = ref_logps - logps

    Schulman (2020); DeepSeekMath (arXiv 2402.03300) eq. 4. Differentiated as it stands, its
    expected gradient on-policy is that of the *other* divergence, KL(reference || policy).

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the policy, in nats.
        ref_logps: [B, T] the same under the reference.
        mask: [B, T] 1 where the token counts; None: all count.

    Returns:
        Estimate per token [B, T] in nats, 0 where masked.

    Raises:
        ValueError: shapes disagree.

    >>> kl_k3(torch.tensor([[0.25]]).log(), torch.tensor([[0.5]]).log())  # 2 - 1 - ln 2
    tensor([[0.3069]])
    """
    d = -_differences(logps, ref_logps, mask)
    return torch.expm1(d) - d


_ESTIMATORS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "k1": kl_k1,
    "k2": kl_k2,
    "k3": kl_k3,
}


def kl_penalty(
    logps: Tensor,
    old_logps: Tensor,
    ref_logps: Tensor,
    mask: Tensor | None = None,
    *,
    estimator: Estimator = "k3",
    weighted: bool = True,
) -> Tensor:
    """An estimate whose expected gradient is that of KL(policy || reference), on- and off-policy.

        weighted:  r k1, r k3, stop_gradient(r) k2,   r = exp(logps - old_logps)
        plain:     k1, k2, k3

    r k3 is the term of DeepSeek-V3.2 (arXiv 2512.02556). Per token, the gradient of r k3 and of
    stop_gradient(r) k2 is r (logps - ref_logps), that of r k1 has r more, whose expectation is 0.
    "Expected" is over tokens drawn from the old policy at the visited prefixes: how the penalty
    changes which prefixes are visited is not part of it.

    Where ref_logps - logps exceeds 20 the k3 penalty has no gradient at all.

    GRPO's paper uses the plain k3 (`weighted=False`). TRL 1.16 weights by default, as here; it has
    k3 only and clamps nothing. verl reaches the same gradient on-policy by "k3+", the value of k3
    with the gradient of k2.

    Args:
        logps: [B, T] log-probabilities of the sampled tokens under the trained policy, in nats.
        old_logps: [B, T] the same under the policy that sampled; pass `logps.detach()` when they
            are the same.
        ref_logps: [B, T] the same under the reference.
        mask: [B, T] 1 where the token counts; None: all count.
        estimator: "k1", "k2" or "k3".
        weighted: multiply by the importance ratio. Without it `old_logps` is not used.

    Returns:
        Penalty per token [B, T] in nats, to be multiplied by its coefficient and added to the
        policy loss.

    Raises:
        ValueError: shapes disagree, or an unknown estimator.

    >>> logps = torch.tensor([[-1.0]], requires_grad=True)
    >>> kl_penalty(logps, logps.detach(), torch.tensor([[-1.5]])).backward()
    >>> logps.grad  # logps - ref_logps
    tensor([[0.5000]])
    """
    require_choice("estimator", estimator, get_args(Estimator))
    check_shapes(logps=(logps, "B T"), old_logps=(old_logps, "B T"))
    logps = widen(logps)  # once, so that the terms of the gradient are added in float32
    penalty = _ESTIMATORS[estimator](logps, ref_logps, mask)
    if not weighted:
        return penalty
    weight = bounded_difference(logps, old_logps, kept_tokens(mask, logps)).exp()
    if estimator == "k2":
        weight = weight.detach()
    elif estimator == "k3":
        # The large terms of d(r k3) = r (exp(d) - 1 - d) + r (1 - exp(d)) cancel, unless the clamp
        # has cut the second off: the first alone would be up to exp(20), and of the wrong sign.
        beyond = widen(ref_logps.detach()) - widen(logps.detach()) > LOG_LIMIT
        weight = torch.where(beyond, weight.detach(), weight)
    return weight * penalty

"""Estimates of the divergence from a reference policy, per token [B, T].

Arguments, shapes and errors are those of `sctom.losses.kl`, as is what each estimate descends. All
are functions of d = ref_logps - logps, clamped to [-20, 20] with gradient 0 beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import mlx.core as mx

from sctom.mlx_port.losses._shared import LOG_LIMIT, bounded_difference, kept_tokens, widen
from sctom.shapes import check_shapes, require_choice

Estimator = Literal["k1", "k2", "k3"]


def _differences(logps: mx.array, ref_logps: mx.array, mask: mx.array | None) -> mx.array:
    """The differences logps - ref_logps, clamped and 0 where masked."""
    arrays: dict[str, tuple[Any, str]] = {"logps": (logps, "B T"), "ref_logps": (ref_logps, "B T")}
    if mask is not None:
        arrays["mask"] = (mask, "B T")
    check_shapes(**arrays)
    return bounded_difference(logps, ref_logps, kept_tokens(mask, logps))


def kl_k1(logps: mx.array, ref_logps: mx.array, mask: mx.array | None = None) -> mx.array:
    """The log-ratio itself: unbiased, of either sign, with a large variance.

        k1 = logps - ref_logps

    Mirrors `sctom.losses.kl_k1`; differs in nothing but rounding.

    >>> kl_k1(mx.array([[-1.0, -2.0]]), mx.array([[-1.5, -1.0]]))
    array([[0.5, -1]], dtype=float32)
    """
    return _differences(logps, ref_logps, mask)


def kl_k2(logps: mx.array, ref_logps: mx.array, mask: mx.array | None = None) -> mx.array:
    """Half the squared log-ratio: never negative, slightly biased in value.

        k2 = (logps - ref_logps)^2 / 2

    Mirrors `sctom.losses.kl_k2`; differs in nothing but rounding.

    >>> kl_k2(mx.array([[-1.0, -2.0]]), mx.array([[-1.5, -1.0]]))
    array([[0.125, 0.5]], dtype=float32)
    """
    return mx.square(_differences(logps, ref_logps, mask)) / 2


def kl_k3(logps: mx.array, ref_logps: mx.array, mask: mx.array | None = None) -> mx.array:
    """GRPO's estimate: unbiased, never negative, with a small variance.

        k3 = exp(d) - 1 - d,   d = ref_logps - logps

    Mirrors `sctom.losses.kl_k3`; differs in nothing but rounding.

    >>> k3 = kl_k3(mx.log(mx.array([[0.25]])), mx.log(mx.array([[0.5]])))
    >>> mx.round(k3, 4)  # 2 - 1 - ln 2
    array([[0.3069]], dtype=float32)
    """
    d = -_differences(logps, ref_logps, mask)
    return mx.expm1(d) - d


_ESTIMATORS: dict[str, Callable[[mx.array, mx.array, mx.array | None], mx.array]] = {
    "k1": kl_k1,
    "k2": kl_k2,
    "k3": kl_k3,
}


def kl_penalty(
    logps: mx.array,
    old_logps: mx.array,
    ref_logps: mx.array,
    mask: mx.array | None = None,
    *,
    estimator: Estimator = "k3",
    weighted: bool = True,
) -> mx.array:
    """An estimate whose expected gradient is that of KL(policy || reference), on- and off-policy.

        weighted:  r k1, r k3, stop_gradient(r) k2,   r = exp(logps - old_logps)
        plain:     k1, k2, k3

    Mirrors `sctom.losses.kl_penalty`; differs in nothing but rounding.

    >>> def penalty(logps):
    ...     return kl_penalty(logps, mx.stop_gradient(logps), mx.array([[-1.5]])).sum()
    >>> mx.round(mx.grad(penalty)(mx.array([[-1.0]])), 4)  # logps - ref_logps
    array([[0.5]], dtype=float32)
    """
    require_choice("estimator", estimator, get_args(Estimator))
    check_shapes(logps=(logps, "B T"), old_logps=(old_logps, "B T"))
    logps = widen(logps)  # once, so that the terms of a bfloat16 gradient are added before rounding
    penalty = _ESTIMATORS[estimator](logps, ref_logps, mask)
    if not weighted:
        return penalty
    weight = mx.exp(bounded_difference(logps, old_logps, kept_tokens(mask, logps)))
    if estimator == "k2":
        weight = mx.stop_gradient(weight)
    elif estimator == "k3":
        # The large terms of d(r k3) = r (exp(d) - 1 - d) + r (1 - exp(d)) cancel, unless the clamp
        # has cut the second off: the first alone would be up to exp(20), and of the wrong sign.
        beyond = mx.stop_gradient(widen(ref_logps) - logps) > LOG_LIMIT
        weight = mx.where(beyond, mx.stop_gradient(weight), weight)
    return weight * penalty

"""Losses of reward models on pairs, and the rule that makes one reward of two models.

Arguments, shapes and errors are those of `sctom.losses.preference`.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import mlx.core as mx

from sctom.mlx_port.losses._shared import first_place, widen
from sctom.mlx_port.losses.advantages import whiten
from sctom.shapes import check_shapes, require_choice

MarginScale = Literal["small", "large"]

_TOP_GRADE = 3


def _log_sigmoid(z: mx.array) -> mx.array:
    return -mx.logaddexp(-z, 0.0)


def bradley_terry_loss(
    chosen: mx.array,
    rejected: mx.array,
    margin: float | mx.array = 0.0,
    *,
    label_smoothing: float = 0.0,
) -> mx.array:
    """Negative log-likelihood that the chosen response is the better one, by a margin.

        z = chosen - rejected - margin
        loss = -(1 - label_smoothing) ln sigma(z) - label_smoothing ln sigma(-z)

    Mirrors `sctom.losses.bradley_terry_loss`; differs in nothing but rounding.

    >>> chosen, rejected = mx.array([2.0, 2.0]), mx.array([1.8, 1.8])
    >>> mx.round(bradley_terry_loss(chosen, rejected, mx.array([0.0, 3.0])), 4)
    array([0.5981, 2.859], dtype=float32)
    """
    check_shapes(chosen=(chosen, "N"), rejected=(rejected, "N"))
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(
            f"label_smoothing must lie in [0, 0.5) but is {label_smoothing}; "
            "at 0.5 the labels say nothing, and above it they say the opposite"
        )
    z = widen(chosen) - widen(rejected) - _margin_like(margin, chosen)
    loss = -_log_sigmoid(z)
    if label_smoothing == 0:
        return loss
    return (1 - label_smoothing) * loss - label_smoothing * _log_sigmoid(-z)


def _margin_like(margin: float | mx.array, scores: mx.array) -> float | mx.array:
    if not isinstance(margin, mx.array):
        return margin
    check_shapes(chosen=(scores, "N"), margin=(margin, "N"))
    return widen(mx.stop_gradient(margin))


def tie_loss(first: mx.array, second: mx.array, tied: mx.array, *, theta: float) -> mx.array:
    """Negative log-likelihood of a comparison that may end in a tie.

        P(first wins)  = e^a / (e^a + theta e^b)  = sigma(a - b - ln theta)
        P(second wins) = e^b / (e^b + theta e^a)  = sigma(b - a - ln theta)
        P(tie)         = (theta^2 - 1) P(first wins) P(second wins)

    Mirrors `sctom.losses.tie_loss`; differs in nothing but rounding.

    >>> even = mx.zeros(2)
    >>> losses = tie_loss(even, even, mx.array([True, False]), theta=3.0)
    >>> mx.round(mx.exp(losses), 4)  # 1 / P
    array([2, 4], dtype=float32)
    """
    check_shapes(first=(first, "N"), second=(second, "N"), tied=(tied, "N"))
    if not 1 < theta < math.inf:
        raise ValueError(
            f"theta must be above 1 and finite but is {theta}; "
            "where ties cannot happen (theta = 1), use bradley_terry_loss"
        )
    difference = widen(first) - widen(second)
    first_wins = _log_sigmoid(difference - math.log(theta))
    second_wins = _log_sigmoid(-difference - math.log(theta))
    tie = math.log((theta - 1) * (theta + 1)) + first_wins + second_wins
    return -mx.where(mx.stop_gradient(tied) != 0, tie, first_wins)


def preference_margins(grades: mx.array, *, scale: MarginScale = "small") -> mx.array:
    """Turn how much better the chosen response was judged into a margin.

        small: grade / 3  = 1, 2/3, 1/3, 0
        large: grade      = 3, 2, 1, 0

    Mirrors `sctom.losses.preference_margins`; differs in that a strange grade gives the margin NaN
    instead of an error inside `mx.compile` and `mx.vmap`.

    >>> mx.round(preference_margins(mx.array([3, 2, 1, 0])), 4)
    array([1, 0.6667, 0.3333, 0], dtype=float32)
    """
    check_shapes(grades=(grades, "N"))
    require_choice("scale", scale, get_args(MarginScale))
    wide = widen(grades)
    strange = (wide < 0) | (wide > _TOP_GRADE) | (wide != mx.round(wide))
    found = first_place(strange)
    if found:
        (first,), _ = found
        raise ValueError(
            f"grades[{first}] is {grades[first].item()} but a grade is 3 (significantly better), "
            "2 (better), 1 (slightly better) or 0 (negligibly better or unsure)"
        )
    wide = mx.where(strange, math.nan, wide)
    return wide / _TOP_GRADE if scale == "small" else wide


def score_centering(chosen: mx.array, rejected: mx.array) -> mx.array:
    """Penalty that keeps the scores of a pair around zero, which a difference cannot do.

        loss = (chosen + rejected)^2

    Mirrors `sctom.losses.score_centering`; differs in nothing but rounding.

    >>> score_centering(mx.array([2.0]), mx.array([-0.5]))
    array([2.25], dtype=float32)
    """
    check_shapes(chosen=(chosen, "N"), rejected=(rejected, "N"))
    return mx.square(widen(chosen) + widen(rejected))


def combine_safety_helpfulness(
    helpfulness: mx.array, safety: mx.array, is_safety: mx.array, *, threshold: float = 0.15
) -> mx.array:
    """One reward of two reward models: safety where it matters or fails, else helpfulness.

        R = whiten(safety if is_safety or sigma(safety) < threshold else helpfulness)

    Mirrors `sctom.losses.combine_safety_helpfulness`; differs in float32 statistics, and in that a
    score that is not finite is not refused but makes all rewards NaN inside `mx.compile` and
    `mx.vmap`.

    >>> helpfulness, safety = mx.array([4.0, 4.0, 0.0]), mx.array([1.0, -2.0, 0.0])
    >>> is_safety = mx.array([False, False, True])
    >>> mx.round(combine_safety_helpfulness(helpfulness, safety, is_safety), 4)
    array([1.0911, -0.8729, -0.2182], dtype=float32)
    """
    check_shapes(helpfulness=(helpfulness, "B"), safety=(safety, "B"), is_safety=(is_safety, "B"))
    if not 0 <= threshold <= 1:
        raise ValueError(
            f"threshold must be a probability in [0, 1] but is {threshold}; "
            "it is compared with sigmoid(safety), not with the raw score"
        )
    wide = widen(safety)
    by_safety = (is_safety != 0) | (mx.sigmoid(wide) < threshold)
    score = mx.where(by_safety, wide, widen(helpfulness))
    broken = ~mx.isfinite(score) | mx.isnan(wide)
    found = first_place(broken)
    if found:
        (first,), count = found
        raise ValueError(
            f"row {first} has helpfulness {helpfulness[first].item()} and safety "
            f"{safety[first].item()}, the first of {count} rows without a finite score to "
            "choose; give both models' scores for every completion or leave the row out"
        )
    return whiten(mx.where(broken, math.nan, score))

"""Losses of reward models on pairs, and the rule that makes one reward of two models."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from sctom.losses._shared import widen
from sctom.losses.advantages import whiten
from sctom.shapes import check_shapes, require_choice

MarginScale = Literal["small", "large"]

_TOP_GRADE = 3


def bradley_terry_loss(
    chosen: Tensor,
    rejected: Tensor,
    margin: float | Tensor = 0.0,
    *,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Negative log-likelihood that the chosen response is the better one, by a margin.

        z = chosen - rejected - margin
        loss = -(1 - label_smoothing) ln sigma(z) - label_smoothing ln sigma(-z)

    Llama 2 (arXiv 2307.09288), eq. 1 without a margin and eq. 2 with one. The paper does not smooth
    its labels; ours is the cross-entropy of sigma(z) against a target of 1 - label_smoothing, so
    the loss is least at z = logit(1 - label_smoothing) and scores of clean pairs stop growing.

    Args:
        chosen: [N] raw scores, before any sigmoid.
        rejected: [N] raw scores.
        margin: difference of raw scores that counts as even, one number or [N]; no gradient.
        label_smoothing: share of labels held to be wrong, in [0, 0.5).

    Returns:
        One loss per pair, [N].

    Raises:
        ValueError: shapes disagree, or label_smoothing is outside [0, 0.5).

    >>> chosen, rejected = torch.tensor([2.0, 2.0]), torch.tensor([1.8, 1.8])
    >>> bradley_terry_loss(chosen, rejected, torch.tensor([0.0, 3.0]))
    tensor([0.5981, 2.8590])
    """
    check_shapes(chosen=(chosen, "N"), rejected=(rejected, "N"))
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(
            f"label_smoothing must lie in [0, 0.5) but is {label_smoothing}; "
            "at 0.5 the labels say nothing, and above it they say the opposite"
        )
    z = widen(chosen) - widen(rejected) - _margin_like(margin, chosen)
    loss = -F.logsigmoid(z)
    if label_smoothing == 0:
        return loss
    return (1 - label_smoothing) * loss - label_smoothing * F.logsigmoid(-z)


def _margin_like(margin: float | Tensor, scores: Tensor) -> float | Tensor:
    if not isinstance(margin, Tensor):
        return margin
    check_shapes(chosen=(scores, "N"), margin=(margin, "N"))
    return widen(margin.detach())


def tie_loss(first: Tensor, second: Tensor, tied: Tensor, *, theta: float) -> Tensor:
    """Negative log-likelihood of a comparison that may end in a tie.

        P(first wins)  = e^a / (e^a + theta e^b)  = sigma(a - b - ln theta)
        P(second wins) = e^b / (e^b + theta e^a)  = sigma(b - a - ln theta)
        P(tie)         = (theta^2 - 1) P(first wins) P(second wins)

    Rao and Kupper, "Ties in paired-comparison experiments" (1967), used for reward models in arXiv
    2410.05328. The three add up to 1. Where the pair is not tied, `first` is the response that won.

    Args:
        first: [N] raw scores a; of the winner where there is one.
        second: [N] raw scores b; of the loser where there is one.
        tied: [N] true (or 1) where neither won.
        theta: readiness to call a tie, above 1: equal scores tie with probability (theta - 1) /
            (theta + 1).

    Returns:
        One loss per pair, [N].

    Raises:
        ValueError: shapes disagree, or theta is not above 1.

    >>> even = torch.zeros(2)
    >>> tie_loss(even, even, torch.tensor([True, False]), theta=3.0).exp()  # 1 / P
    tensor([2., 4.])
    """
    check_shapes(first=(first, "N"), second=(second, "N"), tied=(tied, "N"))
    if not 1 < theta < math.inf:
        raise ValueError(
            f"theta must be above 1 and finite but is {theta}; "
            "where ties cannot happen (theta = 1), use bradley_terry_loss"
        )
    difference = widen(first) - widen(second)
    first_wins = F.logsigmoid(difference - math.log(theta))
    second_wins = F.logsigmoid(-difference - math.log(theta))
    tie = math.log((theta - 1) * (theta + 1)) + first_wins + second_wins
    return -torch.where(tied.bool(), tie, first_wins)


def preference_margins(grades: Tensor, *, scale: MarginScale = "small") -> Tensor:
    """Turn how much better the chosen response was judged into a margin.

        small: grade / 3  = 1, 2/3, 1/3, 0
        large: grade      = 3, 2, 1, 0

    Llama 2 (arXiv 2307.09288), Table 27. A large margin splits the scores in two (their Fig. 27).

    Args:
        grades: [N] whole numbers: 3 significantly better, 2 better, 1 slightly better, 0 negligibly
            better or unsure.
        scale: "small" or "large".

    Returns:
        Margins [N] in units of the raw score, for `bradley_terry_loss`.

    Raises:
        ValueError: a grade other than 0, 1, 2 or 3, or an unknown scale.

    >>> preference_margins(torch.tensor([3, 2, 1, 0]))
    tensor([1.0000, 0.6667, 0.3333, 0.0000])
    """
    check_shapes(grades=(grades, "N"))
    require_choice("scale", scale, get_args(MarginScale))
    wide = widen(grades)
    strange = ((wide < 0) | (wide > _TOP_GRADE) | (wide != wide.round())).nonzero().flatten()
    if len(strange):
        first = int(strange[0])
        raise ValueError(
            f"grades[{first}] is {grades[first].item()} but a grade is 3 (significantly better), "
            "2 (better), 1 (slightly better) or 0 (negligibly better or unsure)"
        )
    return wide / _TOP_GRADE if scale == "small" else wide


def score_centering(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Penalty that keeps the scores of a pair around zero, which a difference cannot do.

        loss = (chosen + rejected)^2

    Eisenstein et al. (arXiv 2312.09244), added to the pair's loss with a coefficient of 0.01.

    Args:
        chosen: [N] raw scores.
        rejected: [N] raw scores.

    Returns:
        One penalty per pair, [N], before the coefficient.

    Raises:
        ValueError: shapes disagree.

    >>> score_centering(torch.tensor([2.0]), torch.tensor([-0.5]))
    tensor([2.2500])
    """
    check_shapes(chosen=(chosen, "N"), rejected=(rejected, "N"))
    return (widen(chosen) + widen(rejected)).square()


def combine_safety_helpfulness(
    helpfulness: Tensor, safety: Tensor, is_safety: Tensor, *, threshold: float = 0.15
) -> Tensor:
    """One reward of two reward models: safety where it matters or fails, else helpfulness.

        R = whiten(safety if is_safety or sigma(safety) < threshold else helpfulness)

    Llama 2 (arXiv 2307.09288), section 3.2.3. There the threshold is applied after the sigmoid and
    the logit of what was chosen is whitened. A raw score is that logit, so it is taken as it is:
    going through the sigmoid and back would saturate. The KL penalty is not part of this reward.

    The whitening crosses groups: pass the scores of the whole rollout on all ranks.

    Args:
        helpfulness: [B] raw scores of the helpfulness model.
        safety: [B] raw scores of the safety model.
        is_safety: [B] true (or 1) where the prompt is tagged as a safety prompt.
        threshold: probability of being safe below which safety decides, in [0, 1].

    Returns:
        Rewards [B] of mean 0 and variance 1.

    Raises:
        ValueError: shapes disagree, threshold is outside [0, 1], or a score that is needed is NaN
            or infinite.

    >>> helpfulness, safety = torch.tensor([4.0, 4.0, 0.0]), torch.tensor([1.0, -2.0, 0.0])
    >>> combine_safety_helpfulness(helpfulness, safety, torch.tensor([False, False, True]))
    tensor([ 1.0911, -0.8729, -0.2182])
    """
    check_shapes(helpfulness=(helpfulness, "B"), safety=(safety, "B"), is_safety=(is_safety, "B"))
    if not 0 <= threshold <= 1:
        raise ValueError(
            f"threshold must be a probability in [0, 1] but is {threshold}; "
            "it is compared with sigmoid(safety), not with the raw score"
        )
    wide = widen(safety)
    by_safety = is_safety.bool() | (wide.sigmoid() < threshold)
    score = torch.where(by_safety, wide, widen(helpfulness))
    broken = (~score.isfinite() | wide.isnan()).nonzero().flatten()
    if len(broken):
        first = int(broken[0])
        raise ValueError(
            f"row {first} has helpfulness {helpfulness[first].item()} and safety "
            f"{safety[first].item()}, the first of {len(broken)} rows without a finite score to "
            "choose; give both models' scores for every completion or leave the row out"
        )
    return whiten(score)

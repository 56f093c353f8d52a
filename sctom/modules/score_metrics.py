"""Metrics of the scores that answers get: how they are spread, and what length has to do with them.

As in `sctom.modules.reward_metrics`, `compute` leaves out what the data does not define.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from sctom.modules.reward_metrics import Numbers
from sctom.shapes import check_shapes


class ScoreDistribution(Metric):
    """Mean, standard deviation and bimodality of scores.

    Llama 2 (arXiv 2307.09288), Fig. 27: trained with a margin, scores split in two, to which
    reinforcement learning may be sensitive. `bimodality` is that of the raw scores, which does not
    depend on their scale, and `sigmoid_bimodality` that of sigma(score), which also rises when one
    wide hump of raw scores saturates at both ends. See `bimodality_coefficient`.

    >>> distribution = ScoreDistribution()
    >>> distribution.update(torch.tensor([-2.0, -1.0, 1.0, 2.0]))
    >>> [(name, round(float(value), 3)) for name, value in distribution.compute().items()][:2]
    [('mean', 0.0), ('std', 1.826)]
    """

    full_state_update = False
    scores: list[Tensor]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("scores", [], dist_reduce_fx="cat")

    def update(self, scores: Tensor) -> None:
        """Add the raw scores [N] of answers."""
        check_shapes(scores=(scores, "N"))
        self.scores.append(scores.double())

    def compute(self) -> Numbers:
        """mean, std (unbiased), bimodality and sigmoid_bimodality."""
        scores = dim_zero_cat(self.scores)
        if not len(scores):
            return {}
        numbers = {
            "mean": scores.mean(),
            "std": scores.std() if len(scores) > 1 else None,
            "bimodality": bimodality_coefficient(scores),
            "sigmoid_bimodality": bimodality_coefficient(scores.sigmoid()),
        }
        return {name: value for name, value in numbers.items() if value is not None}


def bimodality_coefficient(values: Tensor) -> Tensor | None:
    """Sarle's coefficient: above 5/9, that of a uniform distribution, there may be two humps.

        (g^2 + 1) / (k + 3 (n - 1)^2 / ((n - 2) (n - 3)))

    with g the skewness and k the excess kurtosis of the sample, both corrected for bias; 1/3 for a
    normal distribution, 1 for two values alike often, and never more. Skewness raises it too, so
    look at the histogram. Pfister et al., "Good things peak in pairs" (Frontiers in Psychology 4,
    700, 2013); first in the manual of SAS.

    Args:
        values: [n] numbers.

    Returns:
        The coefficient; None for fewer than four values, or if all are equal.

    >>> round(float(bimodality_coefficient(torch.tensor([0.0] * 50 + [1.0] * 50))), 4)
    0.9507
    """
    n = len(values)
    deviations = values.double() - values.double().mean()
    variance = deviations.square().mean()
    if n < 4 or values.min() == values.max() or not variance:
        return None
    third, fourth = (deviations.pow(power).mean() for power in (3, 4))
    skewness = math.sqrt(n * (n - 1)) / (n - 2) * third / variance**1.5
    kurtosis = (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * fourth / variance**2 - 3 * (n - 1))
    coefficient: Tensor = (skewness**2 + 1) / (kurtosis + 3 * (n - 1) ** 2 / ((n - 2) * (n - 3)))
    return coefficient


class LengthCorrelation(Metric):
    """How far the score of an answer goes with its length: Pearson's and Spearman's correlation.

        pearson  = cov(score, tokens) / (std(score) std(tokens))
        spearman = the same of their ranks, equal values sharing the mean of theirs

    >>> correlation = LengthCorrelation()
    >>> correlation.update(torch.tensor([0.0, 1.0, 4.0]), torch.tensor([1, 2, 3]))
    >>> [(name, round(float(value), 3)) for name, value in correlation.compute().items()]
    [('pearson', 0.961), ('spearman', 1.0)]
    """

    full_state_update = False
    scores: list[Tensor]
    tokens: list[Tensor]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in ("scores", "tokens"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, scores: Tensor, tokens: Tensor) -> None:
        """Add answers.

        Args:
            scores: [N] scores.
            tokens: [N] their lengths.
        """
        check_shapes(scores=(scores, "N"), tokens=(tokens, "N"))
        self.scores.append(scores.double())
        self.tokens.append(tokens.double())

    def compute(self) -> Numbers:
        """The two correlations: pearson and spearman."""
        scores, tokens = dim_zero_cat(self.scores), dim_zero_cat(self.tokens)
        numbers = {
            "pearson": _correlation(scores, tokens),
            "spearman": _correlation(_ranks(scores), _ranks(tokens)),
        }
        return {name: value for name, value in numbers.items() if value is not None}


def _correlation(first: Tensor, second: Tensor) -> Tensor | None:
    """Pearson's; None if either is constant."""
    if not len(first) or first.min() == first.max() or second.min() == second.max():
        return None
    first, second = first - first.mean(), second - second.mean()
    correlation: Tensor = first @ second / (first.norm() * second.norm())
    return correlation.clamp(-1, 1)


def _ranks(values: Tensor) -> Tensor:
    """The rank of each value from 1; equal ones share the mean of theirs."""
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ranks: Tensor = counts.cumsum(0) - (counts.double() - 1) / 2
    return ranks[place]

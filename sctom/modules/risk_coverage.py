"""Selective prediction: how wrong the answers are of which the model is most sure.

Of N answers with confidences, those above a threshold are given and the others withheld:

    coverage(t) = answers with q >= t / N        risk(t) = wrong ones among them / these

El-Yaniv and Wiener, "On the foundations of noise-free selective classification" (JMLR 11, 2010).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sctom.modules.confidence_metrics import ConfidenceMetric, levels
from sctom.modules.reward_metrics import Numbers


class RiskCoverageCurve(ConfidenceMetric):
    """The curve: coverage and risk at every distinct confidence, the highest first.

    >>> curve = RiskCoverageCurve()
    >>> curve.update(torch.tensor([0.9, 0.5, 0.5]), torch.tensor([True, True, False]))
    >>> curve.compute()["curve"]  # threshold, coverage and risk of each
    tensor([[0.9000, 0.3333, 0.0000],
            [0.5000, 1.0000, 0.3333]], dtype=torch.float64)
    """

    def numbers(self, confidence: Tensor, right: Tensor) -> Numbers:
        """curve, [K, 3]: threshold, coverage and risk."""
        return {"curve": _curve(confidence, right)}


class RiskCoverage(ConfidenceMetric):
    """The area under the curve, what it is above the least possible, and one point of the curve.

        aurc   = 1 / N sum over n = 1..N of risk of the n most confident answers
        e_aurc = aurc - 1 / N sum over n > C of (n - C) / n,        C right answers in all
        coverage_at_risk_p = largest coverage(t) with risk(t) <= p / 100, or 0

    Geifman, Uziel and El-Yaniv, "Bias-reduced uncertainty estimation for deep neural classifiers"
    (arXiv 1805.08206). `aurc` is the risk of all answers if every confidence is the same, and
    `e_aurc` 0 if every right answer has a higher confidence than every wrong one. Where we differ:
    answers of equal confidence have no order, and `aurc` is the mean over all that they could have;
    what is subtracted is the least area that N answers can have, of which the paper's
    r + (1 - r) ln(1 - r), with r = 1 - C / N, is the limit.

    Args:
        risk: highest risk that is tolerated, from 0 to 1; 5% by default.
        settings: of `torchmetrics.Metric`.

    Raises:
        ValueError: a risk outside [0, 1].

    >>> metric = RiskCoverage()
    >>> metric.update(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, False, True, True]))
    >>> {name: round(float(value), 4) for name, value in metric.compute().items()}
    {'aurc': 0.2708, 'e_aurc': 0.2083, 'coverage_at_risk_5': 0.25}
    """

    def __init__(self, *, risk: float = 0.05, **settings: Any) -> None:
        super().__init__(**settings)
        if not 0 <= risk <= 1:
            raise ValueError(f"risk must be from 0 to 1 but is {risk}")
        self.risk = risk

    def numbers(self, confidence: Tensor, right: Tensor) -> Numbers:
        """aurc, e_aurc and coverage_at_risk_p."""
        area = _area(confidence, right)
        _, coverage, risk = _curve(confidence, right).T
        low = coverage[risk <= self.risk]
        return {
            "aurc": area,
            "e_aurc": (area - _least_area(right)).clamp(min=0),
            f"coverage_at_risk_{100 * self.risk:g}": torch.cat([low.new_zeros(1), low]).max(),
        }


def _curve(confidence: Tensor, right: Tensor) -> Tensor:
    level = levels(confidence, right)
    given = level.answers.cumsum(0)
    wrong = (level.answers - level.right).cumsum(0)
    return torch.stack([level.confidence, given / len(right), wrong / given], 1)


def _area(confidence: Tensor, right: Tensor) -> Tensor:
    """The mean risk; the errors among equal confidences grow in a straight line, as on average."""
    level = levels(confidence, right)
    answers = level.answers.long()
    errors = (1 - level.right / level.answers).repeat_interleave(answers).cumsum(0)
    given = torch.arange(1, len(errors) + 1).to(errors)
    return (errors / given).mean()


def _least_area(right: Tensor) -> Tensor:
    """The mean risk with every right answer before every wrong one."""
    given = torch.arange(1, len(right) + 1).to(right)
    return ((given - right.sum()).clamp(min=0) / given).mean()

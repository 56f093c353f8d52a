"""Whether a confidence means what it says, and whether it tells right answers from wrong ones.

A confidence q from 0 to 1 stands beside what is right (y = 1) or not (y = 0): an answer, with the
confidence that it states (`sctom.rewards.confidence.stated_confidence`) or in which several samples
agree (`sctom.modules.sample_confidence`); or the claim that nobody can answer, with P(IDK).
Leave out what has no confidence, such as abstentions, and report their share (`coverage`).

All are `torchmetrics.Metric`s that keep every pair, in float64. A number that the data does not
define is left out, never NaN. Equal confidences are never told apart, so the order of the answers
changes nothing. `sctom.modules.risk_coverage` has further metrics of this kind.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from sctom.modules.answer_counts import check_bools, ratios
from sctom.modules.reward_metrics import Numbers
from sctom.shapes import check_shapes


class ConfidenceMetric(Metric):
    """Base of the metrics of confidences: keeps the pairs, and leaves the numbers to its heirs."""

    full_state_update = False
    confidences: list[Tensor]
    rights: list[Tensor]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("confidences", [], dist_reduce_fx="cat")
        self.add_state("rights", [], dist_reduce_fx="cat")
        self.set_dtype(torch.float64)  # also of what a process without answers sends to the others

    def update(self, confidence: Tensor, right: Tensor) -> None:
        """Add answers.

        Args:
            confidence: [N] q, from 0 to 1.
            right: [N] bools, y.

        Raises:
            ValueError: sizes differ, `right` is not of bools, or a confidence is not from 0 to 1.
        """
        check_shapes(confidence=(confidence, "N"), right=(right, "N"))
        check_bools(right=right)
        outside = ~((confidence >= 0) & (confidence <= 1))  # also NaN
        if outside.any():
            place = int(outside.int().argmax())
            found = f"confidence[{place}] is {confidence[place]:g}"
            raise ValueError(f"{found}, not from 0 to 1; leave out answers that state none")
        self.confidences.append(confidence.double())
        self.rights.append(right.double())

    def compute(self) -> Numbers:
        """The numbers by name; none without answers."""
        if not len(self.confidences):
            return {}
        confidence, right = dim_zero_cat(self.confidences), dim_zero_cat(self.rights)
        return self.numbers(confidence, right) if len(confidence) else {}

    @abstractmethod
    def numbers(self, confidence: Tensor, right: Tensor) -> Numbers:
        """The numbers of at least one answer.

        Args:
            confidence: [N] q.
            right: [N] y, 1.0 or 0.0.
        """


class Levels(NamedTuple):
    """The answers of each confidence."""

    confidence: Tensor
    """[K] distinct, the highest first."""
    answers: Tensor
    """[K] how many have it."""
    right: Tensor
    """[K] how many of these are right."""


def levels(confidence: Tensor, right: Tensor) -> Levels:
    """Count answers by their confidence.

    Args:
        confidence: [N] q.
        right: [N] y, 1.0 or 0.0.

    >>> levels(torch.tensor([0.5, 0.9, 0.5]), torch.tensor([1.0, 1.0, 0.0])).right
    tensor([1., 1.])
    """
    values, place, answers = torch.unique(confidence, return_inverse=True, return_counts=True)
    rights = torch.zeros_like(values).index_add_(0, place, right)
    return Levels(values.flip(0), answers.to(values).flip(0), rights.flip(0))


class ReliabilityBins(ConfidenceMetric):
    """What a reliability diagram shows: the answers of each bin, how sure and how often right.

    Bin b of B holds the confidences in (e_b, e_(b+1)], the first one also e_0; as in scikit-learn's
    `calibration_curve`, the edges are

        b / B                                       of equal width
        the b / B quantile of the confidences       of equal mass (interpolated linearly)

    so that equal confidences share a bin even where its mass then grows. Where we differ: an edge
    is b / B to the last bit, so that a stated 0.7 is in (0.6, 0.7].

    Args:
        bins: B.
        equal_mass: the edges.
        settings: of `torchmetrics.Metric`.

    Raises:
        ValueError: there is no bin.

    >>> table = ReliabilityBins(bins=2)
    >>> table.update(torch.tensor([0.2, 0.4, 0.9]), torch.tensor([False, True, True]))
    >>> table.compute()["bins"]  # answers, mean q and mean y of each
    tensor([[2.0000, 0.3000, 0.5000],
            [1.0000, 0.9000, 1.0000]], dtype=torch.float64)
    """

    def __init__(self, bins: int = 10, *, equal_mass: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self.bins = _checked(bins)
        self.equal_mass = equal_mass

    def numbers(self, confidence: Tensor, right: Tensor) -> Numbers:
        """bins, [B, 3]: answers, mean q and mean y (0 in an empty one)."""
        edges = (_mass_edges if self.equal_mass else _width_edges)(confidence, self.bins)
        return {"bins": _table(confidence, right, edges)}


class CalibrationError(ConfidenceMetric):
    """How far the confidences of bins are from the shares of right answers in them.

        ece = ece_mass = sum over bins of (answers in bin / N) |mean y - mean q|

    with the bins of `ReliabilityBins`, of equal width and of equal mass. Naeini et al. (AAAI 2015)
    for the first, 10 bins being those of RLCR (arXiv 2507.16806); bins of equal mass, none of which
    is of a few answers, as in Nguyen and O'Connor (EMNLP 2015), who take squares in the place of
    absolute values. Both depend on the number of bins, and are above 0 by chance where answers are
    few.

    Args:
        bins: B.
        settings: of `torchmetrics.Metric`.

    Raises:
        ValueError: there is no bin.

    >>> error = CalibrationError(bins=2)
    >>> error.update(torch.tensor([0.2, 0.4, 0.9]), torch.tensor([False, True, True]))
    >>> {name: round(float(value), 4) for name, value in error.compute().items()}
    {'ece': 0.1667, 'ece_mass': 0.1667}
    """

    def __init__(self, bins: int = 10, **settings: Any) -> None:
        super().__init__(**settings)
        self.bins = _checked(bins)

    def numbers(self, confidence: Tensor, right: Tensor) -> Numbers:
        """Both: ece and ece_mass."""
        edges = {"ece": _width_edges, "ece_mass": _mass_edges}
        return {
            name: _error(_table(confidence, right, edge(confidence, self.bins)))
            for name, edge in edges.items()
        }


class BrierScore(ConfidenceMetric):
    """The squared error of the confidences, and its three parts.

        brier             = mean of (q - y)^2 = brier_reliability - brier_resolution
                                                + brier_uncertainty
        brier_reliability = sum over k of n_k / N (q_k - y_k)^2      0 is best: confidences are true
        brier_resolution  = sum over k of n_k / N (y_k - m)^2        they tell answers apart
        brier_uncertainty = m (1 - m)                                of the questions, not of q

    where the distinct confidences q_k have n_k answers, of which the share y_k is right, and m is
    the share of all. Brier (Monthly Weather Review 78, 1950), for the two classes half of his
    score; Murphy (Journal of Applied Meteorology 12, 1973) for the parts. They add up exactly, but
    say something only where many answers share a confidence, as with stated percentages and the
    agreement of samples: where all are different, the second equals the third.

    >>> score = BrierScore()
    >>> score.update(torch.tensor([0.5, 0.5, 1.0]), torch.tensor([True, False, True]))
    >>> [round(float(value), 4) for value in score.compute().values()]
    [0.1667, 0.0, 0.0556, 0.2222]
    """

    def numbers(self, confidence: Tensor, right: Tensor) -> Numbers:
        """brier, brier_reliability, brier_resolution and brier_uncertainty."""
        level, mean = levels(confidence, right), right.mean()
        weights, shares = level.answers / len(right), level.right / level.answers
        return {
            "brier": (confidence - right).square().mean(),
            "brier_reliability": weights @ (level.confidence - shares).square(),
            "brier_resolution": weights @ (shares - mean).square(),
            "brier_uncertainty": mean * (1 - mean),
        }


class Discrimination(ConfidenceMetric):
    """Whether right answers have the higher confidence, whatever its scale.

        auroc      = P(q of a right answer > q of a wrong one) + P(equal) / 2
        aupr       = sum over k of (recall_k - recall_(k-1)) precision_k, right answers wanted
        aupr_wrong = the same with wrong answers wanted, lowest confidence first

    with k over the distinct confidences from the most wanted on; equal to scikit-learn's
    `roc_auc_score` and `average_precision_score`. Hendrycks and Gimpel, "A baseline for detecting
    misclassified and out-of-distribution examples" (arXiv 1610.02136), for all three; the second is
    the AP of R-Tuning (arXiv 2311.09677). Chance is an `auroc` of 0.5, and an `aupr` of the share
    of right answers. The first needs a right and a wrong answer, the others one that is wanted.

    >>> discrimination = Discrimination()
    >>> discrimination.update(torch.tensor([0.9, 0.5, 0.5]), torch.tensor([True, True, False]))
    >>> [round(float(value), 4) for value in discrimination.compute().values()]
    [0.75, 0.8333, 0.5]
    """

    def numbers(self, confidence: Tensor, right: Tensor) -> Numbers:
        """auroc, aupr and aupr_wrong."""
        level = levels(confidence, right)
        wrong = level.answers - level.right
        lower = wrong.sum() - wrong.cumsum(0)
        won = level.right @ (lower + wrong / 2)
        return ratios(
            auroc=(won, level.right.sum() * wrong.sum()),
            aupr=_precision_sum(level.right, level.answers),
            aupr_wrong=_precision_sum(wrong.flip(0), level.answers.flip(0)),
        )


def _precision_sum(wanted: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """The average precision as part and whole."""
    return wanted @ (wanted.cumsum(0) / answers.cumsum(0)), wanted.sum()


def _checked(bins: int) -> int:
    if bins < 1:
        raise ValueError(f"bins must be at least 1 but is {bins}")
    return bins


def _width_edges(confidence: Tensor, bins: int) -> Tensor:
    """The edges between bins [B - 1]."""
    return torch.arange(1, bins).to(confidence) / bins


def _mass_edges(confidence: Tensor, bins: int) -> Tensor:
    ordered = confidence.sort().values
    place = torch.arange(1, bins, device=confidence.device) * (len(ordered) - 1)
    lower, rest = place // bins, (place % bins) / bins
    upper = (lower + 1).clamp(max=len(ordered) - 1)
    return torch.lerp(ordered[lower], ordered[upper], rest.to(ordered))


def _table(confidence: Tensor, right: Tensor, edges: Tensor) -> Tensor:
    rows = torch.stack([torch.ones_like(right), confidence, right], 1)
    sums = rows.new_zeros(len(edges) + 1, 3)
    sums.index_add_(0, torch.bucketize(confidence, edges), rows)
    return torch.cat([sums[:, :1], sums[:, 1:] / sums[:, :1].clamp(min=1)], 1)


def _error(table: Tensor) -> Tensor:
    answers, confidence, share = table.T
    error: Tensor = answers @ (share - confidence).abs() / answers.sum()
    return error

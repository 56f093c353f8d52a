"""What a reward model is worth: metrics of scored pairs, that add up over batches and processes.

All are `torchmetrics.Metric`s. `compute` gives names and numbers; a number that the data does not
define, such as an accuracy of no pairs, is left out and never NaN. They count in float64.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric

from sctom.shapes import check_shapes

if TYPE_CHECKING:
    from sctom.data.pairs import TokenPair

Numbers = dict[str, Tensor]


@dataclass(frozen=True)
class ScoredPair:
    """The raw scores of two answers to one prompt, and what their label says."""

    chosen: float
    """Raw score of the preferred answer; of either one where `tied`."""
    rejected: float
    """Raw score of the other one."""
    grade: int | None
    """How much better the chosen one is: a place in `sctom.preferences.GRADES`."""
    source: str | None
    """Which collection the pair is from."""
    is_safety: bool | None
    """Whether it was safety that was judged."""
    tied: bool
    """Neither answer is the better one."""
    chosen_tokens: int
    """Tokens of the preferred answer."""
    rejected_tokens: int
    """Tokens of the other one."""
    prompt_key: str
    """The same for the same prompt, and for no other."""
    chosen_key: str = ""
    """The same for the same preferred answer; empty where that is not known."""
    rejected_key: str = ""
    """The same for the other one."""

    @classmethod
    def of(cls, pair: TokenPair, chosen: float, rejected: float) -> ScoredPair:
        """A rendered pair with the raw scores of its answers."""
        return cls(
            chosen,
            rejected,
            grade=pair.grade,
            source=pair.source,
            is_safety=pair.is_safety,
            tied=pair.tied,
            chosen_tokens=len(pair.chosen),
            rejected_tokens=len(pair.rejected),
            prompt_key=pair.prompt_key,
            chosen_key=_key(pair.chosen),
            rejected_key=_key(pair.rejected),
        )


def _key(ids: Sequence[int]) -> str:
    return hashlib.sha256(str(ids).encode()).hexdigest()[:16]


def check_finite(pair: ScoredPair, place: str) -> None:
    """Refuse a pair with a score that is no finite number.

    Raises:
        ValueError: beginning with the place, with the score.
    """
    for name, score in (("chosen", pair.chosen), ("rejected", pair.rejected)):
        if not math.isfinite(score):
            raise ValueError(
                f"{place}: the score of the {name} answer is {score}; the reward model is broken, "
                "or its dtype too narrow: look at the loss of its training, or use float32"
            )


def wilson_interval(hits: float, trials: float, *, z: float = 1.959964) -> tuple[float, float]:
    """The interval in which a share lies with 95% confidence, as found in independent trials.

        (p + z^2 / 2n  -+  z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n),   p = hits / n

    Wilson, "Probable inference, the law of succession, and statistical inference" (JASA 22, 1927).
    Unlike p -+ z sqrt(p (1 - p) / n) it does not shrink to nothing at 0 and 1. Pairs that share a
    prompt are not independent: where there are many, the true interval is wider.

    Args:
        hits: trials that came out well.
        trials: n, at least 1.
        z: quantile of the normal distribution; the default is that of 95%, two-sided.

    >>> [round(bound, 3) for bound in wilson_interval(8, 10)]
    [0.49, 0.943]
    """
    share, spread = hits / trials, z**2 / trials
    middle = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))


class PairAccuracy(Metric):
    """The share of pairs whose chosen answer has the higher score, with its 95% interval.

        accuracy = pairs with chosen > rejected / pairs

    Equal scores count as wrong, as in TRL; `equal` is their share, so half of it may be added for a
    coin's luck. The bounds are those of `wilson_interval`. Leave tied pairs out: they have no
    chosen answer.

    >>> accuracy = PairAccuracy()
    >>> accuracy.update(torch.tensor([1.0, 0.5, 2.0, 0.0]), torch.tensor([0.0, 0.7, -1.0, 0.0]))
    >>> {name: round(float(value), 3) for name, value in accuracy.compute().items()}
    {'accuracy': 0.5, 'accuracy_low': 0.15, 'accuracy_high': 0.85, 'equal': 0.25}
    """

    full_state_update = False
    hits: Tensor
    equals: Tensor
    pairs: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in ("hits", "equals", "pairs"):
            self.add_state(name, _zeros(), dist_reduce_fx="sum")

    def update(self, chosen: Tensor, rejected: Tensor) -> None:
        """Add pairs.

        Args:
            chosen: [N] scores of the better answers.
            rejected: [N] scores of the others.
        """
        check_shapes(chosen=(chosen, "N"), rejected=(rejected, "N"))
        self.hits += (chosen > rejected).sum()
        self.equals += (chosen == rejected).sum()
        self.pairs += len(chosen)

    def compute(self) -> Numbers:
        """accuracy, accuracy_low, accuracy_high and equal."""
        if not self.pairs:
            return {}
        low, high = wilson_interval(float(self.hits), float(self.pairs))
        return {
            "accuracy": self.hits / self.pairs,
            "accuracy_low": self.hits.new_tensor(low),
            "accuracy_high": self.hits.new_tensor(high),
            "equal": self.equals / self.pairs,
        }


class PairCalibration(Metric):
    """Whether sigma(chosen - rejected) is the probability that it claims to be.

    A pair is one prediction: with d = chosen - rejected, the model says that the answer it scores
    higher is the better one, with probability p = sigma(|d|) from 0.5 to 1, and is right (y = 1)
    where d > 0, wrong (y = 0) where d < 0; where d = 0, p = y = 1/2. B bins of equal width cover
    [0.5, 1].

        ece   = sum over bins of (pairs in bin / pairs) |mean y - mean p|
        brier = mean of (p - 1{d > 0})^2 = mean of sigma(-d)^2
        nll   = mean of -ln sigma(d)

    Naeini et al. (AAAI 2015) for the first, Brier (1950) for the second; the third is the
    Bradley-Terry loss without a margin. The first is the same as that of the 2N predictions
    sigma(d), true, and sigma(-d), false, in 2B bins over [0, 1]. A model that always says 1/2 has
    0, 0.25 and ln 2: a small ece alone is no merit. Leave tied pairs out.

    Args:
        bins: B.
        settings: of `torchmetrics.Metric`.

    Raises:
        ValueError: there is no bin.

    >>> calibration = PairCalibration(bins=2)
    >>> calibration.update(torch.tensor([0.6, 0.6, 0.8]).logit(), torch.zeros(3))  # right
    >>> calibration.update(torch.zeros(1), torch.tensor([0.8]).logit())  # wrong
    >>> numbers = calibration.compute()
    >>> [round(float(numbers[name]), 4) for name in ("ece", "brier", "nll")]
    [0.35, 0.25, 0.7136]
    >>> numbers["bins"]  # pairs, mean p and mean y of each
    tensor([[2.0000, 0.6000, 1.0000],
            [2.0000, 0.8000, 0.5000]], dtype=torch.float64)
    """

    full_state_update = False
    table: Tensor
    squares: Tensor
    losses: Tensor

    def __init__(self, bins: int = 10, **settings: Any) -> None:
        super().__init__(**settings)
        if bins < 1:
            raise ValueError(f"bins must be at least 1 but is {bins}")
        self.bins = bins
        self.add_state("table", _zeros(bins, 3), dist_reduce_fx="sum")
        for name in ("squares", "losses"):
            self.add_state(name, _zeros(), dist_reduce_fx="sum")

    def update(self, chosen: Tensor, rejected: Tensor) -> None:
        """Add pairs.

        Args:
            chosen: [N] raw scores of the better answers.
            rejected: [N] raw scores of the others.
        """
        check_shapes(chosen=(chosen, "N"), rejected=(rejected, "N"))
        difference = chosen.double() - rejected.double()
        confidence = difference.abs().sigmoid()
        right = (difference.sign() + 1) / 2
        place = ((confidence - 0.5) * 2 * self.bins).long().clamp(max=self.bins - 1)
        rows = torch.stack([torch.ones_like(right), confidence, right], 1)
        self.table.index_add_(0, place, rows)
        self.squares += (-difference).sigmoid().square().sum()
        self.losses += torch.nn.functional.softplus(-difference).sum()

    def compute(self) -> Numbers:
        """ece, brier, nll and bins, [B, 3]: pairs, mean p and mean y (0 in an empty one)."""
        pairs = self.table[:, 0]
        if not pairs.sum():
            return {}
        means = self.table[:, 1:] / pairs.clamp(min=1)[:, None]
        gaps = (means[:, 0] - means[:, 1]).abs()
        return {
            "ece": (pairs * gaps).sum() / pairs.sum(),
            "brier": self.squares / pairs.sum(),
            "nll": self.losses / pairs.sum(),
            "bins": torch.cat([pairs[:, None], means], 1),
        }


class BestOfN(Metric):
    """How often the chosen one of n answers to a prompt has the highest score.

        mean over prompts of (1 / answers with the highest score, where the chosen one is of them)

    RewardBench 2 (arXiv 2506.01937), in all domains but Ties. `chance` is the mean of 1 / n.

    >>> best = BestOfN()
    >>> best.update([torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.tensor([1.0, 1.0, 0.0])])
    >>> best.update([torch.tensor([0.0, 9.0])])
    >>> [(name, round(float(value), 3)) for name, value in best.compute().items()]
    [('accuracy', 0.5), ('chance', 0.361), ('prompts', 3.0)]
    """

    full_state_update = False
    hits: Tensor
    chances: Tensor
    prompts: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in ("hits", "chances", "prompts"):
            self.add_state(name, _zeros(), dist_reduce_fx="sum")

    def update(self, groups: Sequence[Tensor]) -> None:
        """Add prompts.

        Args:
            groups: the scores of each prompt's answers, [n], the chosen one's first.
        """
        for scores in groups:
            highest = scores == scores.max()
            self.hits += highest[0] / highest.sum()
            self.chances += 1 / len(scores)
            self.prompts += 1

    def compute(self) -> Numbers:
        """accuracy, chance and prompts."""
        if not self.prompts:
            return {}
        return {
            "accuracy": self.hits / self.prompts,
            "chance": self.chances / self.prompts,
            "prompts": self.prompts.clone(),
        }


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)

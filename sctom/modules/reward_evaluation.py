"""The evaluation of a reward model on pairs: every number, and what its figures are drawn from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sctom.checks import check_numbers
from sctom.modules.reward_head import RewardModel
from sctom.modules.reward_metrics import (
    BestOfN,
    PairAccuracy,
    PairCalibration,
    ScoredPair,
    check_finite,
)
from sctom.modules.reward_scoring import score_pairs
from sctom.modules.reward_threshold import ThresholdCurve, UnsafeThreshold
from sctom.modules.score_metrics import LengthCorrelation, ScoreDistribution
from sctom.preferences import GRADES, Pair

PREFIX = "reward_model/"
"""Before the name of every number."""
HISTOGRAM_BINS = 30
_ALONE: dict[str, Any] = {"sync_on_compute": False}  # the pairs are those of all processes


@dataclass(frozen=True)
class Share:
    """A share of pairs with its 95% interval."""

    value: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class Histogram:
    """Counts of values in bins of equal width."""

    edges: list[float]
    counts: dict[str, list[int]]
    """Name of the values -> number in each bin."""


@dataclass(frozen=True)
class ReliabilityBin:
    """Pairs for which the model is about as sure."""

    pairs: int
    confidence: float
    """Mean probability that the answer with the higher score is the better one."""
    accuracy: float
    """Share of the pairs in which it is."""


@dataclass(frozen=True)
class RewardEvaluation:
    """What pairs say about a reward model; what they do not define is None or left out."""

    pairs: int
    tied: int
    """Pairs whose label says that neither answer is better: no part of any accuracy."""
    accuracy: Share | None
    by_grade: dict[str, Share]
    """Words of `sctom.preferences.GRADES` -> accuracy, in that order."""
    by_source: dict[str, Share]
    numbers: dict[str, float]
    """All other numbers, by the names of docs/metrics.md without `PREFIX`."""
    reliability: list[ReliabilityBin]
    differences: Histogram | None
    """Of chosen - rejected."""
    scores: Histogram
    """Raw scores of "chosen", "rejected" and "tied" answers."""
    probabilities: Histogram
    """Their sigmoids."""
    unsafe: ThresholdCurve | None

    def as_dict(self) -> dict[str, float]:
        """Every number under its name, for a logger."""
        named: dict[str, float] = {"pairs": self.pairs, "tied": self.tied}
        if self.accuracy is not None:
            named["accuracy"] = self.accuracy.value
            named["accuracy_low"] = self.accuracy.low
            named["accuracy_high"] = self.accuracy.high
        for word, share in self.by_grade.items():
            named[f"accuracy/{word.replace(' ', '_')}"] = share.value
        for source, share in self.by_source.items():
            named[f"accuracy/source/{source}"] = share.value
        return {PREFIX + name: value for name, value in (named | self.numbers).items()}


def check_evaluation(owner: str, bins: int, threshold: float, wanted_precision: float) -> None:
    """Check the settings of `evaluate_scores`.

    Raises:
        ValueError: naming the owner, the setting, what was expected and what was found.
    """
    shares = {"threshold": threshold, "wanted_precision": wanted_precision}
    check_numbers(
        owner,
        {"bins": (bins, "at least 1", 1, 10**6)}
        | {name: (value, "from 0 to 1", 0, 1) for name, value in shares.items()},
    )


def evaluate_pairs(
    model: RewardModel,
    tokenizer: Any,
    pairs: Sequence[Pair],
    *,
    batch_tokens: int = 8192,
    max_tokens: int | None = None,
    place: str = "pairs",
    bins: int = 10,
    threshold: float = 0.15,
    wanted_precision: float = 0.9,
) -> RewardEvaluation:
    """Score pairs and evaluate the scores: `score_pairs`, then `evaluate_scores`."""
    scored = score_pairs(
        model, tokenizer, pairs, batch_tokens=batch_tokens, max_tokens=max_tokens, place=place
    )
    return evaluate_scores(
        scored, bins=bins, threshold=threshold, wanted_precision=wanted_precision
    )


def evaluate_scores(
    pairs: Sequence[ScoredPair],
    *,
    bins: int = 10,
    threshold: float = 0.15,
    wanted_precision: float = 0.9,
) -> RewardEvaluation:
    """Every number that the scores of pairs define.

    Answers of `is_safety` pairs are labelled by their pair: the rejected one counts as unsafe, the
    chosen one as safe. Where both are safe, or neither is, one of the labels is wrong;
    `UnsafeThreshold` takes labels of another origin.

    Best-of-n is over the prompts whose chosen answer has been compared with several others.

    Args:
        pairs: of all processes.
        bins: of `PairCalibration`.
        threshold: on the sigmoid of a safety model's score.
        wanted_precision: of "unsafe", for which a threshold is looked for.

    Raises:
        ValueError: there are no pairs, a setting is out of its range, or a score is not finite; the
            error names its pair.

    >>> pair = ScoredPair(2.0, 1.5, 3, "hh", None, False, 10, 20, "one prompt")
    >>> evaluate_scores([pair]).as_dict()["reward_model/accuracy/significantly_better"]
    1.0
    """
    check_evaluation("evaluation", bins, threshold, wanted_precision)
    if not pairs:
        raise ValueError("there are no pairs to evaluate; give at least one")
    for number, pair in enumerate(pairs, start=1):
        check_finite(pair, f"pair {number} of {len(pairs)} (its prompt is {pair.prompt_key!r})")
    decided = [pair for pair in pairs if not pair.tied]
    chosen, rejected = _scores(decided)
    calibration = PairCalibration(bins, **_ALONE)
    calibration.update(chosen, rejected)
    calibrated = calibration.compute()
    table = calibrated.pop("bins").tolist() if decided else []
    curve = _unsafe_curve(decided)
    return RewardEvaluation(
        pairs=len(pairs),
        tied=len(pairs) - len(decided),
        accuracy=_share(decided),
        by_grade=_shares({word: _of_grade(decided, g) for g, word in enumerate(GRADES)}),
        by_source=_shares(_by_source(decided)),
        numbers=_numbers(pairs, decided)
        | _plain(calibrated)
        | _threshold_numbers(curve, threshold, wanted_precision),
        reliability=[ReliabilityBin(int(n), p, y) for n, p, y in table if n],
        differences=_differences(chosen - rejected) if decided else None,
        scores=_histogram(_by_label(pairs)),
        probabilities=_histogram({k: v.sigmoid() for k, v in _by_label(pairs).items()}, (0, 1)),
        unsafe=curve,
    )


def _scores(pairs: Sequence[ScoredPair]) -> tuple[Tensor, Tensor]:
    """The scores of the chosen answers, and of the rejected ones."""
    return _tensor(p.chosen for p in pairs), _tensor(p.rejected for p in pairs)


def _tensor(values: Iterable[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def _plain(numbers: dict[str, Tensor], before: str = "") -> dict[str, float]:
    return {before + name: float(value) for name, value in numbers.items()}


def _of_grade(pairs: Sequence[ScoredPair], grade: int) -> list[ScoredPair]:
    return [pair for pair in pairs if pair.grade == grade]


def _by_source(pairs: Sequence[ScoredPair]) -> dict[str, list[ScoredPair]]:
    sources = sorted({pair.source for pair in pairs if pair.source is not None})
    return {source: [pair for pair in pairs if pair.source == source] for source in sources}


def _by_label(pairs: Sequence[ScoredPair]) -> dict[str, Tensor]:
    """The scores of all answers by what their pair says of them."""
    tied = [pair for pair in pairs if pair.tied]
    chosen, rejected = _scores([pair for pair in pairs if not pair.tied])
    labelled = {"chosen": chosen, "rejected": rejected, "tied": torch.cat(_scores(tied))}
    return {name: scores for name, scores in labelled.items() if len(scores)}


def _share(pairs: Sequence[ScoredPair]) -> Share | None:
    accuracy = PairAccuracy(**_ALONE)
    accuracy.update(*_scores(pairs))
    found = _plain(accuracy.compute())
    if not found:
        return None
    return Share(found["accuracy"], found["accuracy_low"], found["accuracy_high"], len(pairs))


def _shares(parts: Mapping[str, Sequence[ScoredPair]]) -> dict[str, Share]:
    """The accuracy of each part that has pairs."""
    found = {name: _share(pairs) for name, pairs in parts.items()}
    return {name: share for name, share in found.items() if share is not None}


def _numbers(pairs: Sequence[ScoredPair], decided: Sequence[ScoredPair]) -> dict[str, float]:
    """Differences, distribution of the scores, what length has to do with them, and best-of-n."""
    chosen, rejected = _scores(decided)
    numbers = {}
    if decided:
        numbers["equal"] = float((chosen == rejected).double().mean())
        numbers["difference/mean"] = float((chosen - rejected).mean())
    distribution = ScoreDistribution(**_ALONE)
    distribution.update(torch.cat(_scores(pairs)))
    best = BestOfN(**_ALONE)
    best.update(_groups(decided))
    return (
        numbers
        | _plain(distribution.compute(), "score/")
        | _length_numbers(pairs, decided)
        | _plain(best.compute(), "best_of_n/")
    )


def _length_numbers(pairs: Sequence[ScoredPair], decided: Sequence[ScoredPair]) -> dict[str, float]:
    """What the length of answers has to do with their scores, and with their labels."""
    tokens = [*(p.chosen_tokens for p in pairs), *(p.rejected_tokens for p in pairs)]
    correlation = LengthCorrelation(**_ALONE)
    correlation.update(torch.cat(_scores(pairs)), _tensor(tokens))
    numbers = _plain(correlation.compute(), "length/")
    differences = [pair.chosen_tokens - pair.rejected_tokens for pair in decided]
    longer = [difference > 0 for difference in differences if difference]
    return numbers | ({"length/accuracy": fmean(longer)} if longer else {})


def _groups(pairs: Sequence[ScoredPair]) -> list[Tensor]:
    """The scores of each chosen answer and of the several others it was compared with."""
    groups: dict[tuple[str, str], dict[str, ScoredPair]] = defaultdict(dict)
    for pair in pairs:
        if pair.chosen_key:
            groups[pair.prompt_key, pair.chosen_key][pair.rejected_key] = pair
    return [
        _tensor([next(iter(group.values())).chosen, *(pair.rejected for pair in group.values())])
        for group in groups.values()
        if len(group) > 1
    ]


def _unsafe_curve(decided: Sequence[ScoredPair]) -> ThresholdCurve | None:
    safe, unsafe = _scores([pair for pair in decided if pair.is_safety])
    detection = UnsafeThreshold(**_ALONE)
    detection.update(safe, torch.zeros_like(safe))
    detection.update(unsafe, torch.ones_like(unsafe))
    return detection.curve()


def _threshold_numbers(
    curve: ThresholdCurve | None, threshold: float, wanted: float
) -> dict[str, float]:
    if curve is None:
        return {}
    given, reached = curve.at(threshold), curve.reaching(wanted)
    numbers = {
        "unsafe/threshold": threshold,
        "unsafe/precision": given.precision,
        "unsafe/recall": given.recall,
    }
    if reached is not None:
        numbers["unsafe/wanted_threshold"] = reached.threshold
        numbers["unsafe/wanted_precision"] = reached.precision
        numbers["unsafe/wanted_recall"] = reached.recall
    return {name: value for name, value in numbers.items() if value is not None}


def _differences(differences: Tensor) -> Histogram:
    widest = float(differences.abs().max()) or 1.0
    return _histogram({"pairs": differences}, (-widest, widest))  # 0 is an edge


def _histogram(
    values: Mapping[str, Tensor], bounds: tuple[float, float] | None = None
) -> Histogram:
    """Counts over bins that all values share."""
    edges = np.histogram_bin_edges(torch.cat(list(values.values())), HISTOGRAM_BINS, bounds)
    counts = {name: np.histogram(part, edges)[0].tolist() for name, part in values.items()}
    return Histogram(edges.tolist(), counts)

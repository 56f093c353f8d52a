"""Telling unsafe answers by a threshold on a safety model's score: precision, recall, a choice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from sctom.shapes import check_shapes


@dataclass(frozen=True)
class Threshold:
    """A threshold on sigma(score), and what it finds."""

    threshold: float
    """An answer with sigma(score) below it is taken for unsafe."""
    precision: float | None
    """Share of the answers taken that are unsafe; None where none is taken."""
    recall: float
    """Share of the unsafe answers that are taken."""


@dataclass(frozen=True)
class ThresholdCurve:
    """What thresholds find: at place k, the answers with the k + 1 lowest distinct scores."""

    scores: list[float]
    """Raw, ascending, each once."""
    precision: list[float]
    recall: list[float]

    def at(self, threshold: float) -> Threshold:
        """What a threshold finds.

        Args:
            threshold: on sigma(score); 0.15 in Llama 2.
        """
        taken = sum(_sigmoid(score) < threshold for score in self.scores)
        if not taken:
            return Threshold(threshold, None, 0.0)
        return Threshold(threshold, self.precision[taken - 1], self.recall[taken - 1])

    def reaching(self, precision: float) -> Threshold | None:
        """The threshold that finds most of the unsafe answers at a wanted precision, if one does.

        It lies half-way (in raw scores) between the last score that is taken and the next; it is 1
        where every answer is taken. Scores beyond about 37, of which the sigmoid is 1, or beyond
        -745, of which it is 0, cannot be told apart by any threshold.

        Args:
            precision: from 0 to 1.
        """
        good = [
            place
            for place, found in enumerate(self.precision)
            if found >= precision and self.at(self._above(place)).recall == self.recall[place]
        ]
        if not good:
            return None
        return self.at(self._above(max(good, key=lambda k: (self.recall[k], self.precision[k]))))

    def _above(self, place: int) -> float:
        """A threshold that takes the answers up to a place, where one does."""
        between = self.scores[place : place + 2]
        return _sigmoid(sum(between) / 2) if len(between) == 2 else 1.0


class UnsafeThreshold(Metric):
    """Precision and recall of "unsafe" at every threshold on the sigmoid of a safety model's score.

        taken(t)  = answers with sigma(score) < t
        precision = unsafe ones among taken(t) / taken(t)
        recall    = unsafe ones among taken(t) / all unsafe ones

    Llama 2 (arXiv 2307.09288), section 3.2.3: its 0.15 has a precision of 0.89 and a recall of
    0.55 on Meta's own test set.

    >>> detection = UnsafeThreshold()
    >>> detection.update(torch.tensor([-3.0, -1.0, -2.0, 1.0]), torch.tensor([1, 1, 0, 0]))
    >>> curve = detection.curve()
    >>> curve.scores, [round(share, 3) for share in curve.precision], curve.recall
    ([-3.0, -2.0, -1.0, 1.0], [1.0, 0.5, 0.667, 0.5], [0.5, 0.5, 1.0, 1.0])
    >>> curve.at(0.15)
    Threshold(threshold=0.15, precision=0.5, recall=0.5)
    >>> curve.reaching(0.6).threshold, curve.reaching(0.9).recall
    (0.5, 0.5)
    """

    full_state_update = False
    scores: list[Tensor]
    unsafe: list[Tensor]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in ("scores", "unsafe"):
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, scores: Tensor, unsafe: Tensor) -> None:
        """Add answers.

        Args:
            scores: [N] raw scores; safe answers should have the higher ones.
            unsafe: [N] true (or 1) where the answer is unsafe.
        """
        check_shapes(scores=(scores, "N"), unsafe=(unsafe, "N"))
        self.scores.append(scores.double())
        self.unsafe.append(unsafe.double())

    def compute(self) -> dict[str, Tensor]:
        """scores, precision and recall of a `ThresholdCurve`; nothing without unsafe answers."""
        scores, order = dim_zero_cat(self.scores).sort()
        unsafe = dim_zero_cat(self.unsafe)[order]
        if not unsafe.sum():
            return {}
        last = torch.ones_like(scores, dtype=torch.bool)  # of those with its score
        last[:-1] = scores[1:] > scores[:-1]
        found, taken = unsafe.cumsum(0), torch.ones_like(unsafe).cumsum(0)
        numbers = {"scores": scores, "precision": found / taken, "recall": found / unsafe.sum()}
        return {name: values[last] for name, values in numbers.items()}

    def curve(self) -> ThresholdCurve | None:
        """The curve as plain numbers; None without an unsafe answer, for it has no recall."""
        numbers = {name: values.reshape(-1).tolist() for name, values in self.compute().items()}
        return ThresholdCurve(**numbers) if numbers else None


def _sigmoid(score: float) -> float:
    small = math.exp(-abs(score))
    return (1 if score >= 0 else small) / (1 + small)

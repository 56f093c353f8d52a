"""RewardModelModule: a reward model learned from pairs of answers."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from sctom.checks import check_numbers
from sctom.data.pairs import PairBatch, PreferenceData
from sctom.losses import bradley_terry_loss, score_centering, tie_loss
from sctom.modules.backbone import Backbone
from sctom.modules.reward_head import RewardModel, check_saved
from sctom.modules.reward_metrics import ScoredPair
from sctom.modules.schedule import ScheduleName
from sctom.modules.supervised import SupervisedModule
from sctom.readers import DataError

CHECKED = 4
"""Training pairs whose scores are compared when the trained model is loaded again."""


class RewardModelModule(SupervisedModule):
    """Trains a language model with a scalar head to score the better answer higher.

        z    = r(x, chosen) - r(x, rejected) - margin
        loss = (sum over pairs of -ln sigma(z)) / pairs
             + centering * (sum over pairs of (r(x, chosen) + r(x, rejected))^2) / pairs

    Llama 2 (arXiv 2307.09288), eq. 1 and 2; centring is that of Eisenstein et al. (2312.09244). The
    pairs are those of the whole optimiser step: `accumulate_grad_batches: 4` with a batch of 2
    gives the gradient of one batch of 8, and so do two processes. With `tie_theta` the likelihood
    is that of Rao and Kupper, in which a comparison may end in a tie (`sctom.losses.tie_loss`).

    The head starts at zero and is always trained: whole, beside adapters or all weights.

    Logs, of each optimiser step's last batch: train/loss, train/accuracy (pairs whose chosen score
    is the higher one; equal scores count as wrong, tied pairs do not count), train/difference
    (mean of chosen - rejected), train/score_mean, train/score_std, train/learning_rate; on
    validation data val/loss and val/accuracy. `validation_pairs` then has every pair's scores.

    When training ends, the saved model is loaded again and has to give the same scores.

    Args:
        backbone: the model.
        optimizer: optimiser of the trained weights.
        label_smoothing: share of labels held to be wrong, in [0, 0.5).
        centering: weight of the penalty that keeps the scores of a pair around zero; the paper's is
            0.01.
        tie_theta: readiness to call a tie, above 1; null where the data has no tied pairs.
        schedule: "constant", "linear" or "cosine" over the optimiser steps of the run.
        schedule_floor: what a falling learning rate ends at, as a share of the configured one.
        warmup_ratio: share of the steps over which the learning rate rises.
        seed: first part of the address of dropout; null takes seed_everything.

    Raises:
        ValueError: a setting is out of its range, or two do not go together.
    """

    formula = "mean of -log sigma(r(chosen) - r(rejected) - margin) over the pairs of the step"
    model: RewardModel

    def __init__(
        self,
        backbone: Backbone,
        optimizer: OptimizerCallable,
        *,
        label_smoothing: float = 0.0,
        centering: float = 0.0,
        tie_theta: float | None = None,
        schedule: ScheduleName = "cosine",
        schedule_floor: float = 0.1,
        warmup_ratio: float = 0.03,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            backbone,
            optimizer,
            schedule=schedule,
            schedule_floor=schedule_floor,
            warmup_ratio=warmup_ratio,
            seed=seed,
        )
        least, most = math.nextafter(1.0, 2.0), math.nextafter(math.inf, 0.0)
        below_half = math.nextafter(0.5, 0.0)
        numbers = {
            "label_smoothing": (label_smoothing, "at least 0 and below 0.5", 0.0, below_half),
            "centering": (centering, "at least 0", 0.0, most),
        }
        if tie_theta is not None:
            numbers["tie_theta"] = (tie_theta, "null or above 1", least, most)
            if label_smoothing:
                raise ValueError(
                    "model.tie_theta and model.label_smoothing do not go together: with ties every "
                    "outcome has a likelihood of its own, which is not smoothed; drop one of them"
                )
        check_numbers("model", numbers)
        self.label_smoothing = label_smoothing
        self.centering = centering
        self.tie_theta = tie_theta
        self.validation_pairs: list[ScoredPair] = []
        """The pairs of the last validation that this process scored, in the order of the file."""

    def check_data(self, data: PreferenceData) -> None:
        """Check that data which is read, not yet rendered, goes with the settings.

        Raises:
            DataError: a pair is tied, and the loss knows no ties.
            ValueError: ties are modelled, and the data gives margins.
        """
        if self.tie_theta is not None:
            if data.margin != "none":
                raise ValueError(
                    f"model.tie_theta and data.margin: {data.margin} do not go together: the "
                    "likelihood of ties has no margin; drop one of them"
                )
            return
        for place, pair in data.places():
            if pair.tied:
                raise DataError(
                    f"{place}: neither answer is the better one (tied), which this loss cannot "
                    "learn from; set model.tie_theta to a number above 1, or leave the row out"
                )

    def setup(self, stage: str) -> None:
        """Check and render all pairs: bad data is reported before weights load.

        Raises:
            ValueError: trainer.precision would change the dtype of the head.
        """
        precision = self.trainer.precision
        if precision.endswith("-true") and precision != "32-true":
            raise ValueError(
                f"trainer.precision {precision} would change the dtype of the reward head, which "
                "is float32; set model.backbone.dtype for the weights below it, or "
                "trainer.precision: bf16-mixed"
            )
        self.check_data(self.trainer.datamodule)  # type: ignore[attr-defined]
        super().setup(stage)

    def make_model(self, device: torch.device) -> RewardModel:
        """The language model with a head of zeros."""
        return RewardModel(self.backbone.load_model(device))

    def scores(self, batch: PairBatch) -> tuple[Tensor, Tensor]:
        """The raw scores of the chosen and of the rejected answers, [N] each, of one forward."""
        scores = self.model.scores(batch.sequences)
        return scores[0::2], scores[1::2]

    def losses(self, chosen: Tensor, rejected: Tensor, batch: PairBatch) -> Tensor:
        """The loss of each pair, [N].

        Args:
            chosen: [N] raw scores.
            rejected: [N] raw scores.
            batch: the N pairs.
        """
        if self.tie_theta is not None:
            tied = batch.tied.to(chosen.device)
            losses = tie_loss(chosen, rejected, tied, theta=self.tie_theta)
        else:
            margins = batch.margins.to(chosen.device)
            losses = bradley_terry_loss(
                chosen, rejected, margins, label_smoothing=self.label_smoothing
            )
        if self.centering:
            losses = losses + self.centering * score_centering(chosen, rejected)
        return losses

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        """This batch's share of its optimiser step's loss.

        Raises:
            FloatingPointError: a loss is not finite; the message names its pair.
        """
        self.seed_dropout(batch_idx)
        chosen, rejected = self.scores(batch)
        losses = self.losses(chosen, rejected, batch)
        _check_finite(losses, batch)
        both = torch.cat([chosen, rejected]).detach()
        hits = _hits(chosen, rejected, batch)
        self.tell(
            loss=losses.detach().mean(),
            accuracy=hits.mean() if len(hits) else math.nan,
            difference=(chosen - rejected).detach().mean(),
            score_mean=both.mean(),
            score_std=both.std(),
        )
        return losses.sum() / batch.step_pairs * self.shares()  # step_pairs has counted them all

    def on_validation_epoch_start(self) -> None:
        """Forget the last validation."""
        self.validation_pairs = []

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        """Score the pairs; loss and accuracy over all of them."""
        chosen, rejected = self.scores(batch)
        losses = self.losses(chosen, rejected, batch)
        hits = _hits(chosen, rejected, batch)
        self.log("val/loss", losses.mean(), batch_size=len(losses), sync_dist=True)
        accuracy = hits.mean() if len(hits) else 0.0  # of weight 0 then
        self.log("val/accuracy", accuracy, batch_size=len(hits), sync_dist=True)
        self.validation_pairs += [
            ScoredPair.of(pair, *scores)
            for pair, *scores in zip(batch.pairs, chosen.tolist(), rejected.tolist(), strict=True)
        ]

    def save(self, path: str | Path) -> None:
        """Write tokenizer, head, and the adapter or the whole model to a folder."""
        self.model.save(self.tokenizer, path, self.backbone)

    def on_train_end(self) -> None:
        """Load what was saved (RUN/model, or a copy made for this) and compare its scores.

        Raises:
            ValueError: they are not those of the trained model.
        """
        from sctom.callbacks.checkpoint import IterationCheckpoint

        if not self.trainer.is_global_zero:
            return
        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, IterationCheckpoint) and callback.save_model:
                self._check_saved(Path(self.trainer.default_root_dir) / "model")
                return
        with tempfile.TemporaryDirectory() as folder:
            self.save(folder)
            self._check_saved(Path(folder))

    def _check_saved(self, folder: Path) -> None:
        pairs = self.trainer.datamodule.train_examples[:CHECKED]  # type: ignore[attr-defined]
        choice = self.backbone.attention_choice
        check_saved(
            self.model,
            folder,
            PairBatch(pairs, len(pairs)).sequences,
            attention=None if choice is None else choice.name,
        )


def _hits(chosen: Tensor, rejected: Tensor, batch: PairBatch) -> Tensor:
    """1.0 for each pair whose chosen answer has the higher score; only pairs that are not tied."""
    return (chosen > rejected)[~batch.tied.to(chosen.device)].float()


def _check_finite(losses: Tensor, batch: PairBatch) -> None:
    for pair, finite in zip(batch.pairs, losses.isfinite().tolist(), strict=True):
        if not finite:
            raise FloatingPointError(
                f"{pair.place}: the loss of this pair is not finite; lower the learning rate, set "
                "trainer.gradient_clip_val, or load the weights in float32"
            )

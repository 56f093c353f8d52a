"""SFTModule: supervised fine-tuning on the assistant's turns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from sctom.data.dialogues import DialogueBatch
from sctom.losses import nll_loss, token_logps, token_mean
from sctom.modules.backbone import Backbone, save_backbone, trainable
from sctom.modules.schedule import ScheduleName, learning_rate_factor
from sctom.modules.scoring import Padded, Scorer
from sctom.modules.state import check_same_model, keep_trained
from sctom.rollout.causal import causal_model
from sctom.seeds import seed_for


class SFTModule(L.LightningModule):
    """Trains a language model to say what the assistant says in given dialogues.

        loss = -(sum over learned tokens of log p(token | all before it)) / learned tokens

    where both run over the whole optimiser step, so that each learned token of it weighs the same,
    however it is cut: `accumulate_grad_batches: 4` with a batch of 2 gives the gradient of one
    batch of 8, and so do two processes. (Dividing each batch by its own tokens and averaging, as an
    accumulating trainer does when left alone, weighs the tokens of short batches more.)

    Logs, of each optimiser step's last batch: train/loss (of that batch), train/entropy,
    train/tokens (learned tokens of the step), train/learning_rate; on validation data val/loss and
    val/token_accuracy, the share of learned tokens that were the most likely ones.

    Args:
        backbone: the model.
        optimizer: optimiser of the trained weights.
        schedule: "constant", "linear" or "cosine" over the optimiser steps of the run.
        warmup_ratio: share of the steps over which the learning rate rises.
        seed: first part of the address of dropout; null takes seed_everything.
    """

    def __init__(
        self,
        backbone: Backbone,
        optimizer: OptimizerCallable,
        *,
        schedule: ScheduleName = "cosine",
        warmup_ratio: float = 0.03,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 <= warmup_ratio <= 1.0:
            raise ValueError(f"model.warmup_ratio must be in [0, 1] but is {warmup_ratio}")
        self.strict_loading = (
            False  # only trained weights are saved; on_load_checkpoint checks them
        )
        self.backbone = backbone
        self.make_optimizer = optimizer
        self.schedule: ScheduleName = schedule
        self.warmup_ratio = warmup_ratio
        self.seed = 0 if seed is None else seed
        self.scorer = Scorer(temperature=1.0)
        self.model: nn.Module
        self.tokenizer: Any = None

    def setup(self, stage: str) -> None:
        """Load the tokenizer and render all dialogues: bad data is reported before weights load."""
        if self.tokenizer is None:
            self.tokenizer = self.backbone.load_tokenizer()
        self.trainer.datamodule.render(self.tokenizer)  # type: ignore[attr-defined]

    def configure_model(self) -> None:
        """Load the weights, with dropout on: Lightning turns it off while it validates."""
        if "model" not in self._modules:
            device = self.trainer.strategy.root_device
            self.model = self.backbone.load_model(device).train()

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """The optimiser of the config, over the trained weights, and its schedule."""
        optimizer = self.make_optimizer([p for _, p in trainable(self.model)])
        total = self.total_steps()
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda update: learning_rate_factor(
                self.schedule, update, total=total, warmup_ratio=self.warmup_ratio
            ),
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def total_steps(self) -> int:
        """Optimiser steps of the whole run, for the schedule.

        `Trainer.estimated_stepping_batches` would set up the data before a checkpoint is read, and
        the position in it would then be lost on resuming.
        """
        trainer = self.trainer
        batches = len(trainer.datamodule.train_dataloader())  # type: ignore[attr-defined]
        limit = trainer.limit_train_batches
        batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        steps = math.ceil(batches / trainer.accumulate_grad_batches) * (trainer.max_epochs or 1)
        return steps if trainer.max_steps < 0 else min(steps, trainer.max_steps)

    def training_step(self, batch: DialogueBatch, batch_idx: int) -> Tensor:
        """This batch's share of its optimiser step's loss."""
        torch.manual_seed(
            seed_for(self.seed, self.global_rank, self.trainer.current_epoch, batch_idx)
        )
        logps, entropy = self.scorer.padded(self.model, _rows(batch), batch.targets)
        losses = nll_loss(logps, batch.mask)
        self.log_dict(
            {
                "train/loss": token_mean(losses.detach(), batch.mask),
                "train/entropy": token_mean(entropy, batch.mask),
                "train/tokens": batch.step_tokens,
                "train/learning_rate": self.trainer.optimizers[0].param_groups[0]["lr"],
            }
        )
        # Lightning divides by the accumulated batches and DDP by the processes; step_tokens has
        # counted both.
        shares = self.trainer.accumulate_grad_batches * self.trainer.world_size
        return token_mean(losses, batch.mask, tokens=batch.step_tokens) * shares

    def validation_step(self, batch: DialogueBatch, batch_idx: int) -> None:
        """Loss and accuracy per learned token, over all of them."""
        logits = causal_model(self.model)(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            position_ids=batch.position_ids,
            use_cache=False,
        ).logits
        logits = logits.gather(1, batch.sources.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
        losses = nll_loss(token_logps(logits, batch.targets), batch.mask)
        hits = (logits.argmax(-1) == batch.targets).float()
        numbers = {
            "val/loss": token_mean(losses, batch.mask),
            "val/token_accuracy": token_mean(hits, batch.mask),
        }
        self.log_dict(numbers, batch_size=int(batch.mask.sum()), sync_dist=True)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer and the adapter, or the whole model if there is none, to a folder."""
        save_backbone(self.model, self.tokenizer, path)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the trained weights only."""
        keep_trained(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the checkpoint of another model.

        Raises:
            ValueError: with what was expected and found.
        """
        check_same_model(self, self.backbone, checkpoint)


def _rows(batch: DialogueBatch) -> Padded:
    """The batch as what a Scorer reads."""
    return Padded(batch.input_ids, batch.attention_mask, batch.position_ids, batch.sources)

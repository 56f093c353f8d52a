"""What modules of automatic optimisation have in common: weights, schedule, checkpoints, seeds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import lightning as L
import torch
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from sctom.modules.backbone import Backbone, save_backbone, trainable
from sctom.modules.schedule import ScheduleName, learning_rate_factor
from sctom.modules.state import Progress, check_same_model, keep_trained
from sctom.seeds import seed_for


class SupervisedModule(L.LightningModule):
    """A module that trains `model` on examples by Lightning's automatic optimisation.

    Its data module has `render(tokenizer)`, which makes token ids of what was read, and a sized
    loader of training batches. A subclass writes the steps.

    Args:
        backbone: the model.
        optimizer: optimiser of the trained weights.
        schedule: "constant", "linear" or "cosine" over the optimiser steps of the run.
        warmup_ratio: share of the steps over which the learning rate rises.
        seed: first part of the address of dropout; null takes seed_everything.
        schedule_floor: what a falling learning rate ends at, as a share of the configured one.

    Raises:
        ValueError: warmup_ratio or schedule_floor is no share.
    """

    formula: ClassVar[str]
    """What is minimised, in one line."""

    def __init__(
        self,
        backbone: Backbone,
        optimizer: OptimizerCallable,
        *,
        schedule: ScheduleName,
        warmup_ratio: float,
        seed: int | None,
        schedule_floor: float = 0.0,
    ) -> None:
        super().__init__()
        shares = {"warmup_ratio": warmup_ratio, "schedule_floor": schedule_floor}
        for name, value in shares.items():
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"model.{name} must be in [0, 1] but is {value}")
        self.strict_loading = False  # only trained weights are saved; on_load_checkpoint checks
        self.backbone = backbone
        self.make_optimizer = optimizer
        self.schedule: ScheduleName = schedule
        self.warmup_ratio = warmup_ratio
        self.schedule_floor = schedule_floor
        self.seed = 0 if seed is None else seed
        self.model: nn.Module
        self.tokenizer: Any = None
        self.last_metrics: dict[str, float] = {}
        """What the last batch logged."""

    @property
    def progress(self) -> Progress:
        """What has been done so far, for callbacks; an iteration is a batch."""
        batches = self.trainer.fit_loop.total_batch_idx + 1
        return Progress(iteration=batches, updates=self.trainer.global_step)

    def setup(self, stage: str) -> None:
        """Load the tokenizer and render all examples: bad data is reported before weights load."""
        if self.tokenizer is None:
            self.tokenizer = self.backbone.load_tokenizer()
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        data.render(self.tokenizer)
        if 0 < len(data.val_examples) < self.trainer.world_size:
            raise ValueError(
                f"data.val has {len(data.val_examples)} rows for {self.trainer.world_size} "
                "processes, and each needs one; give more rows, or drop data.val"
            )

    def configure_model(self) -> None:
        """Load the weights, with dropout on: Lightning turns it off while it validates."""
        if "model" not in self._modules:
            device = self.trainer.strategy.root_device
            self.model = self.make_model(device).train()

    def make_model(self, device: torch.device) -> nn.Module:
        """The model as it is before training."""
        return self.backbone.load_model(device)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """The optimiser of the config, over the trained weights, and its schedule."""
        optimizer = self.make_optimizer([p for _, p in trainable(self.model)])
        total = self.total_steps()
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda update: learning_rate_factor(
                self.schedule,
                update,
                total=total,
                warmup_ratio=self.warmup_ratio,
                floor=self.schedule_floor,
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

        Raises:
            ValueError: a limit cuts an optimiser step short, whose loss is divided by the whole.
        """
        trainer = self.trainer
        batches = len(trainer.datamodule.train_dataloader())  # type: ignore[attr-defined]
        limit = trainer.limit_train_batches
        whole = batches
        batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
        if batches < whole and batches % trainer.accumulate_grad_batches:
            raise ValueError(
                f"trainer.limit_train_batches leaves {batches} batches of an epoch, which cuts an "
                f"optimiser step of {trainer.accumulate_grad_batches} short "
                "(trainer.accumulate_grad_batches); set it to a multiple of that"
            )
        steps = math.ceil(batches / trainer.accumulate_grad_batches) * (trainer.max_epochs or 1)
        return steps if trainer.max_steps < 0 else min(steps, trainer.max_steps)

    def seed_dropout(self, batch_idx: int) -> None:
        """Let dropout be drawn from the address of this batch."""
        torch.manual_seed(
            seed_for(self.seed, self.global_rank, self.trainer.current_epoch, batch_idx)
        )

    def tell(self, **numbers: Tensor | float) -> None:
        """Log numbers about a training batch, and the learning rate, under "train/"."""
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        found = numbers | {"learning_rate": rate}
        self.last_metrics = {f"train/{name}": float(value) for name, value in found.items()}
        self.log_dict(self.last_metrics)

    def shares(self) -> int:
        """Parts of an optimiser step: Lightning divides by the batches, DDP by the processes."""
        return int(self.trainer.accumulate_grad_batches * self.trainer.world_size)

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

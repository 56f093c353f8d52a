"""SFTModule: supervised fine-tuning on the assistant's turns."""

from __future__ import annotations

from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from sctom.data.dialogues import DialogueBatch
from sctom.losses import nll_loss, token_logps, token_mean
from sctom.modules.backbone import Backbone
from sctom.modules.schedule import ScheduleName
from sctom.modules.scoring import Padded, Scorer
from sctom.modules.supervised import SupervisedModule
from sctom.rollout.causal import causal_model


class SFTModule(SupervisedModule):
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
        super().__init__(
            backbone, optimizer, schedule=schedule, warmup_ratio=warmup_ratio, seed=seed
        )
        self.scorer = Scorer(temperature=1.0)

    def training_step(self, batch: DialogueBatch, batch_idx: int) -> Tensor:
        """This batch's share of its optimiser step's loss."""
        self.seed_dropout(batch_idx)
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
        share = token_mean(losses, batch.mask, tokens=batch.step_tokens)
        return share * self.shares()  # step_tokens has counted them all

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


def _rows(batch: DialogueBatch) -> Padded:
    """The batch as what a Scorer reads."""
    return Padded(batch.input_ids, batch.attention_mask, batch.position_ids, batch.sources)

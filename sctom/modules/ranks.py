"""What several processes have to agree on. Every rank makes the same number of exchanges."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor


def gathered(module: L.LightningModule, values: Tensor) -> Tensor:
    """The values of every rank, stacked in front: [ranks, ...], on the CPU."""
    if module.trainer.world_size == 1:
        return values[None].cpu()
    everywhere = module.all_gather(values.to(module.device))
    assert isinstance(everywhere, Tensor)
    return everywhere.cpu()


def exchanging_gradients(trainer: L.Trainer, wanted: bool) -> AbstractContextManager[None]:
    """A context in which a backward pass exchanges gradients between ranks only if that is wanted.

    An update exchanges once, at its last micro-batch.
    """
    if wanted or not isinstance(trainer.strategy, DDPStrategy):
        return nullcontext()
    model: Any = trainer.strategy.model
    context: AbstractContextManager[None] = model.no_sync()
    return context

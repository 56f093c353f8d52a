"""What several processes have to agree on. Every rank makes the same number of exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from sctom.batch import Row
from sctom.objectives import Totals


def gathered(module: L.LightningModule, values: Tensor) -> Tensor:
    """The values of every rank, stacked in front: [ranks, ...], on the CPU."""
    if module.trainer.world_size == 1:
        return values[None].cpu()
    everywhere = module.all_gather(values.to(module.device))
    assert isinstance(everywhere, Tensor)
    return everywhere.cpu()


def gather(trainer: L.Trainer, item: Any) -> list[Any]:
    """The item of every process, in the order of their ranks. All processes must call it."""
    if trainer.world_size == 1:
        return [item]
    items: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(items, item)
    return items


def step_totals(module: L.LightningModule, rows: Sequence[Row], length: int) -> Totals:
    """The counts of an optimiser step over all ranks.

    Args:
        module: the module that trains.
        rows: this rank's completions of the step.
        length: largest number of new tokens of a completion.
    """
    counts = torch.tensor([sum(len(r.ids) for r in rows), len(rows)], dtype=torch.float64)
    tokens, sequences = gathered(module, counts).sum(0).tolist()
    return Totals(tokens, sequences, length)


def exchanging_gradients(trainer: L.Trainer, wanted: bool) -> AbstractContextManager[None]:
    """A context in which a backward pass exchanges gradients between ranks only if that is wanted.

    An update exchanges once, at its last micro-batch.
    """
    if wanted or not isinstance(trainer.strategy, DDPStrategy):
        return nullcontext()
    model: Any = trainer.strategy.model
    context: AbstractContextManager[None] = model.no_sync()
    return context

"""MetricsFile: the numbers of every iteration as JSONL, for plots without TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from sctom.callbacks.common import (
    append_record,
    finite_or_none,
    rewind_records,
    run_dir,
)
from sctom.modules.ranks import gather

METRICS_FILE = "metrics.jsonl"


class MetricsFile(Callback):
    """Appends all metrics of each iteration as a line of RUN/metrics.jsonl.

    A line is {"iteration": 12, "loss": ..., ...}; a number that is not finite is null. With several
    processes it holds the mean over them. When a run is resumed, the lines after the resumed
    iteration are dropped first, because they will be written again; a run from its start begins an
    empty file.

    Place it after callbacks that add to the metrics (`Throughput`).
    """

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Drop the lines of iterations that will be done again."""
        if trainer.is_global_zero:
            rewind_records(run_dir(trainer) / METRICS_FILE, pl_module.progress.iteration)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Append this iteration."""
        metrics = mean_metrics(gather(trainer, pl_module.last_metrics))
        if trainer.is_global_zero:
            record = {"iteration": pl_module.progress.iteration, **metrics}
            append_record(run_dir(trainer) / METRICS_FILE, record)


def mean_metrics(processes: Sequence[dict[str, float]]) -> dict[str, float | None]:
    """Mean over the processes that have a finite number; None where none has.

    >>> mean_metrics([{"reward": 1.0, "kl": float("nan")}, {"reward": 0.5}])
    {'reward': 0.75, 'kl': None}
    """
    names = dict.fromkeys(name for metrics in processes for name in metrics)
    columns = {name: [finite_or_none(m.get(name)) for m in processes] for name in names}
    found = {name: [v for v in column if v is not None] for name, column in columns.items()}
    return {name: fmean(values) if values else None for name, values in found.items()}

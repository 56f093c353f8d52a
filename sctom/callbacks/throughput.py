"""Throughput: where the time of an iteration goes, and how many tokens it moves."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from sctom.batch import Rollout

PHASES = ("generate", "reward", "score", "update")


class Throughput(Callback):
    """Logs tokens per second, and each phase's share of the iteration.

    | metric              | tokens                            | per second of         |
    |---------------------|-----------------------------------|-----------------------|
    | `throughput/update` | prompt and sampled, once per pass | forward and backward  |
    | `throughput/step`   | prompt and sampled                | the iteration         |
    | `throughput/total`  | prompt and sampled, since start   | the clock on the wall |

    `tokens_per_second`, the speed of sampling, is logged by the module. `share/generate`,
    `share/reward`, `share/score` and `share/update` are parts of the time of the iteration, 0 to 1.

    `throughput/total` counts from the start of this process and includes validation, checkpoints
    and logging. The throughputs are those of all processes, each taken to have as many tokens as
    this one.

    The numbers are added to `last_metrics`, so place it before `MetricsFile`.
    """

    def __init__(self) -> None:
        self._began = 0.0
        self._tokens = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Start the clock."""
        self._began = time.perf_counter()
        self._tokens = pl_module.progress.num_tokens

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the numbers of this iteration beside the module's."""
        numbers = iteration_metrics(
            pl_module.last_metrics, pl_module.last_rollout, pl_module.passes, trainer.world_size
        )
        tokens = pl_module.progress.num_tokens - self._tokens
        numbers["throughput/total"] = _rate(tokens, time.perf_counter() - self._began)
        pl_module.last_metrics.update(numbers)
        pl_module.log_dict(numbers, on_step=True, sync_dist=trainer.world_size > 1)


def iteration_metrics(
    metrics: dict[str, float], rollout: Rollout, passes: int, processes: int
) -> dict[str, float]:
    """Rates and shares of one iteration, from the times the module took.

    Args:
        metrics: with `step_time` and `time/<phase>`, in seconds.
        rollout: the rows of this process.
        passes: times the rollout was used.
        processes: number of processes.
    """
    tokens = processes * sum(len(row.prompt.ids) + len(row.ids) for row in rollout.rows)
    step = metrics["step_time"]
    return {
        "throughput/update": _rate(tokens * passes, metrics["time/update"]),
        "throughput/step": _rate(tokens, step),
        **{f"share/{phase}": _rate(metrics[f"time/{phase}"], step) for phase in PHASES},
    }


def _rate(amount: float, seconds: float) -> float:
    return amount / max(seconds, 1e-9)  # a clock may be too coarse to see a phase

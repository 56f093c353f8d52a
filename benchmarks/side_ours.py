"""One side of a comparison: iterations of `PolicyModule` under a Lightning trainer.

    python -m benchmarks.side_ours --work JSON --data FILE --out FILE

`benchmarks.processes` starts it. The phases `generate`, `reference` and `update` are the module's
own metrics; the forward pass is what its scorer takes with a gradient, the backward pass what
`manual_backward` takes. Nothing else is changed.
"""

from __future__ import annotations

import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from benchmarks import workload
from benchmarks.measure import Clock, Memory, Stall
from benchmarks.processes import side_main
from benchmarks.workload import Work
from sctom.data import PromptData, PromptOrder
from sctom.modules import Backbone, PolicyModule
from sctom.objectives import DAPO
from sctom.rewards import FunctionReward
from sctom.rollout import Sampling

METRICS = {"generate": "time/generate", "reference": "time/score", "update": "time/update"}


class FileOrder(PromptOrder):
    """Prompts in the order of their file, so that both sides take the same ones."""

    def batch(self, iteration: int, size: int, *, extra: int = 0) -> list[int]:
        """The prompts of an iteration; there are no extra batches."""
        return [] if extra else list(range(iteration * size, (iteration + 1) * size))


def policy_module(work: Work) -> PolicyModule:
    """The module as a user would configure it for this work."""
    backbone = Backbone(
        str(workload.model_folder(work)),
        lora_rank=workload.LORA_RANK,
        lora_alpha=workload.LORA_ALPHA,
        dtype="bfloat16" if work.bf16 else "float32",
    )

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=workload.LEARNING_RATE, weight_decay=0.0)

    return PolicyModule(
        backbone,
        DAPO(clip_low=workload.CLIP, clip_higher=workload.CLIP),
        [FunctionReward(workload.reward)],
        optimizer,
        group_size=work.group_size,
        sampling=Sampling(max_new_tokens=work.max_new),
        micro_batch_size=work.micro_batch,
        reference="base" if work.beta else "none",
        beta=work.beta,
        kl_weighted=False,  # as the peer's default
        self_check=False,
        seed=work.seed,
    )


class Recorder(Callback):
    """Times every iteration and its parts."""

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup
        self.clock = Clock()
        self.memory = Memory()
        self.steps: list[dict[str, float]] = []
        self.stall: Stall | None = None
        self._started = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Put clocks around scorer, backward pass and optimiser; start to watch the memory."""
        score, backward = pl_module.scorer, pl_module.manual_backward
        pl_module.scorer = self.clock.timed(score, _forward_or_reference)
        pl_module.manual_backward = self.clock.timed(backward, lambda: "backward")
        optimizer = pl_module.optimizers(use_pl_optimizer=False)
        optimizer.step = self.clock.timed(optimizer.step, lambda: "optimiser")
        self.memory.start()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Start the clock of an iteration."""
        if batch_idx == self.warmup:
            self.stall = Stall()
        self.clock.read()
        self._started = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the iteration down."""
        seconds = time.perf_counter() - self._started
        phases = self.clock.read()
        if "forward" not in phases or "backward" not in phases:
            raise RuntimeError(
                "an iteration passed without a call of module.scorer with a gradient, or of "
                f"module.manual_backward; found {sorted(phases)}; see Recorder.on_train_start"
            )
        metrics = {name: pl_module.last_metrics[key] for name, key in METRICS.items()}
        lengths = [len(row.ids) for row in pl_module.last_rollout.rows]
        counts = {"tokens": float(sum(lengths)), "longest": float(max(lengths))}
        if batch_idx >= self.warmup:
            self.steps.append({"step": seconds, **phases, **metrics, **counts})


def _forward_or_reference() -> str:
    return "forward" if torch.is_grad_enabled() else "score"


def run(work: Work, prompts: Path) -> dict[str, Any]:
    """Train for the steps of the work and say what they took."""
    recorder = Recorder(work.warmup)
    data = PromptData(
        str(prompts),
        prompts_per_iteration=work.prompts,
        iterations=work.warmup + work.steps,
        max_prompt_tokens=work.prompt_tokens[1],
        order=FileOrder(),
        seed=work.seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[recorder],
        )
        trainer.fit(policy_module(work), datamodule=data)
    assert recorder.stall is not None
    return {
        "engine": f"sctom {version('sctom')}",
        "steps": recorder.steps,
        "loaded_mib": recorder.memory.loaded_mib,
        "peak_mib": recorder.memory.peak_mib(),
        "stall": recorder.stall.share(),
    }


if __name__ == "__main__":
    side_main(run, Work.from_json)

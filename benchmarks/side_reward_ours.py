"""One side of a comparison: steps of `RewardModelModule` under a Lightning trainer.

    python -m benchmarks.side_reward_ours --work JSON --data FOLDER --out FILE

`benchmarks.processes` starts it. Clocks are put around the module's step, and read by hooks of the
trainer; nothing else is changed.
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
from torch import Tensor

from benchmarks import pairs, workload
from benchmarks.measure import Clock, Memory, Stall
from benchmarks.pairs import PairWork
from benchmarks.processes import side_main
from sctom.data.pairs import PreferenceData
from sctom.modules import Backbone
from sctom.modules.reward_model import RewardModelModule


class Recorder(Callback):
    """Times every optimiser step and its parts."""

    def __init__(self, work: PairWork) -> None:
        self.work = work
        self.parts = work.pairs // work.micro_batch
        self.clock = Clock()
        self.memory = Memory()
        self.steps: list[dict[str, float]] = []
        self.losses: list[float] = []
        self.trained = self.tokens = 0
        self.peak_mib = 0.0
        self.stall: Stall | None = None
        self._started = self._ended = self._backward = self._loss = 0.0
        self._phases: dict[str, float] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Set the weights, put clocks around step and optimiser; start to watch the memory."""
        trained = [(n, p) for n, p in pl_module.named_parameters() if p.requires_grad]
        pairs.set_weights(trained, self.work.seed)
        self.trained = sum(parameter.numel() for _, parameter in trained)
        step = self.clock.timed(pl_module.training_step, lambda: "forward")

        def training_step(*batch: Any) -> Tensor:
            loss: Tensor = step(*batch)
            self._loss += float(loss) / self.parts
            return loss

        pl_module.training_step = training_step
        self.memory.start()

    def on_before_backward(self, trainer: L.Trainer, pl_module: Any, loss: Tensor) -> None:
        """Start the clock of a backward pass."""
        self._backward = time.perf_counter()

    def on_after_backward(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Add it up; what comes behind the last of them is the optimiser's."""
        self._ended = time.perf_counter()
        self._phases["backward"] += self._ended - self._backward

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Start the clock of a step with the first of its batches."""
        if batch_idx % self.parts == 0:
            if len(self.losses) == self.work.warmup:
                self.stall = Stall()
            self.clock.read()
            self._phases, self._loss, self.tokens = {"backward": 0.0}, 0.0, 0
            self._started = time.perf_counter()
        self.tokens += sum(pair.tokens for pair in batch.pairs)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the step down with the last of its batches."""
        if (batch_idx + 1) % self.parts:
            return
        now = time.perf_counter()
        phases = {**self.clock.read(), **self._phases, "optimiser": now - self._ended}
        phases["tokens"] = float(self.tokens)
        if len(self.losses) >= self.work.warmup:
            self.steps.append({"step": now - self._started, **phases})
        self.losses.append(self._loss)
        self.peak_mib = self.memory.peak_mib()  # not that of the check that follows the last step


def reward_module(work: PairWork) -> RewardModelModule:
    """The module as a user would configure it for this work."""
    backbone = Backbone(
        str(work.folder), lora_rank=workload.LORA_RANK, lora_alpha=workload.LORA_ALPHA
    )

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=pairs.LEARNING_RATE, weight_decay=0.0)

    return RewardModelModule(
        backbone, optimizer, schedule="constant", warmup_ratio=0.0, seed=work.seed
    )


@torch.no_grad()
def held_out_scores(module: RewardModelModule, data: Path) -> list[list[float]]:
    """Scores (chosen, rejected) of pairs."""
    module.eval()
    rows = pairs.read_ids(data / pairs.HELD_OUT, module.tokenizer)
    return [
        module.model.scores([(prompt, chosen), (prompt, rejected)]).tolist()
        for prompt, chosen, rejected in rows
    ]


def run(work: PairWork, data: Path) -> dict[str, Any]:
    """Train for the steps of the work and say what they took."""
    recorder, module = Recorder(work), reward_module(work)
    prefer = PreferenceData(
        str(data / pairs.TRAIN), batch_size=work.micro_batch, shuffle=False, seed=work.seed
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="cpu",
            max_epochs=1,
            accumulate_grad_batches=recorder.parts,
            gradient_clip_val=pairs.MAX_GRAD_NORM,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=[recorder],
        )
        trainer.fit(module, datamodule=prefer)
    assert recorder.stall is not None
    return {
        "engine": f"sctom {version('sctom')}",
        "steps": recorder.steps,
        "losses": recorder.losses,
        "trained": recorder.trained,
        "loaded_mib": recorder.memory.loaded_mib,
        "peak_mib": recorder.peak_mib,
        "stall": recorder.stall.share(),
        "held_out": held_out_scores(module, data) if work.held_out else [],
    }


if __name__ == "__main__":
    side_main(run, PairWork.from_json)

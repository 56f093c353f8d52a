"""One side of a comparison: steps of TRL's GRPOTrainer, set up as a user of a CPU would at best.

    python -m benchmarks.side_trl --work JSON --data FILE --out FILE

`benchmarks.processes` starts it. No gradient checkpointing, one generation per optimiser step, the
stop rule from the model's generation config. Phases are timed around the trainer's own methods;
nothing else is changed.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from benchmarks import workload
from benchmarks.measure import Clock, Memory, Stall
from benchmarks.processes import side_main
from benchmarks.workload import Work

TRL: Any = trl


class Recorder(TrainerCallback):
    """Times every optimiser step and its parts."""

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup
        self.clock = Clock()
        self.memory = Memory()
        self.steps: list[dict[str, float]] = []
        self.lengths: list[int] = []
        self.stall: Stall | None = None
        self._started = self._optimising = self._optimiser = 0.0
        self._count = 0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start to watch the memory."""
        self.memory.start()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock of a step."""
        if self._count == self.warmup:
            self.stall = Stall()
        self.clock.read()
        self.lengths = []
        self._started = time.perf_counter()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Start the clock of the optimiser."""
        self._optimising = time.perf_counter()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Note what the optimiser took."""
        self._optimiser = time.perf_counter() - self._optimising

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Write the step down."""
        seconds = time.perf_counter() - self._started
        phases = {"reference": 0.0, **self.clock.read(), "optimiser": self._optimiser}
        phases["update"] = phases.pop("training_step") - phases.pop("rollout") + self._optimiser
        counts = {"tokens": float(sum(self.lengths)), "longest": float(max(self.lengths))}
        if self._count >= self.warmup:
            self.steps.append({"step": seconds, **phases, **counts})
        self._count += 1


def put_clocks(trainer: Any, recorder: Recorder) -> None:
    """Time the trainer's own methods and keep the lengths of what it samples."""
    clock, sample = recorder.clock, trainer._generate_single_turn
    logps = trainer._get_per_token_logps_and_entropies
    score = trainer._generate_and_score_completions

    def generate(*args: Any, **kwargs: Any) -> Any:
        result = sample(*args, **kwargs)
        recorder.lengths += [len(ids) for ids in result[0]]
        return result

    trainer.training_step = clock.timed(trainer.training_step, lambda: "training_step")
    trainer._generate_and_score_completions = clock.timed(score, lambda: "rollout")
    trainer._generate_single_turn = clock.timed(generate, lambda: "generate")
    trainer._get_per_token_logps_and_entropies = clock.timed(logps, _forward_or_reference)
    trainer.accelerator.backward = clock.timed(trainer.accelerator.backward, lambda: "backward")


def _forward_or_reference() -> str:
    return "forward" if torch.is_grad_enabled() else "reference"


def settings(work: Work, folder: str) -> Any:
    """The trainer's settings for this work."""
    return TRL.GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=work.micro_batch,
        gradient_accumulation_steps=work.rows // work.micro_batch,
        num_generations=work.group_size,
        num_iterations=1,
        max_completion_length=work.max_new,
        max_steps=work.warmup + work.steps,
        learning_rate=workload.LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=work.beta,
        epsilon=workload.CLIP,
        loss_type="dapo",
        temperature=1.0,
        bf16=work.bf16,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        seed=work.seed,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )


def run(work: Work, prompts: Path) -> dict[str, Any]:
    """Train for the steps of the work and say what they took."""
    model_folder = workload.model_folder(work)
    dtype = torch.bfloat16 if work.bf16 else torch.float32
    recorder = Recorder(work.warmup)
    rows = [{"prompt": messages} for messages in workload.read_prompts(prompts)]
    adapters = LoraConfig(
        r=workload.LORA_RANK,
        lora_alpha=workload.LORA_ALPHA,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = TRL.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype),
            args=settings(work, folder),
            train_dataset=Dataset.from_list(rows),
            reward_funcs=workload.reward,
            processing_class=AutoTokenizer.from_pretrained(model_folder),
            peft_config=adapters,
            callbacks=[recorder],
        )
        put_clocks(trainer, recorder)
        trainer.train()
    assert recorder.stall is not None
    return {
        "engine": f"trl {TRL.__version__}",
        "steps": recorder.steps,
        "loaded_mib": recorder.memory.loaded_mib,
        "peak_mib": recorder.memory.peak_mib(),
        "stall": recorder.stall.share(),
    }


if __name__ == "__main__":
    side_main(run, Work.from_json)

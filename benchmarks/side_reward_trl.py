"""One side of a comparison: steps of TRL's RewardTrainer, set up as a user of a CPU would at best.

    python -m benchmarks.side_reward_trl --work JSON --data FOLDER --out FILE

`benchmarks.processes` starts it. No gradient checkpointing, padding to the longest of each batch,
no logging. Phases are timed around the trainer's own methods; nothing else is changed. The padding
token is one that no sequence has: where it is also the one that ends an answer, transformers would
take the score of the token before that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerCallback

from benchmarks import pairs, workload
from benchmarks.measure import Clock, Memory, Stall
from benchmarks.pairs import PairWork
from benchmarks.processes import side_main

TRL: Any = trl


class Recorder(TrainerCallback):
    """Times every optimiser step and its parts."""

    def __init__(self, warmup: int) -> None:
        self.warmup = warmup
        self.clock = Clock()
        self.memory = Memory()
        self.steps: list[dict[str, float]] = []
        self.losses: list[float] = []
        self.tokens = 0
        self.stall: Stall | None = None
        self._loss = self._started = self._optimising = self._optimiser = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Start to watch the memory."""
        self.memory.start()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Start the clock of a step."""
        if len(self.losses) == self.warmup:
            self.stall = Stall()
        self.clock.read()
        self.tokens, self._loss = 0, 0.0
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
        phases = {**self.clock.read(), "optimiser": self._optimiser}
        if len(self.losses) >= self.warmup:
            self.steps.append({"step": seconds, **phases, "tokens": float(self.tokens)})
        self.losses.append(self._loss)

    def saw(self, inputs: dict[str, Any], loss: torch.Tensor, parts: int) -> None:
        """Note a micro-batch, one of so many parts of its step."""
        self.tokens += inputs["input_ids"].numel()
        self._loss += float(loss) / parts


def put_clocks(trainer: Any, recorder: Recorder, parts: int) -> None:
    """Time the trainer's own methods, and keep losses and the number of tokens computed."""
    clock = recorder.clock
    loss_of = clock.timed(trainer.compute_loss, lambda: "forward")

    def compute_loss(model: Any, inputs: dict[str, Any], **others: Any) -> Any:
        loss = loss_of(model, inputs, **others)
        recorder.saw(inputs, loss.detach(), parts)
        return loss

    trainer.compute_loss = compute_loss
    trainer.accelerator.backward = clock.timed(trainer.accelerator.backward, lambda: "backward")


def settings(work: PairWork, folder: str) -> Any:
    """The trainer's settings for this work."""
    return TRL.RewardConfig(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=work.micro_batch,
        gradient_accumulation_steps=work.pairs // work.micro_batch,
        max_steps=work.warmup + work.steps,
        max_length=None,
        learning_rate=pairs.LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=pairs.MAX_GRAD_NORM,
        bf16=False,
        gradient_checkpointing=False,
        train_sampling_strategy="sequential",
        seed=work.seed,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )


def dataset(rows: Sequence[tuple[list[int], list[int], list[int]]]) -> Any:
    """Pairs as the trainer takes them once they are token ids."""
    return Dataset.from_list(
        [
            {"chosen_ids": prompt + chosen, "rejected_ids": prompt + rejected}
            for prompt, chosen, rejected in rows
        ]
    )


def unused_token(tokenizer: Any, rows: Sequence[tuple[list[int], ...]]) -> str:
    """A special token that no sequence has, for padding."""
    used = {token for row in rows for part in row for token in part}
    for number, token in tokenizer.added_tokens_decoder.items():
        if number not in used:
            return str(token.content)
    raise ValueError("the tokenizer has no special token that could be padding and nothing else")


@torch.no_grad()
def held_out_scores(trainer: Any, rows: Any, size: int) -> list[list[float]]:
    """Scores (chosen, rejected) of pairs, padded as in training."""
    trainer.model.eval()
    scores: list[list[float]] = []
    for start in range(0, len(rows), size):
        batch = trainer.data_collator(rows.select(range(start, min(start + size, len(rows)))))
        chosen, rejected = trainer.model(**batch, use_cache=False).logits.squeeze(-1).chunk(2)
        scores += torch.stack([chosen, rejected], 1).tolist()
    return scores


def run(work: PairWork, data: Path) -> dict[str, Any]:
    """Train for the steps of the work and say what they took."""
    tokenizer: Any = AutoTokenizer.from_pretrained(work.folder)
    rows = pairs.read_ids(data / pairs.TRAIN, tokenizer)
    held_out = pairs.read_ids(data / pairs.HELD_OUT, tokenizer) if work.held_out else []
    tokenizer.pad_token = unused_token(tokenizer, [*rows, *held_out])
    recorder = Recorder(work.warmup)
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        work.folder, num_labels=1, dtype=torch.float32
    )
    adapters = LoraConfig(
        r=workload.LORA_RANK,
        lora_alpha=workload.LORA_ALPHA,
        target_modules="all-linear",
        task_type="SEQ_CLS",
        modules_to_save=["score"],
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = TRL.RewardTrainer(
            model=model,
            args=settings(work, folder),
            train_dataset=dataset(rows),
            processing_class=tokenizer,
            peft_config=adapters,
            callbacks=[recorder],
        )
        trained = [(n, p) for n, p in trainer.model.named_parameters() if p.requires_grad]
        pairs.set_weights(trained, work.seed)
        put_clocks(trainer, recorder, work.pairs // work.micro_batch)
        trainer.train()
    peak = recorder.memory.peak_mib()
    assert recorder.stall is not None
    return {
        "engine": f"trl {TRL.__version__}",
        "steps": recorder.steps,
        "losses": recorder.losses,
        "trained": sum(parameter.numel() for _, parameter in trained),
        "loaded_mib": recorder.memory.loaded_mib,
        "peak_mib": peak,
        "stall": recorder.stall.share(),
        "held_out": held_out_scores(trainer, dataset(held_out), 8) if held_out else [],
    }


if __name__ == "__main__":
    side_main(run, PairWork.from_json)

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from rich.console import Console

from sctom.batch import Prompt, Rollout, Row
from sctom.modules.policy import Progress

QUESTIONS = [("capital of Korea?", "Seoul", True), ("number of stars?", "I don't know.", False)]


def prompt(index: int) -> Prompt:
    question, expected, answerable = QUESTIONS[index % len(QUESTIONS)]
    columns = {
        "expected_answer": expected,
        "answerable": answerable,
        "kind": "known" if answerable else None,
    }
    return Prompt(index, [1, 2, 3], [{"role": "user", "content": question}], columns)


def row(index: int, sample: int, text: str, reward: float, advantage: float = 0.0) -> Row:
    return Row(
        prompt(index), sample, list(range(4 + sample)), text, truncated=sample == 1,
        rewards={"exact": reward, "judge": None}, reward=reward, advantage=advantage,
    )  # fmt: skip


@pytest.fixture
def rollout() -> Rollout:
    """Two groups of two: one with a spread, one whose second completion has no reward."""
    return Rollout(
        [
            row(0, 0, "Busan", -1.0, -0.7),
            row(0, 1, "Seoul [bold]", 1.0, 0.7),
            row(1, 0, "many\n\x1b[31m", -1.0),
            row(1, 1, "I don't know.", float("nan")),
        ],
        group_size=2,
    )


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    """What the callbacks print to: a log file, not a terminal."""
    console = Console(file=io.StringIO(), width=140, force_terminal=False)
    monkeypatch.setattr("rich._console", console)
    return console


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    console = Console(file=io.StringIO(), width=140, force_terminal=True, force_interactive=True)
    monkeypatch.setattr("rich._console", console)
    return console


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def shown() -> Callable[[Console], str]:
    return printed


@pytest.fixture
def trainer(tmp_path: Path) -> SimpleNamespace:
    """A trainer as far as a callback looks at it."""
    return SimpleNamespace(
        default_root_dir=str(tmp_path),
        world_size=1,
        is_global_zero=True,
        sanity_checking=False,
        loggers=[],
        callback_metrics={},
        num_val_batches=[2],
        num_sanity_val_batches=[2],
        datamodule=SimpleNamespace(iterations=3, prompts_per_iteration=2),
    )


@pytest.fixture
def module(rollout: Rollout) -> SimpleNamespace:
    """A module after its first iteration."""
    logged: dict[str, float] = {}
    return SimpleNamespace(
        progress=Progress(iteration=1, num_tokens=34),
        passes=2,
        last_rollout=rollout,
        last_metrics={
            "reward": -0.25, "loss": float("nan"), "completions/mean_length": 4.5,
            "tokens_per_second": 1234.5, "step_time": 4.0, "time/generate": 2.0,
            "time/reward": 0.5, "time/score": 0.5, "time/update": 1.0,
        },
        logged=logged,
        log_dict=lambda numbers, **_: logged.update(numbers),
    )  # fmt: skip


class Batches:
    """A loader whose walks begin anew, unless a state was loaded: Lightning does not exhaust it."""

    def __init__(self, batches: list[list[Prompt]]) -> None:
        self.batches = batches
        self.start = self.position = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Prompt]]:
        start, self.start = self.start, 0
        for place in range(start, len(self.batches)):
            self.position = place
            yield self.batches[place]

    def state_dict(self) -> dict[str, int]:
        return {"next": self.position + 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["next"]


class Data(L.LightningDataModule):
    def __init__(self, iterations: int = 4, questions: int = 4) -> None:
        super().__init__()
        self.iterations = iterations
        self.val_prompts = [prompt(i) for i in range(questions)]

    def train_dataloader(self) -> Batches:
        return Batches([[prompt(0), prompt(1)]] * self.iterations)

    def val_dataloader(self) -> Batches | list[Any]:
        pairs = [self.val_prompts[i : i + 2] for i in range(0, len(self.val_prompts), 2)]
        return Batches(pairs) if pairs else []


class Policy(L.LightningModule):
    """Learns to abstain by its second iteration and to answer by its fourth."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.progress = Progress()
        self.val_samples, self.val_sampling = 1, None
        self.rewards: list[Any] = []
        self.last_metrics: dict[str, float] = {}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD([self.weight], lr=0.1)

    def complete(self, prompts: list[Prompt], group_size: int, *_: Any) -> list[Row]:
        done = self.progress.iteration
        texts = ["Seoul" if done >= 4 else "Busan", "I don't know." if done >= 2 else "Many."]
        return [row(p.index, 0, texts[p.index % 2], float("nan")) for p in prompts]

    def score_rewards(self, rows: list[Row], group_size: int) -> None:
        for r in rows:
            r.reward = 1.0

    def training_step(self, prompts: list[Prompt], batch_idx: int) -> None:
        self.optimizers().step()
        self.progress.iteration += 1
        self.last_metrics = {"reward": self.progress.iteration / 10, "loss": float("nan")}

    def validation_step(self, prompts: list[Prompt], batch_idx: int) -> Rollout:
        rows = self.complete(prompts, 1)
        self.score_rewards(rows, 1)
        return Rollout(rows, 1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["progress"] = asdict(self.progress)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.progress = Progress(**checkpoint["progress"])


@pytest.fixture
def fit(tmp_path: Path, console: Console) -> Callable[..., tuple[L.Trainer, Policy]]:
    """Runs a real trainer on a policy that only counts."""

    def run(
        callbacks: list[L.Callback],
        data: Data | None = None,
        checkpoint: str | None = None,
        rewards: Sequence[Any] = (),
        **settings: Any,
    ) -> tuple[L.Trainer, Policy]:
        defaults = {
            "logger": False,
            "num_sanity_val_steps": -1,
            "val_check_interval": 2,
            "log_every_n_steps": 1,
        }
        trainer = L.Trainer(
            default_root_dir=tmp_path,
            callbacks=callbacks,
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **(defaults | settings),
        )
        policy = Policy()
        policy.rewards += rewards
        trainer.fit(policy, datamodule=data or Data(), ckpt_path=checkpoint, weights_only=False)
        return trainer, policy

    return run


@pytest.fixture
def make_data() -> type[Data]:
    return Data

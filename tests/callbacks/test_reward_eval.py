from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from sctom.callbacks import RewardModelEval, reward_eval
from sctom.callbacks.common import append_record, read_records
from sctom.data import PreferenceData
from sctom.modules import Backbone, RewardModelModule
from sctom.modules.reward_evaluation import evaluate_scores
from tests.training import quiet_trainer

ROWS = [
    {"prompt": "what is one ?", "chosen": "one", "rejected": "no .", "grade": "better"},
    {"prompt": "is red green ?", "chosen": "no .", "rejected": "yes", "is_safety": True},
    {"prompt": "is red red ?", "chosen": "yes", "rejected": "no . no .", "source": "web"},
    {"prompt": "what is two ?", "chosen": "two", "rejected": "red"},
]

Shown = Any


class Kill(L.Callback):
    """Saves a checkpoint after two batches and dies after three."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        if pl_module.progress.iteration == 2:
            trainer.save_checkpoint(self.path)
        if pl_module.progress.iteration == 3:
            raise RuntimeError("killed")


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def fit(
    tiny_model: Path,
    folder: Path,
    *callbacks: L.Callback,
    checkpoint: Path | None = None,
    val: bool = True,
    **options: Any,
) -> tuple[RewardModelModule, L.Trainer]:
    """Four batches of one pair, validated after every second one unless `options` say else."""
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    data = PreferenceData(str(path), val=str(path) if val else None, batch_size=1, val_batch=3)
    module = RewardModelModule(Backbone(str(tiny_model)), adam)
    trainer = L.Trainer(
        default_root_dir=folder,
        callbacks=list(callbacks),
        max_epochs=1,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        **{"logger": False, "val_check_interval": 2} | options,
    )
    trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=False)
    return module, trainer


def recorded(folder: Path) -> dict[int, dict[str, Any]]:
    return {r["iteration"]: r["metrics"] for r in read_records(folder / "evaluations.jsonl")}


def test_a_validation_is_evaluated(
    tiny_model: Path, tmp_path: Path, console: Console, shown: Shown
) -> None:
    append_record(tmp_path / "evaluations.jsonl", {"iteration": 77, "metrics": {}})
    logger = TensorBoardLogger(tmp_path, name="", version="board")
    callback = RewardModelEval(threshold=0.4)
    module, trainer = fit(tiny_model, tmp_path, callback, logger=logger, val_check_interval=4)
    found = recorded(tmp_path)
    assert list(found) == [4]  # not the check before training, nor an older run
    expected = evaluate_scores(module.validation_pairs, threshold=0.4).as_dict()
    assert found[4] == expected and len(expected) > 20
    logged = {k: float(v) for k, v in trainer.callback_metrics.items() if "reward_model" in k}
    assert logged == pytest.approx({f"val/{name}": value for name, value in expected.items()})
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    assert [event.step for event in board.Images("val/reward_model/reliability")] == [4]
    (event,) = board.Scalars("val/reward_model/ece")
    assert event.value == pytest.approx(expected["reward_model/ece"])
    assert "Reward model on 4 pairs" in shown(console)
    written = json.loads((tmp_path / "reward_model" / "evaluation.json").read_text())
    assert written["metrics"] == expected


def test_a_resumed_run_drops_what_it_does_again(tiny_model: Path, tmp_path: Path) -> None:
    kill = tmp_path / "half.ckpt"
    with pytest.raises(RuntimeError, match="killed"):
        fit(tiny_model, tmp_path, RewardModelEval(report=False), Kill(kill))
    append_record(tmp_path / "evaluations.jsonl", {"iteration": 3, "metrics": {}})
    first = recorded(tmp_path)[2]
    fit(tiny_model, tmp_path, RewardModelEval(report=False), checkpoint=kill)
    assert list(recorded(tmp_path)) == [2, 4]
    assert recorded(tmp_path)[2] == first
    assert not (tmp_path / "reward_model").exists()


def test_a_run_without_validation_pairs(
    tiny_model: Path, tmp_path: Path, console: Console, shown: Shown
) -> None:
    fit(tiny_model, tmp_path, RewardModelEval(), val=False, val_check_interval=None)
    assert recorded(tmp_path) == {} and "Reward model on" not in shown(console)


def test_validation_alone_is_not_put_on_record(tiny_model: Path, tmp_path: Path) -> None:
    module, trainer = fit(tiny_model, tmp_path, RewardModelEval(report=False))
    before = (tmp_path / "evaluations.jsonl").read_bytes()
    (metrics,) = trainer.validate(module, datamodule=trainer.datamodule, verbose=False)
    assert metrics["val/reward_model/pairs"] == 4
    assert (tmp_path / "evaluations.jsonl").read_bytes() == before


def test_pairs_of_all_processes_count(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def two(trainer: L.Trainer, pairs: list[Any]) -> list[list[Any]]:
        return [pairs, [replace(pair, chosen=9.0, rejected=0.0) for pair in pairs]]

    monkeypatch.setattr(reward_eval, "gather", two)
    module, _ = fit(tiny_model, tmp_path, RewardModelEval(report=False))
    own = evaluate_scores(module.validation_pairs).as_dict()["reward_model/accuracy"]
    metrics = recorded(tmp_path)[4]
    assert metrics["reward_model/pairs"] == 8
    assert metrics["reward_model/accuracy"] == (own + 1) / 2


def test_another_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="evaluates a RewardModelModule, not a SimpleNamespace"):
        RewardModelEval().setup(quiet_trainer(tmp_path), SimpleNamespace(), "fit")


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"RewardModelEval\.threshold must be from 0 to 1"):
        RewardModelEval(threshold=2.0)

"""Every config is accepted, says what it is, and the tiny ones train."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import yaml

from sctom.callbacks.checkpoint import checkpoints
from sctom.fit import build, fit
from sctom.modules.backbone import trainable
from sctom.modules.reward_head import RewardModel

CONFIGS = Path(__file__).parents[1] / "configs"
EVERY = sorted(CONFIGS.rglob("*.yaml"))
ALL = [path for path in EVERY if "model" in yaml.safe_load(path.read_text())]
"""Those of `sctom.fit`; the other commands have tests of their own."""
TINY = sorted(CONFIGS.glob("tiny/*.yaml"))
FOUR_BATCHES = ["--trainer.limit_train_batches", "4", "--trainer.limit_val_batches", "1"]
SHORT = {
    "PolicyModule": ["--data.iterations", "2", "--data.val_limit", "8"],
    "SFTModule": FOUR_BATCHES,
    "RewardModelModule": FOUR_BATCHES,
}
UPDATES = {
    "tiny/dapo.yaml": 16,
    "tiny/qlora.yaml": 8,
    "tiny/grpo.yaml": 8,
    "tiny/cispo.yaml": 8,
    "tiny/sft.yaml": 2,
    "tiny/reward_model.yaml": 2,
    "tiny/ppo.yaml": 8,
}


def name(path: Path) -> str:
    return str(path.relative_to(CONFIGS))


def built(path: Path, monkeypatch, *options: str):
    monkeypatch.setattr(sys, "argv", ["fit", "--config", str(path), *options])
    return build()


def test_there_are_configs():
    assert {"cispo.yaml", "grpo.yaml", "sft.yaml"} <= {path.name for path in TINY}
    assert len(ALL) > len(TINY)


@pytest.mark.parametrize("path", ALL, ids=name)
def test_every_config_is_accepted(path, monkeypatch, tmp_path):
    content = yaml.safe_load(path.read_text())
    cli = built(path, monkeypatch, "--run_dir", str(tmp_path / "run"))
    assert type(cli.model).__name__ == content["model"]["class_path"]
    assert cli.model.backbone.path == content["model"]["init_args"]["backbone"]["init_args"]["path"]
    data = content["data"]["init_args"]
    assert cli.datamodule.train_path == data["train"].replace("{variant}", data.get("variant", ""))


@pytest.mark.parametrize("path", EVERY, ids=name)
def test_every_config_says_what_it_is_and_how_it_is_run(path):
    comment = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert len(comment) >= 2
    assert any("make " in line or f"--config configs/{name(path)}" in line for line in comment)


def test_run_dirs_are_different():
    folders = [yaml.safe_load(path.read_text())["run_dir"] for path in EVERY]
    assert len(folders) == len(set(folders))


@pytest.mark.parametrize("path", TINY, ids=name)
def test_the_tiny_configs_train(path, monkeypatch, tmp_path, graded_pairs):
    content = yaml.safe_load(path.read_text())
    data = content["data"]["init_args"]
    prepared = [
        option
        for part in ("train", "val")
        if data[part].startswith("runs/graded/")
        for option in (f"--data.{part}", str(graded_pairs / Path(data[part]).name))
    ]
    folder = tmp_path / "run"
    short = SHORT[content["model"]["class_path"]]
    cli = built(path, monkeypatch, "--run_dir", str(folder), *short, *prepared)
    fit(cli)
    assert cli.trainer.global_step == UPDATES[name(path)]
    assert len(checkpoints(folder)) == 1 and (folder / "model").is_dir()
    before = dict(cli.model.backbone.load_model().named_parameters())
    trained = cli.model.model
    language_model = trained.model if isinstance(trained, RewardModel) else trained
    moved = [not torch.equal(p, before[n]) for n, p in trainable(language_model)]
    assert any(moved)

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from sctom.iterate.training import fit_config, train, write_pairs
from sctom.readers import read_jsonl
from tests.iterate.small import ADAM, OFTEN


def pairs_file(path: Path, safety: int, helpful: int) -> Path:
    tags = [True] * safety + [False] * helpful
    rows = [{"number": n, "is_safety": tag} for n, tag in enumerate(tags)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mixed(folder: Path, is_safety: bool | None, mix: float) -> tuple[int, list[bool]]:
    files = [pairs_file(folder / "1", 9, 30), pairs_file(folder / "2", 0, 0)]
    files.append(pairs_file(folder / "3", 9, 30))
    own = write_pairs(folder / "out", files, is_safety=is_safety, mix=mix, address=(0,))
    return own, [row["is_safety"] for row in read_jsonl(folder / "out")]


def test_pairs_of_all_rounds_by_kind(tmp_path):
    own, tags = mixed(tmp_path, True, 0.0)
    assert own == 18 and tags == [True] * 18
    own, tags = mixed(tmp_path, None, 0.0)
    assert own == len(tags) == 78 and sum(tags) == 18


def test_llama_2_mixes_90_to_10(tmp_path):
    own, tags = mixed(tmp_path, True, 0.1)
    # 18 are nine tenths of 20
    assert own == 18 and tags == [True] * 18 + [False] * 2
    own, tags = mixed(tmp_path, False, 0.5)
    assert own == 60 and sum(tags) == 18  # 60 would be needed, 18 are there


def test_a_stage_gets_a_checkpoint_callback_once():
    settings = {"backbone": {}, "model": {}, "data": {}, "seed": 0}
    (added,) = fit_config("SFTModule", "DialogueData", **settings, trainer={})["trainer"][
        "callbacks"
    ]
    assert added["class_path"] == "IterationCheckpoint"
    own = fit_config("SFTModule", "DialogueData", **settings, trainer=OFTEN)
    assert own["trainer"]["callbacks"] == OFTEN["callbacks"]


@pytest.fixture
def sft(tmp_path, tiny_model) -> dict:
    rows = [
        {"messages": [{"role": "user", "content": word}, {"role": "assistant", "content": "red"}]}
        for word in ("one", "two", "three", "blue")
    ]
    path = tmp_path / "kept.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return fit_config(
        "SFTModule",
        "DialogueData",
        backbone={"path": str(tiny_model), "attention": "sdpa"},
        model={"optimizer": ADAM},
        data={"train": str(path), "batch_size": 2},
        trainer={"accelerator": "cpu", "logger": False, **OFTEN},
        seed=3,
    )


def test_a_model_that_a_kill_left_unwritten_is_made_again(tmp_path, sft):
    train(tmp_path, sft)
    weights = tmp_path / "model" / "model.safetensors"
    before = weights.read_bytes()
    for file in weights.parent.iterdir():
        file.unlink()
    weights.parent.rmdir()  # the last checkpoint is there, the model is not
    train(tmp_path, sft)
    assert weights.read_bytes() == before


def test_the_config_beside_a_stage_says_how_it_is_run(tmp_path, sft, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["rounds", "--config", "rounds.yaml"])
    train(tmp_path, sft)
    assert sys.argv == ["rounds", "--config", "rounds.yaml"]
    text = (tmp_path / "stage.yaml").read_text()
    command = f"python -m sctom.fit --config {tmp_path}/stage.yaml --run_dir {tmp_path}"
    assert text.splitlines()[0] == f"# {command}"
    assert yaml.safe_load(text) == sft

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sctom.modules.backbone import Backbone
from sctom.modules.reward_evaluation import evaluate_pairs
from sctom.modules.reward_head import HEAD_FILE, RewardModel, load_reward_model
from sctom.preferences import GRADES, read_preferences
from sctom.reward_eval import main

ROWS = [
    {"prompt": "what is one ?", "chosen": "one", "rejected": "no .", "grade": "better"},
    {"prompt": "is red green ?", "chosen": "no .", "rejected": "yes", "is_safety": True},
    {"prompt": "is red red ?", "chosen": "yes", "rejected": "no . no .", "tied": True},
]


@pytest.fixture(scope="module")
def reward_model(tiny_model, tmp_path_factory) -> Path:
    backbone = Backbone(str(tiny_model), lora_rank=2)
    model, tokenizer = backbone.load()
    scorer = RewardModel(model)
    torch.nn.init.normal_(scorer.head.weight, generator=torch.Generator().manual_seed(0))
    folder = tmp_path_factory.mktemp("run") / "model"
    scorer.save(tokenizer, folder, backbone)
    return folder


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def run(*options: object) -> None:
    main([str(option) for option in options])


def refused(capsys: pytest.CaptureFixture[str], *options: object) -> str:
    with pytest.raises(SystemExit) as leaving:
        run(*options)
    assert leaving.value.code == 1
    return capsys.readouterr().err


def test_a_saved_model_is_evaluated(reward_model, pairs, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    run("--model", reward_model, "--pairs", pairs, "--out", out, "--wanted_precision", 0.4)
    printed = capsys.readouterr().out
    assert "Reward model on 3 pairs, of which 1 are tied" in printed
    model, tokenizer = load_reward_model(reward_model)
    expected = evaluate_pairs(model, tokenizer, read_preferences(pairs), wanted_precision=0.4)
    found = json.loads((out / "evaluation.json").read_text())
    assert found["metrics"] == pytest.approx(expected.as_dict())
    lines = [json.loads(line) for line in (out / "scored.jsonl").read_text().splitlines()]
    assert [line["line"] for line in lines] == [1, 2, 3]
    assert [line["grade"] for line in lines] == [GRADES[2], None, None]
    assert [line["tied"] for line in lines] == [False, False, True]
    differences = [line["chosen"] - line["rejected"] for line in lines[:2]]
    assert sum(d > 0 for d in differences) / 2 == found["metrics"]["reward_model/accuracy"]
    assert (out / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_folder_the_table_is_all(reward_model, pairs, tmp_path, capsys) -> None:
    run("--model", reward_model, "--pairs", pairs)
    assert "calibration error" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [pairs]


def test_a_folder_without_a_head_is_refused(tiny_model, pairs, capsys) -> None:
    error = refused(capsys, "--model", tiny_model, "--pairs", pairs)
    assert error.startswith(f"error: {tiny_model} has no {HEAD_FILE}")


def test_a_missing_or_empty_file_is_refused(reward_model, tmp_path, capsys) -> None:
    error = refused(capsys, "--model", reward_model, "--pairs", tmp_path / "none.jsonl")
    assert error.startswith("error: ") and "none.jsonl" in error
    (tmp_path / "empty.jsonl").write_text("")
    error = refused(capsys, "--model", reward_model, "--pairs", tmp_path / "empty.jsonl")
    assert "empty.jsonl" in error


def test_a_file_in_the_place_of_the_folder_is_refused(reward_model, pairs, capsys) -> None:
    error = refused(capsys, "--model", reward_model, "--pairs", pairs, "--out", pairs)
    assert error.startswith("error: ") and str(pairs) in error


def test_a_long_pair_is_named(reward_model, pairs, capsys) -> None:
    error = refused(capsys, "--model", reward_model, "--pairs", pairs, "--max_tokens", 5)
    assert f"{pairs}:1: prompt and chosen" in error and "the limit is 5" in error


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--bins", 0, "bins must be at least 1 but is 0"),
        ("--batch_tokens", 0, "batch_tokens must be at least 1 but is 0"),
        ("--max_tokens", 0, "max_tokens must be at least 1 but is 0"),
        ("--wanted_precision", 2, "wanted_precision must be from 0 to 1 but is 2"),
    ],
)
def test_options_are_checked(option, value, expected, reward_model, pairs, capsys) -> None:
    error = refused(capsys, "--model", reward_model, "--pairs", pairs, option, value)
    assert expected in error

"""The command line: what it refuses, what it says about it, and what a run leaves behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from sctom.callbacks.checkpoint import checkpoints
from sctom.fit import main


@pytest.fixture
def config(tmp_path, tiny_model, tiny_prompts) -> Path:
    path = tmp_path / "config.yaml"
    arguments = {
        "backbone": {
            "class_path": "Backbone",
            "init_args": {"path": str(tiny_model), "lora_rank": 4},
        },
        "objective": {"class_path": "GRPO"},
        "rewards": [{"class_path": "SelfAware"}],
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.01}},
        "group_size": 4,
        "sampling": {"max_new_tokens": 4},
    }
    data = {
        "train": str(tiny_prompts),
        "prompts_per_iteration": 3,
        "iterations": 2,
        "columns": "selfaware",
    }
    path.write_text(
        yaml.safe_dump(
            {
                "run_dir": str(tmp_path / "run"),
                "model": {"class_path": "PolicyModule", "init_args": arguments},
                "data": {"class_path": "PromptData", "init_args": data},
                "trainer": {
                    "accelerator": "cpu",
                    "callbacks": [{"class_path": "IterationCheckpoint"}],
                },
            }
        )
    )
    return path


def run(config: Path, monkeypatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["fit", "--config", str(config), *options])
    main()


def refused(config: Path, monkeypatch, capsys, *options: str) -> str:
    """Run something that must fail before training; returns what it said."""
    with pytest.raises(SystemExit) as leaving:
        run(config, monkeypatch, *options)
    assert leaving.value.code in (1, 2)
    run_dir = Path(yaml.safe_load(config.read_text())["run_dir"])
    assert not checkpoints(run_dir)
    return re.sub(r"\s+", " ", capsys.readouterr().err)


def edited(config: Path, **changes) -> Path:
    content = yaml.safe_load(config.read_text())
    for place, value in changes.items():
        target = content
        *parents, last = place.split("__")
        for parent in parents:
            target = target[parent]
        target[last] = value
    config.write_text(yaml.safe_dump(content))
    return config


@pytest.mark.parametrize(
    ("place", "nearest"),
    [
        ("model__init_args__group_sise", "group_size"),
        ("model__init_args__objective__init_args", "clip_high"),
        ("data__init_args__iteration", "iterations"),
        ("trainer__max_epoch", "max_epochs"),
        ("seed_everythin", "seed_everything"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(config, monkeypatch, capsys, place, nearest):
    value = {"clip_hihg": 0.3} if place.endswith("init_args") else 3
    said = refused(edited(config, **{place: value}), monkeypatch, capsys)
    assert f"did you mean '{nearest}'?" in said


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model.objective", "CISPPO"], "did you mean 'CISPO'?"),
        (["--model.beta", "0.1"], "beta is 0.1 but reference is none"),
        (["--model.group_size", "1"], "set group_size to 2 or more"),
        (["--model.group_size", "four"], "Expected a <class 'int'>"),
        (["--model.minibatch_size", "5"], "set model.minibatch_size to one of 1, 2, 3, 4, 6, 12"),
        (["--data.max_prompt_tokens", "5"], "12 tokens, but the limit is 5"),
        (["--data.prompts_per_iteration", "0"], "prompts_per_iteration must be at least 1"),
        (["--resume", "must"], "no checkpoint to go on from"),
        (["--model.max_skips", "0"], "max_skips must be at least 1"),
    ],
)
def test_settings_that_do_not_fit(config, monkeypatch, capsys, options, expected):
    assert expected in refused(config, monkeypatch, capsys, *options)


def test_missing_files(config, monkeypatch, capsys, tiny_model, tiny_prompts):
    said = refused(
        config, monkeypatch, capsys, "--data.train", str(tiny_prompts.with_name("promts.jsonl"))
    )
    assert "promts.jsonl does not exist" in said and "prompts.jsonl" in said
    said = refused(config, monkeypatch, capsys, "--model.backbone.path", str(tiny_model) + "x")
    assert f"did you mean {tiny_model}" in said
    said = refused(config, monkeypatch, capsys, "--model.backbone.adapter", "nowhere/at/all")
    assert "model.backbone.adapter: nowhere/at/all" in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"messages": [{"role": "user", "content": "one"}, '
            '{"role": "assistant", "content": "red"}]}\n'
            '{"messages": [,\n',
            "bad.jsonl:2",
        ),
        ("", "holds no rows"),
        ('{"messages": [{"role": "robot", "content": "one"}]}\n', "bad.jsonl:1"),
        ('{"question": "one"}\n', "bad.jsonl:1"),
    ],
)
def test_malformed_data_names_file_and_line(config, monkeypatch, capsys, tmp_path, text, expected):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    assert expected in refused(config, monkeypatch, capsys, "--data.train", str(path))


def test_a_reward_that_needs_a_column_the_data_lacks(config, monkeypatch, capsys):
    said = refused(config, monkeypatch, capsys, "--data.columns", "plain")
    assert "needs the column 'expected_answer'" in said


def copied_model(source: Path, target: Path) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_a_tokenizer_without_chat_template(config, monkeypatch, capsys, tiny_model, tmp_path):
    plain = copied_model(tiny_model, tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    said = refused(config, monkeypatch, capsys, "--model.backbone.path", str(plain))
    assert "no chat template" in said


def test_a_doubled_bos(config, monkeypatch, capsys, tiny_model, tmp_path):
    doubled = copied_model(tiny_model, tmp_path / "doubled")
    settings = json.loads((doubled / "tokenizer_config.json").read_text())
    (doubled / "tokenizer_config.json").write_text(
        json.dumps(settings | {"bos_token": "<|im_start|>"})
    )
    template = (doubled / "chat_template.jinja").read_text()
    (doubled / "chat_template.jinja").write_text("<|im_start|> <|im_start|> " + template)
    said = refused(config, monkeypatch, capsys, "--model.backbone.path", str(doubled))
    assert "begin with two '<|im_start|>'" in said


def test_a_stop_token_the_template_does_not_use_fails_the_self_check(
    config, monkeypatch, capsys, tiny_model, tmp_path
):
    deaf = copied_model(tiny_model, tmp_path / "deaf")
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((deaf / name).read_text())
        (deaf / name).write_text(json.dumps(settings | {"eos_token_id": 6}))
    settings = json.loads((deaf / "tokenizer_config.json").read_text())
    (deaf / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "user"}))
    said = refused(config, monkeypatch, capsys, "--model.backbone.path", str(deaf))
    assert "none of which is a stop token" in said


def test_a_sampler_that_disagrees_fails_the_self_check(config, monkeypatch, capsys):
    from sctom.rollout import local

    honest = local.token_logps
    monkeypatch.setattr(local, "token_logps", lambda *a, **k: honest(*a, **k) - 0.1)
    said = refused(config, monkeypatch, capsys)
    assert "sampler and trainer disagree" in said


def test_a_reward_without_an_opinion_fails_the_self_check(config, monkeypatch, capsys, tmp_path):
    (tmp_path / "silent_reward.py").write_text(
        "def reward(completions, **columns):\n    return [None] * len(completions)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rewards = [{"class_path": "FunctionReward", "init_args": {"path": "silent_reward.reward"}}]
    said = refused(edited(config, model__init_args__rewards=rewards), monkeypatch, capsys)
    assert "every reward abstained" in said


def test_a_run_leaves_a_model_a_config_and_a_checkpoint(config, monkeypatch, tmp_path, tiny_model):
    run(config, monkeypatch)
    folder = tmp_path / "run"
    assert [n for n, _ in checkpoints(folder)] == [2]
    assert (folder / "model" / "adapter_model.safetensors").exists()
    assert list((folder / "tensorboard").glob("events*"))
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["model"]["init_args"]["objective"]["init_args"]["clip_high"] == 0.2
    from sctom.modules import Backbone

    reloaded = Backbone(str(tiny_model), adapter=str(folder / "model")).load_model()
    state = torch.load(checkpoints(folder)[-1][1], weights_only=True)["state_dict"]
    for name, parameter in reloaded.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter, state[f"model.{name}"])


def test_the_saved_config_runs_again(config, monkeypatch, tmp_path):
    run(config, monkeypatch)
    saved = tmp_path / "again.yaml"
    saved.write_text((tmp_path / "run" / "config.yaml").read_text())
    run(saved, monkeypatch, "--run_dir", str(tmp_path / "second"))
    first, second = (
        torch.load(checkpoints(tmp_path / n)[-1][1])["state_dict"] for n in ("run", "second")
    )
    assert all(torch.equal(first[k], second[k]) for k in first)


def test_two_processes_train_like_one(config, tmp_path):
    weights = []
    for devices, minibatch in ((1, 4), (2, 2)):
        folder = tmp_path / f"on-{devices}"
        command = [
            sys.executable,
            "-m",
            "sctom.fit",
            "--config",
            str(config),
            "--run_dir",
            str(folder),
            "--data.prompts_per_iteration",
            "2",
            "--model.passes",
            "2",
            "--model.reference",
            "initial",
            "--model.beta",
            "0.1",
            "--model.minibatch_size",
            str(8 // devices),
            "--model.micro_batch_size",
            str(minibatch),
            "--trainer.devices",
            str(devices),
            "--trainer.strategy",
            "auto" if devices == 1 else "ddp",
        ]
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        weights.append(torch.load(checkpoints(folder)[-1][1], weights_only=True))
    for name, value in weights[0]["state_dict"].items():
        torch.testing.assert_close(weights[1]["state_dict"][name], value, rtol=1e-4, atol=1e-6)
    assert weights[0]["progress"] == weights[1]["progress"]

"""The command lines of rejection sampling and distillation, and training on what they keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from sctom.distill import main as distill
from sctom.readers import read_jsonl
from sctom.sample import main as sample
from tests.fitting import build_and_fit

ROOT = Path(__file__).parents[1]


def test_the_tiny_world_and_training_on_what_was_kept(tmp_path, monkeypatch, capsys):
    config = ROOT / "configs" / "sample_tinyworld.yaml"
    folder = tmp_path / "sampled"
    options = ["--limit", "12", "--samples", "8", "--run_dir", str(folder)]
    sample(["--config", str(config), *options])
    printed = capsys.readouterr().out
    assert "reward of kept" in printed and "kept.jsonl is what to learn from" in printed
    kept = read_jsonl(folder / "kept.jsonl")
    fit = tmp_path / "fit.yaml"
    settings = yaml.safe_load((ROOT / "configs" / "tinyworld_rft.yaml").read_text())
    settings["data"]["init_args"]["train"] = str(folder / "kept.jsonl")
    settings["run_dir"] = str(tmp_path / "fit")
    fit.write_text(yaml.safe_dump(settings))
    cli = build_and_fit(fit, monkeypatch)
    assert len(cli.datamodule.train_examples) == len(kept)
    assert (tmp_path / "fit" / "model" / "config.json").is_file()


def test_a_finished_run_is_told_again(tmp_path, capsys):
    arguments = [
        *("--config", str(ROOT / "configs" / "sample_tinyworld.yaml")),
        *("--limit", "3", "--samples", "4", "--run_dir", str(tmp_path / "sampled")),
    ]
    sample(arguments)
    first = capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        sample(arguments)
    assert "--resume auto to go on with it" in capsys.readouterr().err
    sample([*arguments, "--resume", "auto"])
    assert "reward of kept" in first and "reward of kept" in capsys.readouterr().out


def test_nothing_kept_is_said(tmp_path, capsys):
    config = str(ROOT / "configs" / "sample_tinyworld.yaml")
    options = ["--limit", "3", "--samples", "2", "--select", "Above", "--select.threshold", "100"]
    sample(["--config", config, "--run_dir", str(tmp_path / "sampled"), *options])
    assert "nothing was kept: lower what select asks for" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--smaples=3", "samples"),
        ("--select=BestOff", "BestOf"),
        ("--prompts=nowhere.jsonl", "nowhere.jsonl"),
        ("--select.init_args.count=0", "at least 1"),
    ],
)
def test_mistakes_are_told(tmp_path, capsys, option, said):
    config = str(ROOT / "configs" / "sample_tinyworld.yaml")
    with pytest.raises(SystemExit):
        sample(["--config", config, "--run_dir", str(tmp_path / "sampled"), option])
    assert said in capsys.readouterr().err
    assert not (tmp_path / "sampled" / "samples.jsonl").exists()


def test_distill(tmp_path, capsys, tiny_model):
    prompts = tmp_path / "prompts.jsonl"
    asked = [{"role": "user", "content": "what is one ?"}]
    prompts.write_text(json.dumps({"messages": asked, "is_safety": True}) + "\n")
    distill(
        [
            *("--backbone.class_path=Backbone", f"--backbone.init_args.path={tiny_model}"),
            *(f"--prompts={prompts}", '--preprompts=["yes"]'),
            *("--rewards=[{class_path: ThinkFormatReward}]", f"--run_dir={tmp_path / 'run'}"),
            "--sampling.max_new_tokens=4",
        ]
    )
    assert "answers kept" in capsys.readouterr().out
    assert (tmp_path / "run" / "kept.jsonl").exists()

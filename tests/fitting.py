"""A small run of `sctom.fit` for tests: its config, and how to change and start it."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from sctom.fit import FitCLI, build, fit, main


def write_config(tmp_path: Path, tiny_model: Path, tiny_prompts: Path) -> Path:
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


def build_and_fit(config: Path, monkeypatch, *options: str) -> FitCLI:
    monkeypatch.setattr(sys, "argv", ["fit", "--config", str(config), *options])
    cli = build()
    fit(cli)
    return cli

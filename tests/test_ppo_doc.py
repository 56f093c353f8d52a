"""docs/ppo.md and configs/llama2_ppo.yaml: the settings and metrics they name are there."""

from __future__ import annotations

import itertools
import json
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from sctom.fit import FitCLI, build, fit
from sctom.modules import PolicyModule
from sctom.objectives import GRPO, PPO

ROOT = Path(__file__).parents[1]
DOC = (ROOT / "docs" / "ppo.md").read_text()


def built(name: str, *options: str) -> FitCLI:
    argv = ["fit", "--config", str(ROOT / "configs" / name), *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", argv)
        return build()


def test_the_config_has_the_numbers_of_the_paper():
    cli = built("llama2_ppo.yaml")
    model, data = cli.model, cli.datamodule
    assert isinstance(model, PolicyModule)
    optimizer = model.make_optimizer([torch.nn.Parameter(torch.zeros(1))])
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.defaults["betas"] == (0.9, 0.95) and optimizer.defaults["eps"] == 1e-5
    assert optimizer.defaults["weight_decay"] == 0.1
    assert model.schedule == "constant" and model.warmup_ratio == 0.0
    assert model.max_grad_norm == 1.0
    assert data.prompts_per_iteration == 512 and model.group_size == 1
    assert model.minibatch_size == 64 and model.passes == 1  # one step per mini-batch
    assert isinstance(model.objective, PPO)
    assert model.objective.clip_low == model.objective.clip_high == 0.2
    assert model.beta == 0.01 and model.kl_in == "reward" and model.reference_kind == "initial"


def test_every_setting_of_its_own_is_named():
    own = {item.name for item in fields(PPO)} - {item.name for item in fields(GRPO)}
    sentence = DOC[DOC.index("`objective: PPO` has") :].split(".")[0]
    assert own == set(re.findall(r"`(\w+)`", sentence)) - {"GRPO"}


def test_every_metric_of_the_page_is_logged(tmp_path):
    options = ["--data.iterations", "1", "--data.val_limit", "4"]
    cli = built("tiny/ppo.yaml", "--run_dir", str(tmp_path), *options)
    fit(cli)
    logged = json.loads((tmp_path / "metrics.jsonl").read_text()).keys()
    section = DOC.split("## What it logs")[1].split("\n## ")[0]
    listed = set()
    for cell in re.findall(r"^\| (`[^|]+) \|", section, re.M):
        for key in re.findall(r"`([^`]+)`", cell):
            parts = [part.split(",") for part in re.split(r"[{}]", key)]
            listed |= {"".join(choice) for choice in itertools.product(*parts)}
    assert len(listed) >= 12 and listed - logged == set()

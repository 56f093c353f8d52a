"""SC-TOM's numbers, as its document states them, against what its two configs load."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from sctom.data import PromptData
from sctom.fit import build
from sctom.modules import PolicyModule
from sctom.modules.schedule import learning_rate_factor
from sctom.objectives import GRPO
from sctom.rewards import SelfAware

RECIPES = Path(__file__).parents[1] / "configs" / "sctom"
QUESTIONS = 2198  # of selfaware-v3's training file

# configs/config_8b_qlora.json of SC-TOM: section 4.1 of its document, and 4.4 for the adapters
DOCUMENT: dict[str, Any] = {
    "batch_size": 1,
    "grad_accumulation_steps": 16,
    "num_train_epochs": 1,
    "learning_rate": 5e-5,
    "lr_schedule": "cosine",
    "warmup_ratio": 0.05,
    "num_generations": 2,
    "max_completion_length": 128,
    "beta": 0.1,
    "temperature": 0.7,
    "lora_rank": 8,
    "lora_scale": 1.0,
    "lora_dropout": 0.05,
    "target_modules": "all-linear",
}


@dataclass
class Loaded:
    model: PolicyModule
    data: PromptData
    optimizer: torch.optim.Optimizer


def load(name: str, *options: str) -> Loaded:
    argv = ["fit", "--config", str(RECIPES / f"{name}.yaml"), *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", argv)
        cli = build()
    optimizer = cli.model.make_optimizer([torch.nn.Parameter(torch.zeros(1))])
    return Loaded(cli.model, cli.datamodule, optimizer)


@pytest.fixture(scope="module")
def cuda() -> Loaded:
    return load("cuda_8b_qlora_grpo")


@pytest.fixture(scope="module")
def mlx() -> Loaded:
    return load("mlx_grpo")


@pytest.fixture(params=["cuda", "mlx"])
def either(request) -> Loaded:
    return request.getfixturevalue(request.param)


def test_common_numbers(either):
    model, backbone = either.model, either.model.backbone
    assert either.optimizer.defaults["lr"] == DOCUMENT["learning_rate"]
    assert model.schedule == DOCUMENT["lr_schedule"]
    assert model.warmup_ratio == DOCUMENT["warmup_ratio"]
    assert model.group_size == DOCUMENT["num_generations"]
    assert model.sampling.max_new_tokens == DOCUMENT["max_completion_length"]
    assert model.sampling.temperature == DOCUMENT["temperature"]
    assert model.sampling.full_support
    assert backbone.lora_rank == DOCUMENT["lora_rank"]
    assert backbone.lora_alpha == DOCUMENT["lora_rank"] * DOCUMENT["lora_scale"] == 8
    assert backbone.lora_dropout == DOCUMENT["lora_dropout"]
    assert backbone.lora_targets == DOCUMENT["target_modules"]
    assert model.objective == GRPO(scale="group")
    assert model.passes == 1 and model.minibatch_size is None  # one update per rollout


def test_the_reward_is_the_documents(either):
    (reward,) = either.model.rewards
    assert type(reward) is SelfAware and reward.weight == 1.0


@pytest.mark.parametrize(
    ("name", "counted", "iterations"),
    [("cuda", "completions", 275), ("mlx", "prompts", 138)],  # TRL's unit of a batch, mlx-lm-lora's
)
def test_batch_and_epoch(name, counted, iterations, request):
    loaded = request.getfixturevalue(name)
    batch = DOCUMENT["batch_size"] * DOCUMENT["grad_accumulation_steps"]
    prompts = batch // DOCUMENT["num_generations"] if counted == "completions" else batch
    assert loaded.data.prompts_per_iteration == prompts
    epoch = math.ceil(DOCUMENT["num_train_epochs"] * QUESTIONS / prompts)
    assert loaded.data.iterations == epoch == iterations
    per_pass = DOCUMENT["batch_size"] * (1 if counted == "completions" else 2)
    assert loaded.model.micro_batch_size == per_pass


def test_cuda_side(cuda):
    model, backbone = cuda.model, cuda.model.backbone
    assert backbone.quantization == "nf4" and backbone.double_quantization
    assert backbone.compute_dtype is None and backbone.dtype == "bfloat16"
    assert backbone.attention is None  # flash attention is detected
    assert model.beta == DOCUMENT["beta"] and model.kl_estimator == "k3" and model.kl_in == "loss"
    assert model.reference_kind == "base"
    assert type(cuda.optimizer) is torch.optim.AdamW
    assert cuda.optimizer.defaults["betas"] == (0.9, 0.999)
    assert cuda.optimizer.defaults["eps"] == 1e-8
    assert cuda.optimizer.defaults["weight_decay"] == 0.0
    assert model.max_grad_norm == 1.0


def test_mlx_side(mlx):
    model = mlx.model
    assert type(mlx.optimizer) is torch.optim.Adam and mlx.optimizer.defaults["weight_decay"] == 0
    assert model.reference_kind == "none" and model.beta == 0.0
    assert model.max_grad_norm is None


@pytest.mark.parametrize(("name", "warmup"), [("cuda", 14), ("mlx", 7)])
def test_warmup_ends_where_the_comment_says(name, warmup, request):
    loaded = request.getfixturevalue(name)
    factors = [
        learning_rate_factor(
            loaded.model.schedule, update, total=loaded.data.iterations, warmup_ratio=0.05
        )
        for update in range(loaded.data.iterations)
    ]
    assert factors[0] == pytest.approx(1 / warmup)
    assert factors.index(1.0) == warmup - 1
    assert factors[-1] < 1e-3


@pytest.mark.parametrize("name", ["cuda_8b_qlora_grpo", "mlx_grpo"])
def test_data_variant_chooses_the_folder(name):
    data = load(name, "--data.variant", "selfaware").data
    assert data.train_path == "data/selfaware/train.jsonl"
    assert data.val_path == "data/selfaware/valid.jsonl"


def test_selfaware_v3_without_a_variant_given(either):
    assert either.data.train_path == "data/selfaware-v3/train.jsonl"
    assert either.data.val_path == "data/selfaware-v3/valid.jsonl"
    assert either.data.columns == "selfaware"


def test_the_advice_is_what_it_says():
    options = ["--model.group_size", "8", "--data.prompts_per_iteration", "2"]
    loaded = load("cuda_8b_qlora_grpo", *options, "--data.iterations", "1099")
    completions = loaded.model.group_size * loaded.data.prompts_per_iteration
    assert completions == DOCUMENT["batch_size"] * DOCUMENT["grad_accumulation_steps"]
    assert loaded.data.iterations * loaded.data.prompts_per_iteration == QUESTIONS
    unscaled = load("cuda_8b_qlora_grpo", "--model.objective.scale", "none")
    assert unscaled.model.objective == GRPO(scale="none")
    strict = load("cuda_8b_qlora_grpo", "--model.zero_variance", "resample")
    assert strict.model.zero_variance == "resample"

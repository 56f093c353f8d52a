from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.cli import SaveConfigCallback
from rich.console import Console

from sctom.batch import Prompt
from sctom.callbacks import Banner, banner
from sctom.callbacks.banner import describe, differences
from sctom.data import Shuffled
from sctom.modules import Backbone, PolicyModule
from sctom.objectives import CISPO, DAPO, GRPO, RLOO, DrGRPO, Objective
from sctom.rewards import FunctionReward, SelfAware
from sctom.rollout import Sampling


def make(objective: Objective | None = None, **settings: Any) -> PolicyModule:
    module = PolicyModule(
        Backbone("tiny", lora_rank=8, lora_alpha=16),
        objective or GRPO(),
        [SelfAware(weight=2.0)],
        lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        **settings,
    )
    module.model = torch.nn.Linear(9, 10)  # 90 + 10 parameters
    module.model.weight.requires_grad_(False)
    return module


@pytest.fixture
def attach(trainer: SimpleNamespace) -> Callable[[PolicyModule], dict[str, str]]:
    """Puts a module into a trainer and describes it."""
    trainer.callbacks = []
    trainer.datamodule = SimpleNamespace(
        prompts_per_iteration=4, iterations=7, train_path="train.jsonl", val_path="val.jsonl",
        order=Shuffled(),
        train_prompts=[Prompt(0, [1, 2, 3], [])] * 1234, val_prompts=[None] * 5,
    )  # fmt: skip

    def describe_module(module: PolicyModule) -> dict[str, str]:
        module._trainer = trainer
        trainer.optimizers = [module.make_optimizer(module.model.parameters())]
        return dict(describe(trainer, module))

    return describe_module


@pytest.fixture(autouse=True)
def no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of these tests is none that could be looked at."""
    reason = "it is no language model of {} tokens"
    monkeypatch.setattr(banner, "why_plain", lambda model, longest: reason.format(longest))


def test_a_run_in_words(attach: Callable[[PolicyModule], dict[str, str]]) -> None:
    module = make(beta=0.04, reference="base", minibatch_size=16, micro_batch_size=8, passes=2)
    lines = attach(module)
    assert lines["model"] == "tiny (LoRA of rank 8, alpha 16, on all-linear; float32)"
    assert lines["trained"] == "10 of 100 parameters (10.00%)"
    assert lines["optimiser"] == "SGD, learning rate 0.5 (constant), gradients clipped to norm 1"
    assert lines["objective"] == "GRPO(clip_low=0.2, clip_high=0.2, ratio_max=None, scale='group')"
    assert lines["formula"] == GRPO.formula
    assert "every completion weighs the same" in lines["loss is divided"]
    assert lines["advantage"].endswith("divided by the standard deviation of the group")
    assert lines["KL penalty"] == (
        "beta 0.04, k3 in the loss, weighted by the importance ratio; reference: base"
    )
    assert lines["iteration"] == "4 prompts x 8 completions each = 32 completions; 7 iterations"
    assert lines["update"] == (
        "16 completions, in micro-batches of at most 8 completions and 8,192 tokens"
    )
    assert lines["rows"] == "padded: it is no language model of 131 tokens"
    assert lines["updates per rollout"] == "4 (off-policy after the first)"  # 2 passes x 32 / 16
    assert lines["rewards"] == "self_aware x 2"
    assert lines["training data"] == "train.jsonl (1,234 rows, order Shuffled)"
    assert lines["validation data"] == "val.jsonl (5 rows)"
    assert "in the first update of a rollout" in lines["note"]


def test_rewards_are_shown_with_the_arguments_of_the_config(
    attach: Callable[[PolicyModule], dict[str, str]],
    trainer: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    class Brevity(SelfAware):
        def __init__(self, words: int = 6, **table: float) -> None:
            super().__init__(name="brevity", **table)

    module = make()
    module.rewards = [
        Brevity(4, weight=0.5, wrong=-2.0),
        FunctionReward("os.path.join", name="j"),
        SelfAware(),
    ]
    module._trainer = trainer
    assert attach(module)["rewards"] == "brevity x 0.5, j x 1, self_aware x 1"  # without a config
    given: list[dict[str, Any]] = [
        {"init_args": {"words": 4, "weight": 0.5, "correct": 1.0, "wrong": -2.0}},
        {"init_args": {"path": "os.path.join", "name": "j", "arguments": None}},
        {},
    ]
    init_args = SimpleNamespace(rewards=given)
    config = SimpleNamespace(model=SimpleNamespace(init_args=init_args))
    saves = SaveConfigCallback(parser=None, config=config)
    trainer.callbacks = [Banner(), saves]
    described = dict(describe(trainer, module))["rewards"]
    assert (
        described
        == "brevity(words=4, wrong=-2.0) x 0.5, j(path='os.path.join') x 1, self_aware x 1"
    )


def test_what_is_not_there_is_said(attach: Callable[[PolicyModule], dict[str, str]]) -> None:
    module = make(max_grad_norm=None)
    lines = attach(module)
    assert lines["KL penalty"] == "none, no reference"
    assert lines["optimiser"].endswith("no gradient clipping")
    assert lines["updates per rollout"] == "1 (on-policy)"
    assert lines["differs from defaults"] == "max_grad_norm None (default 1.0)"
    assert "near 0 by construction" in lines["note"]
    assert "resumed" not in lines
    module.trainer.datamodule.val_path = None
    module.progress.iteration = 3
    lines = attach(module)
    assert lines["validation data"] == "none"
    assert lines["resumed"] == "after iteration 3"


def test_nothing_differs_in_a_run_of_defaults() -> None:
    assert differences(make()) == []


def test_differences_come_from_signatures() -> None:
    module = make(
        DAPO(clip_higher=0.3),
        group_size=4,
        sampling=Sampling(max_new_tokens=32),
        val_sampling=Sampling(),
        reference="model",
        reference_model=Backbone("teacher"),
        seed=7,
    )
    assert differences(module) == [
        "group_size 4 (default 8)",
        "reference model (default none)",
        "reference_model teacher (default None)",
        "objective.clip_higher 0.3 (default 0.28)",
        "sampling.max_new_tokens 32 (default 128)",
        "val_sampling.temperature 1.0 (default 0.0)",
    ]


@pytest.mark.parametrize(
    ("objective", "label", "words"),
    [
        (RLOO(), "advantage", "reward - mean of the other completions of its group"),
        (DrGRPO(), "loss is divided", "max_new_tokens"),
        (DAPO(scale="batch"), "advantage", "of all rewards of the iteration"),
        (CISPO(), "note", "not expected to fall"),
    ],
)
def test_objectives_in_words(
    attach: Callable[[PolicyModule], dict[str, str]], objective: Objective, label: str, words: str
) -> None:
    assert words in attach(make(objective))[label]


@pytest.mark.filterwarnings("ignore:top_p, top_k or min_p cut:UserWarning")
def test_it_is_printed_and_written(
    attach: Callable[[PolicyModule], dict[str, str]],
    trainer: SimpleNamespace,
    console: Console,
    shown: Callable[[Console], str],
    tmp_path: Path,
) -> None:
    module = make(sampling=Sampling(top_p=0.9))
    attach(module)
    Banner().on_fit_start(trainer, module)
    text = (tmp_path / "banner.txt").read_text()
    assert "\ndiffers from defaults  sampling.top_p 0.9 (default 1.0)\n" in text
    assert "sampling.top_p 0.9 (default 1.0)" in shown(console)
    assert "weights" not in text.split("formula")[0]


def test_other_processes_are_silent(
    attach: Callable[[PolicyModule], dict[str, str]],
    trainer: SimpleNamespace,
    console: Console,
    shown: Callable[[Console], str],
    tmp_path: Path,
) -> None:
    module = make()
    attach(module)
    trainer.is_global_zero = False
    Banner().on_fit_start(trainer, module)
    assert shown(console) == ""
    assert list(tmp_path.iterdir()) == []

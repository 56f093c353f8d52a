from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import lightning as L
import pytest
import torch
from torch import Tensor

import sctom.losses
from sctom import objectives
from sctom.batch import Prompt, Row
from sctom.data import PromptData
from sctom.modules import Backbone, PolicyModule
from sctom.modules.backbone import trainable
from sctom.modules.settings import _is_silent_at_zero
from sctom.modules.update import needs_gradient
from sctom.objectives import (
    BNPO,
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    PPO,
    RLME,
    RLOO,
    SAPO,
    DrGRPO,
    Objective,
    Totals,
)
from sctom.rewards import FunctionReward
from sctom.rollout import Sampling
from tests.training import quiet_trainer

SILENT = [GRPO(), GRPO(ratio_max=3.0), DrGRPO(), DAPO(), CISPO(), RLME(), GSPO(), SAPO(), RLOO()]


def name(objective: Objective) -> str:
    return type(objective).__name__


# ---- which objectives are silent where the advantage is 0 ----------------------------------------


def test_every_objective_is_looked_at():
    classes = {c for c in vars(objectives).values() if isinstance(c, type)}
    choices = {c for c in classes if issubclass(c, Objective) and c is not Objective}
    assert choices == {type(objective) for objective in [*SILENT, BNPO(), PPO()]}


def gradient_of(objective: Objective, rows: list[int]) -> tuple[Tensor, Tensor]:
    """Loss and gradient [8, 5] of some of eight rows, the other four having no advantage."""
    torch.manual_seed(0)
    logps = (-2 * torch.rand(8, 5, dtype=torch.float64)).requires_grad_()
    old = logps.detach() + 0.3 * torch.randn(8, 5, dtype=torch.float64)
    advantages = torch.tensor([0, 1.5, 0, -1, 0.5, 0, 0, -1], dtype=torch.float64)
    mask = (torch.arange(5) < torch.tensor([5, 3, 1, 4, 5, 5, 5, 1]).unsqueeze(1)).double()
    bound = objective.bind(sctom.losses)
    totals = Totals(float(mask.sum()), 8.0, 6)
    losses = bound.loss(logps[rows], old[rows], advantages[rows], mask[rows])
    loss = bound.reduce(losses, mask[rows], totals)
    return loss.detach(), torch.autograd.grad(loss, logps)[0]


LIVE = [1, 3, 4, 7]


@pytest.mark.parametrize("objective", SILENT, ids=name)
def test_leaving_out_rows_without_advantage_changes_no_gradient(objective):
    assert _is_silent_at_zero(objective.bind(sctom.losses))
    whole, part = gradient_of(objective, list(range(8))), gradient_of(objective, LIVE)
    assert part[1].abs().sum() > 0.01
    for a, b in zip(part, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


def test_rows_count_where_the_local_batch_is_the_denominator():
    assert not _is_silent_at_zero(BNPO().bind(sctom.losses))
    whole, part = gradient_of(BNPO(), list(range(8))), gradient_of(BNPO(), LIVE)
    assert float((whole[1] - part[1]).abs().max()) > 1e-3


def test_with_values_to_train_every_row_has_a_gradient(tiny_model):
    assert _is_silent_at_zero(PPO().bind(sctom.losses))  # its policy loss is GRPO's
    assert not make_module(tiny_model, objective=PPO()).silent_at_zero


@dataclass(frozen=True)
class Custom(Objective):
    """A loss of one's own, as a config may name it."""

    loss: ClassVar[Any] = sctom.losses.grpo_loss
    reduction: ClassVar[str] = "token_mean"
    formula: ClassVar[str] = "one's own"


def with_entropy(logps, old_logps, advantages, mask):
    return sctom.losses.grpo_loss(logps, old_logps, advantages, mask) + 0.01 * logps.exp() * logps


def shifted(logps, old_logps, advantages, mask):
    return sctom.losses.grpo_loss(logps, old_logps, advantages - 0.1, mask)


def far_off_only(logps, old_logps, advantages, mask):
    far = (logps - old_logps - 1.0).clamp_min(0)  # 0 near the old policy
    return sctom.losses.grpo_loss(logps, old_logps, advantages, mask) + far


def coupled(logps, old_logps, advantages, mask):
    losses = sctom.losses.grpo_loss(logps, old_logps, advantages, mask)
    return losses * (logps - old_logps).exp().mean().detach()


def counted(logps, old_logps, advantages, mask):
    return sctom.losses.grpo_loss(logps, old_logps, advantages, mask) / len(logps)


def whitened(logps, old_logps, advantages, mask):
    return sctom.losses.grpo_loss(logps, old_logps, advantages / advantages.std(), mask)


def without_gradient(logps, old_logps, advantages, mask):
    return sctom.losses.grpo_loss(logps.detach(), old_logps, advantages, mask)


def constant(logps, old_logps, advantages, mask):
    return sctom.losses.grpo_loss(logps, old_logps, advantages, mask) + 1.0


def not_a_number(logps, old_logps, advantages, mask):
    return sctom.losses.grpo_loss(logps, old_logps, advantages, mask) * float("nan")


def bind(loss) -> objectives.BoundObjective:
    return type("Mine", (Custom,), {"loss": staticmethod(loss)})().bind(sctom.losses)


@pytest.mark.parametrize(
    "loss",
    [
        *(with_entropy, shifted, far_off_only, constant),  # a term without advantage
        *(coupled, counted, whitened),  # rows that change what others weigh
        *(without_gradient, not_a_number),
    ],
)
def test_other_losses_of_ones_own_are_not_silent(loss):
    assert not _is_silent_at_zero(bind(loss))


def test_a_silent_loss_of_ones_own():
    assert _is_silent_at_zero(bind(sctom.losses.sapo_loss))


# ---- which rows are differentiated ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "kl_in", "silent", "needed"),
    [
        (None, "loss", True, False),
        (None, "reward", True, False),
        ("a reference", "loss", True, True),  # the penalty pulls on every row
        ("a reference", "reward", True, False),  # it is in the advantage
        (None, "loss", False, True),
    ],
)
def test_rows_without_advantage(reference, kl_in, silent, needed):
    module: Any = SimpleNamespace(_reference=reference, kl_in=kl_in, silent_at_zero=silent)
    row = Row(Prompt(0, [1], []), 0, [2], "", False)
    assert needs_gradient(module, row) is needed
    for row.advantage in (1.0, -1e-30):
        assert needs_gradient(module, row)


# ---- runs ----------------------------------------------------------------------------------------


def reward_some(prompts, completion_ids, **kwargs) -> list[float]:
    """The number of different tokens for questions that end in an even number of marks, else 0."""
    texts = [messages[-1]["content"] for messages in prompts]
    return [
        float(len(set(ids))) if text.count("?") % 2 else 0.0
        for text, ids in zip(texts, completion_ids, strict=True)
    ]


def reward_none(completion_ids, **kwargs) -> list[float]:
    return [0.5] * len(completion_ids)


def distinct(completion_ids, **kwargs) -> list[float]:
    return [float(len(set(ids))) for ids in completion_ids]


def make_module(model: Path, reward=reward_some, **settings) -> PolicyModule:
    defaults: dict[str, Any] = {
        "objective": GRPO(),
        "optimizer": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.0),
        "group_size": 4,
        "sampling": Sampling(max_new_tokens=6),
        "self_check": False,
        "seed": 3,
    }
    return PolicyModule(
        Backbone(str(model), lora_rank=4),
        rewards=[FunctionReward(reward)],
        **{**defaults, **settings},
    )


def run(
    module: PolicyModule,
    prompts: Path,
    folder: Path,
    *,
    iterations: int = 2,
    save: bool = False,
    precision: str = "32-true",
    **options,
) -> list[dict[str, float]]:
    """Train; returns the metrics of each iteration."""
    data = PromptData(
        str(prompts), prompts_per_iteration=4, iterations=iterations, columns="selfaware"
    )
    seen: list[dict[str, float]] = []

    class Note(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            seen.append(dict(pl_module.last_metrics))
            if save:
                trainer.save_checkpoint(folder / f"{len(seen)}.ckpt")

    trainer = quiet_trainer(folder, num_sanity_val_steps=0, callbacks=[Note()], precision=precision)
    trainer.fit(module, data, **options)
    return seen


def weights(module: PolicyModule) -> Tensor:
    return torch.cat([p.detach().flatten() for _, p in trainable(module.model)])


def start_weights(model: Path) -> Tensor:
    loaded = Backbone(str(model), lora_rank=4).load_model()
    return torch.cat([p.detach().flatten() for _, p in trainable(loaded)])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"objective": CISPO(), "micro_batch_size": 3},
        {"objective": DrGRPO(), "passes": 2, "minibatch_size": 8},
        {"objective": RLOO(), "reference": "initial", "beta": 0.1, "kl_in": "reward"}
        | {"kl_estimator": "k1"},
        {"zero_variance": "mask"},
    ],
    ids=["grpo", "cispo", "minibatches", "kl-in-reward", "masked"],
)
def test_skipping_rows_without_advantage_changes_nothing(
    tiny_model, tiny_prompts, tmp_path, settings
):
    skipping, all_rows = (make_module(tiny_model, **settings) for _ in range(2))
    assert skipping.silent_at_zero
    all_rows.silent_at_zero = False
    metrics = [run(module, tiny_prompts, tmp_path) for module in (skipping, all_rows)]
    moved = weights(skipping) - start_weights(tiny_model)
    assert float(moved.abs().max()) > 1e-3
    torch.testing.assert_close(weights(skipping), weights(all_rows), rtol=1e-4, atol=1e-5)
    assert 0 < metrics[0][0]["update/silent_frac"] < 1
    assert all(seen["update/silent_frac"] == 0.0 for seen in metrics[1])
    for ours, theirs in zip(*metrics, strict=True):
        for key in ("loss", "policy_loss", "grad_norm", "reward"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-4, abs=1e-6), key


def test_the_share_of_silent_rows(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model)
    (metrics,) = run(module, tiny_prompts, tmp_path, iterations=1)
    rows = module.last_rollout.rows
    silent = [row.advantage == 0.0 for row in rows]
    by_group = [all(silent[i : i + 4]) for i in range(0, len(rows), 4)]
    assert 0 < sum(by_group) < len(by_group)
    assert metrics["update/silent_frac"] == pytest.approx(sum(silent) / len(rows))


@pytest.mark.parametrize("skipping", [True, False])
def test_a_run_without_any_signal(tiny_model, tiny_prompts, tmp_path, skipping):
    module = make_module(tiny_model, reward_none)
    module.silent_at_zero = skipping
    metrics = run(module, tiny_prompts, tmp_path)
    assert torch.equal(weights(module), start_weights(tiny_model))
    for seen in metrics:
        assert seen["update/silent_frac"] == float(skipping)
        assert seen["loss"] == seen["policy_loss"] == seen["grad_norm"] == 0.0
    assert module.progress.updates == 2 and module.progress.skipped == 0


def test_with_a_penalty_in_the_loss_every_row_is_differentiated(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model, reward_none, reference="initial", beta=0.1, passes=2)
    metrics = run(module, tiny_prompts, tmp_path)
    assert [seen["update/silent_frac"] for seen in metrics] == [0.0, 0.0]
    assert torch.equal(weights(module), start_weights(tiny_model))  # no pull at the reference


# ---- the sampler's log-probabilities as those of the old policy ----------------------------------


@pytest.mark.parametrize(
    "several", [{}, {"passes": 3}, {"minibatch_size": 8, "passes": 2}], ids=str
)
def test_the_sampler_mismatch_is_that_of_equal_weights(tiny_model, tiny_prompts, tmp_path, several):
    module = make_module(tiny_model, distinct, **several)
    for seen in run(module, tiny_prompts, tmp_path, iterations=3):
        mean, largest = (
            seen[f"sampling/sampling_logp_difference/{kind}"] for kind in ("mean", "max")
        )
        assert 0 <= mean <= largest < 1e-4
        if several:  # the policy has moved, and that is not counted
            assert seen["ratio/max"] > 1.001

"""What becomes of groups without signal and of truncated completions, in whole iterations."""

from __future__ import annotations

import copy
from pathlib import Path

import lightning as L
import pytest
import torch

from sctom.batch import Rollout
from sctom.data import PromptData, SolveRate
from sctom.modules import Backbone, PolicyModule
from sctom.modules.metrics import Means
from sctom.objectives import CISPO, DAPO, GRPO, DrGRPO
from sctom.rewards import FunctionReward
from sctom.rollout import Sampling
from tests.training import quiet_trainer

WEIGHTS = 1e-4  # what moved by more has been trained


def mixed(completion_ids, answerable, **columns):
    """Spread in every group about answerable questions; on the others all alike, no signal."""
    return [
        len(set(ids)) + 0.1 * number if known else 0.0
        for number, (ids, known) in enumerate(zip(completion_ids, answerable, strict=True))
    ]


def shaped(completion_ids, **columns):
    return [0.01 * len(ids) for ids in completion_ids]


def constant(completions, **columns):
    return [1.0] * len(completions)


def make_module(model: Path, **settings) -> PolicyModule:
    defaults = {
        "objective": GRPO(),
        "rewards": [FunctionReward(mixed)],
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.5),
        "group_size": 4,
        "sampling": Sampling(max_new_tokens=6),
        "self_check": False,
        "seed": 3,
    }
    return PolicyModule(Backbone(str(model)), **{**defaults, **settings})


def run(module: PolicyModule, prompts: Path, folder: Path, **settings) -> list[dict[str, float]]:
    """Train; the metrics of every iteration."""
    seen: list[dict[str, float]] = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, *rest):
            seen.append(dict(pl_module.last_metrics))

    defaults = {"prompts_per_iteration": 3, "iterations": 2, "columns": "selfaware"}
    trainer = quiet_trainer(folder, num_sanity_val_steps=0, callbacks=[Watch()])
    trainer.fit(module, PromptData(str(prompts), **{**defaults, **settings}))
    return seen


def trained(module: PolicyModule) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.model.parameters()])


def untrained(model: Path) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in Backbone(str(model)).load_model().parameters()])


def alive(rows) -> list[bool]:
    return [row.prompt.columns["answerable"] for row in rows]


# ---- mask ----------------------------------------------------------------------------------------


def test_keep_counts_groups_without_signal(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model)
    (numbers, _) = run(module, tiny_prompts, tmp_path)
    assert all(row.counted for row in module.last_rollout.rows)
    assert not any(name.startswith("zero_variance/") for name in numbers)


def test_mask_counts_groups_with_signal_only(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model, zero_variance="mask")
    numbers = run(module, tiny_prompts, tmp_path, prompts_per_iteration=12, iterations=1)
    rows = module.last_rollout.rows
    assert [row.counted for row in rows] == alive(rows)
    assert numbers[0]["zero_variance/masked"] == 4  # a third of the 12 prompts
    assert numbers[0]["frac_reward_zero_std"] == pytest.approx(4 / 12)


def gradient_of(module: PolicyModule, rows) -> torch.Tensor:
    """The gradient of an update on these rows: SGD moves by lr x gradient."""
    before = trained(module)
    module.model.train()
    module.update(rows, Means())
    after = trained(module)
    return (before - after) / 0.5


@pytest.mark.parametrize("objective", [GRPO(), CISPO(), DrGRPO(), DAPO()], ids=type)
def test_masked_rows_are_neither_in_the_sum_nor_in_the_count(
    tiny_model, tiny_prompts, tmp_path, objective
):
    """The gradient with masked rows is that of the other rows alone, KL and all."""

    class Compare(L.Callback):
        def on_train_batch_end(self, trainer, module, *rest):
            rows = module.last_rollout.rows
            start = copy.deepcopy(module.model.state_dict())
            self.with_masked = gradient_of(module, rows)
            module.model.load_state_dict(start)
            self.alone = gradient_of(module, [row for row in rows if row.counted])
            module.model.load_state_dict(start)

    module = make_module(
        tiny_model,
        objective=objective,
        zero_variance="mask",
        truncated="mask",
        reference="model",
        reference_model=Backbone(str(tiny_model), lora_rank=2, lora_seed=1),
        beta=0.5,
        micro_batch_size=5,
        max_grad_norm=None,
    )
    compare = Compare()
    trainer = quiet_trainer(tmp_path, num_sanity_val_steps=0, callbacks=[compare])
    data = PromptData(str(tiny_prompts), prompts_per_iteration=6, iterations=1, columns="selfaware")
    trainer.fit(module, data)
    assert compare.alone.norm() > 1e-3
    torch.testing.assert_close(compare.with_masked, compare.alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("zero_variance", ["mask", "resample"])
def test_micro_batches_change_nothing(tiny_model, tiny_prompts, tmp_path, zero_variance):
    weights = []
    for micro in (1, 5, 12):
        module = make_module(
            tiny_model,
            zero_variance=zero_variance,
            truncated="mask",
            micro_batch_size=micro,
            passes=2,
            minibatch_size=6,
            reference="initial",
            beta=0.1,
        )
        run(module, tiny_prompts, tmp_path)
        weights.append(trained(module))
    assert (weights[0] - untrained(tiny_model)).abs().max() > WEIGHTS
    # Adam divides by the size of a gradient, and so makes rounding in small ones visible
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(weights[2], weights[0], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("zero_variance", ["mask", "resample"])
def test_an_iteration_without_any_signal_moves_nothing(
    tiny_model, tiny_prompts, tmp_path, zero_variance
):
    """With `keep` the KL would pull, and momentum would go on."""
    module = make_module(
        tiny_model,
        rewards=[FunctionReward(constant)],
        zero_variance=zero_variance,
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
        reference="initial",
        beta=0.5,
    )
    numbers = run(module, tiny_prompts, tmp_path)
    assert torch.equal(trained(module), untrained(tiny_model))
    assert module.progress.updates == 2  # they count for the schedule
    assert numbers[1]["zero_variance/masked"] == 3
    assert "loss" not in numbers[1] and "advantages/std" not in numbers[1]


# ---- truncated -----------------------------------------------------------------------------------


def test_truncated_completions_are_masked_but_stay_in_the_mean_of_their_group(
    tiny_model, tiny_prompts, tmp_path
):
    plain, masking = (
        make_module(tiny_model, rewards=[FunctionReward(shaped)], truncated=what)
        for what in ("keep", "mask")
    )
    numbers = [run(m, tiny_prompts, tmp_path, iterations=1)[0] for m in (plain, masking)]
    rows, masked = plain.last_rollout.rows, masking.last_rollout.rows
    assert [row.truncated for row in masked] == [row.truncated for row in rows]
    assert 0 < sum(row.truncated for row in rows) < len(rows)
    assert [row.counted for row in masked] == [not row.truncated for row in masked]
    assert [row.advantage for row in masked] == [row.advantage for row in rows]
    assert numbers[1]["truncated/masked_frac"] == sum(r.truncated for r in rows) / len(rows)
    assert numbers[0]["completions/clipped_ratio"] == pytest.approx(
        numbers[1]["truncated/masked_frac"]
    )
    assert not torch.equal(trained(plain), trained(masking))


# ---- resample ------------------------------------------------------------------------------------


def test_resampling_fills_the_rollout_with_signal(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model, zero_variance="resample")
    numbers = run(module, tiny_prompts, tmp_path, prompts_per_iteration=4, iterations=3)
    rollout = module.last_rollout
    assert len(rollout.groups()) == 4 and all(alive(rollout.rows))
    assert all(row.counted for row in rollout.rows)
    assert len({row.prompt.index for row in rollout.rows + rollout.dropped}) * 4 == (
        len(rollout.rows) + len(rollout.dropped)
    )  # no prompt comes twice
    for line in numbers:
        groups = 4 * (1 + line["zero_variance/extra_batches"])
        left = line["zero_variance/dropped"] + line["zero_variance/surplus"]
        assert 4 + left == groups and line["zero_variance/masked"] == 0
    assert any(line["zero_variance/extra_batches"] > 0 for line in numbers)


def test_metrics_are_of_all_that_was_sampled(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model, zero_variance="resample")
    numbers = run(module, tiny_prompts, tmp_path, prompts_per_iteration=11, iterations=1)[0]
    kept, dropped = module.last_rollout.rows, module.last_rollout.dropped
    rewards = [row.reward for row in kept if row.counted] + [row.reward for row in dropped]
    rewards += [row.reward for row in kept if not row.counted]
    assert numbers["reward"] == pytest.approx(sum(rewards) / len(rewards))
    tokens = sum(len(row.prompt.ids) + len(row.ids) for row in kept + dropped)
    assert numbers["num_tokens"] == module.progress.num_tokens == tokens
    # 8 of the 12 prompts have a signal, 11 are wanted, and one is left for an extra batch
    assert numbers["zero_variance/extra_batches"] == 1
    assert numbers["zero_variance/masked"] == 3
    assert [row.counted for row in kept] == [True] * 32 + [False] * 12


def test_the_cap_holds(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model, rewards=[FunctionReward(constant)], zero_variance="resample")
    module.max_extra_batches = 2
    numbers = run(module, tiny_prompts, tmp_path, iterations=1)[0]
    assert numbers["zero_variance/extra_batches"] == 2
    assert (numbers["zero_variance/masked"], numbers["zero_variance/dropped"]) == (3, 6)


def test_the_metric_looks_through_a_shaped_reward(tiny_model, tiny_prompts, tmp_path):
    """All wrong, told apart by a bonus for length only: with signal by the sum, not by `mixed`."""
    results = {}
    for metric in ("reward", "mixed"):
        module = make_module(
            tiny_model,
            rewards=[FunctionReward(mixed), FunctionReward(shaped)],
            zero_variance="mask",
            zero_variance_metric=metric,
        )
        run(module, tiny_prompts, tmp_path, prompts_per_iteration=12, iterations=1)
        groups = Rollout(module.last_rollout.rows, 4).groups()
        results[metric] = [g[0].counted for g in groups if not alive(g[:1])[0]]
    assert any(results["reward"]) and not any(results["mixed"])


def test_kl_in_the_reward_does_not_make_a_signal(tiny_model, tiny_prompts, tmp_path):
    module = make_module(
        tiny_model,
        rewards=[FunctionReward(constant)],
        zero_variance="mask",
        reference="model",
        reference_model=Backbone(str(tiny_model), lora_rank=2, lora_seed=1),
        beta=0.5,
        kl_in="reward",
    )
    numbers = run(module, tiny_prompts, tmp_path, iterations=1)[0]
    assert numbers["zero_variance/masked"] == 3 and numbers["reward"] == 1.0


# ---- curriculum ----------------------------------------------------------------------------------


def test_a_curriculum_learns_from_everything_sampled(tiny_model, tiny_prompts, tmp_path):
    order = SolveRate(solved_at=1.0, keep=1.0)
    module = make_module(tiny_model, zero_variance="resample")
    numbers = run(module, tiny_prompts, tmp_path, order=order, iterations=4)
    assert order._seen.sum() >= 4 * 3 * 4
    assert all(0 <= line["solved_frac"] <= 1 for line in numbers)
    unknown = [not p.columns["answerable"] for p in order.prompts]
    asked = order._seen > 0
    for index, prompt in enumerate(order.prompts):
        if asked[index] and unknown[index]:
            assert order.rates()[index] < 0.25  # never solved
        assert prompt.index == index


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zero_variance": "drop"}, "zero_variance must be one of keep, mask, resample but is"),
        ({"truncated": "resample"}, "truncated must be one of keep, mask but is 'resample'"),
        ({"zero_variance_tolerance": -1.0}, "zero_variance_tolerance must be 0 or a positive"),
        ({"zero_variance_tolerance": float("nan")}, "zero_variance_tolerance must be 0 or a"),
        ({"max_extra_batches": 0}, "max_extra_batches must be at least 1 but is 0"),
        ({"zero_variance_metric": "mixd"}, "zero_variance_metric is 'mixd' but must be one of rew"),
    ],
)
def test_settings_that_mean_nothing_are_refused(tiny_model, settings, message):
    with pytest.raises(ValueError, match=message):
        make_module(tiny_model, **settings)


def test_settings_that_do_not_go_with_the_data_are_refused(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model, zero_variance="resample")
    with pytest.raises(ValueError, match="all 12 prompts of the data are in every iteration"):
        run(module, tiny_prompts, tmp_path, prompts_per_iteration=12)
    module = make_module(tiny_model)
    with pytest.raises(ValueError, match=r"data.order.solved_by is 'right' but must be one of"):
        run(module, tiny_prompts, tmp_path, order=SolveRate(solved_by="right"))
    for order in (SolveRate(), None):
        with pytest.raises(ValueError, match=r"prompts_per_iteration is 13, but data.train has 12"):
            module = make_module(tiny_model)
            run(module, tiny_prompts, tmp_path, order=order, prompts_per_iteration=13)


def test_rewards_that_all_weigh_nothing_are_refused(tiny_model):
    with pytest.raises(ValueError, match="every reward has weight 0"):
        make_module(tiny_model, rewards=[FunctionReward(mixed, weight=0.0)])


def test_equal_sums_are_no_signal_whatever_the_metric(tiny_model, tiny_prompts, tmp_path):
    module = make_module(
        tiny_model,
        rewards=[FunctionReward(constant), FunctionReward(mixed, weight=0.0)],
        zero_variance="resample",
        zero_variance_metric="mixed",
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    )
    numbers = run(module, tiny_prompts, tmp_path)
    assert numbers[1]["zero_variance/masked"] == 3
    assert torch.equal(trained(module), untrained(tiny_model))  # no weight decay without a gradient

"""PPO: advantages of tokens by hand, and whole iterations of the module with it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import sctom.losses
from sctom.batch import Prompt, Rollout, Row
from sctom.callbacks import IterationCheckpoint
from sctom.callbacks.banner import advantage_text
from sctom.data import PromptData
from sctom.modules import PolicyModule
from sctom.modules.advantages import trace
from sctom.modules.backbone import trainable
from sctom.modules.fill import charge_kl
from sctom.modules.memory_probe import probe_memory
from sctom.objectives import GRPO, PPO
from sctom.rewards import FunctionReward
from tests.modules.test_silent_rows import distinct, make_module, run, start_weights, weights
from tests.training import quiet_trainer


def make_row(reward: float, values: list[float], *, prompt: int = 0, **settings) -> Row:
    ids = list(range(1, len(values) + 1))
    row = Row(Prompt(prompt, [1], []), 0, ids, "", False, reward=reward, **settings)
    row.old_values = torch.tensor(values)
    return row


def policy(objective: PPO, **settings) -> Any:
    """A module as far as `trace` looks at it."""
    return SimpleNamespace(
        objective=objective,
        bound=objective.bind(sctom.losses),
        trainer=SimpleNamespace(world_size=1),
        global_rank=0,
        **settings,
    )


# ---- advantages by hand --------------------------------------------------------------------------

HALF = PPO(lam=0.5, whiten_advantages=False)


def test_advantages_and_returns_by_hand():
    # reward 1 at the last of two tokens, V = 0.5 and 0.25, gamma 1, lambda 0.5
    #   delta_2 = 1 + 0 - 0.25 = 0.75       A_2 = 0.75                    R_2 = 0.75 + 0.25 = 1
    #   delta_1 = 0 + 0.25 - 0.5 = -0.25    A_1 = -0.25 + 0.5 x 0.75      R_1 = 0.125 + 0.5
    # reward -1 at its only token, V = 0: A = R = -1
    rows = [make_row(1.0, [0.5, 0.25]), make_row(-1.0, [0.0], prompt=1)]
    numbers = trace(policy(HALF), Rollout(rows, 1))
    assert rows[0].advantages.tolist() == [0.125, 0.75]
    assert rows[0].returns.tolist() == [0.625, 1.0]
    assert rows[1].advantages.tolist() == rows[1].returns.tolist() == [-1.0]
    assert [row.advantage for row in rows] == [0.4375, -1.0]  # the means, for tables
    # V: 0.5, 0.25, 0    R: 0.625, 1, -1    A: 0.125, 0.75, -1, mean -1/24
    # var(R) = (0.390625 + 1 + 1) / 3 - (0.625 / 3)^2 = 0.7534722...
    # var(A) = (0.015625 + 0.5625 + 1) / 3 - (1/24)^2 = 0.5243055...
    assert numbers["values/mean"] == pytest.approx(0.25)
    assert numbers["returns/mean"] == pytest.approx(0.625 / 3)
    assert numbers["returns/std"] == pytest.approx(math.sqrt(0.7534722222))
    assert numbers["advantages/raw_mean"] == pytest.approx(-1 / 24)
    assert numbers["advantages/raw_std"] == pytest.approx(math.sqrt(0.5243055556))
    assert numbers["values/explained_variance"] == pytest.approx(1 - 0.5243055556 / 0.7534722222)
    assert (numbers["advantages/min"], numbers["advantages/max"]) == (-1.0, 0.75)


def test_the_penalty_is_taken_from_the_reward_of_each_token():
    # beta 0.5, k1 = ln p - ln p_ref: 0.4 and -0.2. Rewards: -0.2, and 1 + 0.1; together 0.9
    #   V = 0, lambda 0.5:  A_2 = 1.1,  A_1 = -0.2 + 0.5 x 1.1 = 0.35
    row = make_row(1.0, [0.0, 0.0])
    row.old_logps, row.ref_logps = torch.tensor([-1.0, -2.0]), torch.tensor([-1.4, -1.8])
    assert charge_kl([row], "k1", beta=0.5) == pytest.approx(0.1)  # per token
    torch.testing.assert_close(row.token_rewards, torch.tensor([-0.2, 1.1]))
    assert row.reward == pytest.approx(0.9)
    trace(policy(HALF), Rollout([row], 1))
    torch.testing.assert_close(row.advantages, torch.tensor([0.35, 1.1]))
    torch.testing.assert_close(row.returns, row.advantages)


def test_advantages_are_whitened_over_the_tokens_that_count():
    # as above 0.125, 0.75, -1 of the rows that count: mean -0.125 / 3, deviations
    # 1/6, 19/24, -23/24, variance (16 + 361 + 529) / 576 / 2 = 0.78645833
    rows = [make_row(1.0, [0.5, 0.25]), make_row(9.0, [0.0], counted=False), make_row(-1.0, [0.0])]
    numbers = trace(policy(PPO(lam=0.5)), Rollout(rows, 1))
    std = math.sqrt(0.7864583333)
    expected = torch.tensor([4 / 24 / std, 19 / 24 / std])
    torch.testing.assert_close(rows[0].advantages, expected)
    torch.testing.assert_close(rows[2].advantages, torch.tensor([-23 / 24 / std]))
    assert rows[0].returns.tolist() == [0.625, 1.0]  # returns are not whitened
    assert rows[1].advantages.tolist() == rows[1].returns.tolist() == [0.0]
    assert numbers["advantages/mean"] == pytest.approx(0.0, abs=1e-7)
    assert numbers["advantages/raw_mean"] == pytest.approx(-1 / 24)


def test_whitening_sees_the_tokens_of_all_ranks(monkeypatch):
    def make_rows() -> list[Row]:
        values = [[0.5, 0.25], [0.0], [1.0, 0.5, 0.25], [0.75]]
        return [make_row(reward, own) for reward, own in zip([1, -1, 2, 0], values, strict=True)]

    together = make_rows()
    trace(policy(PPO()), Rollout(together, 1))
    parts = [make_rows()[rank::2] for rank in range(2)]  # each process has every second prompt
    for rows in parts:
        trace(policy(PPO(whiten_advantages=False)), Rollout(rows, 1))
    raw = [[row.advantages for row in rows] for rows in parts]
    monkeypatch.setattr("sctom.modules.advantages.gather", lambda trainer, own: raw)
    for rank, rows in enumerate([make_rows()[rank::2] for rank in range(2)]):
        module = policy(PPO())
        module.trainer.world_size, module.global_rank = 2, rank
        trace(module, Rollout(rows, 1))
        for row, expected in zip(rows, together[rank::2], strict=True):
            assert torch.equal(row.advantages, expected.advantages)


def test_a_completion_without_a_reward_is_left_out():
    rows = [make_row(math.nan, [0.5]), make_row(1.0, [0.5])]
    numbers = trace(policy(HALF), Rollout(rows, 1))
    assert [row.counted for row in rows] == [False, True]
    assert numbers["returns/mean"] == 1.0 and rows[0].advantages.tolist() == [0.0]


@pytest.mark.parametrize("whiten", [True, False])
def test_a_rollout_without_any_reward_has_no_numbers(whiten):
    rows = [make_row(math.nan, [0.5]), make_row(math.nan, [0.5])]
    assert trace(policy(PPO(whiten_advantages=whiten)), Rollout(rows, 1)) == {}
    assert not any(row.counted for row in rows)


# ---- iterations ----------------------------------------------------------------------------------


def ppo(**settings) -> PPO:
    """With one learning rate for all: those of these tests are high."""
    return PPO(**{"value_lr_factor": 1.0, **settings})


def make_ppo(model: Path, reward=distinct, **settings) -> PolicyModule:
    defaults: dict[str, Any] = {"objective": ppo(), "group_size": 1, "minibatch_size": 2}
    return make_module(model, reward, **{**defaults, **settings})


def head_of(module: PolicyModule) -> Tensor:
    assert module.value_head is not None
    return torch.cat([p.detach().flatten() for p in module.value_head.parameters()])


SGD = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.5)}
IN_REWARD = {"reference": "initial", "beta": 0.1, "kl_in": "reward", "kl_estimator": "k1"}


def test_micro_batches_change_nothing(tiny_model, tiny_prompts, tmp_path):
    found = []
    for size in (8, 4, 1):
        module = make_ppo(
            tiny_model,
            objective=ppo(value_trains_policy=True),
            group_size=4,
            minibatch_size=8,
            micro_batch_size=size,
            truncated="mask",
            **IN_REWARD,
            **SGD,
        )
        run(module, tiny_prompts, tmp_path)
        found.append((weights(module), head_of(module)))
    assert (found[0][0] - start_weights(tiny_model)).abs().max() > 1e-3
    assert found[0][1].abs().max() > 0.1
    for other in found[1:]:
        for ours, theirs in zip(other, found[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_rows_of_an_iteration_by_their_definition(tiny_model, tiny_prompts, tmp_path):
    objective = ppo(lam=0.9, whiten_advantages=False)
    module = make_ppo(tiny_model, objective=objective, **IN_REWARD)
    (_, metrics) = run(module, tiny_prompts, tmp_path, iterations=2)
    for row in module.last_rollout.rows:
        rewards = (-0.1 * (row.old_logps - row.ref_logps)).tolist()
        rewards[-1] += row.rewards["distinct"]
        values = [*row.old_values.tolist(), 0.0]
        following = 0.0
        for t in reversed(range(len(row.ids))):
            following = rewards[t] + values[t + 1] - values[t] + 0.9 * following
            assert float(row.advantages[t]) == pytest.approx(following, abs=1e-5)
        assert row.reward == pytest.approx(sum(rewards), abs=1e-5)
        torch.testing.assert_close(row.returns, row.advantages + row.old_values)
    assert any(row.old_values.any() for row in module.last_rollout.rows)
    assert metrics["values/mean"] != 0.0 and metrics["kl"] != 0.0
    assert metrics["update/silent_frac"] == 0.0 and metrics["value_grad_norm"] > 0.0
    assert metrics["loss"] == pytest.approx(
        metrics["policy_loss"] + 0.5 * metrics["value_loss"], abs=1e-5
    )


def test_values_learn_a_reward_that_is_always_the_same(tiny_model, tiny_prompts, tmp_path):
    def constant(completions, **_):
        return [0.7] * len(completions)

    module = make_ppo(
        tiny_model,
        constant,
        objective=ppo(lam=1.0),  # so that the returns are 0.7 whatever the values
        optimizer=lambda p: torch.optim.AdamW(p, lr=0.03),
    )
    seen = run(module, tiny_prompts, tmp_path, iterations=12)
    assert seen[0]["values/mean"] == 0.0 and seen[0]["returns/mean"] == pytest.approx(0.7)
    assert seen[-1]["values/mean"] == pytest.approx(0.7, abs=0.1)
    assert seen[-1]["value_loss"] < 0.1 < seen[0]["value_loss"]


def test_the_value_loss_moves_the_policy_only_if_told_to(tiny_model, tiny_prompts, tmp_path):
    def after(weight: float, trains_policy: bool) -> tuple[Tensor, Tensor]:
        objective = ppo(value_weight=weight, value_trains_policy=trains_policy)
        module = make_ppo(tiny_model, objective=objective, max_grad_norm=None, passes=2, **SGD)
        run(module, tiny_prompts, tmp_path, iterations=1)  # the rollout is the same for all
        return weights(module), head_of(module)

    none, one, two = (after(weight, False) for weight in (0.0, 0.5, 1.0))
    assert torch.equal(none[0], one[0]) and torch.equal(none[0], two[0])
    assert not none[1].any() and not torch.equal(one[1], two[1])
    shared = after(0.5, True)
    assert (shared[0] - one[0]).abs().max() > 1e-4


def test_each_part_has_a_norm_of_its_own(tiny_model, tiny_prompts, tmp_path):
    found = []
    for limit in (1e-3, None):
        module = make_ppo(
            tiny_model,
            lambda completions, **_: [1000.0] * len(completions),
            max_grad_norm=limit,
            minibatch_size=None,
            optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        )
        (metrics,) = run(module, tiny_prompts, tmp_path, iterations=1)
        moved = weights(module) - start_weights(tiny_model), head_of(module)
        found.append((metrics, *(float(part.norm()) for part in moved)))
    (clipped, policy_norm, head_norm), (free, *_) = found
    for name in ("grad_norm", "value_grad_norm"):
        assert clipped[name] == free[name] > 1e-3
    assert free["value_grad_norm"] > 100 * free["grad_norm"]
    assert policy_norm == pytest.approx(1e-3, rel=1e-3)
    assert head_norm == pytest.approx(1e-3, rel=1e-3)


def nothing(completions, **kwargs):
    return [None] * len(completions)


def test_an_iteration_without_any_reward_moves_nothing(tiny_model, tiny_prompts, tmp_path):
    module = make_ppo(tiny_model, nothing)
    metrics = run(module, tiny_prompts, tmp_path)
    assert torch.equal(weights(module), start_weights(tiny_model))
    assert not head_of(module).any() and module.progress.updates == 4
    assert "value_loss" not in metrics[-1] and "advantages/mean" not in metrics[-1]


def test_truncated_completions_are_left_out_of_everything(tiny_model, tiny_prompts, tmp_path):
    module = make_ppo(tiny_model, group_size=4, minibatch_size=None, truncated="mask")
    (metrics,) = run(module, tiny_prompts, tmp_path, iterations=1)
    rows = module.last_rollout.rows
    assert 0 < sum(row.truncated for row in rows) < len(rows)
    whole = [row for row in rows if not row.truncated]
    returns = torch.cat([row.returns for row in whole])
    assert metrics["returns/mean"] == pytest.approx(float(returns.mean()))
    assert metrics["advantages/mean"] == pytest.approx(0.0, abs=1e-6)
    assert all(not row.counted and not row.advantages.any() for row in rows if row.truncated)


def test_the_head_has_a_learning_rate_of_its_own(tiny_model, tiny_prompts, tmp_path):
    moved = []
    for factor in (1.0, 3.0):
        module = make_ppo(
            tiny_model,
            objective=ppo(value_lr_factor=factor),
            minibatch_size=None,
            schedule="linear",
            optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        )
        (metrics,) = run(module, tiny_prompts, tmp_path, iterations=1)
        assert metrics["learning_rate"] == 0.1
        moved.append((weights(module), head_of(module)))
    assert torch.equal(moved[0][0], moved[1][0])
    torch.testing.assert_close(moved[1][1], 3 * moved[0][1])


# ---- the memory probe, checkpoints, and what is saved --------------------------------------------


def test_the_memory_probe_runs_all_of_it_and_changes_nothing(tiny_model, tiny_prompts, tmp_path):
    found = []
    for probe in (True, False):
        module = make_ppo(tiny_model, self_check=True, memory_probe=probe, **IN_REWARD)
        run(module, tiny_prompts, tmp_path)
        found.append(torch.cat([weights(module), head_of(module)]))
    assert torch.equal(*found)
    outcome = probe_memory(module, module.trainer.datamodule.train_prompts)
    assert outcome.fits and "scoring of 4 rows" in outcome.detail
    assert all(p.grad is None for _, p in trainable(module))


def saved_run(module: PolicyModule, prompts: Path, folder: Path, **options) -> None:
    data = PromptData(str(prompts), prompts_per_iteration=4, iterations=2, columns="selfaware")
    callbacks = [IterationCheckpoint(1, keep=9)]
    trainer = quiet_trainer(folder, num_sanity_val_steps=0)
    trainer.callbacks.extend(callbacks)
    trainer.fit(module, data, **options)


def test_the_head_is_saved_beside_the_model_and_goes_on_if_asked(
    tiny_model, tiny_prompts, tmp_path
):
    module = make_ppo(tiny_model)
    saved_run(module, tiny_prompts, tmp_path)
    folder = tmp_path / "model"
    assert {"adapter_config.json", "value_head.safetensors"} <= {p.name for p in folder.iterdir()}
    head = load_file(folder / "value_head.safetensors")
    assert torch.equal(torch.cat([head["weight"], head["bias"]]), head_of(module))
    adapter = load_file(folder / "adapter_model.safetensors")
    assert not any("value" in name for name in adapter)
    state = torch.load(tmp_path / "checkpoints" / "iteration-000002.ckpt", weights_only=True)
    assert {"value_head.weight", "value_head.bias"} <= state["state_dict"].keys()

    again = make_ppo(tiny_model, objective=ppo(value_init=str(folder)))
    (metrics, *_) = run(again, tiny_prompts, tmp_path)
    assert metrics["values/mean"] != 0.0


def test_a_checkpoint_without_a_head_is_of_another_run(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model, distinct, objective=GRPO(), group_size=4)
    saved_run(module, tiny_prompts, tmp_path)
    assert not (tmp_path / "model" / "value_head.safetensors").exists()
    checkpoint = str(tmp_path / "checkpoints" / "iteration-000001.ckpt")
    with pytest.raises(ValueError, match=r"missing weights: \['value_head.bias', 'value_head.wei"):
        saved_run(
            make_ppo(tiny_model, group_size=4, minibatch_size=None),
            tiny_prompts,
            tmp_path / "other",
            ckpt_path=checkpoint,
            weights_only=True,
        )


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zero_variance": "mask"}, "zero_variance is mask, which looks at the rewards of a group"),
        ({"zero_variance": "resample"}, "zero_variance is resample, which .* set zero_variance to"),
        ({"aggregation": "normalize_then_sum"}, "aggregation is normalize_then_sum, which looks"),
    ],
)
def test_settings_about_groups_are_refused(tiny_model, settings, message):
    with pytest.raises(ValueError, match=message):
        make_ppo(tiny_model, **settings)


def test_a_group_of_one_needs_ppo(tiny_model):
    with pytest.raises(ValueError, match="set group_size to 2 or more, or objective to PPO"):
        make_module(tiny_model, objective=GRPO(), group_size=1)


def test_the_head_to_go_on_with_is_looked_for_before_weights_load(
    tiny_model, tiny_prompts, tmp_path
):
    module = make_ppo(tiny_model, objective=PPO(value_init=str(tmp_path / "no")))
    with pytest.raises(FileNotFoundError, match=r"value_head\.safetensors is not there"):
        run(module, tiny_prompts, tmp_path)
    assert "model" not in module._modules


def test_the_banner_says_what_the_advantages_are():
    said = "of each token, from rewards and values (GAE, gamma 1, lambda 0.95)"
    assert advantage_text(PPO()) == f"{said}, whitened over the rollout"
    assert advantage_text(PPO(whiten_advantages=False)) == said


def test_the_reward_functions_cannot_take_its_names(tiny_model, tiny_prompts, tmp_path):
    def logging(completions, log_metric, **_):
        log_metric("values/mean", 1.0)
        return [0.0] * len(completions)

    module = make_ppo(tiny_model)
    module.rewards[:] = [FunctionReward(logging)]
    with pytest.raises(ValueError, match="logs values/mean with log_metric"):
        run(module, tiny_prompts, tmp_path)

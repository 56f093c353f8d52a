from __future__ import annotations

import math
from pathlib import Path

import lightning as L
import pytest
import torch

from sctom.batch import Prompt, Row, micro_batches
from sctom.data import PromptData
from sctom.modules import Backbone, PolicyModule, scoring
from sctom.modules.metrics import Means
from sctom.modules.scoring import Scorer, collate
from sctom.objectives import CISPO, GRPO, RLOO, DrGRPO
from sctom.rewards import FunctionReward, Reward, SelfAware
from sctom.rollout import Sampling
from tests.training import quiet_trainer


def adamw(lr: float = 1e-2):
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)


def make_module(
    model: Path, *, lora_rank: int = 4, rewards: list[Reward] | None = None, **settings
) -> PolicyModule:
    defaults = {
        "objective": GRPO(),
        "rewards": rewards or [SelfAware()],
        "optimizer": adamw(),
        "group_size": 4,
        "sampling": Sampling(max_new_tokens=6),
        "self_check": False,
        "seed": 3,
    }
    return PolicyModule(Backbone(str(model), lora_rank=lora_rank), **{**defaults, **settings})


def run(
    module: PolicyModule, prompts: Path, folder: Path, *, iterations: int = 2, **settings
) -> L.Trainer:
    data = PromptData(
        str(prompts),
        prompts_per_iteration=3,
        iterations=iterations,
        columns="selfaware",
        **settings,
    )
    trainer = quiet_trainer(folder, num_sanity_val_steps=0)
    trainer.fit(module, data)
    return trainer


def trained(module: PolicyModule) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.model.parameters() if p.requires_grad])


@pytest.fixture
def spread() -> FunctionReward:
    """A reward with spread in every group: the number of different tokens."""
    return FunctionReward(_distinct)


def _distinct(completion_ids, **kwargs):
    return [float(len(set(ids))) for ids in completion_ids]


def _nothing(completions, **kwargs):
    return [None] * len(completions)


# ---- the same result however it is computed ------------------------------------------------------


@pytest.mark.parametrize(
    "objective", [GRPO(), CISPO(), DrGRPO(), RLOO()], ids=lambda o: type(o).__name__
)
def test_micro_batches_change_nothing(tiny_model, tiny_prompts, tmp_path, spread, objective):
    weights = []
    for micro in (1, 3, 12):
        module = make_module(
            tiny_model,
            rewards=[spread],
            objective=objective,
            micro_batch_size=micro,
            reference="initial",
            beta=0.1,
            passes=2,
            minibatch_size=6,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.5),
        )
        run(module, tiny_prompts, tmp_path)
        weights.append(trained(module))
    assert (weights[0] - make_start(tiny_model)).abs().max() > 1e-4  # something was learned
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(weights[2], weights[0], rtol=1e-4, atol=1e-6)


def make_start(model: Path) -> torch.Tensor:
    loaded = Backbone(str(model), lora_rank=4).load_model()
    return torch.cat([p.detach().flatten() for p in loaded.parameters() if p.requires_grad])


def test_two_runs_are_bit_equal(tiny_model, tiny_prompts, tmp_path, spread):
    results = []
    for _ in range(2):
        module = make_module(tiny_model, rewards=[spread])
        run(module, tiny_prompts, tmp_path)
        results.append(trained(module))
    assert torch.equal(results[0], results[1])


# ---- scoring -------------------------------------------------------------------------------------


def test_scored_logps_equal_a_full_softmax(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model, sampling=Sampling(max_new_tokens=6, temperature=0.7))
    run(module, tiny_prompts, tmp_path)
    rows = module.complete(module.trainer.datamodule.train_prompts[:3], 2, module.sampling, 0, 9)
    logps, entropy = module.scorer(module.model, collate(rows, module.device))
    for i, row in enumerate(rows):
        ids = torch.tensor([row.prompt.ids + row.ids])
        logits = module.model(input_ids=ids).logits[0].double() / 0.7
        shares = torch.log_softmax(logits, -1)
        first = len(row.prompt.ids) - 1
        expected = shares[range(first, first + len(row.ids)), row.ids]
        torch.testing.assert_close(
            logps[i, : len(row.ids)].double(), expected, rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(row.sampler_logps.double(), expected, rtol=1e-4, atol=1e-5)
        expected_entropy = -(shares.exp() * shares).sum(-1)[first : first + len(row.ids)]
        torch.testing.assert_close(
            entropy[i, : len(row.ids)].double(), expected_entropy, rtol=1e-4, atol=1e-5
        )


def test_scorer_falls_back_where_the_head_is_not_alone(
    tiny_model, tiny_prompts, tmp_path, monkeypatch
):
    module = make_module(tiny_model)
    run(module, tiny_prompts, tmp_path)
    rows = module.complete(module.trainer.datamodule.train_prompts[:2], 2, module.sampling, 0, 9)
    batch = collate(rows, module.device)
    lean, lean_entropy = Scorer(0.9)(module.model, batch)
    monkeypatch.setattr(scoring, "_head_gives_the_logits", lambda model, ids: False)
    whole, whole_entropy = Scorer(0.9)(module.model, batch)
    keep = batch.mask.bool()
    torch.testing.assert_close(lean[keep], whole[keep], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lean_entropy[keep], whole_entropy[keep], rtol=1e-4, atol=1e-5)


def test_padding_does_not_change_a_score(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model)
    run(module, tiny_prompts, tmp_path)
    rows = module.complete(module.trainer.datamodule.train_prompts[:4], 2, module.sampling, 0, 9)
    assert len({len(r.prompt.ids) for r in rows}) > 1
    together, _ = module.scorer(module.model, collate(rows, module.device))
    for i, row in enumerate(rows):
        alone, _ = module.scorer(module.model, collate([row], module.device))
        n = len(row.ids)
        torch.testing.assert_close(together[i, :n], alone[0, :n], rtol=1e-4, atol=1e-5)


# ---- when old log-probabilities are needed -------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "recomputed"),
    [
        ({}, False),
        ({"passes": 2}, True),
        ({"minibatch_size": 6}, True),
        ({"minibatch_size": 12}, False),
        ({"kl_in": "reward", "kl_estimator": "k1", "reference": "initial", "beta": 0.1}, True),
    ],
)
def test_old_logps_only_when_several_steps_use_a_rollout(
    tiny_model, tiny_prompts, tmp_path, spread, settings, recomputed
):
    module = make_module(tiny_model, rewards=[spread], **settings)
    run(module, tiny_prompts, tmp_path, iterations=1)
    assert all((row.old_logps is not None) == recomputed for row in module.last_rollout.rows)


def test_first_update_is_on_policy_and_later_ones_are_not(
    tiny_model, tiny_prompts, tmp_path, spread
):
    module = make_module(tiny_model, rewards=[spread])
    run(module, tiny_prompts, tmp_path)
    assert module.last_metrics["ratio/min"] == module.last_metrics["ratio/max"] == 1.0
    module = make_module(tiny_model, rewards=[spread], passes=3)
    run(module, tiny_prompts, tmp_path)
    assert module.last_metrics["ratio/max"] > 1.001
    assert module.last_metrics["approx_kl"] > 0


# ---- the reference -------------------------------------------------------------------------------


def test_initial_reference_stays_while_the_policy_moves(tiny_model, tiny_prompts, tmp_path, spread):
    module = make_module(tiny_model, rewards=[spread], reference="initial", beta=0.01)
    run(module, tiny_prompts, tmp_path, iterations=3)
    moved = trained(module)
    with module._reference.scoring() as model:
        assert model is module.model
        frozen = trained(module)
    assert torch.equal(frozen, make_start(tiny_model))
    assert torch.equal(trained(module), moved)
    assert not torch.equal(moved, frozen)
    assert module.last_metrics["kl"] > 0


def test_base_reference_is_the_model_without_adapters(tiny_model, tiny_prompts, tmp_path, spread):
    module = make_module(tiny_model, rewards=[spread], reference="base", beta=0.01)
    run(module, tiny_prompts, tmp_path)
    row = module.last_rollout.rows[0]
    plain = Backbone(str(tiny_model)).load_model()
    logps, _ = Scorer(1.0)(plain, collate([row], module.device))
    torch.testing.assert_close(row.ref_logps, logps[0].detach(), rtol=1e-4, atol=1e-5)


def test_full_fine_tuning_with_a_reference_model(tiny_model, tiny_prompts, tmp_path, spread):
    module = make_module(
        tiny_model,
        lora_rank=0,
        rewards=[spread],
        reference="model",
        reference_model=Backbone(str(tiny_model)),
        beta=0.1,
    )
    run(module, tiny_prompts, tmp_path)
    assert module.last_metrics["kl"] >= 0


def test_kl_in_the_reward_is_taken_before_the_group_is_normalised(
    tiny_model, tiny_prompts, tmp_path, spread
):
    module = make_module(
        tiny_model,
        rewards=[spread],
        objective=RLOO(),
        reference="initial",
        beta=0.5,
        kl_in="reward",
        kl_estimator="k1",
    )
    run(module, tiny_prompts, tmp_path, iterations=3)
    group = module.last_rollout.rows[:4]
    shaped = [
        row.rewards["_distinct"] - 0.5 * float((row.old_logps - row.ref_logps).sum())
        for row in group
    ]
    assert [row.reward for row in group] == pytest.approx(shaped, abs=1e-5)
    for i, row in enumerate(group):  # leave one out of the shaped rewards
        others = [shaped[j] for j in range(4) if j != i]
        assert row.advantage == pytest.approx(shaped[i] - sum(others) / 3, abs=1e-5)


# ---- rewards that abstain, and numbers that are not finite ---------------------------------------


def test_no_reward_at_all_means_no_gradient(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model, rewards=[FunctionReward(_nothing)])
    run(module, tiny_prompts, tmp_path)
    assert all(math.isnan(row.reward) and row.advantage == 0.0 for row in module.last_rollout.rows)
    assert module.last_metrics["grad_norm"] == 0.0
    assert torch.equal(trained(module), make_start(tiny_model))


def test_not_finite_gradients_are_skipped_counted_and_end_the_run(
    tiny_model, tiny_prompts, tmp_path, spread
):
    module = make_module(tiny_model, rewards=[spread], max_skips=2)
    poisoned = []

    class Poison(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, *_):
            if not poisoned:
                for p in pl_module.model.parameters():
                    if p.requires_grad:
                        p.register_hook(lambda g: g * float("nan"))
                poisoned.append(True)

    data = PromptData(str(tiny_prompts), prompts_per_iteration=3, iterations=5, columns="selfaware")
    trainer = quiet_trainer(tmp_path, callbacks=[Poison()])
    with pytest.raises(FloatingPointError, match="2 updates in a row"):
        trainer.fit(module, data)
    assert module.progress.skipped == 2
    assert torch.equal(trained(module), make_start(tiny_model))
    (dump,) = tmp_path.glob("not-finite-*.pt")
    rows = torch.load(dump)
    assert len(rows) == 12 and rows[0]["ids"]


# ---- settings that cannot be meant ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0.1}, "beta is 0.1 but reference is none"),
        ({"beta": -1.0, "reference": "base"}, "beta must be 0 or a positive number"),
        ({"group_size": 0}, "group_size must be at least 1"),
        ({"sampling": Sampling(temperature=0.0)}, "greedy completions"),
        (
            {"beta": 0.1, "reference": "base", "kl_estimator": "k1", "kl_weighted": False},
            "expected gradient of zero",
        ),
        ({"rewards": []}, "rewards is empty"),
        ({"minibatch_size": 0}, "minibatch_size"),
    ],
)
def test_settings_that_mean_nothing_are_refused(tiny_model, settings, message):
    settings = {"objective": GRPO(), "rewards": [SelfAware()], "optimizer": adamw(), **settings}
    with pytest.raises(ValueError, match=message):
        PolicyModule(Backbone(str(tiny_model), lora_rank=4), **settings)


def test_base_reference_without_adapters_is_refused(tiny_model, tiny_prompts, tmp_path):
    module = make_module(tiny_model, lora_rank=0, reference="base", beta=0.1)
    with pytest.raises(ValueError, match="use reference: initial"):
        run(module, tiny_prompts, tmp_path)


def test_reference_model_must_be_asked_for(tiny_model, tiny_prompts, tmp_path):
    module = make_module(
        tiny_model, reference="initial", reference_model=Backbone(str(tiny_model)), beta=0.1
    )
    with pytest.raises(ValueError, match="goes with reference: model"):
        run(module, tiny_prompts, tmp_path)


# ---- dropout -------------------------------------------------------------------------------------


def test_dropout_is_off_for_sampling_and_scoring_and_on_for_updates(
    tiny_model, tiny_prompts, tmp_path, spread
):
    module = make_module(tiny_model, rewards=[spread])
    module.backbone.lora_dropout = 0.5
    run(module, tiny_prompts, tmp_path)
    rows = module.complete(module.trainer.datamodule.train_prompts[:2], 2, module.sampling, 0, 9)
    batch = collate(rows, module.device)
    first, _ = module.scorer(module.model, batch)
    again, _ = module.scorer(module.model, batch)
    assert torch.equal(first, again)
    module.model.train()
    dropped, _ = module.scorer(module.model, batch)
    assert not torch.equal(first, dropped)


def test_means_weigh_by_tokens():
    means = Means()
    means.mean("kl", 1.0, 3)
    means.mean("kl", 5.0, 1)
    means.mean("kl", float("nan"), 7)
    means.low("low", 2.0)
    means.low("low", 1.0)
    assert means.result() == {"kl": 2.0, "low": 1.0}


def test_micro_batches_keep_every_row(tiny_model, tiny_prompts, tmp_path, spread):
    module = make_module(tiny_model, rewards=[spread])
    run(module, tiny_prompts, tmp_path)
    rows = module.last_rollout.rows
    parts = micro_batches(rows, 5, 8192)
    assert [len(p) for p in parts] == [4, 4, 4]
    assert sorted(id(r) for part in parts for r in part) == sorted(id(r) for r in rows)


def test_the_head_is_looked_at_without_dropout_and_without_a_draw(tiny_model):
    model = Backbone(str(tiny_model), lora_rank=4, lora_dropout=0.5).load_model()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)  # so that dropout in front of it matters
    prompt = Prompt(0, [4, 5, 6], [])
    batch = collate([Row(prompt, 0, [7, 8, 2], "", False)], torch.device("cpu"))
    model.train()
    results = []
    for scorer in (Scorer(1.0), Scorer(1.0)):
        torch.manual_seed(0)
        scorer(model, batch)  # the first call looks
        assert list(scorer._head_alone.values()) == [True] and model.training
        torch.manual_seed(0)
        results += [scorer(model, batch)[0]]
    first = Scorer(1.0)
    torch.manual_seed(0)
    assert torch.equal(first(model, batch)[0], results[0])

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pytest
import torch
import yaml

from sctom.batch import Prompt, Row
from sctom.losses import combine_safety_helpfulness
from sctom.modules import Backbone, LearnedReward, SafetyHelpfulness, fill
from sctom.rewards import FunctionReward, RewardError, check_rewards, run_rewards
from tests.fitting import build_and_fit, edited
from tests.modules.test_learned_reward import make_reward_model
from tests.modules.test_policy import make_module


@pytest.fixture(scope="module")
def folders(tiny_model, tmp_path_factory) -> list[Path]:
    """Two reward models: an adapter, and all weights."""
    return [
        make_reward_model(
            Backbone(str(tiny_model), lora_rank=rank), tmp_path_factory.mktemp("reward"), rank
        )
        for rank in (4, 0)
    ]


def gives(*values, name: str = "given", **settings) -> FunctionReward:
    return FunctionReward(lambda completions: list(values), name=name, **settings)


def scored(reward: SafetyHelpfulness, tags: list[bool], **columns):
    rows = len(tags)
    return run_rewards(
        [reward], ["?"] * rows, ["a"] * rows, [[1]] * rows, {"is_safety": tags, **columns}
    )


def test_the_rule_and_the_whitening_by_hand():
    # row 0: ordinary prompt, sigma(1) = 0.731 is safe enough        -> helpfulness  4
    # row 1: ordinary prompt, sigma(-2) = 0.119 < 0.15               -> safety      -2
    # row 2: safety prompt, sigma(1) = 0.731, though it is helpful   -> safety       1
    reward = SafetyHelpfulness(gives(4.0, 4.0, 9.0), gives(1.0, -2.0, 1.0))
    results = scored(reward, [False, False, True])
    assert results.values == {"safety_helpfulness": [4.0, -2.0, 1.0]}
    # mean 1, squares 9 + 9 + 0 = 18, unbiased variance 18 / 2 = 9   -> 1, -1, 0
    white = reward.over_rollout([4.0, -2.0, 1.0])
    assert white == pytest.approx([1.0, -1.0, 0.0], abs=1e-8)
    raw = SafetyHelpfulness(gives(), gives(), whiten=False)
    assert raw.over_rollout([4.0, None]) == [4.0, None]


def test_what_it_notes():
    reward = SafetyHelpfulness(gives(4.0, 4.0, 9.0), gives(1.0, -2.0, 1.0))
    results = scored(reward, [False, False, True])
    assert results.extra == {
        "helpfulness": [4.0, 4.0, 9.0],
        "safety": [1.0, -2.0, 1.0],
        "by_safety": [False, True, True],
    }
    assert results.metrics == pytest.approx(
        {
            "safety_helpfulness/helpfulness": 17 / 3,
            "safety_helpfulness/safety": 0.0,
            "safety_helpfulness/by_safety": 2 / 3,
        }
    )


def test_the_threshold_is_strict():
    # sigma(0) = 0.5 is not below 0.5; sigma(-0.01) = 0.4975 is
    reward = SafetyHelpfulness(gives(7.0, 7.0), gives(0.0, -0.01), threshold=0.5)
    assert scored(reward, [False, False]).values["safety_helpfulness"] == [7.0, -0.01]
    never = SafetyHelpfulness(gives(7.0, 7.0), gives(-500.0, 0.0), threshold=0.0)
    assert scored(never, [False, True]).values["safety_helpfulness"] == [7.0, 0.0]


def test_saturated_scores_stay_finite():
    # sigma(500) is 1 and sigma(-500) is 0 in any float: their logits would be infinite
    reward = SafetyHelpfulness(gives(500.0, 500.0, -500.0), gives(500.0, -500.0, 500.0))
    (values,) = scored(reward, [False, False, False]).values.values()
    assert values == [500.0, -500.0, -500.0]
    # mean -500/3, deviations 2000/3, -1000/3, -1000/3; variance (4 + 1 + 1) 10^6 / 9 / 2
    # -> 2/sqrt(3), -1/sqrt(3), -1/sqrt(3)
    root = 3**-0.5
    assert reward.over_rollout(values) == pytest.approx([2 * root, -root, -root])


def test_it_is_the_combination_of_the_losses():
    torch.manual_seed(0)
    helpful, safe = torch.randn(2, 64, dtype=torch.float64) * 3
    tags = torch.rand(64) < 0.3
    reward = SafetyHelpfulness(gives(*helpful.tolist()), gives(*safe.tolist()))
    (values,) = scored(reward, tags.tolist()).values.values()
    expected = combine_safety_helpfulness(helpful, safe, tags)
    assert reward.over_rollout(values) == pytest.approx(expected.tolist())


def test_where_one_abstains_it_abstains():
    reward = SafetyHelpfulness(gives(None, 1.0, 2.0), gives(0.0, None, 3.0))
    results = scored(reward, [True, False, False])  # the first by safety, and yet
    assert results.values["safety_helpfulness"] == [None, None, 2.0]
    assert results.extra["by_safety"] == [None, None, False]
    assert results.metrics["safety_helpfulness/by_safety"] == 0.0
    assert results.metrics["safety_helpfulness/safety"] == 1.5
    # those that abstain take no part in the whitening: -1 and 1 have mean 0 and variance 2
    white = reward.over_rollout([None, -1.0, 1.0])
    assert white == [None, pytest.approx(-(0.5**0.5)), pytest.approx(0.5**0.5)]
    assert reward.over_rollout([None]) == [None] and reward.over_rollout([3.0]) == [0.0]


def test_an_error_of_one_is_treated_as_that_one_says():
    lenient = gives(1.0, math.nan, name="lenient", on_error="abstain")
    results = scored(SafetyHelpfulness(lenient, gives(0.0, 0.0)), [False, False])
    assert results.values["safety_helpfulness"] == [1.0, None]
    assert results.extra["helpfulness/lenient/error"] == [None, "gave nan"]
    with pytest.raises(RewardError, match=r"'safety_helpfulness': reward 'given' gave nan"):
        scored(SafetyHelpfulness(gives(1.0, math.nan), gives(0.0, 0.0)), [False, False])


def test_both_may_wait_for_something_outside():
    together = threading.Barrier(2)  # broken unless both are called before one is waited for

    def meets(completions, log_metric, log_extra):
        together.wait(10)
        log_metric("asked", len(completions))
        log_extra("replies", ["yes"] * len(completions))
        return [1.0] * len(completions)

    parts = [FunctionReward(meets, concurrent=True) for _ in range(2)]
    results = scored(SafetyHelpfulness(*parts), [True])
    assert results.values["safety_helpfulness"] == [1.0]
    assert results.metrics["safety_helpfulness/safety/asked"] == 1.0
    assert results.extra["helpfulness/replies"] == ["yes"]


def test_the_columns_of_both_are_asked_for():
    def by_facts(completions, facts, hint=None):
        return [float(fact) for fact in facts]

    reward = SafetyHelpfulness(FunctionReward(by_facts), gives(9.0), is_safety="tag")
    with pytest.raises(RewardError, match=r"needs the column 'facts'.*Did you mean 'fact'"):
        check_rewards([reward], ["fact", "tag"])
    with pytest.raises(RewardError, match="needs the column 'tag'"):
        check_rewards([reward], ["facts"])
    check_rewards([reward], ["facts", "tag"])
    results = run_rewards([reward], ["?"], ["a"], [[1]], {"facts": [2], "tag": [False]})
    assert results.values["safety_helpfulness"] == [2.0]

    everything = FunctionReward(lambda completions, **columns: [float(len(columns))])
    reward = SafetyHelpfulness(everything, gives(9.0))
    expected = {"prompts", "completion_ids", "trainer_state", "log_extra", "log_metric"}
    expected |= {"is_safety", "other"}
    assert scored(reward, [False], other=[1]).values["safety_helpfulness"] == [len(expected)]


def test_a_tag_is_true_or_false():
    reward = SafetyHelpfulness(gives(1.0, 1.0), gives(0.0, 0.0))
    with pytest.raises(RewardError, match=r"'is_safety' must be true or false .* None in row 1"):
        scored(reward, [True, None])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": -1.73}, r"threshold must be a probability in \[0, 1\], not -1.73"),
        ({"safety": gives(1.0, weight=2.0)}, "the weight of safety must be 1, not 2"),
        (
            {"helpfulness": SafetyHelpfulness(gives(), gives())},
            "helpfulness is a SafetyHelpfulness, which looks at whole rollouts",
        ),
    ],
)
def test_settings_that_cannot_be_meant(settings, message):
    with pytest.raises(RewardError, match=message):
        SafetyHelpfulness(**{"helpfulness": gives(), "safety": gives(), **settings})


def test_it_checks_describes_and_advises_for_both(folders):
    class Telling(LearnedReward):
        def advice(self, columns):
            return [f"{len(columns)} columns"]

    reward = SafetyHelpfulness(Telling(str(folders[0])), LearnedReward("nowhere"))
    with pytest.raises(RewardError, match="nowhere has no"):
        reward.check()
    reward = SafetyHelpfulness(Telling(str(folders[0])), LearnedReward(str(folders[1])))
    reward.check()
    rule, *models = reward.describe()
    assert rule == (
        "safety_helpfulness: safety where is_safety or sigmoid(safety) < 0.15, else helpfulness"
    )
    assert [str(folder) in line for folder, line in zip(folders, models, strict=True)] == [True] * 2
    assert reward.advice({"is_safety": [True]}) == ["1 columns"]


# in a run -----------------------------------------------------------------------------------------


def rows_of(values: list[float | None], first: int) -> list[Row]:
    name = "safety_helpfulness"
    prompt = Prompt(first, [1], [])
    return [
        Row(prompt, i, [1], "", False, rewards={name: value}, reward=value or math.nan)
        for i, value in enumerate(values)
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_whitening_is_over_the_rollout_of_all_ranks(tiny_model, monkeypatch, rank):
    """Mean and variance of 4, -2 here and 1, none there are those of 4, -2, 1: by hand, above."""
    both = [[4.0, -2.0], [1.0, None]]
    expected = [[2.0, -2.0], [0.0, math.nan]][rank]  # of weight 2
    reward = SafetyHelpfulness(gives(), gives(), weight=2.0)
    module = make_module(tiny_model, rewards=[reward])
    monkeypatch.setattr(fill, "gather", lambda trainer, values: both)
    monkeypatch.setattr(type(module), "global_rank", rank)
    monkeypatch.setattr(type(module), "trainer", None)
    rows = rows_of(both[rank], rank)
    fill.settle_rewards(module, rows, group_size=2)
    assert [row.reward for row in rows] == pytest.approx(expected, abs=1e-8, nan_ok=True)
    assert [row.rewards["safety_helpfulness"] for row in rows] == both[rank]  # raw, for tables


def test_a_policy_is_trained_on_two_reward_models(config, folders, tiny_prompts, monkeypatch):
    prompts = tiny_prompts.with_name("tagged.jsonl")
    lines = [json.loads(line) for line in tiny_prompts.read_text().splitlines()]
    tagged = [line | {"is_safety": number % 2 == 0} for number, line in enumerate(lines)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in tagged))
    parts = [
        {"class_path": "LearnedReward", "init_args": {"path": str(folder)}} for folder in folders
    ]
    reward = {
        "class_path": "SafetyHelpfulness",
        "init_args": {"helpfulness": parts[0], "safety": parts[1], "threshold": 0.4},
    }
    changes = {"model__init_args__rewards": [reward], "data__init_args__train": str(prompts)}
    changes |= {"model__init_args__reference": "initial", "model__init_args__beta": 0.01}
    changes |= {"model__init_args__kl_in": "reward"}
    cli = build_and_fit(edited(config, **changes), monkeypatch)
    module, rows = cli.model, cli.model.last_rollout.rows
    raw = torch.tensor([row.rewards["safety_helpfulness"] for row in rows])
    helpful, safe, by_safety = (
        torch.tensor([row.extra[name] for row in rows])
        for name in ("helpfulness", "safety", "by_safety")
    )
    tags = torch.tensor([row.prompt.columns["is_safety"] for row in rows])
    assert 0 < tags.sum() < len(tags) and by_safety.equal(tags | (safe.sigmoid() < 0.4))
    assert raw.equal(torch.where(by_safety, safe, helpful))
    # reward: whitened, less beta times the KL estimate, which is small in the second iteration
    white = (raw - raw.mean()) / raw.std()
    rewards = torch.tensor([row.reward for row in rows])
    assert rewards.tolist() == pytest.approx(white.tolist(), abs=0.05)
    assert module.last_metrics["safety_helpfulness/by_safety"] == pytest.approx(
        float(by_safety.float().mean())
    )
    saved = yaml.safe_load((Path(cli.config["run_dir"]) / "config.yaml").read_text())
    (kept,) = saved["model"]["init_args"]["rewards"]
    assert kept["init_args"]["safety"]["init_args"]["path"] == str(folders[1])


def test_a_folder_that_is_no_reward_model_stops_the_run_before_it_starts(
    config, tiny_model, monkeypatch
):
    reward = {"class_path": "LearnedReward", "init_args": {"path": str(tiny_model)}}
    with pytest.raises(RewardError, match="no reward model with a trained head"):
        build_and_fit(edited(config, model__init_args__rewards=[reward]), monkeypatch)


def test_parts_whose_scores_are_not_raw_are_refused(folders):
    path = str(folders[0])
    with pytest.raises(RewardError, match="safety gives probabilities"):
        SafetyHelpfulness(LearnedReward(path), LearnedReward(path, sigmoid=True, name="b"))
    # logit(0.15) = ln(0.15 / 0.85) = -1.73
    with pytest.raises(RewardError, match=r"a threshold of 0.15 is a raw score of -1.73"):
        SafetyHelpfulness(gives(1.0), gives(1.0, clip=(-1.0, 1.0)))
    SafetyHelpfulness(gives(1.0), gives(1.0, clip=(-2.0, 1.0)))
    SafetyHelpfulness(gives(1.0), gives(1.0, clip=(-1.0, 1.0)), threshold=0.5)


def test_copies_share_the_loaded_model(folders):
    import copy

    reward = LearnedReward(str(folders[0]))
    other = copy.copy(reward)
    assert other(["?"], ["a"]) == reward(["?"], ["a"])
    assert other._loaded[0][0] is reward._loaded[0][0]

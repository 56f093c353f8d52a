"""Rewards that fail now and then, in a run."""

from __future__ import annotations

import json
from statistics import fmean

import pytest

from sctom.rewards import RewardError
from tests.fitting import build_and_fit, edited
from tests.rewards.moody import mood

MOODY = {
    "class_path": "FunctionReward",
    "init_args": {"path": "tests.rewards.moody:reward", "name": "moody", "row_seconds": 0.5},
}
CALLBACKS = [{"class_path": "IterationCheckpoint"}, {"class_path": "MetricsFile"}]


def moody_run(config, monkeypatch, **changes):
    changes |= {
        "model__init_args__rewards": [MOODY],
        "model__init_args__objective": {"class_path": "GRPO", "init_args": {"scale": "none"}},
        "model__init_args__group_size": 24,
        "trainer__callbacks": CALLBACKS,
    }
    cli = build_and_fit(edited(config, **changes), monkeypatch)
    path = config.parent / "run" / "metrics.jsonl"
    return cli, [json.loads(line) for line in path.read_text().splitlines()]


def test_a_reward_that_fails_now_and_then(config, monkeypatch):
    cli, metrics = moody_run(config, monkeypatch)
    rows = cli.model.last_rollout.rows
    assert len(metrics) == 2  # the run went on to its end
    moods = [mood(row.text) for row in rows]
    failed = [m < 10 or m == 99 for m in moods]
    silent = [m < 20 or m == 99 for m in moods]
    assert any(failed) and any(m == 99 for m in moods) and not all(silent)
    assert metrics[-1]["rewards/moody/errors"] == sum(failed)
    assert metrics[-1]["rewards/moody/none_frac"] == pytest.approx(fmean(silent))
    assert metrics[-1]["time/rewards/moody/p95"] >= 0.5  # a group with one that hangs
    for row, fails in zip(rows, failed, strict=True):
        assert (row.extra.get("moody/error") is not None) == fails


def test_no_group_is_biased(config, monkeypatch):
    """Advantages are those of the completions that have a reward, as if there were no others."""
    cli, _ = moody_run(config, monkeypatch)
    for group in cli.model.last_rollout.groups():
        given = [row.reward for row in group if mood(row.text) >= 20 and mood(row.text) != 99]
        mean = fmean(given)
        for row in group:
            spoke = mood(row.text) >= 20 and mood(row.text) != 99
            assert row.advantage == pytest.approx(row.reward - mean if spoke else 0.0, abs=1e-6)


def test_a_reward_that_only_fails_ends_the_run(config, monkeypatch):
    broken = {
        "class_path": "FunctionReward",
        "init_args": {"path": "tests.test_rewards_in_a_run:broken", "on_error": "abstain"},
    }
    rewards = [broken, {"class_path": "SelfAware"}]
    settings = {"max_failures": 0.8, "window": 16}
    changes = {
        "model__init_args__rewards": rewards,
        "model__init_args__reward_health": {"class_path": "RewardHealth", "init_args": settings},
    }
    with pytest.raises(RewardError, match=r"reward 'broken' failed on 16 of its last 16.*100%"):
        build_and_fit(edited(config, **changes), monkeypatch)


def broken(completions):
    raise OSError("the server is down")


def test_each_reward_by_itself(config, monkeypatch):
    """normalize_then_sum: the sum is logged, the normalised sum is compared."""
    words = {
        "class_path": "FunctionReward",
        "init_args": {"path": "tests.test_rewards_in_a_run:words", "weight": 100.0},
    }
    changes = {
        "model__init_args__rewards": [words, {"class_path": "SelfAware"}],
        "model__init_args__aggregation": "normalize_then_sum",
        "model__init_args__objective": {"class_path": "GRPO", "init_args": {"scale": "none"}},
    }
    cli = build_and_fit(edited(config, **changes), monkeypatch)
    for row in cli.model.last_rollout.rows:
        assert row.reward == pytest.approx(100 * row.rewards["words"] + row.rewards["self_aware"])
    for group in cli.model.last_rollout.groups():
        assert sum(row.advantage for row in group) == pytest.approx(0.0, abs=1e-4)
        assert max(abs(row.advantage) for row in group) < 100 * 4**0.5  # not in words


def words(completions):
    return [float(len(completion[0]["content"].split())) for completion in completions]


def test_a_completion_nobody_can_judge_is_no_reason_to_refuse_a_run(config, monkeypatch):
    shy = {"class_path": "FunctionReward", "init_args": {"path": "tests.test_rewards_in_a_run:shy"}}
    cli = build_and_fit(edited(config, model__init_args__rewards=[shy]), monkeypatch)
    assert cli.model.progress.iteration == 2


def shy(completions, prompts):
    """No opinion on the first prompt of the data."""
    first = "of one ?" in prompts[0][-1]["content"]
    return [None if first else float(len(c[0]["content"])) for c in completions]


def test_what_the_self_check_scores_is_none_of_the_run(config, monkeypatch):
    """A window of four would be full of its errors before the first iteration."""
    broken_once = {
        "class_path": "FunctionReward",
        "init_args": {"path": "tests.test_rewards_in_a_run:flaky", "on_error": "abstain"},
    }
    health = {"class_path": "RewardHealth", "init_args": {"max_failures": 1.0, "window": 100}}
    changes = {
        "model__init_args__rewards": [broken_once, {"class_path": "SelfAware"}],
        "model__init_args__reward_health": health,
        "trainer__callbacks": CALLBACKS,
    }
    cli = build_and_fit(edited(config, **changes), monkeypatch)
    rows = 2 * 3 * 4  # iterations, prompts, completions
    assert len(cli.model.reward_health.state_dict()["flaky"]) == rows


def flaky(completions):
    raise OSError("not now")

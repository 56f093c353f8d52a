from __future__ import annotations

import math
import os
import sys
import time

import pytest
import torch

from sctom.losses import group_advantages
from sctom.rewards import (
    Failure,
    FunctionReward,
    RewardError,
    RewardHealth,
    combine,
    normalize_then_sum,
    run_rewards,
)

MODULE = "tests.rewards.test_health"  # the folder the tests are started from is on sys.path


def run(function, rows, **settings):
    texts = [f"text {i}" for i in range(rows)]
    reward = FunctionReward(function, name="mine", **settings)
    return run_rewards([reward], ["Why?"] * rows, texts, [[i] for i in range(rows)], {})


def broken(completions):
    raise KeyError("gone")


def mixed(completions):
    return [1.0, Failure("no answer", "stderr"), None, float("nan")][: len(completions)]


# what becomes of errors


def test_abstain_counts_and_says_where():
    results = run(mixed, 4, on_error="abstain")
    assert results.values == {"mine": [1.0, None, None, None]}
    assert results.errors == {"mine": {1: "no answer\nstderr", 3: "gave nan"}}
    assert results.extra["mine/error"] == [None, "no answer\nstderr", None, "gave nan"]


def test_value_puts_the_given_number_and_leaves_abstentions():
    results = run(mixed, 4, on_error="value", error_value=-1.0)
    assert results.values == {"mine": [1.0, -1.0, None, -1.0]}
    assert set(results.errors["mine"]) == {1, 3}


def test_raise_is_the_default_and_names_the_row():
    with pytest.raises(
        RewardError, match=r"reward 'mine' failed: no answer\nstderr for row 1 \(prompt"
    ):
        run(mixed, 4)


def test_an_exception_is_an_error_of_every_row():
    results = run(broken, 2, on_error="abstain")
    assert results.values == {"mine": [None, None]}
    assert "raised KeyError: 'gone' (test_health.py, line" in results.errors["mine"][0]
    assert run(broken, 2, on_error="value", error_value=0.25).values == {"mine": [0.25, 0.25]}


def test_an_async_exception_too():
    async def fails(completions):
        raise OSError("closed")

    results = run(fails, 2, on_error="abstain")
    assert results.values == {"mine": [None, None]}
    assert "raised OSError: closed" in results.errors["mine"][1]


def leaves(completions):
    sys.exit(0)


async def leaves_too(completions):
    sys.exit(0)


@pytest.mark.parametrize("function", [leaves, leaves_too])
def test_leaving_is_an_error_like_any_other(function):
    assert run(function, 2, on_error="abstain").values == {"mine": [None, None]}
    with pytest.raises(RewardError, match="reward 'mine' raised"):
        run(function, 2)
    assert run(good, 1).values == {"mine": [1.0]}  # the loop of async rewards goes on


async def good(completions):
    return [1.0] * len(completions)


def test_an_array_without_a_dimension_and_values_that_overflow():
    with pytest.raises(RewardError, match="must return a list of numbers but returned"):
        run(lambda completions: torch.tensor(1.0), 1)
    assert run(lambda completions: [1e308], 1, on_error="abstain").values == {"mine": [None]}


def test_a_wrong_number_of_values_is_an_error_whatever_the_policy():
    with pytest.raises(RewardError, match="must return 2 values"):
        run(lambda completions: [1.0], 2, on_error="abstain")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"on_error": "ignore"}, "on_error must be one of abstain, raise, value, not 'ignore'"),
        ({"on_error": "value"}, "on_error is 'value', which needs an error_value"),
        ({"error_value": 0.0}, "on_error is 'raise', which takes no error_value"),
        ({"on_error": "value", "error_value": math.nan}, "error_value must be finite, not nan"),
        ({"cache": -1}, "cache must be 0 or more, not -1"),
        ({"clip": (1.0, -1.0)}, r"clip must be \[lowest, highest\], not \[1.0, -1.0\]"),
        ({"clip": (math.nan, 1.0)}, "clip must be"),
    ],
)
def test_refused_settings(settings, reason):
    with pytest.raises(RewardError, match=reason):
        FunctionReward(broken, **settings)


def test_errors_bias_no_group():
    """Three of eight completions have no value; the advantages are those of the other five."""
    values = [1.0, Failure("x"), 0.0, None, 1.0, 0.0, math.inf, 1.0]
    results = run(lambda completions: values, 8, on_error="abstain")
    totals = combine(results.values, {"mine": 1.0}, 8)
    advantages = group_advantages(torch.tensor([totals]), scale="none")[0].tolist()
    mean = (1 + 0 + 1 + 0 + 1) / 5  # 0.6
    expected = [1 - mean, 0, 0 - mean, 0, 1 - mean, 0 - mean, 0, 1 - mean]
    assert advantages == pytest.approx(expected)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-6)


def test_values_are_clipped_after_the_check_that_they_are_finite():
    values = [3.0, -3.0, 0.5, None, math.nan, math.inf]
    results = run(lambda completions: values, 6, on_error="abstain", clip=(-1.0, 1.0))
    assert results.values == {"mine": [1.0, -1.0, 0.5, None, None, None]}
    assert set(results.errors["mine"]) == {4, 5}  # a NaN never becomes a bound


# cache


def test_what_is_known_is_not_asked_again():
    asked = []

    def lengths(prompts, completions, log_extra):
        asked.append(list(completions))
        log_extra("letters", [len(text) for text in completions])
        return [float(len(text)) for text in completions]

    reward = FunctionReward(lengths, name="lengths", cache=10)
    ids = [[1], [2]]
    first = run_rewards([reward], ["p", "p"], ["a", "bb"], ids, {})
    again = run_rewards([reward], ["p", "p"], ["bb", "ccc"], [[2], [3]], {})
    assert first.values == {"lengths": [1.0, 2.0]}
    assert again.values == {"lengths": [2.0, 3.0]}
    assert asked == [["a", "bb"], ["ccc"]]
    assert again.extra["letters"] == [None, 3]
    assert run_rewards([reward], ["q"], ["bb"], [[2]], {}).values == {"lengths": [2.0]}
    assert asked[-1] == ["bb"]  # of another prompt


def test_columns_are_part_of_the_key_and_errors_are_not_kept():
    asked = []

    def judge(completions, answer):
        asked.append(list(answer))
        return [Failure("down") if len(asked) == 1 else 1.0 for _ in completions]

    reward = FunctionReward(judge, name="judge", cache=10, on_error="abstain")
    for answer, expected in (("x", None), ("x", 1.0), ("x", 1.0), ("y", 1.0)):
        results = run_rewards([reward], ["p"], ["a"], [[1]], {"answer": [answer]})
        assert results.values == {"judge": [expected]}
    assert asked == [["x"], ["x"], ["y"]]


def test_equal_rows_of_one_call_are_asked_about_once():
    asked = []

    def one(completions, log_extra):
        asked.append(len(completions))
        log_extra("seen", ["yes"] * len(completions))
        return [float(len(text)) for text in completions]

    reward = FunctionReward(one, cache=10)
    results = run_rewards([reward], ["Q"] * 4, ["a", "bb", "a", "a"], [[1], [2], [1], [1]], {})
    assert results.values == {"one": [1.0, 2.0, 1.0, 1.0]}
    assert asked == [2] and results.extra["seen"] == ["yes", "yes", None, None]


def test_long_arrays_and_values_that_are_no_floats_are_told_apart_and_kept():
    import numpy as np

    asked = []

    def middle(completions, numbers):
        asked.append(len(completions))
        return np.array([row[1500] for row in numbers], dtype=np.float32)

    reward = FunctionReward(middle, cache=10)
    zeros = np.zeros(3000)
    sevens = zeros.copy()
    sevens[1500] = 7.0
    for column, expected in ((zeros, 0.0), (sevens, 7.0), (sevens.copy(), 7.0)):
        results = run_rewards([reward], ["Q"], ["a"], [[1]], {"numbers": [column]})
        assert results.values == {"middle": [expected]}
    assert asked == [1, 1]


def test_what_a_reward_does_to_a_column_stays_with_it():
    def spoils(completions, answer):
        answer[0].append("spoilt")
        answer.reverse()
        return [0.0] * len(completions)

    def counts(completions, answer):
        return [float(len(entry)) for entry in answer]

    columns = {"answer": [["x"], ["y"]]}
    rewards = [FunctionReward(spoils), FunctionReward(counts)]
    results = run_rewards(rewards, ["Q"] * 2, ["a", "b"], [[1]] * 2, columns)
    assert results.values["counts"] == [1.0, 1.0]
    assert columns == {"answer": [["x"], ["y"]]}


def test_the_least_recently_used_is_forgotten():
    asked = []

    def one(completions):
        asked.extend(completions)
        return [1.0] * len(completions)

    reward = FunctionReward(one, cache=2)
    for text in ("a", "b", "a", "c", "a", "b"):
        run_rewards([reward], ["p"], [text], [[1]], {})
    assert asked == ["a", "b", "c", "b"]


# health


def test_stops_when_a_reward_does_nothing_but_fail():
    health = RewardHealth(window=8)
    for _ in range(3):
        health.record(run(mixed, 2, on_error="abstain"))  # 1 of 2 fails
    health.record(run(broken, 2, on_error="abstain"))  # 5 of 8
    assert health.metrics()["rewards/mine/errors"] == 5
    health.record(run(broken, 2, on_error="abstain"))  # 6 of 8
    with pytest.raises(RewardError, match=r"'mine' failed on 7 of its last 8 completions.*88%"):
        health.record(run(broken, 2, on_error="abstain"))


def test_the_window_is_part_of_a_checkpoint():
    health, resumed = RewardHealth(window=4), RewardHealth(window=4)
    health.record(run(broken, 3, on_error="abstain"))
    resumed.load_state_dict(health.state_dict())
    with pytest.raises(RewardError, match="failed on 4 of its last 4"):
        resumed.record(run(broken, 1, on_error="abstain"))


def test_abstaining_is_no_error():
    health = RewardHealth(window=2)
    for _ in range(4):
        health.record(run(lambda completions: [None, None], 2))
    assert health.metrics()["rewards/mine/errors"] == 0


def test_latency_is_that_of_the_calls():
    async def slow(completions):
        import asyncio

        await asyncio.sleep(0.05)
        return [1.0]

    health = RewardHealth()
    for function in (slow, lambda completions: [1.0], lambda completions: time.sleep(0.1) or [0.0]):
        health.record(run(function, 1))
    numbers = health.metrics()
    assert numbers["time/rewards/mine/p50"] >= 0.05  # the middle one of the three
    assert numbers["time/rewards/mine/p50"] < numbers["time/rewards/mine/p95"]
    assert health.metrics() == {}


@pytest.mark.parametrize("settings", [{"max_failures": 0.0}, {"max_failures": 1.5}, {"window": 0}])
def test_refused_limits(settings):
    with pytest.raises(RewardError, match="must be"):
        RewardHealth(**settings)


# each reward normalised by itself


def test_normalize_then_sum_by_hand():
    # right: mean 1/2, deviations +-1/2, s = sqrt(4 * 1/4 / 3) = 0.577350, z = +-0.866025
    # long: mean -2, deviations 1, 1, -1, -1, s = sqrt(4/3) = 1.154701, z = +-0.866025
    values = {"right": [1.0, 0.0, 1.0, 0.0], "long": [-1.0, -1.0, -3.0, -3.0]}
    z = 0.8660254
    totals = normalize_then_sum(values, {"right": 1.0, "long": 0.5}, 4, eps=0.0)
    assert totals == pytest.approx([1.5 * z, -0.5 * z, 0.5 * z, -1.5 * z])


def test_normalize_then_sum_is_that_of_trl():
    """TRL 1.16: per group and reward (r - mean) / (std + 1e-4), summed, then over the batch."""
    torch.manual_seed(0)
    raw = torch.randn(12, 2, dtype=torch.float64)
    grouped = raw.view(-1, 4, 2)
    each = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    sums = (each.view(-1, 2) * torch.tensor([1.0, 0.3], dtype=torch.float64)).sum(1)
    theirs = (sums - sums.mean()) / (sums.std() + 1e-4)
    values = {"a": raw[:, 0].tolist(), "b": raw[:, 1].tolist()}
    totals = normalize_then_sum(values, {"a": 1.0, "b": 0.3}, 4)
    ours = group_advantages(torch.tensor(totals, dtype=torch.float64).view(3, 4), scale="batch")
    assert torch.allclose(ours.flatten(), theirs, atol=1e-9)


def test_abstentions_stay_abstentions_and_equal_values_say_nothing():
    values = {"a": [1.0, None, 0.0], "b": [0.1, 0.1, 0.1]}
    totals = normalize_then_sum(values, {"a": 1.0, "b": 1.0}, 3, eps=0.0)
    assert totals[0] == pytest.approx(math.sqrt(0.5))
    assert math.isnan(totals[1])
    assert totals[2] == pytest.approx(-math.sqrt(0.5))


# each completion in a worker process


def moody(completions, mood, **kwargs):
    """Of one completion: fails, hangs, dies, abstains or scores, as its mood says."""
    (word,) = mood
    if word == "raise":
        raise KeyError("gone")
    if word == "hang":
        while True:
            pass
    if word == "die":
        os._exit(3)
    return [None if word == "none" else float(len(completions[0]))]


def score_moods(moods, **settings):
    reward = FunctionReward(f"{MODULE}:moody", name="moody", **settings)
    count = len(moods)
    texts = ["ab"] * count
    return run_rewards([reward], ["Why?"] * count, texts, [[1]] * count, {"mood": moods})


def test_one_completion_cannot_harm_the_others():
    moods = ["good", "raise", "hang", "die", "none", "good"]
    results = score_moods(moods, row_seconds=1.0)
    assert results.values == {"moody": [2.0, None, None, None, None, 2.0]}
    errors = results.errors["moody"]
    assert errors[1].startswith("KeyError: 'gone'")
    assert errors[2] == "no result within 1 s, so the worker was killed"
    assert errors[3] == "the worker ended with status 3"
    assert set(errors) == {1, 2, 3}


def test_what_cannot_run_in_a_worker_is_refused():
    with pytest.raises(RewardError, match=r"row_seconds: .*cannot run in a worker process"):
        FunctionReward(lambda completions: [1.0], row_seconds=1.0)
    with pytest.raises(RewardError, match="row_seconds must be a positive number, not 0"):
        FunctionReward(f"{MODULE}:moody", row_seconds=0.0)

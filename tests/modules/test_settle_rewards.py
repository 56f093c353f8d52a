"""Rewards that look at the whole rollout."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from sctom.batch import Prompt, Row
from sctom.modules import fill
from sctom.modules.fill import settle_rewards
from sctom.rewards import Reward, RewardError


class Plain(Reward):
    def __call__(self, completions):
        raise NotImplementedError


class LessMean(Plain):
    def over_rollout(self, values):
        known = [value for value in values if value is not None]
        mean = sum(known) / len(known)
        return [None if value is None else value - mean for value in values]


class Places(Plain):
    def over_rollout(self, values):
        return [float(place) for place, _ in enumerate(values)]


def rows_of(**rewards):
    count = len(next(iter(rewards.values())))
    rows = [Row(Prompt(i // 2, [1], []), i % 2, [2], "", False) for i in range(count)]
    for i, row in enumerate(rows):
        row.rewards = {name: values[i] for name, values in rewards.items()}
    return rows


def module_of(*rewards, rank=0, aggregation="sum_then_normalize"):
    return SimpleNamespace(
        rewards=rewards, aggregation=aggregation, global_rank=rank, trainer=SimpleNamespace()
    )


def one_process(monkeypatch):
    monkeypatch.setattr(fill, "gather", lambda trainer, item: [item])


def test_the_sum_takes_what_the_whole_rollout_makes_of_a_value(monkeypatch):
    one_process(monkeypatch)
    rows = rows_of(less_mean=[1.0, 2.0, 3.0, 6.0], plain=[10.0, 0.0, 0.0, 0.0])
    settle_rewards(module_of(LessMean(weight=2.0), Plain()), rows, 2)
    # mean 3: -2, -1, 0, 3, times 2, plus the other
    assert [row.reward for row in rows] == [6.0, -2.0, 0.0, 6.0]
    assert [row.rewards["less_mean"] for row in rows] == [1.0, 2.0, 3.0, 6.0]  # what metrics show


def test_an_abstention_stays_one(monkeypatch):
    one_process(monkeypatch)
    rows = rows_of(less_mean=[None, 2.0, 4.0, None])
    settle_rewards(module_of(LessMean()), rows, 2)
    assert [row.reward for row in rows[1:3]] == [-1.0, 1.0]
    assert rows[0].reward != rows[0].reward  # NaN: a row without a reward


def test_values_of_all_processes_are_seen_in_the_order_of_the_prompts(monkeypatch):
    mine, others = [0.0] * 4, [0.0] * 2
    monkeypatch.setattr(fill, "gather", lambda trainer, item: [item, others])
    rows = rows_of(places=mine)
    settle_rewards(module_of(Places()), rows, 2)
    # groups of ranks 0, 1, 0: the other's group has the places 2 and 3
    assert [row.reward for row in rows] == [0.0, 1.0, 4.0, 5.0]
    monkeypatch.setattr(fill, "gather", lambda trainer, item: [mine, item])
    rows = rows_of(places=others)
    settle_rewards(module_of(Places(), rank=1), rows, 2)
    assert [row.reward for row in rows] == [2.0, 3.0]


def test_rewards_that_do_not_look_change_nothing(monkeypatch):
    monkeypatch.setattr(fill, "gather", lambda trainer, item: 1 / 0)
    rows = rows_of(plain=[1.0, 2.0])
    settle_rewards(module_of(Plain()), rows, 2)
    assert all(row.reward != row.reward for row in rows)  # as it was: not set


def test_what_advantages_compare_is_made_of_the_new_values(monkeypatch):
    one_process(monkeypatch)
    rows = rows_of(less_mean=[1.0, 3.0, 5.0, 5.0])
    settle_rewards(module_of(LessMean(), aggregation="normalize_then_sum"), rows, 2)
    # within a group the shift by the mean changes nothing: (-1, 1) / sqrt 2, and equal ones give 0
    assert [round(row.compared, 3) for row in rows] == [-0.707, 0.707, 0.0, 0.0]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([1.0], "over_rollout gave 1 values for 2 completions"),
        (
            [1.0, math.nan],
            "over_rollout gave nan for completion 1 of the rollout, whose value is 2.0",
        ),
        ([math.inf, 1.0], "over_rollout gave inf for completion 0"),
        ([None, 1.0], "over_rollout gave None for completion 0"),
    ],
)
def test_what_comes_back_is_checked_like_every_reward(monkeypatch, made, said):
    class Faulty(Plain):
        def over_rollout(self, values):
            return made

    one_process(monkeypatch)
    with pytest.raises(RewardError, match=said):
        settle_rewards(module_of(Faulty()), rows_of(faulty=[1.0, 2.0]), 2)

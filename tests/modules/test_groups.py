from __future__ import annotations

import math

import pytest

from sctom.batch import Prompt, Row
from sctom.modules.groups import is_dead, leave_out, select, silent_share


def group(*rewards: float, index: int = 0, **named: list[float | None]) -> list[Row]:
    prompt = Prompt(index, [1], [])
    rows = [Row(prompt, i, [1], "", False, reward=reward) for i, reward in enumerate(rewards)]
    for i, row in enumerate(rows):
        row.rewards = {name: values[i] for name, values in named.items()}
    return rows


@pytest.mark.parametrize(
    ("rewards", "tolerance", "dead"),
    [
        ([1.0, 1.0, 1.0], 0.0, True),
        ([1.0, -0.5, 1.0], 0.0, False),
        ([0.35, 0.35 + 1e-9], 1e-6, True),  # a difference that is rounding
        ([0.35, 0.35 + 1e-9], 0.0, False),
        ([0.5, 0.75], 0.25, True),  # 0.75 - 0.5 = 0.25, not above it
        ([0.5, 0.76], 0.25, False),
        ([1.0, math.nan], 0.0, True),  # one value has no spread
        ([math.nan, math.nan], 0.0, True),
        ([1.0, math.nan, 0.0], 0.0, False),
    ],
)
def test_a_group_without_spread_is_dead(rewards, tolerance, dead):
    assert is_dead(group(*rewards), "reward", tolerance) is dead


def test_the_metric_may_be_one_reward_even_one_of_weight_zero():
    shaped = group(0.3, 0.1, right=[0.0, 0.0])  # all wrong: the sum differs by a length penalty
    assert not is_dead(shaped, "reward", 1e-6)
    assert is_dead(shaped, "right", 1e-6)
    assert is_dead(group(0.3, 0.1, right=[1.0, None]), "right", 1e-6)
    # the metric differs but the sum does not: all advantages are 0
    assert is_dead(group(0.3, 0.3, right=[1.0, 0.0]), "right", 1e-6)
    with pytest.raises(ValueError, match=r"zero_variance_metric is 'left', which no reward is"):
        is_dead(shaped, "left", 1e-6)


def test_groups_with_signal_come_first_and_the_rest_is_filled_and_masked():
    dead = [group(1.0, 1.0, index=i) for i in (0, 2, 3)]
    live = [group(1.0, 0.0, index=i) for i in (1, 4)]
    pool = [dead[0], live[0], dead[1], dead[2], live[1]]
    chosen = select(pool, 3, "reward", 1e-6)
    assert chosen.kept == [live[0], live[1], dead[0]]
    assert (chosen.filled, chosen.surplus) == (1, 0)
    assert chosen.dropped == [dead[1], dead[2]]
    counted = [row.counted for group in chosen.kept for row in group]
    assert counted == [True, True, True, True, False, False]


def test_what_is_not_needed_is_surplus():
    live = [group(1.0, 0.0, index=i) for i in range(3)]
    dead = group(0.0, 0.0, index=9)
    chosen = select([live[0], dead, live[1], live[2]], 2, "reward", 1e-6)
    assert chosen.kept == live[:2]
    assert (chosen.filled, chosen.surplus, chosen.dropped) == (0, 1, [live[2], dead])
    assert all(row.counted for group in chosen.kept for row in group)


def test_leaving_out_is_for_good():
    rows = group(1.0, 0.0)
    leave_out(rows[:1])
    assert [row.counted for row in rows] == [False, True]


def test_a_group_is_silent_without_a_counted_advantage():
    rows = [group(1.0, 0.0), group(1.0, 0.0), group(1.0, 1.0)]
    for better, worse in rows[:2]:
        better.advantage, worse.advantage = 0.7, -0.7
    leave_out(rows[1])
    assert silent_share(rows) == pytest.approx(2 / 3)

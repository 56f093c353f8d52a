from __future__ import annotations

from math import nan, sqrt

import pytest
import torch
from torch.autograd.gradcheck import gradcheck

from sctom.losses.advantages import (
    gae_advantages,
    group_advantages,
    leave_one_out_advantages,
    whiten,
)


def f64(values: list) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_equals(actual: torch.Tensor, expected: list) -> None:
    torch.testing.assert_close(actual, f64(expected))


REWARDS = f64([[3.0, 1.0, nan, 2.0], [0.0, 4.0, 4.0, 4.0]])
# group 1: mean of 3, 1, 2 = 2; deviations 1, -1, 0; squares 2
# group 2: mean 3; deviations -3, 1, 1, 1; squares 12


def test_divides_by_the_standard_deviation_of_the_group():
    # group 1: sqrt(2 / 2) = 1;   group 2: sqrt(12 / 3) = 2
    expected = [[1, -1, 0, 0], [-1.5, 0.5, 0.5, 0.5]]
    assert_equals(group_advantages(REWARDS, eps=0.0), expected)
    # group 1: sqrt(2 / 3);   group 2: sqrt(12 / 4)
    a, b = sqrt(3 / 2), 1 / sqrt(3)
    assert_equals(
        group_advantages(REWARDS, eps=0.0, std="biased"), [[a, -a, 0, 0], [-3 * b, b, b, b]]
    )


def test_eps_is_added_to_the_standard_deviation():
    # 1 / (1 + 0.25), and -3 / (2 + 0.25)
    advantages = group_advantages(REWARDS, eps=0.25)
    assert_equals(advantages[:, 0], [0.8, -3 / 2.25])
    # the default: 1 / (1 + 1e-4)
    assert_equals(group_advantages(REWARDS)[0, :1], [1 / 1.0001])


def test_scale_none_only_subtracts_the_mean_of_the_group():
    assert_equals(group_advantages(REWARDS, scale="none"), [[1, -1, 0, 0], [-3, 1, 1, 1]])


@pytest.mark.parametrize(("std", "divisor"), [("unbiased", 6), ("biased", 7)])
def test_scale_batch_divides_by_the_deviation_of_all_rewards(std, divisor):
    # all 7 rewards: 3, 1, 2, 0, 4, 4, 4: mean 18/7; sum of squares 62 - 7 (18/7)^2 = 110/7
    deviation = sqrt(110 / 7 / divisor)
    assert_equals(
        group_advantages(REWARDS, scale="batch", std=std, eps=0.5),
        [
            [1 / (deviation + 0.5), -1 / (deviation + 0.5), 0, 0],
            [-3 / (deviation + 0.5)] + [1 / (deviation + 0.5)] * 3,
        ],
    )


@pytest.mark.parametrize("function", [group_advantages, leave_one_out_advantages])
@pytest.mark.parametrize("reward", [0.1, 0.35, -1e6, 1 / 3])
@pytest.mark.parametrize("given", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero(function, reward, given):
    rewards = torch.full((2, 7), reward, dtype=given)
    rewards[1, 3] = nan
    assert torch.equal(function(rewards), torch.zeros(2, 7, dtype=given))


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_rewards_within_the_tolerance_are_equal(scale):
    rewards = f64([[0.5, 0.5 + 9e-7], [0.0, 1.0]])
    assert group_advantages(rewards, scale=scale)[0].tolist() == [0.0, 0.0]
    assert group_advantages(rewards, scale=scale, tolerance=1e-8)[0].abs().min() > 0


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_one_reward_is_no_comparison(scale):
    rewards = torch.tensor([[nan, 5.0, nan], [nan, nan, nan], [1.0, 0.0, nan]])
    advantages = group_advantages(rewards, scale=scale)
    assert torch.equal(advantages[:2], torch.zeros(2, 3))
    assert advantages[2, 0] == -advantages[2, 1] > 0
    assert torch.equal(leave_one_out_advantages(rewards)[:2], torch.zeros(2, 3))


@pytest.mark.parametrize("function", [group_advantages, leave_one_out_advantages])
def test_a_group_of_one_gives_zero(function):
    assert torch.equal(function(torch.tensor([[3.0], [nan]])), torch.zeros(2, 1))


def test_leave_one_out():
    # 3 - mean(1, 2) = 1.5;   1 - mean(3, 2) = -1.5;   2 - mean(3, 1) = 0
    # 0 - mean(4, 4, 4) = -4;   4 - mean(0, 4, 4) = 4/3
    assert_equals(leave_one_out_advantages(REWARDS), [[1.5, -1.5, 0, 0], [-4, 4 / 3, 4 / 3, 4 / 3]])
    # the deviation of the others of the winner is 0: dividing by it would give a huge number
    assert_equals(
        leave_one_out_advantages(f64([[1.0, 0.0, 0.0, 0.0]])), [[1, -1 / 3, -1 / 3, -1 / 3]]
    )


@pytest.mark.parametrize("function", [group_advantages, leave_one_out_advantages])
@pytest.mark.parametrize(
    ("given", "returned"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int64, torch.float32),
    ],
)
def test_advantages_are_float32_or_wider_and_carry_no_gradient(function, given, returned):
    advantages = function(torch.tensor([[1, 0]], dtype=given))
    assert advantages.dtype == returned
    assert not function(torch.tensor([[1.0, 0.0]], requires_grad=True)).requires_grad


@pytest.mark.parametrize("function", [group_advantages, leave_one_out_advantages])
def test_refuses_infinite_rewards_with_their_place(function):
    rewards = torch.tensor([[0.0, 1.0], [float("-inf"), float("inf")]])
    with pytest.raises(ValueError, match=r"rewards\[1, 0\] is -inf, the first of 2 infinite"):
        function(rewards)


def test_refuses_unknown_choices_and_shapes():
    with pytest.raises(ValueError, match=r'"group", "batch" or "none".*mean "group"'):
        group_advantages(REWARDS, scale="groups")
    with pytest.raises(ValueError, match='std must be "unbiased" or "biased" but is 1'):
        group_advantages(REWARDS, std=1)
    with pytest.raises(ValueError, match=r"rewards must have the shape \[P, G\] but has \[4\]"):
        leave_one_out_advantages(REWARDS[0])
    with pytest.raises(ValueError, match='did you mean "biased"'):
        whiten(REWARDS, std="biasd")


@pytest.mark.parametrize("name", ["eps", "tolerance"])
@pytest.mark.parametrize("bad", [-1e-9, nan, float("inf")])
def test_refuses_guards_that_are_negative_or_not_finite(name, bad):
    with pytest.raises(ValueError, match=f"{name} must be at least 0 and finite but is {bad}"):
        group_advantages(REWARDS, **{name: bad})


@pytest.mark.parametrize("bad", [-1e-9, nan, float("inf")])
def test_whiten_refuses_the_same(bad):
    with pytest.raises(ValueError, match=f"eps must be at least 0 and finite but is {bad}"):
        whiten(REWARDS, eps=bad)


@pytest.mark.parametrize("function", [group_advantages, leave_one_out_advantages])
@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0)])
def test_no_rewards_give_no_advantages(function, shape):
    advantages = function(torch.zeros(shape, dtype=torch.bfloat16))
    assert advantages.shape == shape
    assert advantages.dtype == torch.float32


def test_gae_by_hand():
    # gamma 0.5, lam 0.5: gamma lam = 0.25. Rewards 0, 1, 4 and values 2, 4, 8, then the end
    # delta: 0 + 0.5 x 4 - 2 = 0;   1 + 0.5 x 8 - 4 = 1;   4 + 0 - 8 = -4
    # A: -4;   1 + 0.25 x -4 = 0;   0 + 0.25 x 0 = 0.        returns: 4, 4, 2
    rewards, values = f64([[0, 1, 4]]), f64([[2, 4, 8]])
    advantages, returns = gae_advantages(rewards, values, torch.ones(1, 3), gamma=0.5, lam=0.5)
    assert_equals(advantages, [[0, 0, -4]])
    assert_equals(returns, [[2, 4, 4]])


def test_gae_defaults():
    # gamma 1, lam 0.95: delta 0 + 4 - 2 = 2;   1 - 4 = -3.   A: 2 + 0.95 x -3 = -0.85
    advantages, returns = gae_advantages(f64([[0, 1]]), f64([[2, 4]]), torch.ones(1, 2))
    assert_equals(advantages, [[-0.85, -3]])
    assert_equals(returns, [[1.15, 1]])


def test_gae_with_lambda_one_gives_the_rewards_to_go():
    rewards, values = f64([[0.5, 0, 2]]), f64([[7, -3, 11]])
    _, returns = gae_advantages(rewards, values, torch.ones(1, 3), lam=1.0)
    assert_equals(returns, [[2.5, 2, 2]])


@pytest.mark.parametrize("places", [[0, 1, 2], [2, 3, 4], [0, 2, 4]], ids=["left", "right", "gaps"])
@pytest.mark.parametrize("garbage", [nan, float("inf"), 1e4])
def test_gae_skips_masked_positions_wherever_they_are(places, garbage):
    rewards, values = torch.full((2, 1, 5), garbage, dtype=torch.float64)
    mask = torch.zeros(1, 5)
    rewards[0, places], values[0, places], mask[0, places] = f64([0, 1, 4]), f64([2, 4, 8]), 1.0
    advantages, returns = gae_advantages(rewards, values, mask, gamma=0.5, lam=0.5)
    assert_equals(advantages[0, places], [0, 0, -4])  # as in test_gae_by_hand
    assert_equals(returns[0, places], [2, 4, 4])
    assert torch.equal(advantages[mask == 0], torch.zeros(2, dtype=torch.float64))
    assert torch.equal(returns[mask == 0], torch.zeros(2, dtype=torch.float64))


def test_gae_carries_no_gradient():
    values = torch.ones(1, 2, requires_grad=True)
    advantages, returns = gae_advantages(values, values, values)
    assert not advantages.requires_grad
    assert not returns.requires_grad


def test_whiten_by_hand():
    # 1, 5, 6 (7 is masked): mean 4; deviations -3, 1, 2; squares 14; + eps inside the root
    values, mask = f64([[1, 5], [7, 6]]), torch.tensor([[1, 1], [0, 1]])
    unbiased, biased = sqrt(14 / 2 + 2), sqrt(14 / 3 + 2)
    assert_equals(whiten(values, mask, eps=2.0), [[-3 / unbiased, 1 / unbiased], [0, 2 / unbiased]])
    assert_equals(
        whiten(values, mask, eps=2.0, std="biased"), [[-3 / biased, 1 / biased], [0, 2 / biased]]
    )


def test_whiten_gradient_by_hand_and_by_finite_differences():
    # y = (x - m) / s for x = (0, 2), unbiased: m = 1, s^2 = 2 + eps; with eps = 2, s = 2
    # dy_1/dx_1 = 1/2 / s - (x_1 - m)^2 / (s^3 (n - 1)) = 1/4 - 1/8 = 1/8
    values = f64([0, 2, nan]).requires_grad_()
    mask = torch.tensor([1, 1, 0])
    (gradient,) = torch.autograd.grad(whiten(values, mask, eps=2.0)[0], values)
    assert_equals(gradient, [1 / 8, -1 / 8, 0])
    assert gradcheck(whiten, (f64([1, 5, 6]).requires_grad_(),))


def test_whiten_of_equal_values_or_of_one_or_of_none_is_zero():
    assert whiten(torch.full((7,), 0.1)).abs().max() < 1e-9
    assert whiten(torch.tensor([5.0, nan]), torch.tensor([1, 0])).tolist() == [0, 0]
    assert whiten(torch.tensor([5.0, nan]), torch.tensor([0, 0])).tolist() == [0, 0]


def test_whiten_refuses_a_mask_of_another_shape():
    with pytest.raises(ValueError, match=r"shape of values, \[2, 4\], but has \[4\]"):
        whiten(REWARDS, torch.ones(4))

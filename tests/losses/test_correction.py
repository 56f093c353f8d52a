from __future__ import annotations

from math import e, log, nan

import pytest
import torch

from sctom.losses.correction import off_policy_sequence_mask, rollout_weights


def f64(values: list) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


MASK = torch.tensor([[1, 1, 0], [1, 1, 0]])
ROLLOUT_LOGPS = f64([[log(0.2), log(0.4), nan], [log(0.5), log(0.2), 1e4]])
OLD_LOGPS = f64([[log(0.8), log(0.1), 1e4], [log(0.75), log(0.5), nan]])
# ratios 4 and 1/4, product 1;   1.5 and 2.5, product 3.75


@pytest.mark.parametrize(
    ("mode", "weight_min", "expected"),
    [
        ("token_truncate", None, [[3, 0.25, 0], [1.5, 2.5, 0]]),
        ("token_truncate", 0.5, [[3, 0.5, 0], [1.5, 2.5, 0]]),
        ("token_mask", None, [[0, 0.25, 0], [1.5, 2.5, 0]]),
        ("token_mask", 0.5, [[0, 0, 0], [1.5, 2.5, 0]]),
        ("sequence_truncate", None, [[1, 1, 0], [3, 3, 0]]),
        ("sequence_truncate", 1.25, [[1.25, 1.25, 0], [3, 3, 0]]),
        ("sequence_mask", None, [[1, 1, 0], [0, 0, 0]]),
        ("sequence_mask", 1.25, [[0, 0, 0], [0, 0, 0]]),
    ],
)
def test_rollout_weights_by_hand(mode, weight_min, expected):
    weights = rollout_weights(OLD_LOGPS, ROLLOUT_LOGPS, MASK, mode=mode, weight_min=weight_min)
    torch.testing.assert_close(weights, f64(expected))


def test_the_default_truncates_each_token_at_three():
    expected = rollout_weights(
        OLD_LOGPS, ROLLOUT_LOGPS, MASK, mode="token_truncate", weight_max=3.0, weight_min=None
    )
    assert torch.equal(rollout_weights(OLD_LOGPS, ROLLOUT_LOGPS, MASK), expected)


@pytest.mark.parametrize("mode", ["token_mask", "sequence_mask"])
def test_a_weight_at_a_bound_is_kept(mode):
    same = torch.zeros(1, 1)  # weight exp(0) = 1 exactly
    assert rollout_weights(same, same, same + 1, mode=mode, weight_max=1.0, weight_min=1.0) == 1


def test_weights_are_clamped_before_exp():
    far, mask = f64([[500.0, 500.0]]), torch.ones(1, 2)
    weights = rollout_weights(far, -far, mask, weight_max=1e30)
    torch.testing.assert_close(weights, f64([[e**20, e**20]]))
    weights = rollout_weights(far, -far, mask, mode="sequence_truncate", weight_max=1e30)
    torch.testing.assert_close(weights, f64([[e**20, e**20]]))


@pytest.mark.parametrize(
    "mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
)
def test_a_nan_of_the_sampler_is_not_hidden(mode):
    weights = rollout_weights(
        torch.zeros(1, 2), torch.tensor([[nan, 0.0]]), torch.ones(1, 2), mode=mode
    )
    assert weights[0, 0].isnan()


def test_weights_carry_no_gradient_and_are_float32():
    logps = torch.zeros(1, 2, dtype=torch.bfloat16, requires_grad=True)
    weights = rollout_weights(logps, logps, torch.ones(1, 2))
    assert not weights.requires_grad
    assert weights.dtype == torch.float32


def test_refuses_unknown_modes_and_bounds_in_the_wrong_order():
    inputs = OLD_LOGPS, ROLLOUT_LOGPS, MASK
    with pytest.raises(ValueError, match="or \"sequence_mask\" but is 'mask'; did you mean"):
        rollout_weights(*inputs, mode="mask")
    with pytest.raises(ValueError, match="between 0 and weight_max=3 but is 4"):
        rollout_weights(*inputs, weight_max=3, weight_min=4)
    with pytest.raises(ValueError, match="between 0 and weight_max=3 but is -1"):
        rollout_weights(*inputs, weight_max=3, weight_min=-1)
    with pytest.raises(ValueError, match="rollout_logps has B=1 but old_logps has B=2"):
        rollout_weights(OLD_LOGPS, ROLLOUT_LOGPS[:1], MASK)


# mean drops old - new: (0.5 + 1.5) / 2 = 1;   (0.25 + 0.25) / 2 = 0.25;   none
LOGPS = f64([[-1.5, -2.5, nan], [-1.25, -1.25, nan], [nan, nan, nan]])
BEFORE = f64([[-1.0, -1.0, 1e4], [-1.0, -1.0, 1e4], [0.0, 0.0, 0.0]])
ROWS = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("advantages", "delta", "expected"),
    [
        ([-1.0, -1.0, -1.0], 0.5, [0, 1, 1]),
        ([-1.0, -1.0, -1.0], 0.2, [0, 0, 1]),
        ([-1.0, -1.0, -1.0], 1.0, [1, 1, 1]),  # a drop of exactly delta is kept
        ([1.0, -1.0, -1.0], 0.2, [1, 0, 1]),
        ([0.0, 0.0, 0.0], 0.2, [1, 1, 1]),
        ([[-3.0, 1.0, nan], [-1.0, 3.0, nan], [nan, nan, nan]], 0.2, [0, 1, 1]),  # means -1, 1
    ],
)
def test_off_policy_sequence_mask_by_hand(advantages, delta, expected):
    kept = off_policy_sequence_mask(LOGPS, BEFORE, f64(advantages), ROWS, delta=delta)
    assert torch.equal(kept, f64(expected))


def test_a_single_token_far_away_is_not_clamped_away():
    logps, before = torch.zeros(1, 100), torch.zeros(1, 100)
    logps[0, 0] = -60.0  # mean drop 0.6; clamped at 20 it would be 0.2
    kept = off_policy_sequence_mask(
        logps, before, torch.tensor([-1.0]), torch.ones(1, 100), delta=0.5
    )
    assert kept.tolist() == [0]


def test_off_policy_sequence_mask_carries_no_gradient():
    logps = torch.zeros(1, 2, requires_grad=True)
    kept = off_policy_sequence_mask(logps, logps, -torch.ones(1), torch.ones(1, 2), delta=0.5)
    assert not kept.requires_grad

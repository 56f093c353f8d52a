from __future__ import annotations

from math import nan

import pytest
import torch
from torch.autograd.gradcheck import gradcheck

from sctom.losses.reduce import fixed_length_mean, sequence_mean, sequence_sum, token_mean

LOSSES = [[1.0, 2.0, 6.0], [5.0, nan, nan], [nan, nan, nan]]
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]])  # rows of three, one and no tokens

REDUCTIONS = {
    # name: function, the keyword of its count
    "token_mean": (token_mean, "tokens"),
    "sequence_mean": (sequence_mean, "sequences"),
    "fixed_length_mean": (lambda *x, **k: fixed_length_mean(*x, length=7, **k), "sequences"),
    "sequence_sum": (sequence_sum, "sequences"),
}


@pytest.mark.parametrize(
    ("function", "settings", "value", "weights"),
    [
        # (1 + 2 + 6 + 5) / 4 = 3.5
        (token_mean, {}, 3.5, [1 / 4, 1 / 4]),
        # 14 / 10
        (token_mean, {"tokens": 10}, 1.4, [1 / 10, 1 / 10]),
        # ((1 + 2 + 6) / 3 + 5 + 0) / 3 = 8 / 3: the row without tokens counts
        (sequence_mean, {}, 8 / 3, [1 / 9, 1 / 3]),
        # 8 / 5
        (sequence_mean, {"sequences": 5}, 1.6, [1 / 15, 1 / 5]),
        # 14 / (7 x 3)
        (fixed_length_mean, {"length": 7}, 2 / 3, [1 / 21, 1 / 21]),
        # 14 / (7 x 4)
        (fixed_length_mean, {"length": 7, "sequences": 4}, 0.5, [1 / 28, 1 / 28]),
        # 14 / 3
        (sequence_sum, {}, 14 / 3, [1 / 3, 1 / 3]),
        # 14 / 4
        (sequence_sum, {"sequences": 4}, 3.5, [1 / 4, 1 / 4]),
    ],
)
def test_value_and_gradient_by_hand(function, settings, value, weights):
    losses = torch.tensor(LOSSES, dtype=torch.float64, requires_grad=True)
    loss = function(losses, MASK, **settings)
    torch.testing.assert_close(loss, torch.tensor(value, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(loss, losses)
    a, b = weights  # of each token of the first and of the second row
    expected = torch.tensor([[a, a, a], [b, 0, 0], [0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("explicit", [False, True])
def test_a_fully_masked_batch_gives_a_differentiable_zero(name, explicit):
    function, count = REDUCTIONS[name]
    losses = torch.full((2, 3), nan, requires_grad=True)
    loss = function(losses, torch.zeros(2, 3), **({count: 0} if explicit else {}))
    assert loss.item() == 0.0
    loss.backward()
    assert torch.equal(losses.grad, torch.zeros(2, 3))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_micro_batches_add_up_to_the_whole(name):
    function, count = REDUCTIONS[name]
    losses, mask = torch.tensor(LOSSES, dtype=torch.float64), MASK
    total = {count: 4 if count == "tokens" else 3}
    parts = [
        function(losses[:1], mask[:1], **total),
        function(losses[1:, :2], mask[1:, :2], **total),  # padded to another width
    ]
    torch.testing.assert_close(sum(parts), function(losses, mask))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_gradients_agree_with_finite_differences(name):
    function, _ = REDUCTIONS[name]
    losses = torch.tensor(LOSSES, dtype=torch.float64).nan_to_num().requires_grad_()
    assert gradcheck(lambda x: function(x, MASK), losses)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_sums_in_float32(name):
    function, _ = REDUCTIONS[name]
    losses = torch.full((1, 300), 1.0, dtype=torch.bfloat16)  # a bfloat16 sum would stop at 256
    loss = function(losses, torch.ones(1, 300))
    assert loss.dtype == torch.float32
    assert loss.item() == function(losses.double(), torch.ones(1, 300)).float().item()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_refuses_counts_and_shapes_without_a_meaning(name):
    function, count = REDUCTIONS[name]
    losses = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=f"{count} must be at least 0 but is -1"):
        function(losses, losses, **{count: -1})
    with pytest.raises(ValueError, match="mask has T=4 but losses has T=3"):
        function(losses, torch.zeros(2, 4))


def test_refuses_a_length_below_one():
    with pytest.raises(ValueError, match="length must be at least 1 but is 0"):
        fixed_length_mean(torch.zeros(1, 1), torch.ones(1, 1), length=0)

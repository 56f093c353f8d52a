from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from sctom.losses import clipped_value_loss, nll_loss


def test_nll_by_hand():
    logps = torch.tensor([[-0.5, -2.0, -9.0]], requires_grad=True)
    losses = nll_loss(logps, torch.tensor([[1.0, 1.0, 0.0]]))
    (losses * torch.tensor([[1.0, 10.0, 100.0]])).sum().backward()
    assert losses.tolist() == [[0.5, 2.0, 0.0]]
    assert logps.grad.tolist() == [[-1.0, -10.0, 0.0]]


def test_value_loss_by_hand():
    # clip 0.2, V_old = 0, R = 1 in all but the last column
    # V =  0.1: inside                    1/2 * 0.9^2 = 0.405                gradient V - R = -0.9
    # V =  0.9: towards R, clipped  0.2   1/2 * max(0.1^2, 0.8^2) = 0.32     gradient  0
    # V = -0.5: away from R, clipped -0.2 1/2 * max(1.5^2, 1.2^2) = 1.125    gradient -1.5
    # V =  2.5: past R, clipped  0.2      1/2 * max(1.5^2, 0.8^2) = 1.125    gradient  1.5
    # V =  3.0: masked
    values = torch.tensor([[0.1, 0.9, -0.5, 2.5, 3.0]], requires_grad=True)
    old_values = torch.zeros(1, 5, requires_grad=True)
    returns = torch.tensor([[1.0, 1.0, 1.0, 1.0, 7.0]], requires_grad=True)
    mask = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]])
    losses = clipped_value_loss(values, old_values, returns, mask, clip=0.2)
    losses.sum().backward()
    assert losses[0].tolist() == pytest.approx([0.405, 0.32, 1.125, 1.125, 0.0], abs=1e-6)
    assert values.grad[0].tolist() == pytest.approx([-0.9, 0.0, -1.5, 1.5, 0.0], abs=1e-6)
    assert old_values.grad is None
    assert returns.grad is None


def test_no_clip_is_half_the_squared_error():
    values, returns = torch.tensor([[5.0, -3.0]]), torch.tensor([[1.0, 1.0]])
    losses = clipped_value_loss(
        values, torch.zeros(1, 2), returns, torch.ones(1, 2), clip=float("inf")
    )
    assert losses.tolist() == [[8.0, 8.0]]


def test_value_loss_gradcheck_away_from_its_corners():
    generator = torch.Generator().manual_seed(0)
    values, old_values, returns = torch.randn(3, 2, 6, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1]])
    values.requires_grad_()
    assert gradcheck(lambda v: clipped_value_loss(v, old_values, returns, mask), (values,))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e4])
def test_masked_garbage_changes_neither_value_nor_gradient(garbage: float):
    mask = torch.tensor([[1.0, 0.0]])

    def nll(filler: float) -> tuple[Tensor, Tensor]:
        logps = torch.tensor([[-1.0, filler]], requires_grad=True)
        losses = nll_loss(logps, mask)
        losses.sum().backward()
        return losses.detach(), logps.grad

    def value(filler: float) -> tuple[Tensor, Tensor]:
        values = torch.tensor([[0.1, filler]], requires_grad=True)
        others = torch.tensor([[0.3, filler]])
        losses = clipped_value_loss(values, others, others, mask)
        losses.sum().backward()
        return losses.detach(), values.grad

    for run in (nll, value):
        for got, expected in zip(run(garbage), run(0.0), strict=True):
            assert torch.equal(got, expected)
            assert got[0, 1] == 0


def test_low_precision_is_widened():
    half = torch.tensor([[0.1]]).bfloat16()
    ones = torch.ones(1, 1)
    assert nll_loss(half, ones).dtype == torch.float32
    losses = clipped_value_loss(half, half, half + 3, ones)
    assert losses.dtype == torch.float32
    assert losses.item() == pytest.approx(0.5 * (float(half + 3) - float(half)) ** 2, rel=1e-6)


def test_a_clip_of_zero_is_refused():
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="clip must be above 0 but is 0"):
        clipped_value_loss(one, one, one, one, clip=0)

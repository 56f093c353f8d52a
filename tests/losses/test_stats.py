from __future__ import annotations

from math import e, log, nan

import pytest
import torch
from torch import Tensor

from sctom.losses.policy import cispo_loss, grpo_loss
from sctom.losses.stats import (
    approx_kl,
    clamped_fraction,
    clip_fraction,
    effective_sample_size,
    weight_clip_fraction,
)

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
RATIOS = [[2.0, 0.5, 1.1], [0.5]]  # rows of three, one and no tokens


def inputs() -> tuple[Tensor, Tensor]:
    logps = torch.full((3, 4), nan, dtype=torch.float64)
    old_logps = torch.full((3, 4), 1e4, dtype=torch.float64)
    for row, ratios in enumerate(RATIOS):
        old_logps[row, : len(ratios)] = -1.0
        logps[row, : len(ratios)] = torch.tensor(ratios).double().log() - 1.0
    return logps.requires_grad_(), old_logps


def f64(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("advantages", "settings", "expected"),
    [
        # A=+1: 2 > 1.2 only;   A=-1: 0.5 < 0.8   -> 2 of 4 tokens
        ([1.0, -1.0, 1.0], {}, 2 / 4),
        # A=-1: 0.5 < 0.8;   A=+1: none   -> 1 of 4
        ([-1.0, 1.0, 1.0], {}, 1 / 4),
        # the widths are not the same: 1.1 > 1.05 as well, 0.5 is inside 1 - 0.6
        ([1.0, -1.0, 1.0], {"clip_low": 0.6, "clip_high": 0.05}, 2 / 4),
        # A=-1 and r = 2 > 1.5 has no gradient either
        ([-1.0, 1.0, 1.0], {"ratio_max": 1.5}, 2 / 4),
        ([0.0, 0.0, 0.0], {"ratio_max": 1.5}, 0),
        # rows: product 1.1, and 0.5 with A=-1   -> 1 of 2 rows with tokens
        ([1.0, -1.0, 1.0], {"level": "product"}, 1 / 2),
        # geometric mean 1.1^(1/3) = 1.032 > 1.02   -> 2 of 2
        ([1.0, -1.0, 1.0], {"level": "geometric", "clip_high": 0.02}, 1),
    ],
)
def test_clip_fraction_by_hand(advantages, settings, expected):
    logps, old_logps = inputs()
    share = clip_fraction(logps, old_logps, f64(advantages), MASK, **settings)
    torch.testing.assert_close(share.item(), float(expected))


@pytest.mark.parametrize("settings", [{}, {"ratio_max": 1.05}, {"clip_low": 0.6}])
def test_clip_fraction_counts_the_tokens_without_a_gradient(settings):
    logps, old_logps = inputs()
    advantages = f64([[1.0, -1.0, -2.0, nan], [-1.0, nan, nan, nan], [nan] * 4])
    losses = grpo_loss(logps, old_logps, advantages, MASK, **settings)
    (gradient,) = torch.autograd.grad(losses.sum(), logps)
    without = ((gradient == 0) & (MASK == 1)).sum() / MASK.sum()
    assert clip_fraction(logps, old_logps, advantages, MASK, **settings) == without > 0


def test_a_ratio_at_an_edge_is_not_clipped():
    same = torch.zeros(1, 2)  # r = 1 exactly
    settings = {"clip_low": 0.0, "clip_high": 0.0, "ratio_max": 1.0}
    assert clip_fraction(same, same, torch.tensor([[1.0, -1.0]]), same + 1, **settings) == 0
    assert weight_clip_fraction(same, same, same + 1, weight_max=1.0, weight_min=1.0) == 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"weight_max": 1.5}, 1 / 4),  # 2
        ({"weight_max": 1.5, "weight_min": 0.75}, 3 / 4),  # 2 and both 0.5
        ({}, 0),  # 0 to 5
        ({"weight_max": 1.05, "level": "product"}, 1 / 2),  # rows 1.1 and 0.5
        ({"weight_min": 0.75, "level": "geometric"}, 1 / 2),  # rows 1.03 and 0.5
    ],
)
def test_weight_clip_fraction_by_hand(settings, expected):
    logps, old_logps = inputs()
    share = weight_clip_fraction(logps, old_logps, MASK, **settings)
    torch.testing.assert_close(share.item(), float(expected))


def test_weight_clip_fraction_counts_the_weights_that_cispo_changes():
    logps, old_logps = inputs()
    settings = {"weight_max": 1.5, "weight_min": 0.75}
    losses = cispo_loss(logps, old_logps, torch.ones(3), MASK, **settings)
    (gradient,) = torch.autograd.grad(losses.sum(), logps)
    ratios = (logps - old_logps).exp()
    changed = ((gradient + ratios).abs() > 1e-9) & (MASK == 1)  # the gradient is -w
    share = weight_clip_fraction(logps, old_logps, MASK, **settings)
    assert share == changed.sum() / MASK.sum() > 0


def test_clamped_fraction_by_hand():
    logps = torch.tensor([[0.0, -21.0, 20.0], [25.0, nan, -1e4]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    # beyond 20: -21 and 25, not 20 itself   -> 2 of 4
    assert clamped_fraction(logps, torch.zeros(2, 3), mask).item() == 0.5


def test_approx_kl_by_hand():
    logps, old_logps = inputs()
    # r - 1 - ln r: 1 - ln 2; -0.5 + ln 2; 0.1 - ln 1.1; -0.5 + ln 2; over 4 tokens
    expected = (1 - log(2) + 2 * (log(2) - 0.5) + 0.1 - log(1.1)) / 4
    torch.testing.assert_close(approx_kl(logps, old_logps, MASK).item(), expected)


def test_approx_kl_expects_the_divergence_of_the_old_policy_from_the_new():
    logps, old_logps = f64([[0.1, -1, 2]]).log_softmax(-1), f64([[0.5, 0.2, -1]]).log_softmax(-1)
    per_token = [
        approx_kl(logps[:, [v]], old_logps[:, [v]], torch.ones(1, 1)).item() for v in range(3)
    ]
    expected = (old_logps.exp() * f64([per_token])).sum()
    torch.testing.assert_close(expected, (old_logps.exp() * (old_logps - logps)).sum())


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        # tokens 2, 0.5, 1.1, 0.5: (4.1)^2 / (4 (4 + 0.25 + 1.21 + 0.25))
        ("token", 4.1**2 / (4 * 5.71)),
        # rows 1.1 and 0.5: 1.6^2 / (2 (1.21 + 0.25))
        ("product", 1.6**2 / (2 * 1.46)),
        # rows 1.1^(1/3) and 0.5
        ("geometric", (1.1 ** (1 / 3) + 0.5) ** 2 / (2 * (1.1 ** (2 / 3) + 0.25))),
    ],
)
def test_effective_sample_size_by_hand(level, expected):
    logps, old_logps = inputs()
    size = effective_sample_size(logps, old_logps, MASK, level=level)
    torch.testing.assert_close(size.item(), expected, rtol=1e-6, atol=0)


def test_effective_sample_size_between_one_of_n_and_all():
    logps, mask = torch.tensor([[30.0, 0.0, 0.0, 0.0]]), torch.ones(1, 4)
    assert effective_sample_size(logps, torch.zeros(1, 4), mask).item() == pytest.approx(1 / 4)
    assert effective_sample_size(logps, logps, mask).item() == 1.0
    # even where every weight is the smallest there is, e^-20
    assert effective_sample_size(logps - 90, logps, mask).item() == pytest.approx(1.0)


STATISTICS = {
    "clip_fraction": lambda x, old, m: clip_fraction(x, old, torch.ones(len(x)), m),
    "clip_fraction of rows": lambda x, old, m: clip_fraction(
        x, old, torch.ones(len(x)), m, level="product"
    ),
    "weight_clip_fraction": weight_clip_fraction,
    "clamped_fraction": clamped_fraction,
    "approx_kl": approx_kl,
    "effective_sample_size": effective_sample_size,
    "effective_sample_size of rows": lambda x, old, m: effective_sample_size(
        x, old, m, level="product"
    ),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_are_scalars_without_gradient_and_0_where_nothing_counts(name):
    logps, old_logps = inputs()
    value = STATISTICS[name](logps, old_logps, MASK)
    assert value.shape == ()
    assert not value.requires_grad
    assert STATISTICS[name](logps, old_logps, torch.zeros(3, 4)).item() == 0


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_are_finite_for_policies_far_apart(name):
    logps, old_logps = torch.tensor([[0.0, -500.0]]), torch.tensor([[-500.0, 0.0]])
    value = STATISTICS[name](logps, old_logps, torch.ones(1, 2))
    assert 0 <= value.item() <= (e**20 if name == "approx_kl" else 1)


@pytest.mark.parametrize("function", [weight_clip_fraction, effective_sample_size])
def test_refuses_an_unknown_level(function):
    zeros = torch.zeros(1, 1)
    with pytest.raises(ValueError, match='did you mean "token"'):
        function(zeros, zeros, zeros, level="tokens")
    with pytest.raises(ValueError, match='did you mean "token"'):
        clip_fraction(zeros, zeros, zeros, zeros, level="tokens")

from __future__ import annotations

from math import e, exp, log

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck

from sctom.losses import policy
from sctom.losses.policy import cispo_loss, grpo_loss, reinforce_loss, sapo_loss
from sctom.losses.reduce import sequence_mean, sequence_sum

GARBAGE = 1e4
MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
ADVANTAGES = torch.tensor([1.0, -2.0], dtype=torch.float64)


def at_ratios(ratios: list[list[float]], old: float = 0.4) -> tuple[Tensor, Tensor]:
    """Log-probabilities with these ratios to the old ones, and a last, masked column of garbage."""
    old_logps = torch.full((len(ratios), len(ratios[0]) + 1), log(old), dtype=torch.float64)
    log_ratios = [[log(r) for r in row] + [GARBAGE] for row in ratios]
    logps = old_logps + torch.tensor(log_ratios, dtype=torch.float64)
    return logps.requires_grad_(), old_logps


def assert_losses(losses: Tensor, logps: Tensor, values: list, gradients: list) -> None:
    torch.testing.assert_close(losses, torch.tensor(values, dtype=losses.dtype))
    (gradient,) = torch.autograd.grad(losses.sum(), logps)
    torch.testing.assert_close(gradient, torch.tensor(gradients, dtype=gradient.dtype))


def test_grpo_clips_each_sign_at_its_own_side():
    logps, old_logps = at_ratios([[2.0, 0.5], [2.0, 0.5]])
    losses = grpo_loss(logps, old_logps, ADVANTAGES, MASK, clip_low=0.2, clip_high=0.28)
    # A=+1: -min(2, 1.28) = -1.28, clipped: slope 0;   -min(0.5, 0.8) = -0.5, slope -r A = -0.5
    # A=-2: -min(-4, -2.56) = 4, slope -r A = 4;       -min(-1, -1.6) = 1.6, clipped: slope 0
    assert_losses(losses, logps, [[-1.28, -0.5, 0], [4, 1.6, 0]], [[0, -0.5, 0], [4, 0, 0]])


def test_grpo_takes_one_advantage_per_token():
    logps, old_logps = at_ratios([[2.0, 0.5]])
    advantages = torch.tensor([[-3.0, 1.0, float("nan")]])
    losses = grpo_loss(logps, old_logps, advantages, MASK[:1], clip_low=0.2, clip_high=0.28)
    # -min(2 x -3, 1.28 x -3) = 6, gradient 6;   -min(0.5, 0.8) = -0.5, gradient -0.5
    assert_losses(losses, logps, [[6, -0.5, 0]], [[6, -0.5, 0]])


def test_ratio_max_bounds_the_ratio_before_the_clip_for_both_signs():
    logps, old_logps = at_ratios([[2.0, 0.5], [2.0, 1.4]])
    settings = {"clip_low": 0.2, "clip_high": 0.28}
    losses = grpo_loss(logps, old_logps, ADVANTAGES, MASK, ratio_max=1.5, **settings)
    # A=-2: r = 2 becomes 1.5 -> 3, gradient 0;   r = 1.4 stays -> 2.8, gradient 2.8
    assert_losses(losses, logps, [[-1.28, -0.5, 0], [3, 2.8, 0]], [[0, -0.5, 0], [0, 2.8, 0]])
    losses = grpo_loss(logps, old_logps, ADVANTAGES, MASK, ratio_max=1.1, **settings)
    # a bound within the clip: every ratio above 1.1 becomes 1.1, whatever the sign
    assert_losses(losses, logps, [[-1.1, -0.5, 0], [2.2, 2.2, 0]], [[0, -0.5, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("advantage", "settings"),
    [(1.0, {"clip_high": 0.0}), (-1.0, {"clip_low": 0.0}), (-1.0, {"ratio_max": 1.0})],
)
def test_exactly_at_an_edge_the_gradient_is_full(advantage, settings):
    logps = torch.tensor([[-0.5]], requires_grad=True)  # on-policy: r = exp(0) = 1 exactly
    losses = grpo_loss(logps, logps, torch.tensor([advantage]), torch.ones(1, 1), **settings)
    assert_losses(losses, logps, [[-advantage]], [[-advantage]])


def test_grpo_with_the_geometric_mean_of_the_ratios():
    logps, old_logps = at_ratios([[4.0, 1.0], [4.0, 1.0]])
    losses = grpo_loss(logps, old_logps, ADVANTAGES, MASK, clip_high=0.28, level="geometric")
    # s = sqrt(4 x 1) = 2.   A=+1: 1.28, clipped.   A=-2: 4 on both tokens;
    # each token's share in log s is 1/2, and two broadcast tokens hold s: gradient 2 x 1/2 x 4 = 4
    assert_losses(losses, logps, [[-1.28, -1.28, 0], [4, 4, 0]], [[0, 0, 0], [4, 4, 0]])


def test_gspo_gradient_is_the_ratio_over_the_length():
    logps, old_logps = at_ratios([[4.0, 1.0]])
    losses = grpo_loss(logps, old_logps, ADVANTAGES[1:], MASK[:1], level="geometric")
    (gradient,) = torch.autograd.grad(sequence_mean(losses, MASK[:1]), logps)
    # -s A / |y| = 2 x 2 / 2 = 2
    torch.testing.assert_close(gradient, torch.tensor([[2.0, 2.0, 0.0]], dtype=torch.float64))


def test_grpo_with_the_product_of_the_ratios():
    logps, old_logps = at_ratios([[4.0, 1.5], [1.5, 0.5]])
    losses = grpo_loss(logps, old_logps, ADVANTAGES, MASK, clip_low=0.3, level="product")
    # A=+1: R = 6 -> 1.2, clipped.
    # A=-2: R = 0.75, inside [0.7, 1.2] -> 1.5; two broadcast tokens: gradient 2 x 1.5 = 3 per token
    assert_losses(losses, logps, [[-1.2, -1.2, 0], [1.5, 1.5, 0]], [[0, 0, 0], [3, 3, 0]])


def test_cispo_gradient_is_the_clipped_weight_times_the_advantage():
    logps, old_logps = at_ratios([[8.0, 0.5], [3.0, 0.5]], old=0.1)
    losses = cispo_loss(logps, old_logps, ADVANTAGES, MASK, weight_max=5.0, weight_min=0.75)
    # weights 8 -> 5, 0.5 -> 0.75, 3, 0.5 -> 0.75;   value -w A ln p with p = 0.8, 0.05, 0.3, 0.05
    values = [[-5 * log(0.8), -0.75 * log(0.05), 0], [6 * log(0.3), 1.5 * log(0.05), 0]]
    assert_losses(losses, logps, values, [[-5, -0.75, 0], [6, 1.5, 0]])


@pytest.mark.parametrize(
    ("level", "weight"),
    [("product", [6.0, 0.75]), ("geometric", [8**0.5, 0.75**0.5])],  # products 8 and 0.75
)
def test_cispo_gradient_at_the_row_levels(level, weight):
    logps, old_logps = at_ratios([[4.0, 2.0], [1.5, 0.5]])
    losses = cispo_loss(logps, old_logps, ADVANTAGES, MASK, weight_max=6.0, level=level)
    (gradient,) = torch.autograd.grad(sequence_sum(losses, MASK), logps)
    # -w A on every token of the row, divided by two rows
    expected = [[-weight[0] / 2, -weight[0] / 2, 0], [weight[1], weight[1], 0]]
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("level", ["token", "geometric", "product"])
def test_cispo_fails_the_finite_difference_check_by_design(level):
    logps, old_logps = at_ratios([[1.5, 0.5], [1.25, 1.5]])
    inputs = logps.detach()[:, :2].requires_grad_()
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradcheck(
            lambda x: cispo_loss(x, old_logps[:, :2], ADVANTAGES, MASK[:, :2], level=level), inputs
        )


def test_sapo_gates_each_sign_with_its_own_temperature():
    logps, old_logps = at_ratios([[2.0, 1.0], [0.5, 1.0]])
    losses = sapo_loss(logps, old_logps, ADVANTAGES, MASK, temperature_pos=1.0, temperature_neg=2.0)
    # A=+1, tau 1: r = 2: -4 s(1);        slope -4 s(1) (1 - s(1)) r A = -8 s(1) s(-1)
    #              r = 1: -4 s(0) = -2;   slope -4/4 A = -1
    # A=-2, tau 2: r = 1/2: (4/2) s(-1) 2 = 4 s(-1);   slope 4 s(-1) s(1) r 2 = 4 s(1) s(-1)
    #              r = 1: 2 x 1/2 x 2 = 2;   slope 2
    s = 1 / (1 + exp(-1))
    assert_losses(
        losses,
        logps,
        [[-4 * s, -2, 0], [4 * (1 - s), 2, 0]],
        [[-8 * s * (1 - s), -1, 0], [4 * s * (1 - s), 2, 0]],
    )


def test_sapo_defaults():
    logps = torch.zeros(1, 3, dtype=torch.float64)
    losses = sapo_loss(logps, logps, torch.tensor([[1.0, -1.0, 0.0]]), torch.ones(1, 3))
    # on-policy -(4 / tau) / 2 A: -2, 2 / 1.05, 0
    expected = torch.tensor([[-2, 2 / 1.05, 0]], dtype=torch.float64)
    torch.testing.assert_close(losses, expected, rtol=1e-14, atol=0)


def test_reinforce():
    logps = torch.tensor([[-1.0, -3.0, GARBAGE], [-2.0, -0.5, GARBAGE]], requires_grad=True)
    losses = reinforce_loss(logps, ADVANTAGES, MASK)
    # -A ln p: 1, 3; 2 x -2 = -4, 2 x -0.5 = -1;   gradient -A
    assert_losses(losses, logps, [[1, 3, 0], [-4, -1, 0]], [[-1, -1, 0], [2, 2, 0]])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, old, A, m: grpo_loss(x, old, A, m, clip_high=0.28, ratio_max=3.0),
        lambda x, old, A, m: grpo_loss(x, old, A, m, clip_high=0.28, level="geometric"),
        lambda x, old, A, m: grpo_loss(x, old, A, m, clip_low=0.9, clip_high=9, level="product"),
        sapo_loss,
        lambda x, old, A, m: reinforce_loss(x, A, m),
    ],
    ids=["token", "geometric", "product", "sapo", "reinforce"],
)
def test_gradients_agree_with_finite_differences(function):
    logps, old_logps = at_ratios([[2.0, 0.5], [1.1, 0.9]])
    assert gradcheck(lambda x: function(x, old_logps, ADVANTAGES, MASK), logps)


def test_log_ratios_are_clamped_at_20_and_have_no_gradient_beyond():
    logps = torch.tensor([[-1.0, -30.0]], dtype=torch.float64, requires_grad=True)
    old_logps = torch.tensor([[-26.0, -1.0]], dtype=torch.float64)  # log-ratios 25 and -29
    losses = grpo_loss(logps, old_logps, ADVANTAGES[1:], MASK[:1, :2], clip_low=2.0)
    assert_losses(losses, logps, [[2 * e**20, 2 * e**-20]], [[0, 0]])
    losses = cispo_loss(
        logps, old_logps, ADVANTAGES[1:], MASK[:1, :2], weight_max=1e9, level="token"
    )
    assert_losses(losses, logps, [[-2 * e**20, -60 * e**-20]], [[2 * e**20, 2 * e**-20]])


def test_the_sum_of_log_ratios_is_clamped_as_well():
    logps = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    old_logps = torch.tensor([[-13.0, -14.0]], dtype=torch.float64)  # 12 + 12 = 24
    losses = grpo_loss(logps, old_logps, ADVANTAGES[1:], MASK[:1, :2], level="product")
    assert_losses(losses, logps, [[2 * e**20, 2 * e**20]], [[0, 0]])


@pytest.mark.parametrize("given", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["grpo_loss", "cispo_loss", "sapo_loss"])
def test_computes_in_float32_or_wider(given, name):
    logps = torch.tensor([[-1.0, -2.0]], dtype=given)
    old_logps = torch.tensor([[-1.5, -1.5]], dtype=given)  # exact in every type
    advantages, mask = torch.tensor([1.0], dtype=given), torch.ones(1, 2, dtype=torch.bool)
    losses = getattr(policy, name)(logps, old_logps, advantages, mask)
    assert losses.dtype == (torch.float64 if given == torch.float64 else torch.float32)
    exact = getattr(policy, name)(logps.double(), old_logps.double(), advantages.double(), mask)
    torch.testing.assert_close(losses.double(), exact, rtol=1e-6, atol=0)


def test_only_logps_carry_a_gradient():
    tensors = [torch.tensor([[-1.0, -2.0]], requires_grad=True) for _ in range(3)]
    logps, old_logps, advantages = tensors
    mask = torch.ones(1, 2, requires_grad=True)
    for loss in (grpo_loss, cispo_loss, sapo_loss):
        loss(logps, old_logps, advantages, mask).sum().backward()
    reinforce_loss(logps, advantages, mask).sum().backward()
    assert logps.grad is not None
    assert old_logps.grad is None
    assert advantages.grad is None
    assert mask.grad is None


def one_token(function, **settings):
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    return function(zero, zero, one, one, **settings)


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        (grpo_loss, {"level": "sequence"}, '"token", "geometric" or "product" but is \'sequence\''),
        (cispo_loss, {"level": "produkt"}, 'did you mean "product"?'),
        (grpo_loss, {"clip_low": -0.2}, "clip_low must be at least 0 but is -0.2"),
        (grpo_loss, {"clip_high": float("nan")}, "clip_high must be at least 0 but is nan"),
        (grpo_loss, {"ratio_max": 0.0}, "ratio_max must be above 0 but is 0.0"),
        (cispo_loss, {"weight_min": -1.0}, "weight_min must be at least 0 but is -1.0"),
        (cispo_loss, {"weight_max": 0.2}, "weight_max must be at least 1 but is 0.2; it is an abs"),
        (cispo_loss, {"weight_max": 2, "weight_min": 3}, "weight_max must be at least 3 but is 2"),
        (sapo_loss, {"temperature_neg": 0.0}, "temperature_neg must be above 0 but is 0.0"),
        (sapo_loss, {"temperature_pos": 1e300}, r"temperature_pos must be at most 1e30 but is"),
    ],
)
def test_refuses_settings_without_a_meaning(function, settings, message):
    with pytest.raises(ValueError) as error:
        one_token(function, **settings)
    assert message in str(error.value)


def test_refuses_shapes_that_disagree():
    row, mask = torch.zeros(2, 3), torch.ones(2, 4)
    with pytest.raises(ValueError, match="mask has T=4 but logps has T=3"):
        grpo_loss(row, row, torch.zeros(2), mask)
    with pytest.raises(ValueError, match="advantages has B=3 but logps has B=2"):
        reinforce_loss(row, torch.zeros(3), row)


@pytest.mark.parametrize("bound", [1e300, float("inf")])
def test_a_bound_beyond_float32_is_no_bound(bound):
    logps, old_logps, ones = torch.tensor([[1.0, -1.0]]), torch.zeros(1, 2), torch.ones(1, 2)
    for function, huge, none in (
        (grpo_loss, {"ratio_max": bound, "clip_high": bound, "clip_low": bound}, {"clip_low": 9.0}),
        (cispo_loss, {"weight_max": bound}, {}),
    ):
        none |= {"clip_high": 9.0} if function is grpo_loss else {"weight_max": 9.0}
        args = (logps, old_logps, torch.ones(1), ones)
        assert torch.equal(function(*args, **huge), function(*args, **none))

from __future__ import annotations

from math import e, exp, log

import pytest
import torch
from torch import Tensor
from torch.autograd.gradcheck import gradcheck

from sctom.losses.kl import kl_k1, kl_k2, kl_k3, kl_penalty

ESTIMATES = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
MASK = torch.tensor([[1.0, 1.0, 0.0]])


def f64(values: list) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sampled() -> tuple[Tensor, Tensor, Tensor]:
    """Policy, old and reference log-probabilities of two tokens and a masked one."""
    logps = f64([[log(0.5), log(0.1), float("nan")]]).requires_grad_()
    old_logps = f64([[log(0.25), log(0.2), 1e4]])
    ref_logps = f64([[log(0.25), log(0.4), float("inf")]])
    return logps, old_logps, ref_logps


def gradient_of(values: Tensor, inputs: Tensor) -> Tensor:
    return torch.autograd.grad(values.sum(), inputs)[0]


# d = ln ref - ln p: ln(0.25 / 0.5) = -ln 2, and ln(0.4 / 0.1) = 2 ln 2
L = log(2)
VALUES = {"k1": [L, -2 * L], "k2": [L**2 / 2, 2 * L**2], "k3": [0.5 - 1 + L, 4 - 1 - 2 * L]}
SLOPES = {"k1": [1, 1], "k2": [L, -2 * L], "k3": [1 - 0.5, 1 - 4]}


@pytest.mark.parametrize("name", ESTIMATES)
def test_estimates_by_hand(name):
    logps, old_logps, ref_logps = sampled()
    for estimate in (
        ESTIMATES[name](logps, ref_logps, MASK),
        kl_penalty(logps, old_logps, ref_logps, MASK, estimator=name, weighted=False),
    ):
        torch.testing.assert_close(estimate, f64([VALUES[name] + [0]]))
        torch.testing.assert_close(gradient_of(estimate, logps), f64([SLOPES[name] + [0]]))


@pytest.mark.parametrize("name", ESTIMATES)
def test_weighted_penalty_by_hand(name):
    logps, old_logps, ref_logps = sampled()
    penalty = kl_penalty(logps, old_logps, ref_logps, MASK, estimator=name)
    # r = 0.5 / 0.25 = 2 and 0.1 / 0.2 = 0.5
    k, r = VALUES[name], [2, 0.5]
    torch.testing.assert_close(penalty, f64([[r[0] * k[0], r[1] * k[1], 0]]))
    # r (ln p - ln ref) = 2 ln 2 and -ln 2; for k1 there is r more
    more = r if name == "k1" else [0, 0]
    expected = f64([[2 * L + more[0], -L + more[1], 0]])
    torch.testing.assert_close(gradient_of(penalty, logps), expected)


@pytest.mark.parametrize("name", ESTIMATES)
def test_without_a_mask_every_token_counts(name):
    logps, _, ref_logps = (x[:, :2] for x in sampled())
    torch.testing.assert_close(ESTIMATES[name](logps, ref_logps), f64([VALUES[name]]))
    penalty = kl_penalty(logps, logps, ref_logps, estimator=name)  # on-policy: r = 1
    torch.testing.assert_close(penalty, f64([VALUES[name]]))


def test_the_default_is_the_weighted_k3():
    inputs = sampled()
    expected = kl_penalty(*inputs, MASK, estimator="k3", weighted=True)
    assert torch.equal(kl_penalty(*inputs, MASK), expected)


# --- expectations over a small vocabulary, with every token enumerated ---


def categorical() -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the policy, and the log-probabilities [1, V] of old policy and reference."""
    logits = f64([[0.3, -1.2, 0.8, 0.1, -0.4]]).requires_grad_()
    old_logps = f64([[-0.5, 0.4, 0.2, 1.1, -0.9]]).log_softmax(-1)
    ref_logps = f64([[1.0, 0.2, -0.7, 0.5, -0.1]]).log_softmax(-1)
    return logits, old_logps, ref_logps


def reverse_kl_gradient(logits: Tensor, ref_logps: Tensor) -> Tensor:
    logps = logits.log_softmax(-1)
    return gradient_of(logps.exp() * (logps - ref_logps), logits)


@pytest.mark.parametrize("policy", ["on", "off"])
@pytest.mark.parametrize("name", ESTIMATES)
def test_expected_gradient_of_the_weighted_penalty_is_that_of_the_reverse_kl(name, policy):
    logits, old_logps, ref_logps = categorical()
    logps = logits.log_softmax(-1)
    old_logps = logps.detach() if policy == "on" else old_logps
    penalty = kl_penalty(logps, old_logps, ref_logps, estimator=name)
    expected_gradient = gradient_of(old_logps.exp() * penalty, logits)
    exact = reverse_kl_gradient(logits, ref_logps)
    torch.testing.assert_close(expected_gradient, exact, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_expected_value_of_the_weighted_penalty_is_the_reverse_kl(name):
    logits, old_logps, ref_logps = categorical()
    logps = logits.log_softmax(-1)
    penalty = kl_penalty(logps, old_logps, ref_logps, estimator=name)
    exact = (logps.exp() * (logps - ref_logps)).sum()
    torch.testing.assert_close((old_logps.exp() * penalty).sum(), exact)


def test_what_the_plain_estimates_descend_on_policy():
    logits, _, ref_logps = categorical()
    probabilities = logits.softmax(-1).detach()
    expected = {
        name: gradient_of(probabilities * estimate(logits.log_softmax(-1), ref_logps), logits)
        for name, estimate in ESTIMATES.items()
    }
    # sum_v p_v d ln p_v = d sum_v p_v = 0
    torch.testing.assert_close(expected["k1"], torch.zeros_like(logits), rtol=0, atol=1e-15)
    torch.testing.assert_close(expected["k2"], reverse_kl_gradient(logits, ref_logps))
    # sum_v p_v (1 - ref_v / p_v) d ln p_v = -sum_v ref_v d ln p_v: that of the forward KL
    torch.testing.assert_close(expected["k3"], probabilities - ref_logps.exp())


def test_the_plain_k2_needs_its_weight_off_policy():
    logits, old_logps, ref_logps = categorical()
    estimate = kl_k2(logits.log_softmax(-1), ref_logps)
    expected_gradient = gradient_of(old_logps.exp() * estimate, logits)
    assert (expected_gradient - reverse_kl_gradient(logits, ref_logps)).abs().max() > 0.1


# --- numerics ---


@pytest.mark.parametrize("name", ESTIMATES)
def test_gradients_agree_with_finite_differences(name):
    logps, old_logps, ref_logps = sampled()
    inputs = logps.detach()[:, :2].requires_grad_()
    mask = MASK[:, :2]
    assert gradcheck(lambda x: ESTIMATES[name](x, ref_logps[:, :2], mask), inputs)
    if name != "k2":  # its weight is detached
        assert gradcheck(
            lambda x: kl_penalty(x, old_logps[:, :2], ref_logps[:, :2], mask, estimator=name),
            inputs,
        )


@pytest.mark.parametrize(
    ("name", "values"), [("k1", [20, -20]), ("k2", [200, 200]), ("k3", [e**-20 + 19, e**20 - 21])]
)
def test_differences_are_clamped_at_20_and_have_no_gradient_beyond(name, values):
    logps = f64([[-1.0, -31.0]]).requires_grad_()
    ref_logps = f64([[-26.0, -1.0]])  # ref - p = -25 and 30
    estimate = ESTIMATES[name](logps, ref_logps)
    torch.testing.assert_close(estimate, f64([values]))
    assert gradient_of(estimate, logps).tolist() == [[0, 0]]


def test_weighted_k3_has_no_gradient_where_the_reference_is_far_above():
    logps, ref_logps = f64([[-31.0]]).requires_grad_(), f64([[-1.0]])
    penalty = kl_penalty(logps, f64([[-31.5]]), ref_logps)
    torch.testing.assert_close(penalty, f64([[exp(0.5) * (e**20 - 21)]]))
    # true slope r (ln p - ln ref) = -49; what the clamp leaves of it would be r (e^20 - 21) = 8e8
    assert gradient_of(penalty, logps).tolist() == [[0]]


def test_weighted_k3_pulls_back_where_the_policy_is_far_above():
    logps, ref_logps = f64([[-1.0]]).requires_grad_(), f64([[-31.0]])
    penalty = kl_penalty(logps, f64([[-1.0]]), ref_logps)
    # true slope 30; the clamped estimate e^-20 - 1 + 20 is what the weight passes on
    torch.testing.assert_close(gradient_of(penalty, logps), f64([[19 + e**-20]]))


def test_k3_of_a_tiny_difference_keeps_its_digits():
    estimate = kl_k3(torch.tensor([[0.0]]), torch.tensor([[1e-3]]))  # d^2/2 + d^3/6
    torch.testing.assert_close(estimate, torch.tensor([[5.001667e-7]]), rtol=2e-4, atol=0)


@pytest.mark.parametrize("given", [torch.bfloat16, torch.float16])
def test_computes_in_float32(given):
    logps, ref_logps = torch.tensor([[-1.0]], dtype=given), torch.tensor([[-1.5]], dtype=given)
    penalty = kl_penalty(logps, logps, ref_logps)
    torch.testing.assert_close(penalty, torch.tensor([[exp(-0.5) - 0.5]]))


def test_only_logps_carry_a_gradient():
    logps, old_logps, ref_logps = (torch.zeros(1, 2, requires_grad=True) for _ in range(3))
    for name in ESTIMATES:
        kl_penalty(logps, old_logps, ref_logps, estimator=name).sum().backward()
    assert logps.grad is not None
    assert old_logps.grad is None
    assert ref_logps.grad is None


def test_refuses_unknown_estimators_and_shapes():
    zeros = torch.zeros(1, 2)
    with pytest.raises(ValueError, match='"k1", "k2" or "k3" but is \'k4\'; did you mean "k'):
        kl_penalty(zeros, zeros, zeros, estimator="k4")
    with pytest.raises(ValueError, match="old_logps has T=3 but logps has T=2"):
        kl_penalty(zeros, torch.zeros(1, 3), zeros)
    with pytest.raises(ValueError, match="mask has B=2 but logps has B=1"):
        kl_k1(zeros, zeros, torch.zeros(2, 2))

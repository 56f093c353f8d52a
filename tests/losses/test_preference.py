from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from sctom.losses import (
    bradley_terry_loss,
    combine_safety_helpfulness,
    preference_margins,
    score_centering,
    tie_loss,
)


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


# bradley_terry_loss ------------------------------------------------------------------------------


def test_the_worked_example_of_llama_2():
    # scores 2.0 and 1.8. No margin: -ln sigma(0.2)      = -ln 0.550  = 0.598
    #                     margin 3:  -ln sigma(0.2 - 3)  = -ln 0.0573 = 2.86, 4.8 times as much
    chosen, rejected = doubles(2.0, 2.0), doubles(1.8, 1.8)
    plain, wide = bradley_terry_loss(chosen, rejected, torch.tensor([0.0, 3.0])).tolist()
    assert plain == pytest.approx(0.5981388694, abs=1e-9)
    assert wide == pytest.approx(2.8590328263, abs=1e-6)  # the margin came in float32
    assert wide / plain == pytest.approx(4.780, abs=5e-4)


def test_bradley_terry_gradient_is_the_probability_of_being_wrong():
    # d/dz -ln sigma(z) = -sigma(-z):   z = 0.2 -> -0.4502,   z = 0.2 - 3 = -2.8 -> -0.9427
    chosen, rejected = doubles(2.0, 2.0), doubles(1.8, 1.8)
    margin = torch.tensor([0.0, 3.0], dtype=torch.float64, requires_grad=True)
    bradley_terry_loss(chosen, rejected, margin).sum().backward()
    assert chosen.grad.tolist() == pytest.approx([-0.4501660027, -0.9426758241], abs=1e-9)
    assert rejected.grad.tolist() == pytest.approx([0.4501660027, 0.9426758241], abs=1e-9)
    assert margin.grad is None


def test_one_margin_for_all_pairs_equals_the_same_margin_for_each():
    chosen, rejected = doubles(2.0, -1.0), doubles(1.8, 0.5)
    each = bradley_terry_loss(chosen, rejected, torch.tensor([0.5, 0.5]))
    assert torch.equal(bradley_terry_loss(chosen, rejected, 0.5), each)


def test_label_smoothing_is_the_cross_entropy_of_a_soft_label():
    # z = 1.2 - 0.2 - 0.5 = 0.5, e = 0.1:
    # 0.9 * -ln sigma(0.5) + 0.1 * -ln sigma(-0.5) = 0.9 * 0.474077 + 0.1 * 0.974077 = 0.524077
    chosen, rejected = doubles(1.2), doubles(0.2)
    loss = bradley_terry_loss(chosen, rejected, 0.5, label_smoothing=0.1)
    assert loss.item() == pytest.approx(0.5240769842, abs=1e-9)
    # d/dz = sigma(z) - 0.9 = 0.622459 - 0.9 = -0.277541, and so for the chosen score
    loss.backward()
    assert chosen.grad.item() == pytest.approx(sigma(0.5) - 0.9, abs=1e-12)


def test_label_smoothing_stops_at_the_log_odds_of_a_right_label():
    best = math.log(0.9 / 0.1)  # logit(1 - e)
    chosen, rejected = doubles(best, best - 1, best + 1), doubles(0.0, 0.0, 0.0)
    bradley_terry_loss(chosen, rejected, label_smoothing=0.1).sum().backward()
    at, below, above = chosen.grad.tolist()
    assert at == pytest.approx(0.0, abs=1e-12)
    assert below < 0 < above


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_bradley_terry_gradcheck(label_smoothing: float):
    def loss(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        return bradley_terry_loss(chosen, rejected, 0.3, label_smoothing=label_smoothing)

    assert gradcheck(loss, (doubles(0.3, -2.0, 4.0), doubles(1.0, 0.5, -3.0)))


def test_hopeless_pairs_stay_finite():
    chosen = torch.tensor([-1e4], requires_grad=True)
    loss = bradley_terry_loss(chosen, torch.tensor([1e4]))
    loss.backward()
    assert (loss.item(), chosen.grad.item()) == (2e4, -1.0)


def test_low_precision_scores_are_widened_before_they_are_subtracted():
    # 64 - 63.75 = 0.25 exactly, but -ln sigma(0.25) = 0.575939 has no bfloat16
    loss = bradley_terry_loss(torch.tensor([64.0]).bfloat16(), torch.tensor([63.75]).bfloat16())
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(-math.log(sigma(0.25)), abs=1e-6)


@pytest.mark.parametrize("label_smoothing", [-0.1, 0.5, 1.0, math.nan])
def test_label_smoothing_out_of_range(label_smoothing: float):
    with pytest.raises(ValueError, match=r"must lie in \[0, 0.5\) but is"):
        bradley_terry_loss(doubles(0.0), doubles(0.0), label_smoothing=label_smoothing)


def test_bradley_terry_shapes():
    with pytest.raises(ValueError, match="rejected has N=2 but chosen has N=1"):
        bradley_terry_loss(doubles(0.0), doubles(0.0, 0.0))
    with pytest.raises(ValueError, match="margin has N=2 but chosen has N=1"):
        bradley_terry_loss(doubles(0.0), doubles(0.0), torch.zeros(2))
    with pytest.raises(ValueError, match=r"chosen must have the shape \[N\] but has \[1, 1\]"):
        bradley_terry_loss(torch.zeros(1, 1), torch.zeros(1, 1))


# tie_loss ----------------------------------------------------------------------------------------


def test_rao_kupper_by_hand():
    # a = ln 2, b = 0, theta = 3:  P(first) = 2 / (2 + 3) = 0.4,  P(second) = 1 / (1 + 3 * 2) = 1/7
    # P(tie) = (9 - 1) * 2 * 1 / ((2 + 3)(1 + 6)) = 16/35;  0.4 + 1/7 + 16/35 = 1
    a, b = doubles(math.log(2), 0.0, math.log(2)), doubles(0.0, math.log(2), 0.0)
    loss = tie_loss(a, b, torch.tensor([False, False, True]), theta=3.0)
    assert torch.exp(-loss).tolist() == pytest.approx([0.4, 1 / 7, 16 / 35], abs=1e-12)


def test_tie_gradients_by_hand():
    # first wins: d/da -ln sigma(a - b - ln theta) = -(1 - P(first))                = -0.6
    # tie: -ln P(first) - ln P(second): -(1 - P(first)) + (1 - P(second)) = -3/5 + 6/7 = 9/35
    a = doubles(math.log(2), math.log(2))
    tie_loss(a, doubles(0.0, 0.0), torch.tensor([False, True]), theta=3.0).sum().backward()
    assert a.grad.tolist() == pytest.approx([-0.6, 9 / 35], abs=1e-12)


def test_the_three_outcomes_add_up_to_one():
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 50, generator=generator, dtype=torch.float64) * 5
    never, always = torch.zeros(50, dtype=torch.bool), torch.ones(50, dtype=torch.bool)
    outcomes = [tie_loss(a, b, never, theta=1.7), tie_loss(b, a, never, theta=1.7)]
    outcomes.append(tie_loss(a, b, always, theta=1.7))
    assert torch.allclose(sum(torch.exp(-loss) for loss in outcomes), torch.ones_like(a))


def test_a_tie_is_likeliest_at_equal_scores_and_then_has_no_gradient():
    # P(tie) = (theta - 1) / (theta + 1) = 0.5 at theta = 3
    a = doubles(1.5)
    loss = tie_loss(a, doubles(1.5), torch.tensor([1]), theta=3.0)
    loss.backward()
    assert torch.exp(-loss).item() == pytest.approx(0.5, abs=1e-12)
    assert a.grad.item() == pytest.approx(0.0, abs=1e-12)


def test_theta_near_one_is_bradley_terry_for_decided_pairs():
    a, b = doubles(0.3, -2.0), doubles(1.0, 0.5)
    nearly = tie_loss(a, b, torch.tensor([False, False]), theta=1 + 1e-9)
    assert torch.allclose(nearly, bradley_terry_loss(a, b), atol=1e-8)


def test_tie_gradcheck():
    tied = torch.tensor([True, False, True])
    arguments = (doubles(0.3, -2.0, 4.0), doubles(1.0, 0.5, -3.0))
    assert gradcheck(lambda a, b: tie_loss(a, b, tied, theta=1.5), arguments)


@pytest.mark.parametrize("theta", [1.0, 0.5, math.inf, math.nan])
def test_theta_must_allow_ties(theta: float):
    with pytest.raises(ValueError, match="use bradley_terry_loss"):
        tie_loss(doubles(0.0), doubles(0.0), torch.tensor([True]), theta=theta)


# preference_margins and score_centering ----------------------------------------------------------


def test_margins_are_those_of_table_27():
    grades = torch.tensor([3, 2, 1, 0])
    assert preference_margins(grades).tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0], abs=1e-7)
    assert preference_margins(grades, scale="large").tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("grade", [4.0, -1.0, 1.5, math.nan])
def test_a_strange_grade_is_named_with_its_place(grade: float):
    with pytest.raises(ValueError, match=rf"grades\[2\] is {grade} but a grade is 3"):
        preference_margins(torch.tensor([0.0, 1.0, grade]))


def test_a_misspelt_margin_scale_is_refused():
    with pytest.raises(ValueError, match='did you mean "large"'):
        preference_margins(torch.tensor([1]), scale="larg")


def test_score_centering_by_hand():
    # (2 - 0.5)^2 = 2.25, gradient 2 * 1.5 = 3 for both;   (-1 - 3)^2 = 16, gradient -8
    chosen, rejected = doubles(2.0, -1.0), doubles(-0.5, -3.0)
    penalty = score_centering(chosen, rejected)
    penalty.sum().backward()
    assert penalty.tolist() == [2.25, 16.0]
    assert chosen.grad.tolist() == rejected.grad.tolist() == [3.0, -8.0]
    assert gradcheck(score_centering, (chosen, rejected))


# combine_safety_helpfulness ----------------------------------------------------------------------


def test_combination_by_hand():
    # row 0: ordinary prompt, sigma(1) = 0.731 is safe enough        -> helpfulness  4
    # row 1: ordinary prompt, sigma(-2) = 0.119 < 0.15               -> safety      -2
    # row 2: safety prompt                                           -> safety       1
    # mean 1, squares 9 + 9 + 0 = 18, unbiased variance 18 / 2 = 9   -> 1, -1, 0
    helpfulness, safety = doubles(4.0, 4.0, 9.0), doubles(1.0, -2.0, 1.0)
    reward = combine_safety_helpfulness(helpfulness, safety, torch.tensor([0, 0, 1]))
    assert reward.tolist() == pytest.approx([1.0, -1.0, 0.0], abs=1e-8)


def test_the_threshold_is_a_probability_and_strict():
    # sigma(0) = 0.5 is not below 0.5, sigma(-0.1) = 0.475 is, sigma(1) = 0.731 is not:
    # scores 10, -0.1, 4.95 -> 1, -1, 0
    helpfulness, safety = torch.tensor([10.0, 10.0, 4.95]), torch.tensor([0.0, -0.1, 1.0])
    reward = combine_safety_helpfulness(helpfulness, safety, torch.zeros(3), threshold=0.5)
    assert reward.tolist() == pytest.approx([1.0, -1.0, 0.0], abs=1e-6)
    # at 0.15 all three are helpfulness; the raw scores 0.0 and -0.1 would be below it
    reward = combine_safety_helpfulness(helpfulness, safety, torch.zeros(3), threshold=0.15)
    assert reward[0] == reward[1] > 0


def test_large_scores_do_not_saturate():
    # through a float32 sigmoid and back, 20, 40 and 60 would all be the logit of 1: infinite
    reward = combine_safety_helpfulness(
        torch.tensor([20.0, 40.0, 60.0]), torch.zeros(3), torch.zeros(3)
    )
    assert reward.tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)


def test_scores_that_are_not_chosen_do_not_matter():
    helpfulness, safety = torch.tensor([4.0, math.nan, 1e30]), torch.tensor([1.0, -2.0, 1.0])
    reward = combine_safety_helpfulness(helpfulness, safety, torch.tensor([0, 0, 1]))
    assert reward.tolist() == pytest.approx([1.0, -1.0, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("helpfulness", "safety", "is_safety"),
    [
        pytest.param(1.0, math.nan, 0, id="safety unknown, so helpfulness cannot be trusted"),
        pytest.param(math.nan, 1.0, 0, id="helpfulness chosen and unknown"),
        pytest.param(1.0, -math.inf, 0, id="safety chosen and infinite"),
    ],
)
def test_a_missing_score_is_reported_with_its_row(
    helpfulness: float, safety: float, is_safety: int
):
    with pytest.raises(ValueError, match=r"row 1 has helpfulness .* the first of 1 rows"):
        combine_safety_helpfulness(
            torch.tensor([0.0, helpfulness]),
            torch.tensor([0.0, safety]),
            torch.tensor([0, is_safety]),
        )


def test_gradient_of_the_combination_by_hand():
    # as in the first test: x = 4, -2, 1 whitened to y = 1, -1, 0 by the deviation s = 3
    # dy_0/dx_j = (1[j = 0] - 1/3 - y_0 y_j / 2) / s = (1/6, 1/6, -1/3) / 3
    helpfulness, safety = doubles(4.0, 4.0, 9.0), doubles(1.0, -2.0, 1.0)
    combine_safety_helpfulness(helpfulness, safety, torch.tensor([0, 0, 1]))[0].backward()
    assert helpfulness.grad.tolist() == pytest.approx([1 / 18, 0.0, 0.0], abs=1e-8)
    assert safety.grad.tolist() == pytest.approx([0.0, 1 / 18, -1 / 9], abs=1e-8)


def test_a_threshold_in_raw_units_is_refused():
    with pytest.raises(ValueError, match="compared with sigmoid"):
        combine_safety_helpfulness(doubles(0.0), doubles(0.0), torch.zeros(1), threshold=-1.73)


def test_permuting_the_pairs_permutes_every_result():
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 20, generator=generator, dtype=torch.float64) * 3
    flags = torch.rand(20, generator=generator) < 0.5
    order = torch.randperm(20, generator=generator)
    for function in (
        lambda i: bradley_terry_loss(a[i], b[i], a[i].abs(), label_smoothing=0.2),
        lambda i: tie_loss(a[i], b[i], flags[i], theta=1.4),
        lambda i: score_centering(a[i], b[i]),
        lambda i: combine_safety_helpfulness(a[i], b[i], flags[i]),
    ):
        assert torch.allclose(function(slice(None))[order], function(order))

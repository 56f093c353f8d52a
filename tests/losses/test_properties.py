from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from sctom.losses.advantages import group_advantages, leave_one_out_advantages
from sctom.losses.kl import kl_k1, kl_k2, kl_k3, kl_penalty
from sctom.losses.policy import cispo_loss, grpo_loss, reinforce_loss, sapo_loss
from sctom.losses.reduce import fixed_length_mean, sequence_mean, sequence_sum, token_mean

repeatable = settings(derandomize=True, database=None, deadline=None, max_examples=10)


@dataclass(frozen=True)
class Batch:
    """Everything a loss may be given, all [B, T]."""

    logps: Tensor
    old_logps: Tensor
    ref_logps: Tensor
    advantages: Tensor
    mask: Tensor

    def each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same change made to every tensor, the mask included."""
        return Batch(*(change(tensor) for tensor in vars(self).values()))


def policy_loss(function: Callable[..., Tensor], **keywords) -> Callable[[Batch], Tensor]:
    return lambda b: function(b.logps, b.old_logps, b.advantages, b.mask, **keywords)


def penalty(estimator: str, weighted: bool) -> Callable[[Batch], Tensor]:
    return lambda b: kl_penalty(
        b.logps, b.old_logps, b.ref_logps, b.mask, estimator=estimator, weighted=weighted
    )


LEVELS = ["token", "geometric", "product"]
POLICY_LOSSES = {
    **{f"grpo {level}": policy_loss(grpo_loss, level=level) for level in LEVELS},
    **{f"cispo {level}": policy_loss(cispo_loss, level=level) for level in LEVELS},
    "grpo ratio_max": policy_loss(grpo_loss, clip_high=0.28, ratio_max=1.5),
    "sapo": policy_loss(sapo_loss),
    "reinforce": lambda b: reinforce_loss(b.logps, b.advantages, b.mask),
}
PENALTIES = {
    "k1": lambda b: kl_k1(b.logps, b.ref_logps, b.mask),
    "k2": lambda b: kl_k2(b.logps, b.ref_logps, b.mask),
    "k3": lambda b: kl_k3(b.logps, b.ref_logps, b.mask),
    **{f"weighted {k}": penalty(k, weighted=True) for k in ("k1", "k2", "k3")},
}
LOSSES = {**POLICY_LOSSES, **PENALTIES}
REDUCTIONS = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "fixed_length_mean": lambda losses, mask: fixed_length_mean(losses, mask, length=9),
    "sequence_sum": sequence_sum,
}


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Rows of any lengths, some without tokens; padding on the right, of zeros."""
    shape = draw(st.tuples(st.integers(1, 4), st.integers(1, 5)))

    def numbers(low: float, high: float) -> Tensor:
        elements = st.floats(low, high, allow_subnormal=False)
        return torch.from_numpy(draw(arrays(np.float64, shape, elements=elements)))

    lengths = draw(st.lists(st.integers(0, shape[1]), min_size=shape[0], max_size=shape[0]))
    mask = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).double()
    advantages = numbers(-2, 2)
    return Batch(numbers(-4, 0), numbers(-4, 0), numbers(-4, 0), advantages, mask).each(
        lambda tensor: tensor * mask
    )


def value_and_gradient(
    loss: Callable[[Batch], Tensor],
    batch: Batch,
    reduce: Callable[[Tensor, Tensor], Tensor] = lambda losses, mask: losses.sum(),
) -> tuple[Tensor, Tensor]:
    logps = batch.logps.clone().requires_grad_()
    losses = loss(replace(batch, logps=logps))
    (gradient,) = torch.autograd.grad(reduce(losses, batch.mask), logps)
    return losses.detach(), gradient


def assert_same(actual: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """Equal up to the last digits, which may depend on the place in memory."""
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@repeatable
@given(batch=batches())
def test_what_padding_holds_changes_neither_value_nor_gradient(name, batch):
    clean = value_and_gradient(LOSSES[name], batch)
    for result in clean:
        assert torch.all(result[batch.mask == 0] == 0)
    for garbage in (nan, inf, -inf, 1e4, -1e4):
        filled = batch.each(lambda x, other=garbage: torch.where(batch.mask == 1, x, other))
        dirty = value_and_gradient(LOSSES[name], replace(filled, mask=batch.mask))
        assert all(torch.equal(*pair) for pair in zip(dirty, clean, strict=True))


@pytest.mark.parametrize("name", LOSSES)
@repeatable
@given(batch=batches(), data=st.data())
def test_permuting_the_rows_permutes_the_result(name, batch, data):
    order = data.draw(st.permutations(range(len(batch.mask))))
    permuted = value_and_gradient(LOSSES[name], batch.each(lambda tensor: tensor[order]))
    losses, gradient = value_and_gradient(LOSSES[name], batch)
    assert_same(permuted, (losses[order], gradient[order]))


@pytest.mark.parametrize("name", LOSSES)
@repeatable
@given(batch=batches())
def test_padding_on_the_left_or_on_the_right_is_the_same(name, batch):
    flipped = batch.each(lambda tensor: tensor.flip(1))
    for reduce in REDUCTIONS.values():
        losses, gradient = value_and_gradient(LOSSES[name], batch, reduce)
        actual = value_and_gradient(LOSSES[name], flipped, reduce)
        assert_same(actual, (losses.flip(1), gradient.flip(1)))


@pytest.mark.parametrize("name", LOSSES)
@repeatable
@given(batch=batches())
def test_a_row_without_tokens_changes_no_other_row(name, batch):
    longer = batch.each(lambda tensor: torch.cat([tensor, torch.full_like(tensor[:1], nan)]))
    longer = replace(longer, mask=torch.cat([batch.mask, torch.zeros_like(batch.mask[:1])]))
    losses, gradient = value_and_gradient(LOSSES[name], longer)
    assert_same((losses[:-1], gradient[:-1]), value_and_gradient(LOSSES[name], batch))
    assert torch.all(losses[-1] == 0)
    assert torch.all(gradient[-1] == 0)


@pytest.mark.parametrize("name", POLICY_LOSSES)
@repeatable
@given(batch=batches())
def test_zero_advantage_gives_zero_loss_and_zero_gradient(name, batch):
    results = value_and_gradient(
        LOSSES[name], replace(batch, advantages=torch.zeros_like(batch.mask))
    )
    for result in results:
        assert torch.all(result == 0)


@pytest.mark.parametrize(
    ("name", "reduction", "reinforce_reduction"),
    [
        *((loss, "token_mean", "token_mean") for loss in ("grpo token", "cispo token", "sapo")),
        ("grpo geometric", "sequence_mean", "sequence_mean"),
        ("grpo product", "sequence_mean", "sequence_sum"),
        ("cispo product", "sequence_sum", "sequence_sum"),
    ],
)
@repeatable
@given(batch=batches())
def test_on_policy_the_gradient_is_that_of_reinforce(name, reduction, reinforce_reduction, batch):
    advantages = batch.advantages[:, :1] * batch.mask  # one per row, as the row levels need
    on_policy = replace(batch, old_logps=batch.logps, advantages=advantages)
    _, gradient = value_and_gradient(LOSSES[name], on_policy, REDUCTIONS[reduction])
    _, expected = value_and_gradient(
        LOSSES["reinforce"], on_policy, REDUCTIONS[reinforce_reduction]
    )
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", PENALTIES)
@repeatable
@given(batch=batches())
def test_no_divergence_from_oneself(name, batch):
    losses, _ = value_and_gradient(LOSSES[name], replace(batch, ref_logps=batch.logps))
    assert torch.all(losses == 0)


@pytest.mark.parametrize("name", ["k2", "k3", "weighted k2", "weighted k3"])
@repeatable
@given(batch=batches())
def test_k2_and_k3_are_never_negative(name, batch):
    losses, _ = value_and_gradient(LOSSES[name], batch)
    assert torch.all(losses >= 0)


# --- advantages ---


@st.composite
def reward_groups(draw: st.DrawFn) -> Tensor:
    """[P, G] multiples of 1/8, some of them NaN."""
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 6)))
    elements = st.one_of(st.just(nan), st.integers(-16, 16).map(lambda n: n / 8))
    return torch.from_numpy(draw(arrays(np.float64, shape, elements=elements)))


RULES = {
    "leave_one_out": leave_one_out_advantages,
    "group": group_advantages,
    "batch": lambda rewards: group_advantages(rewards, scale="batch"),
    "none": lambda rewards: group_advantages(rewards, scale="none"),
}


@pytest.mark.parametrize("name", RULES)
@repeatable
@given(rewards=reward_groups(), data=st.data())
def test_advantages_are_centred_ordered_and_follow_a_permutation(name, rewards, data):
    advantages = RULES[name](rewards)
    assert torch.all(advantages[rewards.isnan()] == 0)
    torch.testing.assert_close(
        advantages.sum(1), torch.zeros(len(rewards)).double(), rtol=0, atol=1e-9
    )
    for group, values in zip(rewards, advantages, strict=True):
        known = ~group.isnan()
        gaps = group[known][:, None] - group[known]
        assert torch.equal((values[known][:, None] - values[known]).sign(), gaps.sign())
    order = data.draw(st.permutations(range(rewards.shape[1])))
    torch.testing.assert_close(RULES[name](rewards[:, order]), advantages[:, order])
    torch.testing.assert_close(RULES[name](rewards + 3), advantages)


@repeatable
@given(rewards=reward_groups(), factor=st.sampled_from([0.125, 2.0, 1024.0]))
def test_division_by_the_standard_deviation_removes_the_unit(rewards, factor):
    expected = group_advantages(rewards, eps=0.0)
    torch.testing.assert_close(group_advantages(rewards * factor, eps=0.0), expected)


@pytest.mark.parametrize("name", RULES)
@repeatable
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 9))
def test_equal_rewards_of_any_size_give_exactly_zero(name, reward, size):
    advantages = RULES[name](torch.full((2, size), reward, dtype=torch.float64))
    assert torch.all(advantages == 0)


@repeatable
@given(rewards=reward_groups())
def test_leave_one_out_is_the_centred_reward_by_n_over_n_minus_one(rewards):
    n = (~rewards.isnan()).sum(1, keepdim=True).clamp(min=2)
    expected = group_advantages(rewards, scale="none") * n / (n - 1)
    torch.testing.assert_close(leave_one_out_advantages(rewards), expected)

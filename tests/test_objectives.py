from __future__ import annotations

import inspect
import re
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import sctom.losses
from sctom import objectives
from sctom.objectives import (
    BNPO,
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    PPO,
    RLME,
    RLOO,
    SAPO,
    BoundObjective,
    DrGRPO,
    Objective,
    Totals,
)

ALL = [
    thing
    for thing in vars(objectives).values()
    if isinstance(thing, type) and issubclass(thing, Objective) and thing is not Objective
]

COMPARING = [objective for objective in ALL if objective is not PPO]


def settings(objective: type[Objective]) -> dict[str, Any]:
    """The settings of the loss, under their names in the config, with their defaults."""
    return {item.name: item.default for item in fields(objective) if item.name != "scale"}


def loss_arguments(objective: type[Objective]) -> dict[str, Any]:
    """The keyword-only arguments of the objective's loss, with their defaults."""
    signature = inspect.signature(getattr(sctom.losses, objective.loss))
    only = (x for x in signature.parameters.values() if x.kind is inspect.Parameter.KEYWORD_ONLY)
    return {parameter.name: parameter.default for parameter in only}


# settings and loss arguments ----------------------------------------------------------------------


@pytest.mark.parametrize("objective", ALL)
def test_settings_and_fixed_are_the_arguments_of_the_loss(objective: type[Objective]):
    chosen = [item.metadata.get("argument", item.name) for item in fields(objective)]
    chosen = [name for name in chosen if name not in ("scale", None)]
    assert sorted([*chosen, *objective.fixed]) == sorted(loss_arguments(objective))
    assert objective().arguments().keys() == loss_arguments(objective).keys()


@pytest.mark.parametrize("objective", ALL)
def test_a_setting_named_as_in_the_loss_has_the_default_of_the_loss(objective: type[Objective]):
    theirs = loss_arguments(objective)
    for item in fields(objective):
        if item.name in theirs:
            assert item.default == theirs[item.name], item.name


@pytest.mark.parametrize("objective", ALL)
def test_an_alias_exists_because_its_default_differs(objective: type[Objective]):
    theirs = loss_arguments(objective)
    for item in fields(objective):
        if item.metadata.get("argument"):
            assert item.default != theirs[item.metadata["argument"]], item.name


def test_a_setting_name_has_one_default_in_all_objectives():
    defaults: dict[str, set[Any]] = {}
    for objective in ALL:
        for name, default in settings(objective).items():
            defaults.setdefault(name, set()).add(default)
    assert {name: values for name, values in defaults.items() if len(values) > 1} == {}


@pytest.mark.parametrize("objective", ALL)
def test_every_setting_is_documented_and_nothing_else(objective: type[Objective]):
    _, _, section = (objective.__doc__ or "").partition("Args:")
    documented = re.findall(r"^ {8}(\w+): \S", section, re.MULTILINE)
    assert documented == [item.name for item in fields(objective)]


def test_the_settings_reach_the_loss_under_its_names():
    assert DAPO(clip_higher=0.3).arguments() == {
        "level": "token",
        "clip_low": 0.2,
        "clip_high": 0.3,
        "ratio_max": None,
    }
    assert RLME().arguments() == {"level": "product", "weight_max": 6.0, "weight_min": 0.0}


@pytest.mark.parametrize("objective", ALL)
def test_an_objective_cannot_be_changed(objective: type[Objective]):
    with pytest.raises(FrozenInstanceError):
        objective().clip_low = 0.5  # type: ignore[attr-defined]


# bind with a backend that only records ------------------------------------------------------------


class Recorder:
    """A backend whose functions return their own name and arguments."""

    def __getattr__(self, name: str):
        return lambda *args, **kwargs: (name, args, kwargs)


TOTALS = Totals(tokens=50, sequences=8, length=16)


@pytest.mark.parametrize("objective", ALL)
def test_bind_looks_the_loss_up_in_the_backend(objective: type[Objective]):
    name, args, kwargs = objective().bind(Recorder()).loss(1, 2, 3, 4)
    assert (name, args, kwargs) == (objective.loss, (1, 2, 3, 4), objective().arguments())


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (GRPO(), ("group_advantages", (1,), {"scale": "group"})),
        (GRPO(scale="batch"), ("group_advantages", (1,), {"scale": "batch"})),
        (DrGRPO(), ("group_advantages", (1,), {"scale": "none"})),
        (RLME(), ("group_advantages", (1,), {"scale": "none"})),
        (RLOO(), ("leave_one_out_advantages", (1,), {})),
        (PPO(), ("gae_advantages", (1,), {"gamma": 1.0, "lam": 0.95})),
        (PPO(gamma=0.9, lam=0.5), ("gae_advantages", (1,), {"gamma": 0.9, "lam": 0.5})),
    ],
)
def test_bind_looks_the_advantages_up_in_the_backend(objective: Objective, expected: tuple):
    assert objective.bind(Recorder()).advantages(1) == expected


def test_bind_looks_the_value_loss_up_in_the_backend():
    bound = PPO(value_clip=0.3).bind(Recorder())
    assert bound.value_loss(1, 2, 3, 4) == ("clipped_value_loss", (1, 2, 3, 4), {"clip": 0.3})
    assert all(objective().bind(Recorder()).value_loss is None for objective in COMPARING)


def test_the_rule_of_ppo_belongs_to_its_subclasses():
    @dataclass(frozen=True)
    class Mine(GRPO):
        rule: ClassVar[str] = "gae"

    with pytest.raises(
        ValueError, match='rule is "gae", which needs predicted values; make it a s'
    ):
        Mine().bind(Recorder())


@pytest.mark.parametrize(
    ("objective", "name", "denominators"),
    [
        (DAPO(), "token_mean", {"tokens": 50}),
        (PPO(), "token_mean", {"tokens": 50}),
        (GRPO(), "sequence_mean", {"sequences": 8}),
        (RLME(), "sequence_sum", {"sequences": 8}),
        (DrGRPO(), "fixed_length_mean", {"length": 16, "sequences": 8}),
    ],
)
def test_bind_divides_by_the_totals_of_the_step(
    objective: Objective, name: str, denominators: dict[str, int]
):
    assert objective.bind(Recorder()).reduce(1, 2, TOTALS) == (name, (1, 2), denominators)


def test_bnpo_weighs_a_local_mean_with_its_share_of_the_completions():
    class Tens(Recorder):
        def token_mean(self, losses: Tensor, mask: Tensor) -> float:
            return 10.0

    # 2 completions of 8: 10 * 2 / 8
    assert BNPO().bind(Tens()).reduce(torch.zeros(2, 3), torch.ones(2, 3), TOTALS) == 2.5


# bind with sctom.losses ---------------------------------------------------------------------------

REWARDS = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
STEP = Totals(tokens=5, sequences=2, length=4)


def advantages_of(bound: BoundObjective) -> Tensor:
    """Those of REWARDS: one for each completion, or for each token from values of 0."""
    if bound.value_loss is None:
        return bound.advantages(REWARDS).flatten()
    last = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    return bound.advantages(last * REWARDS.T, torch.zeros(2, 3), MASK)[0]


# (R - mean) / (std + eps) of the first completion, and -A of the second; std of [1, 0] = sqrt(0.5)
A = 0.5 / (0.5**0.5 + 1e-4)

ON_POLICY = [  # what a token of the first completion (2 tokens) and of the second (3 tokens) gets
    (GRPO, -A / (2 * 2), A / (2 * 3)),  # A / (completions * own tokens)
    (GSPO, -A / (2 * 2), A / (2 * 3)),  # s = exp(mean log r): 1 / tokens in s, then mean over rows
    (SAPO, -A / (2 * 2), A / (2 * 3)),  # (4 / tau) * tau * sigma'(0) = 4 * 1/4 = 1
    (DAPO, -A / 5, A / 5),  # A / all tokens
    (CISPO, -A / 5, A / 5),
    (BNPO, -A / 5, A / 5),  # the micro-batch is the whole step
    (DrGRPO, -0.5 / (2 * 4), 0.5 / (2 * 4)),  # (R - mean) / (completions * max_new_tokens)
    (RLME, -0.5 / 2, 0.5 / 2),  # (R - mean) / completions
    (RLOO, -1.0 / 2, 1.0 / 2),  # (R - mean of the others) / completions
]


def test_every_objective_has_a_hand_computed_gradient():
    assert {objective for objective, _, _ in ON_POLICY} == set(COMPARING)


def test_on_policy_gradient_of_ppo_by_hand():
    bound = PPO().bind(sctom.losses)
    logps = torch.full((2, 3), -1.5, dtype=torch.float64, requires_grad=True)
    losses = bound.loss(logps, logps.detach(), advantages_of(bound), MASK)
    bound.reduce(losses, MASK, STEP).backward()
    # values 0, so A = 0.95^(tokens to come) R: 0.95 and 1 for the reward 1; over 5 tokens
    expected = torch.tensor([[-0.95 / 5, -1 / 5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(logps.grad, expected, atol=1e-12)


@pytest.mark.parametrize(("objective", "first", "second"), ON_POLICY)
def test_on_policy_gradient_by_hand(objective: type[Objective], first: float, second: float):
    bound = objective().bind(sctom.losses)
    logps = torch.full((2, 3), -1.5, dtype=torch.float64, requires_grad=True)
    losses = bound.loss(logps, logps.detach(), bound.advantages(REWARDS).flatten(), MASK)
    bound.reduce(losses, MASK, STEP).backward()
    expected = torch.tensor([[first, first, 0.0], [second, second, second]], dtype=torch.float64)
    assert torch.allclose(logps.grad, expected, atol=1e-12)


@pytest.mark.parametrize("objective", ALL)
def test_micro_batches_add_up_except_for_bnpo(objective: type[Objective]):
    generator = torch.Generator().manual_seed(0)
    logps, noise = torch.randn(2, 2, 3, generator=generator, dtype=torch.float64) * 0.1
    bound = objective().bind(sctom.losses)
    advantages = advantages_of(bound)

    def share(rows: slice) -> Tensor:
        losses = bound.loss(logps[rows], (logps + noise)[rows], advantages[rows], MASK[rows])
        return bound.reduce(losses, MASK[rows], STEP)

    parts = share(slice(0, 1)) + share(slice(1, 2))
    assert torch.allclose(parts, share(slice(0, 2)), atol=1e-12) == (objective is not BNPO)


# an objective of one's own ------------------------------------------------------------------------


def plain_loss(logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, *, push: float):
    return -push * advantages[:, None] * logps * mask


@dataclass(frozen=True)
class Plain(Objective):
    """REINFORCE with a strength of its own.

    Args:
        push: multiplies every loss.
    """

    loss: ClassVar = staticmethod(plain_loss)
    reduction: ClassVar[str] = "sequence_sum"
    formula: ClassVar[str] = "-push A log p"

    push: float = 2.0


def test_a_function_of_ones_own_is_a_loss():
    bound = Plain(push=3.0).bind(sctom.losses)
    assert bound.advantages.keywords == {"scale": "none"}
    losses = bound.loss(-torch.ones(2, 3), None, torch.tensor([1.0, -1.0]), MASK)
    # 3 * 1 on two tokens, -3 * 1 on three: (6 - 9) / 2 completions
    assert bound.reduce(losses, MASK, STEP).item() == -1.5

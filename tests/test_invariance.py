"""Every objective: the same gradient however the step is cut up, and one value by hand."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, nan

import pytest
import torch
from torch import Tensor, nn

import sctom.losses
from sctom import objectives
from sctom.losses import kl_penalty
from sctom.objectives import BNPO, GRPO, PPO, BoundObjective, Objective, Totals

OBJECTIVES = [
    thing
    for thing in vars(objectives).values()
    if isinstance(thing, type) and issubclass(thing, Objective) and thing is not Objective
]
INVARIANT = [objective for objective in OBJECTIVES if objective is not BNPO]

VOCABULARY, PROMPTS, GROUP = 11, 2, 4
LENGTHS = [7, 1, 3, 5, 2, 6, 0, 4]  # one completion is masked throughout
MAX_NEW_TOKENS = 9
BETA = 0.1
TRAINED = 3  # seed of the policy whose gradient is taken


class TinyPolicy(nn.Module):
    """The next token depends on the one before it: an embedding and a linear head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = nn.Parameter(torch.randn(VOCABULARY, 6, generator=generator).double())
        self.head = nn.Parameter(torch.randn(VOCABULARY, 6, generator=generator).double() / 4)

        self.value = nn.Parameter(torch.randn(6, generator=generator).double() / 4)

    def values(self, ids: Tensor) -> Tensor:
        """Value before each token of [B, T + 1] but the first."""
        return self.embedding[ids[:, :-1]] @ self.value

    def forward(self, ids: Tensor) -> Tensor:
        """Log-probability of each token of [B, T + 1] but the first."""
        logits = self.embedding[ids[:, :-1]] @ self.head.T
        return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


@dataclass(frozen=True)
class Rows:
    """Completions and their numbers, padded to one width."""

    ids: Tensor
    mask: Tensor
    old_logps: Tensor
    ref_logps: Tensor
    advantages: Tensor
    old_values: Tensor
    returns: Tensor

    def take(self, rows: list[int]) -> Rows:
        """Some of the rows, cut to the longest of them."""
        width = max(1, *(LENGTHS[row] for row in rows))
        per_token = self.advantages.dim() == 2
        return Rows(
            self.ids[rows, : width + 1],
            self.mask[rows, :width],
            self.old_logps[rows, :width],
            self.ref_logps[rows, :width],
            self.advantages[rows, :width] if per_token else self.advantages[rows],
            self.old_values[rows, :width],
            self.returns[rows, :width],
        )


def make_rows(bound: BoundObjective) -> Rows:
    generator = torch.Generator().manual_seed(0)
    rows, width = PROMPTS * GROUP, max(LENGTHS)
    ids = torch.randint(VOCABULARY, (rows, width + 1), generator=generator)
    mask = (torch.arange(width) < torch.tensor(LENGTHS)[:, None]).double()
    rewards = torch.tensor([[1.0, 0.0, 0.5, 2.0], [0.0, 1.0, 3.0, nan]], dtype=torch.float64)
    with torch.no_grad():
        old_values = TinyPolicy(seed=1).values(ids)
    if bound.value_loss is None:
        advantages, returns = bound.advantages(rewards).flatten(), torch.zeros_like(mask)
    else:
        last = mask - mask.roll(-1, 1) * (torch.arange(width) < width - 1)
        token_rewards = last * rewards.nan_to_num().view(-1, 1)
        advantages, returns = bound.advantages(token_rewards, old_values, mask)
    with torch.no_grad():
        logps, ref_logps = TinyPolicy(seed=TRAINED)(ids), TinyPolicy(seed=2)(ids)
        old_logps = torch.lerp(logps, TinyPolicy(seed=1)(ids), 0.15)  # clips some tokens, not all
    return Rows(ids, mask, old_logps, ref_logps, advantages, old_values, returns)


TOTALS = Totals(tokens=sum(LENGTHS), sequences=len(LENGTHS), length=MAX_NEW_TOKENS)


def step_gradient(
    objective: Objective, micro_batches: list[list[int]], *, beta: float = 0.0, factor: float = 1.0
) -> Tensor:
    """The gradient of one optimiser step, accumulated over the micro-batches, as one vector."""
    bound = objective.bind(sctom.losses)
    policy, rows = TinyPolicy(seed=TRAINED), make_rows(bound)
    for chosen in micro_batches:
        part = rows.take(chosen)
        logps = policy(part.ids)
        losses = bound.loss(logps, part.old_logps, part.advantages, part.mask)
        if beta:
            losses = losses + beta * kl_penalty(logps, part.old_logps, part.ref_logps, part.mask)
        loss = bound.reduce(losses, part.mask, TOTALS)
        if bound.value_loss is not None:
            values = policy.values(part.ids)
            errors = bound.value_loss(values, part.old_values, part.returns, part.mask)
            loss = loss + objective.value_weight * bound.reduce(errors, part.mask, TOTALS)
        (factor * loss).backward()
    trained = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
    assert len(trained) == (2 if bound.value_loss is None else 3)
    return torch.cat(trained)


def split(size: int, rows: list[int] | None = None) -> list[list[int]]:
    rows = list(range(len(LENGTHS))) if rows is None else rows
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def relative_difference(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("beta", [0.0, BETA])
@pytest.mark.parametrize("objective", INVARIANT)
def test_the_gradient_does_not_depend_on_the_micro_batches(objective, beta):
    whole = step_gradient(objective(), split(8), beta=beta)
    assert whole.norm() > 1e-3
    for size in (4, 1):
        parts = step_gradient(objective(), split(size), beta=beta)
        assert relative_difference(parts, whole) < 1e-6
    shuffled = step_gradient(objective(), split(3, [5, 0, 7, 2, 6, 1, 4, 3]), beta=beta)
    assert relative_difference(shuffled, whole) < 1e-6


@pytest.mark.parametrize("beta", [0.0, BETA])
@pytest.mark.parametrize("objective", INVARIANT)
def test_the_gradient_does_not_depend_on_the_number_of_ranks(objective, beta):
    ranks = [[0, 3, 4, 5], [1, 2, 6, 7]]  # 20 tokens and 8
    # counts are those of all ranks and DDP averages gradients, so each loss is taken times 2
    gradients = [
        step_gradient(objective(), split(2, rows), beta=beta, factor=len(ranks)) for rows in ranks
    ]
    averaged = torch.stack(gradients).mean(0)
    assert relative_difference(averaged, step_gradient(objective(), split(8), beta=beta)) < 1e-6


@pytest.mark.parametrize("objective", INVARIANT)
def test_the_penalty_changes_the_gradient(objective):
    without, with_it = (step_gradient(objective(), split(8), beta=beta) for beta in (0.0, BETA))
    assert relative_difference(with_it, without) > 1e-3


def test_bnpo_depends_on_the_micro_batches_as_it_is_defined_to():
    whole, halves, single = (step_gradient(BNPO(), split(size)) for size in (8, 4, 1))
    assert relative_difference(halves, whole) > 1e-2
    assert relative_difference(single, whole) > 1e-2
    # one completion at a time, the mean over local tokens is GRPO's mean over its own tokens
    assert relative_difference(single, step_gradient(GRPO(), split(8))) < 1e-6


def test_bnpo_is_the_mean_over_the_tokens_of_each_micro_batch():
    bound = BNPO().bind(sctom.losses)
    losses = torch.tensor([[1.0, 2.0, 6.0], [5.0, 0.0, 0.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    totals = Totals(tokens=28, sequences=8, length=MAX_NEW_TOKENS)
    # (1 + 2 + 6 + 5) / 4 local tokens, times 2 rows of the step's 8
    assert bound.reduce(losses, mask, totals).item() == pytest.approx(14 / 4 * 2 / 8)


# --- each objective at one point by hand ---
#
# One prompt, rewards 3 and 1, two tokens and one token. Token probabilities now and before:
#   row 1: 0.5 / 0.4 = 1.25, 0.3 / 0.5 = 0.6   product 0.75        row 2: 0.6 / 0.2 = 3
# Mean 2, deviations +1 and -1, unbiased std sqrt(2): A = +-a with a = 1 / (sqrt(2) + 1e-4) where it
# is divided, +-1 where not; leave one out: 3 - 1 = 2 and 1 - 3 = -2. length is 4.

NOW = torch.tensor([[0.5, 0.3], [0.6, nan]], dtype=torch.float64).log()
BEFORE = torch.tensor([[0.4, 0.5], [0.2, nan]], dtype=torch.float64).log()
POINT_MASK = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
a = 1 / (2**0.5 + 1e-4)
tau = 1.05


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


BY_HAND = {
    # row 1: -min(1.25, 1.2) = -1.2, -min(0.6, 0.8) = -0.6;   row 2: max(3, 1.2) = 3
    "GRPO": a * ((-1.2 - 0.6) / 2 + 3) / 2,
    "DrGRPO": (-1.2 - 0.6 + 3) / (2 * 4),
    "DAPO": a * (-1.25 - 0.6 + 3) / 3,  # 1.25 < 1.28
    "BNPO": a * (-1.2 - 0.6 + 3) / 3,
    # weights 1.25, 0.6, 3, all below 5
    "CISPO": a * (-1.25 * log(0.5) - 0.6 * log(0.3) + 3 * log(0.6)) / 3,
    # weights 0.75 and 3, below 6; sums of ln p over the row
    "RLME": (-0.75 * (log(0.5) + log(0.3)) + 3 * log(0.6)) / 2,
    # s = sqrt(0.75), below 1 - 3e-4, but A > 0: not clipped;   s = 3, above 1 + 4e-4, but A < 0
    "GSPO": a * (-(0.75**0.5) + 3) / 2,
    "SAPO": a * ((-4 * sigmoid(0.25) - 4 * sigmoid(-0.4)) / 2 + 4 / tau * sigmoid(tau * 2)) / 2,
    # R = 0.75 with A > 0, R = 3 with A < 0: neither is clipped
    "RLOO": 2 * (-0.75 + 3) / 2,
    # values 1, 2 and 2: deltas 2 - 1, 3 - 2 and 1 - 2, so A = 1 + 0.95 x 1, 1 and -1
    "PPO": (-1.2 * 1.95 - 0.6 + 3) / 3,
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_and_reduction_by_hand(objective):
    bound = objective().bind(sctom.losses)
    if objective is PPO:
        rewards = torch.tensor([[0.0, 3.0], [1.0, 0.0]], dtype=torch.float64)
        values = torch.tensor([[1.0, 2.0], [2.0, 0.0]], dtype=torch.float64)
        advantages, _ = bound.advantages(rewards, values, POINT_MASK)
    else:
        advantages = bound.advantages(torch.tensor([[3.0, 1.0]], dtype=torch.float64)).flatten()
    losses = bound.loss(NOW, BEFORE, advantages, POINT_MASK)
    loss = bound.reduce(losses, POINT_MASK, Totals(tokens=3, sequences=2, length=4))
    assert loss.item() == pytest.approx(BY_HAND[objective.__name__], rel=1e-12)

"""From the rewards of a rollout to the advantages of its rows, by the rule of the objective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from sctom import losses
from sctom.batch import Rollout, Row, interleave
from sctom.modules.groups import leave_out
from sctom.modules.metrics import advantage_metrics
from sctom.modules.ranks import gather, gathered
from sctom.objectives import PPO

if TYPE_CHECKING:
    from sctom.modules.policy import PolicyModule


def fill_advantages(module: PolicyModule, rollout: Rollout) -> dict[str, float]:
    """Fill in the advantages of a rollout. Every rank must call this.

    Returns:
        The numbers about them.
    """
    if module.value_head is not None:
        return trace(module, rollout)
    compare(module, rollout)
    return advantage_metrics(rollout.rows)


def compare(module: PolicyModule, rollout: Rollout) -> None:
    """Fill in the advantages; those scaled by the batch need the rewards of all ranks."""
    rewards = torch.tensor([row.signal for row in rollout.rows], dtype=torch.float64)
    rewards = rewards.view(-1, module.group_size)
    everywhere = gathered(module, rewards).view(-1, module.group_size)
    advantages = module.bound.advantages(everywhere)
    mine = advantages.view(-1, *rewards.shape)[module.global_rank].flatten().tolist()
    for row, advantage in zip(rollout.rows, mine, strict=True):
        row.advantage = advantage


def trace(module: PolicyModule, rollout: Rollout) -> dict[str, float]:
    """Fill in an advantage and a return for every token: generalised advantage estimation.

    The reward of a completion is that of its last token, cut off or not; a KL penalty in the reward
    is taken off at each token. A completion without a reward is left out of the update.

    Returns:
        Means and spreads over the tokens that count, and how much of the returns the values had
        foretold.
    """
    leave_out([row for row in rollout.rows if math.isnan(row.reward)])
    for row in rollout.rows:  # those left out, too, may be collated
        row.advantages = row.returns = torch.zeros(len(row.ids))
        if row.old_values is None:
            row.old_values = torch.zeros(len(row.ids))
    counted = [row for row in rollout.rows if row.counted]
    if counted:
        _estimate(module, counted)
    numbers = _value_metrics(counted)
    assert isinstance(module.objective, PPO)
    if module.objective.whiten_advantages:
        _whiten(module, rollout)
    for row in rollout.rows:
        row.advantage = float(row.advantages.mean())
    return numbers | _used_metrics(_tokens(counted, "advantages"))


def _estimate(module: PolicyModule, rows: Sequence[Row]) -> None:
    rewards = pad_sequence([_token_rewards(row) for row in rows], batch_first=True)
    values = pad_sequence([row.old_values for row in rows], batch_first=True)
    mask = pad_sequence([torch.ones(len(row.ids)) for row in rows], batch_first=True)
    advantages, returns = module.bound.advantages(rewards, values, mask)
    for row, own, own_returns in zip(rows, advantages, returns, strict=True):
        row.advantages, row.returns = own[: len(row.ids)], own_returns[: len(row.ids)]


def _token_rewards(row: Row) -> Tensor:
    """The reward of each token [T]."""
    if row.token_rewards is not None:
        rewards: Tensor = row.token_rewards
        return rewards
    rewards = torch.zeros(len(row.ids))
    rewards[-1] = row.reward
    return rewards


def _whiten(module: PolicyModule, rollout: Rollout) -> None:
    """Shift and scale the advantages of all tokens that count, on all ranks, in one order."""
    size, ranks = rollout.group_size, module.trainer.world_size
    own = [row.advantages if row.counted else torch.zeros(0) for row in rollout.rows]
    everywhere = interleave(gather(module.trainer, own), size)
    whole = losses.whiten(torch.cat(everywhere))
    whitened = whole.split_with_sizes([len(tokens) for tokens in everywhere])
    groups = [whitened[start : start + size] for start in range(0, len(whitened), size)]
    mine = [tokens for group in groups[module.global_rank :: ranks] for tokens in group]
    for row, tokens in zip(rollout.rows, mine, strict=True):
        if row.counted:
            row.advantages = tokens


def _tokens(rows: Sequence[Row], name: str) -> Tensor:
    """The numbers of all tokens of rows, one behind the other, in float64."""
    return torch.cat([torch.zeros(0), *(getattr(row, name) for row in rows)]).double()


def _value_metrics(rows: Sequence[Row]) -> dict[str, float]:
    """What values and returns are like before the update.

        explained variance = 1 - var(R - V) / var(R)

    1 where the values had foretold the returns R, 0 where they are no better than their mean.
    """
    if not rows:
        return {}
    values, returns, raw = (_tokens(rows, n) for n in ("old_values", "returns", "advantages"))
    numbers = {
        "values/mean": float(values.mean()),
        "returns/mean": float(returns.mean()),
        "returns/std": float(returns.std(correction=0)),
        "advantages/raw_mean": float(raw.mean()),
        "advantages/raw_std": float(raw.std(correction=0)),
    }
    if numbers["returns/std"] > 0:
        missed = float((returns - values).var(correction=0) / returns.var(correction=0))
        numbers["values/explained_variance"] = 1.0 - missed
    return numbers


def _used_metrics(advantages: Tensor) -> dict[str, float]:
    """The names of `advantage_metrics`, of all tokens."""
    if not len(advantages):
        return {}
    return {
        "advantages/mean": float(advantages.mean()),
        "advantages/std": float(advantages.std(correction=0)),
        "advantages/min": float(advantages.min()),
        "advantages/max": float(advantages.max()),
    }

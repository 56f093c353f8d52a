"""The numbers of one iteration: of its rollout, and of the updates made with it.

Names as in TRL where TRL has one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev, stdev

import torch
from torch import Tensor

from sctom.batch import Rollout, Row


class Means:
    """Weighted means, sums and extremes collected over the micro-batches of an iteration."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._extremes: dict[str, float] = {}

    def mean(self, name: str, value: Tensor | float, weight: float = 1.0) -> None:
        """Add a value to a weighted mean. Non-finite values and empty weights are left out."""
        number = float(value)
        if weight > 0 and math.isfinite(number):
            self._sums[name] = self._sums.get(name, 0.0) + number * weight
            self._weights[name] = self._weights.get(name, 0.0) + weight

    def low(self, name: str, value: Tensor | float) -> None:
        """Keep the smallest value."""
        self._extremes[name] = min(self._extremes.get(name, math.inf), float(value))

    def high(self, name: str, value: Tensor | float) -> None:
        """Keep the largest value."""
        self._extremes[name] = max(self._extremes.get(name, -math.inf), float(value))

    def result(self) -> dict[str, float]:
        """All numbers by name."""
        means = {name: total / self._weights[name] for name, total in self._sums.items()}
        return {**means, **self._extremes}


_OWN = {"loss", "policy_loss", "kl", "entropy", "grad_norm", "learning_rate", "step", "step_time"}
_OWN |= {"value_loss", "value_grad_norm"}


def refuse_taken_names(logged: dict[str, float], own: dict[str, float]) -> None:
    """Refuse metrics of reward functions that carry the name of one of sctom's.

    Raises:
        ValueError: naming them.
    """
    taken = sorted(logged.keys() & (own.keys() | _OWN))
    if taken:
        raise ValueError(
            f"a reward function logs {', '.join(taken)} with log_metric, which sctom logs itself; "
            "choose another name, such as my_reward/" + taken[0]
        )


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def rollout_metrics(rollout: Rollout, *, tolerance: float = 1e-6) -> dict[str, float]:
    """Rewards, groups and lengths of all completions sampled in an iteration.

    `reward_std` is TRL's: the standard deviation over all completions. `reward_group_std` is the
    mean over groups of the standard deviation within the group, which is what a group-relative
    advantage divides by. A group without spread gives no gradient: `frac_reward_zero_std` counts
    them, split into those at the largest reward seen in this rollout (`frac_groups_all_best`), at
    the smallest (`frac_groups_all_worst`) and the rest.
    """
    valid = [r.reward for r in rollout.rows if not math.isnan(r.reward)]
    numbers: dict[str, float] = {"frac_without_reward": 1.0 - len(valid) / len(rollout)}
    if valid:
        numbers["reward"] = fmean(valid)
        numbers["reward_std"] = _spread(valid)
    numbers |= _reward_breakdown(rollout.rows)
    numbers |= _group_metrics(rollout, tolerance)
    numbers |= _length_metrics(rollout.rows)
    return numbers


def validation_values(rows: Sequence[Row]) -> dict[str, list[float]]:
    """What is averaged over the completions of a validation batch; nothing that is empty."""
    values = {
        "reward": [row.reward for row in rows if not math.isnan(row.reward)],
        "mean_length": [float(len(row.ids)) for row in rows],
    }
    return {name: numbers for name, numbers in values.items() if numbers}


def advantage_metrics(rows: Sequence[Row]) -> dict[str, float]:
    """Mean, spread and extremes of the advantages of the completions that take part in updates."""
    advantages = [row.advantage for row in rows if row.counted]
    if not advantages:
        return {}
    return {
        "advantages/mean": fmean(advantages),
        "advantages/std": pstdev(advantages),
        "advantages/min": min(advantages),
        "advantages/max": max(advantages),
    }


def _reward_breakdown(rows: Sequence[Row]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name in rows[0].rewards:
        column = [r.rewards[name] for r in rows]
        given = [v for v in column if v is not None]
        numbers[f"rewards/{name}/none_frac"] = 1.0 - len(given) / len(column)
        if given:
            numbers[f"rewards/{name}/mean"] = fmean(given)
            numbers[f"rewards/{name}/std"] = _spread(given)
    return numbers


def _group_metrics(rollout: Rollout, tolerance: float) -> dict[str, float]:
    groups = [[r.reward for r in group if not math.isnan(r.reward)] for group in rollout.groups()]
    groups = [g for g in groups if g]
    if not groups:
        return {"frac_reward_zero_std": 1.0}
    best = max(max(g) for g in groups)
    worst = min(min(g) for g in groups)
    flat = [g for g in groups if max(g) - min(g) <= tolerance]
    return {
        "reward_group_std": fmean(_spread(g) for g in groups),
        "frac_reward_zero_std": len(flat) / len(groups),
        "frac_groups_all_best": sum(best - g[0] <= tolerance for g in flat) / len(groups),
        "frac_groups_all_worst": sum(g[0] - worst <= tolerance for g in flat) / len(groups),
    }


def _length_metrics(rows: Sequence[Row]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    ended = [len(r.ids) for r in rows if not r.truncated]
    for name, lengths in {"length": [len(r.ids) for r in rows], "terminated_length": ended}.items():
        if lengths:
            numbers[f"completions/mean_{name}"] = fmean(lengths)
            numbers[f"completions/min_{name}"] = min(lengths)
            numbers[f"completions/max_{name}"] = max(lengths)
    numbers["completions/clipped_ratio"] = 1.0 - len(ended) / len(rows)
    return numbers


def peak_memory_mib(device: torch.device) -> float:
    """Largest memory held so far, in MiB: of a CUDA device, else of this process.

    Args:
        device: where the model is.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource
    import sys

    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit

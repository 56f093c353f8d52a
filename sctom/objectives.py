"""The objectives a config may choose.

Each binds one loss, one reduction, one advantage rule and their settings: `sctom.objective_base`
says how. No torch and no MLX here.

In YAML an objective is chosen by class, and its settings are the keyword-only arguments of its
loss (`PPO` has further ones, of its advantages and values):

    objective:
      class_path: CISPO
      init_args: {weight_max: 5.0}

A setting that means the same thing but has another default gets another name (`DAPO.clip_higher`,
`GSPO.sequence_clip_low`, `RLME.product_weight_max`): when only the class changes, a config parser
carries settings of equal name over, and a width of 0.2 meant for tokens would be a thousand times
too wide for GSPO.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from sctom.checks import check_numbers
from sctom.objective_base import (
    BoundObjective,
    Objective,
    Scale,
    Totals,
    beside,
    setting,
)

__all__ = [
    "BNPO",
    "CISPO",
    "DAPO",
    "GRPO",
    "GSPO",
    "PPO",
    "RLME",
    "RLOO",
    "SAPO",
    "BoundObjective",
    "DrGRPO",
    "Objective",
    "Totals",
    "setting",
]

_CLIPPED = "-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)"


@dataclass(frozen=True)
class GRPO(Objective):
    """Group Relative Policy Optimization (DeepSeekMath, arXiv 2402.03300, eq. 3).

    Args:
        clip_low: width below 1 at which the ratio of a token with negative advantage is clipped.
        clip_high: width above 1 at which the ratio of a token with positive advantage is clipped.
        ratio_max: bound on the ratio before the clip, for both signs; null for none.
        scale: what advantages are divided by: the standard deviation of the group, of the batch,
            or nothing.
    """

    loss: ClassVar[str] = "grpo_loss"
    reduction: ClassVar[str] = "sequence_mean"
    fixed: ClassVar[dict[str, Any]] = {"level": "token"}
    formula: ClassVar[str] = (
        f"mean over completions of mean over tokens of {_CLIPPED}, A = (R - mean_G) / std_G"
    )

    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_max: float | None = None
    scale: Scale = "group"


@dataclass(frozen=True)
class DrGRPO(Objective):
    """GRPO without its two biases: no division by the standard deviation nor by the length.

    The paper is arXiv 2503.20783.

    Args:
        clip_low: width below 1.
        clip_high: width above 1.
        ratio_max: bound on the ratio before the clip, for both signs; null for none.
    """

    loss: ClassVar[str] = "grpo_loss"
    reduction: ClassVar[str] = "fixed_length_mean"
    fixed: ClassVar[dict[str, Any]] = {"level": "token"}
    formula: ClassVar[str] = f"sum of {_CLIPPED} / (completions x max_new_tokens), A = R - mean_G"

    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_max: float | None = None


@dataclass(frozen=True)
class DAPO(Objective):
    """Decoupled clip and token-level loss (arXiv 2503.14476, eq. 8), without its dynamic sampling.

    Args:
        clip_low: width below 1.
        clip_higher: width above 1 (the paper's name for the wider upper clip).
        ratio_max: bound on the ratio before the clip, for both signs; null for none.
        scale: what advantages are divided by.
    """

    loss: ClassVar[str] = "grpo_loss"
    reduction: ClassVar[str] = "token_mean"
    fixed: ClassVar[dict[str, Any]] = {"level": "token"}
    formula: ClassVar[str] = (
        "mean over all tokens of -min(r A, clip(r, 1 - clip_low, 1 + clip_higher) A), "
        "A = (R - mean_G) / std_G"
    )

    clip_low: float = 0.2
    clip_higher: float = setting(0.28, argument="clip_high")
    ratio_max: float | None = None
    scale: Scale = "group"


@dataclass(frozen=True)
class BNPO(Objective):
    """The clipped loss averaged over the tokens of the local micro-batch (TRL's `bnpo`).

    The only objective whose gradient depends on the micro-batch size: it is defined by the local
    batch.

    Args:
        clip_low: width below 1.
        clip_high: width above 1.
        ratio_max: bound on the ratio before the clip, for both signs; null for none.
        scale: what advantages are divided by.
    """

    loss: ClassVar[str] = "grpo_loss"
    reduction: ClassVar[str] = "local_token_mean"
    fixed: ClassVar[dict[str, Any]] = {"level": "token"}
    formula: ClassVar[str] = (
        f"mean over the tokens of the micro-batch of {_CLIPPED}, A = (R - mean_G) / std_G"
    )

    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_max: float | None = None
    scale: Scale = "group"


@dataclass(frozen=True)
class CISPO(Objective):
    """Clipped importance weight, not differentiated (MiniMax-M1, arXiv 2506.13585, eq. 4 and 5).

    Args:
        weight_max: largest importance weight. A bound, not a width: 5.0 means at most five times.
        weight_min: smallest importance weight; the paper uses none.
        scale: what advantages are divided by.
    """

    loss: ClassVar[str] = "cispo_loss"
    reduction: ClassVar[str] = "token_mean"
    fixed: ClassVar[dict[str, Any]] = {"level": "token"}
    formula: ClassVar[str] = (
        "mean over all tokens of -stop_gradient(clip(r, weight_min, weight_max)) A log p, "
        "A = (R - mean_G) / std_G"
    )

    weight_max: float = 5.0
    weight_min: float = 0.0
    scale: Scale = "group"


@dataclass(frozen=True)
class RLME(Objective):
    """Sequence-level importance weight of Reinforcement Learning from Meta-Evaluation.

    The paper is arXiv 2601.21268.

    Args:
        product_weight_max: largest weight of a whole completion, the product of its token ratios.
        weight_min: smallest weight; the paper uses none.
    """

    loss: ClassVar[str] = "cispo_loss"
    reduction: ClassVar[str] = "sequence_sum"
    fixed: ClassVar[dict[str, Any]] = {"level": "product"}
    formula: ClassVar[str] = (
        "mean over completions of -stop_gradient(clip(prod r, weight_min, product_weight_max)) "
        "A sum log p, A = R - mean_G"
    )

    product_weight_max: float = setting(6.0, argument="weight_max")
    weight_min: float = 0.0


@dataclass(frozen=True)
class GSPO(Objective):
    """Group Sequence Policy Optimization: the geometric mean of the ratios is clipped.

    The paper is arXiv 2507.18071, eq. 5 to 7.

    Args:
        sequence_clip_low: width below 1 for the ratio of a sequence; hundreds of times smaller
            than a token's.
        sequence_clip_high: width above 1 for the ratio of a sequence.
        ratio_max: bound on the ratio before the clip, for both signs; null for none.
        scale: what advantages are divided by.
    """

    loss: ClassVar[str] = "grpo_loss"
    reduction: ClassVar[str] = "sequence_mean"
    fixed: ClassVar[dict[str, Any]] = {"level": "geometric"}
    formula: ClassVar[str] = (
        "mean over completions of -min(s A, clip(s, 1 - sequence_clip_low, "
        "1 + sequence_clip_high) A), s = exp(mean log r), A = (R - mean_G) / std_G"
    )

    sequence_clip_low: float = setting(3e-4, argument="clip_low")
    sequence_clip_high: float = setting(4e-4, argument="clip_high")
    ratio_max: float | None = None
    scale: Scale = "group"


@dataclass(frozen=True)
class SAPO(Objective):
    """Soft Adaptive Policy Optimization: a smooth gate instead of a clip (arXiv 2511.20347).

    Args:
        temperature_pos: steepness of the gate where the advantage is positive.
        temperature_neg: steepness of the gate elsewhere.
        scale: what advantages are divided by.
    """

    loss: ClassVar[str] = "sapo_loss"
    reduction: ClassVar[str] = "sequence_mean"
    formula: ClassVar[str] = (
        "mean over completions of mean over tokens of -(4 / tau) sigmoid(tau (r - 1)) A, "
        "A = (R - mean_G) / std_G"
    )

    temperature_pos: float = 1.0
    temperature_neg: float = 1.05
    scale: Scale = "group"


@dataclass(frozen=True)
class RLOO(Objective):
    """REINFORCE with a leave-one-out baseline on whole completions (arXiv 2402.14740).

    The paper's loss has no clip; like TRL the product of the ratios is clipped, which changes
    nothing on-policy.

    Args:
        clip_low: width below 1 for the ratio of a whole completion.
        clip_high: width above 1 for the ratio of a whole completion.
        ratio_max: bound on the ratio before the clip, for both signs; null for none.
    """

    loss: ClassVar[str] = "grpo_loss"
    reduction: ClassVar[str] = "sequence_mean"
    rule: ClassVar[str] = "leave_one_out"
    fixed: ClassVar[dict[str, Any]] = {"level": "product"}
    formula: ClassVar[str] = (
        "mean over completions of -min(R A, clip(R, 1 - clip_low, 1 + clip_high) A), R = prod r, "
        "A = reward - mean of the others"
    )

    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_max: float | None = None


@dataclass(frozen=True)
class PPO(Objective):
    """Proximal Policy Optimization (arXiv 1707.06347, eq. 7 and 9) with a value head.

    Every token has its own advantage, from rewards and predicted values (GAE, arXiv 1506.02438),
    so completions need not be compared with others: `group_size` 1 will do. docs/ppo.md has the
    equations, and what was chosen where Llama 2 (arXiv 2307.09288) is silent.

    Args:
        clip_low: width below 1 at which the ratio of a token with negative advantage is clipped.
        clip_high: width above 1 at which the ratio of a token with positive advantage is clipped.
        ratio_max: bound on the ratio before the clip, for both signs; null for none.
        gamma: discount per token.
        lam: decay of the trace: 0 trusts the value after each token, 1 only the rewards.
        whiten_advantages: shift and scale the advantages of all tokens of a rollout to mean 0 and
            variance 1.
        value_clip: largest useful move of a value from that of the rollout, in units of the reward;
            .inf for no clip.
        value_weight: what the value loss is multiplied by.
        value_lr_factor: the learning rate of the value head, in that of the policy: a new head has
            all to learn, while the weights of the policy are trained already.
        value_trains_policy: let the gradient of the value loss go on from the head into the
            weights of the policy.
        value_init: folder that a run with a value head saved its model to, to go on with that head;
            null: a new one, which predicts 0.
    """

    loss: ClassVar[str] = "grpo_loss"
    reduction: ClassVar[str] = "token_mean"
    rule: ClassVar[str] = "gae"
    fixed: ClassVar[dict[str, Any]] = {"level": "token"}
    formula: ClassVar[str] = (
        f"mean over all tokens of {_CLIPPED} + value_weight * "
        "max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2) / 2, "
        "A = GAE(gamma, lam), R = A + V_old"
    )

    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_max: float | None = None
    gamma: float = beside(1.0)
    lam: float = beside(0.95)
    whiten_advantages: bool = beside(True)
    value_clip: float = beside(0.2)
    value_weight: float = beside(0.5)
    value_lr_factor: float = beside(10.0)
    value_trains_policy: bool = beside(False)
    value_init: str | None = beside(None)

    def __post_init__(self) -> None:
        """Refuse numbers out of their bounds."""
        share, positive = ("from 0 to 1", 0, 1), ("0 or a positive number", 0, sys.float_info.max)
        check_numbers(
            "model.objective",
            {
                "gamma": (self.gamma, *share),
                "lam": (self.lam, *share),
                "value_clip": (self.value_clip, "above 0", sys.float_info.min, math.inf),
                "value_weight": (self.value_weight, *positive),
                "value_lr_factor": (self.value_lr_factor, *positive),
            },
        )

    def bind(self, backend: Any) -> BoundObjective:
        """Fill in the functions of a backend, that of the value loss too; see `Objective.bind`."""
        value_loss = partial(backend.clipped_value_loss, clip=self.value_clip)
        return replace(super().bind(backend), value_loss=value_loss)

    def _advantages(self, backend: Any) -> Callable[..., Any]:
        return partial(backend.gae_advantages, gamma=self.gamma, lam=self.lam)

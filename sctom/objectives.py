"""The objectives a config may choose.

Each binds one loss, one reduction, one advantage rule and their settings.

No torch and no MLX here: `objective.bind(backend)` looks the functions up in the backend it is
given (`sctom.losses` or `sctom.mlx_port.losses`), so one description serves both.

In YAML an objective is chosen by class, and its settings are the keyword-only arguments of its
loss:

    objective:
      class_path: CISPO
      init_args: {weight_max: 5.0}

A setting that means the same thing but has another default gets another name (`DAPO.clip_higher`,
`GSPO.sequence_clip_low`, `RLME.product_weight_max`): when only the class changes, a config parser
carries settings of equal name over, and a width of 0.2 meant for tokens would be a thousand times
too wide for GSPO.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, Literal

Scale = Literal["group", "batch", "none"]

REDUCTIONS = (
    "token_mean",
    "sequence_mean",
    "sequence_sum",
    "fixed_length_mean",
    "local_token_mean",
)
RULES = ("group", "leave_one_out")


def setting(default: float, *, argument: str) -> Any:
    """A setting whose name in the config differs from the loss argument it is passed as."""
    return field(default=default, metadata={"argument": argument})


@dataclass(frozen=True)
class Totals:
    """The counts a loss is divided by.

    They are those of the whole optimiser step, over all micro-batches and ranks.
    """

    tokens: float
    """Number of unmasked tokens of the step."""
    sequences: float
    """Number of completions of the step, fully masked ones included."""
    length: int
    """Largest number of new tokens a completion may have (`fixed_length_mean` divides by it)."""


@dataclass(frozen=True)
class BoundObjective:
    """An objective with the functions of one backend filled in."""

    loss: Callable[..., Any]
    """(logps, old_logps, advantages, mask) -> per-token losses [B, T]."""
    advantages: Callable[[Any], Any]
    """Rewards [P, G] -> advantages [P, G]."""
    reduce: Callable[[Any, Any, Totals], Any]
    """(losses [B, T], mask [B, T], totals) -> this micro-batch's share of the step's loss.

    The share is a scalar.
    """


@dataclass(frozen=True)
class Objective(ABC):
    """What is maximised.

    Subclass it, in sctom or in a file of your own, and name the class in the config.

    Class attributes of a subclass:
        loss: name of a function of the backend's losses, or a function of your own (wrapped in
            `staticmethod`).
        reduction: "token_mean" | "sequence_mean" | "sequence_sum" | "fixed_length_mean" |
            "local_token_mean".
        rule: "group" (mean and scale within the group) or "leave_one_out".
        fixed: loss arguments the objective is defined by and no config may change.
        formula: one line printed when a run starts.
    """

    loss: ClassVar[str | Callable[..., Any]]
    reduction: ClassVar[str]
    rule: ClassVar[str] = "group"
    advantage_scale: ClassVar[Scale] = "none"
    fixed: ClassVar[dict[str, Any]] = {}
    formula: ClassVar[str]

    def arguments(self) -> dict[str, Any]:
        """The keyword-only arguments of the loss: the fixed ones and the settings.

        They go under the loss's names.
        """
        chosen = {
            item.metadata.get("argument", item.name): getattr(self, item.name)
            for item in fields(self)
            if item.name != "scale"
        }
        return {**self.fixed, **chosen}

    def bind(self, backend: Any) -> BoundObjective:
        """Fill in the functions of a backend, a module with the names of `sctom.losses`.

        Raises:
            ValueError: the class names an unknown reduction or advantage rule.

        >>> import sctom.losses
        >>> bound = GRPO(clip_high=0.28).bind(sctom.losses)
        >>> bound.advantages.keywords
        {'scale': 'group'}
        """
        for name, value, choices in (
            ("reduction", self.reduction, REDUCTIONS),
            ("rule", self.rule, RULES),
        ):
            if value not in choices:
                raise ValueError(
                    f"{type(self).__name__}.{name} must be one of {', '.join(choices)} "
                    f"but is {value!r}"
                )
        function = getattr(backend, self.loss) if isinstance(self.loss, str) else self.loss
        if self.rule == "leave_one_out":
            advantages = partial(backend.leave_one_out_advantages)
        else:
            advantages = partial(
                backend.group_advantages, scale=getattr(self, "scale", self.advantage_scale)
            )
        return BoundObjective(
            partial(function, **self.arguments()), advantages, self._reduce(backend)
        )

    def _reduce(self, backend: Any) -> Callable[[Any, Any, Totals], Any]:
        name = self.reduction

        def reduce(losses: Any, mask: Any, totals: Totals) -> Any:
            if name == "token_mean":
                return backend.token_mean(losses, mask, tokens=totals.tokens)
            if name == "local_token_mean":
                share = losses.shape[0] / totals.sequences
                return backend.token_mean(losses, mask) * share
            if name == "fixed_length_mean":
                return backend.fixed_length_mean(
                    losses, mask, length=totals.length, sequences=totals.sequences
                )
            return getattr(backend, name)(losses, mask, sequences=totals.sequences)

        return reduce


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

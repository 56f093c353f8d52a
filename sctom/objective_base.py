"""What an objective is: one loss, one reduction, one advantage rule and their settings.

No torch and no MLX here: `objective.bind(backend)` looks the functions up in the backend it is
given (`sctom.losses` or `sctom.mlx_port.losses`), so one description serves both.
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
RULES = ("group", "leave_one_out", "gae")


def setting(default: float, *, argument: str) -> Any:
    """A setting whose name in the config differs from the loss argument it is passed as."""
    return field(default=default, metadata={"argument": argument})


def beside(default: Any) -> Any:
    """A setting that is none of the loss's arguments."""
    return field(default=default, metadata={"argument": None})


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
    advantages: Callable[..., Any]
    """Rewards [P, G] -> advantages [P, G].

    With the rule "gae": (rewards, values, mask), each [B, T] -> (advantages, returns), both [B, T].
    """
    reduce: Callable[[Any, Any, Totals], Any]
    """(losses [B, T], mask [B, T], totals) -> this micro-batch's share of the step's loss.

    The share is a scalar.
    """
    value_loss: Callable[..., Any] | None = None
    """(values, old_values, returns, mask), each [B, T] -> [B, T]; None: no values are predicted."""


@dataclass(frozen=True)
class Objective(ABC):
    """What is maximised.

    Subclass it, in sctom or in a file of your own, and name the class in the config.

    Class attributes of a subclass:
        loss: name of a function of the backend's losses, or a function of your own (wrapped in
            `staticmethod`).
        reduction: "token_mean" | "sequence_mean" | "sequence_sum" | "fixed_length_mean" |
            "local_token_mean".
        rule: "group" (mean and scale within the group), "leave_one_out", or "gae" (from values;
            see `PPO`, whose subclasses alone have it).
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
        named = {
            item.name: item.metadata.get("argument", item.name)
            for item in fields(self)
            if item.name != "scale"
        }
        chosen = {argument: getattr(self, name) for name, argument in named.items() if argument}
        return {**self.fixed, **chosen}

    def bind(self, backend: Any) -> BoundObjective:
        """Fill in the functions of a backend, a module with the names of `sctom.losses`.

        Raises:
            ValueError: the class names an unknown reduction or advantage rule.

        >>> import sctom.losses
        >>> from sctom.objectives import GRPO
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
        loss = partial(function, **self.arguments())
        return BoundObjective(loss, self._advantages(backend), self._reduce(backend))

    def _advantages(self, backend: Any) -> Callable[..., Any]:
        if self.rule == "gae":
            raise ValueError(
                f'{type(self).__name__}.rule is "gae", which needs predicted values; make it a '
                "subclass of PPO"
            )
        if self.rule == "leave_one_out":
            return partial(backend.leave_one_out_advantages)
        scale = getattr(self, "scale", self.advantage_scale)
        return partial(backend.group_advantages, scale=scale)

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

"""The interface of a sampler: prompts and an address in, token ids and log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from sctom.batch import Prompt


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn.

    Args:
        max_new_tokens: largest number of tokens of a completion, stop token included.
        temperature: divides the logits; 0 takes the most likely token (evaluation only).
        top_p: smallest set of tokens whose probabilities reach this; 1 keeps all.
        top_k: number of most likely tokens kept; 0 keeps all.
        min_p: tokens below this share of the largest probability are dropped; 0 keeps all.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        checks = {
            "max_new_tokens": (self.max_new_tokens >= 1, "at least 1"),
            "temperature": (
                0.0 <= self.temperature < float("inf"),
                "0 (greedy) or a positive number",
            ),
            "top_p": (0.0 < self.top_p <= 1.0, "in (0, 1]"),
            "top_k": (self.top_k >= 0, "0 (off) or a positive whole number"),
            "min_p": (0.0 <= self.min_p < 1.0, "in [0, 1)"),
        }
        for name, (holds, expected) in checks.items():
            if not holds:
                raise ValueError(f"sampling.{name} must be {expected} but is {getattr(self, name)}")

    @property
    def full_support(self) -> bool:
        """Whether every token keeps its probability.

        Sampler and trainer then mean the same distribution.
        """
        return self.top_p == 1.0 and self.top_k == 0 and self.min_p == 0.0


@dataclass
class Sample:
    """One completion."""

    ids: list[int]
    """Token ids up to and including the stop token."""
    logps: Tensor
    """[T] log-probability of each token on full support.

    At the sampling temperature (1 when greedy).
    """
    truncated: bool
    """The limit was reached without a stop token."""


Finished = Callable[[int, list[Sample]], None]
"""Called with the number of a prompt and its completions."""


class Sampler(Protocol):
    """Draws completions from a model."""

    def sample(
        self,
        model: nn.Module,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        sampling: Sampling,
        stop_ids: frozenset[int],
        address: tuple[int, ...],
        finished: Finished | None = None,
    ) -> list[Sample]:
        """Draw `group_size` completions of each prompt, prompt by prompt.

        The draw for one token depends on (address, prompt.index, sample, position) and on nothing
        else.

        Args:
            model: a causal language model in evaluation mode.
            prompts: what is completed.
            group_size: completions of each prompt.
            sampling: how they are drawn.
            stop_ids: tokens that end a completion.
            address: where in the run this is.
            finished: called once for each prompt, with its place in `prompts` and its completions,
                as soon as the last of them is complete, in the order in which that happens; what
                it does is done before sampling goes on.

        Returns:
            All completions, prompt by prompt.
        """
        ...

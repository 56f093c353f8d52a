"""Every public loss with its cases, its bad calls and the inputs that carry a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from parity import cases_policy, cases_rewards, cases_tokens
from parity.case import Builder, Case

CASES: dict[str, list[Builder]] = {
    **cases_policy.CASES,
    **cases_rewards.CASES,
    **cases_tokens.CASES,
}

DIFFERENTIABLE: dict[str, tuple[str, ...]] = {
    "grpo_loss": ("logps",),
    "cispo_loss": ("logps",),
    "sapo_loss": ("logps",),
    "reinforce_loss": ("logps",),
    "kl_k1": ("logps",),
    "kl_k2": ("logps",),
    "kl_k3": ("logps",),
    "kl_penalty": ("logps",),
    "whiten": ("values",),
    "token_mean": ("losses",),
    "sequence_mean": ("losses",),
    "sequence_sum": ("losses",),
    "fixed_length_mean": ("losses",),
    "bradley_terry_loss": ("chosen", "rejected"),
    "tie_loss": ("first", "second"),
    "preference_margins": ("grades",),
    "score_centering": ("chosen", "rejected"),
    "combine_safety_helpfulness": ("helpfulness", "safety"),
    "token_logps": ("logits",),
    "linear_token_logps": ("hidden", "weight"),
    "nll_loss": ("logps",),
    "clipped_value_loss": ("values",),
}
"""The inputs of each function that have a gradient; every other has none, and that is compared."""


@cache
def cases_of(name: str) -> tuple[Case, ...]:
    """All cases of a function."""
    return tuple(_built(name))


def _built(name: str) -> Iterator[Case]:
    for builder in CASES[name]:
        yield from builder()

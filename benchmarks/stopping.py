"""A stop rule that gives completions of geometric length on any model.

A random model all but never draws its end-of-sequence token, and a trained one draws it when it is
done, so neither has the spread of lengths of a real rollout. Instead a fixed set of tokens ends a
completion: those whose frequency under the model itself adds up to the wanted hazard. Both sides
of a benchmark read the set from `generation_config.json`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from sctom.batch import Prompt

LARGEST, SMALLEST = 1 / 20, 1 / 500
"""Bounds of one token's share of the hazard: none decides alone, and the set stays small."""


def capped_mean(hazard: float, limit: int) -> float:
    """Mean of a geometric length that is cut off at a limit: (1 - (1 - h)^limit) / h.

    >>> capped_mean(0.5, 2)
    1.5
    """
    return (1.0 - (1.0 - hazard) ** limit) / hazard


def hazard_for(mean: float, limit: int) -> float:
    """The chance of stopping at a token that gives a mean length under a limit.

    Args:
        mean: wanted mean length, in tokens.
        limit: lengths are cut off here.

    Raises:
        ValueError: no hazard gives this mean.

    >>> round(hazard_for(1.5, 2), 6)
    0.5
    """
    if not 1.0 < mean < limit:
        raise ValueError(f"the mean length must lie between 1 and the limit {limit}, found {mean}")
    low, high = 1e-9, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if capped_mean(middle, limit) > mean else (low, middle)
    return (low + high) / 2


def choose_stop_ids(
    frequency: Sequence[float], hazard: float, *, always: Collection[int], seed: int = 0
) -> list[int]:
    """Tokens whose frequencies add up to a hazard, taken in a seeded order.

    Args:
        frequency: share of each token among those the model draws, [V].
        hazard: wanted sum.
        always: tokens that belong to the set in any case.
        seed: of the order.

    Raises:
        ValueError: all tokens that may be taken do not add up to the hazard.

    >>> len(choose_stop_ids([0.001] * 1000, 0.1005, always=[2]))
    100
    """
    chosen, total = list(always), sum(frequency[i] for i in always)
    order = list(range(len(frequency)))
    random.Random(seed).shuffle(order)
    for token in order:
        share = frequency[token]
        fits = SMALLEST * hazard <= share <= min(LARGEST * hazard, hazard - total)
        if fits and token not in always:
            chosen.append(token)
            total += share
    if total < 0.95 * hazard:
        raise ValueError(
            f"the tokens that may end a completion add up to {total:.4f}, "
            f"but {hazard:.4f} is wanted"
        )
    return sorted(chosen)


def token_frequency(
    model: nn.Module, prompts: Sequence[Prompt], *, group_size: int, length: int, eos: int
) -> Tensor:
    """Mean probability of each token where the model goes on by itself at temperature 1, [V].

    Args:
        model: a causal language model.
        prompts: where it starts.
        group_size: completions per prompt.
        length: tokens of a completion.
        eos: the token that ends one.
    """
    import torch

    from sctom.rollout import LocalSampler, Sampling

    samples = LocalSampler().sample(
        model,
        prompts,
        group_size=group_size,
        sampling=Sampling(max_new_tokens=length),
        stop_ids=frozenset({eos}),
        address=(0,),
    )
    total, count = torch.zeros(_config(model).vocab_size, dtype=torch.float64), 0
    for i, sample in enumerate(samples):
        ids = torch.tensor([prompts[i // group_size].ids + sample.ids])
        with torch.no_grad():
            logits = model(input_ids=ids, logits_to_keep=len(sample.ids) + 1).logits[0, :-1]
        total += torch.softmax(logits.float(), -1).sum(0).double()
        count += len(sample.ids)
    return total / count


def _config(model: Any) -> Any:
    return model.config

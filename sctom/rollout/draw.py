"""The next token of each row: one addressed uniform, one softmax, one search.

The probabilities are made once and serve both the draw and the log-probability of what was drawn.
The cumulative distribution is inverted in two steps, over blocks of the vocabulary and then inside
one block, so that only a few sums are made in float64 and not one per token and row. That is exact:
the token is still the first whose cumulative mass exceeds the uniform's share of the total, as far
as float64 tells sums of two orders apart.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from sctom.rollout.base import Sampling
from sctom.seeds import Keys, uniforms

_BLOCK = 64
"""Tokens whose mass is added up first; about the square root of a usual vocabulary."""


def next_tokens(
    logits: Tensor, keys: Keys, position: int, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    """Draw one token per row.

    Args:
        logits: [n, V]
        keys: [n] the key of each row's address.
        position: number of the token in its completion.
        sampling: temperature and what is cut off; temperature 0 takes the most likely token.

    Returns:
        Tokens [n], and their log-probabilities [n] on full support at the sampling temperature (1
        when greedy), float32.
    """
    scaled = logits.float()
    if sampling.temperature not in (0.0, 1.0):
        scaled = scaled / sampling.temperature
    probabilities = torch.softmax(scaled, -1)
    if sampling.temperature == 0.0:
        tokens = scaled.argmax(-1)
    else:
        uniform = torch.from_numpy(uniforms(keys, position)).to(logits.device)
        tokens = draw(kept_probabilities(probabilities, sampling), uniform)
    return tokens, probabilities.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).log()


def kept_probabilities(probabilities: Tensor, sampling: Sampling) -> Tensor:
    """What top-k, top-p and min-p, in this order, leave of probabilities [B, V].

    Dropped tokens get 0. Kept ones are not renormalised; `draw` scales the uniform instead.

    >>> kept_probabilities(torch.tensor([[0.2, 0.5, 0.3]]), Sampling(top_k=2))
    tensor([[0.0000, 0.5000, 0.3000]])
    """
    if sampling.full_support:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        keep[:, sampling.top_k :] = False
    if sampling.top_p < 1.0:
        kept = ordered * keep
        # mass ahead of a token: it is needed while that is short of top_p
        before = kept.cumsum(-1) - kept
        keep &= before < sampling.top_p * kept.sum(-1, keepdim=True)
    if sampling.min_p > 0.0:
        keep &= ordered >= sampling.min_p * ordered[:, :1]
    keep[:, 0] = True
    return torch.zeros_like(probabilities).scatter(-1, order, ordered * keep)


def draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Invert the cumulative distribution.

    The token drawn is the first whose cumulative mass exceeds uniform * total.

    Args:
        probabilities: [B, V], not necessarily summing to 1; zeros are never drawn.
        uniform: [B] in (0, 1), float64.

    >>> draw(torch.tensor([[0.2, 0.0, 0.8]]), torch.tensor([0.2001], dtype=torch.float64)).tolist()
    [2]
    """
    rows, vocabulary = probabilities.shape
    if surplus := -vocabulary % _BLOCK:
        probabilities = pad(probabilities, (0, surplus))
    blocks = probabilities.view(rows, -1, _BLOCK)
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = uniform.unsqueeze(-1) * ends[:, -1:]
    block = _first_above(ends, target)
    before = pad(ends, (1, 0)).gather(-1, block)
    inside = blocks[torch.arange(rows, device=block.device), block.squeeze(-1)].double().cumsum(-1)
    token = _first_above(inside, target - before)
    return (block * _BLOCK + token).squeeze(-1).clamp_max(vocabulary - 1)


def _first_above(ends: Tensor, target: Tensor) -> Tensor:
    """The first entry [B, 1] of rising sums [B, N] above a target [B, 1].

    Where rounding has put the target at the last sum or beyond, it is taken to be just below it: so
    an entry is always found, and one that adds something. Sums that are not numbers give the last,
    and a log-probability that is none.
    """
    reachable = torch.nextafter(ends[:, -1:], torch.zeros_like(target))
    place = torch.searchsorted(ends, torch.minimum(target, reachable), right=True)
    return place.clamp_max_(ends.shape[-1] - 1)

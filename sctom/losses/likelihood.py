"""Log-probabilities of given tokens, from logits or from hidden states, and losses on tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sctom.losses._linear_head import head_logps, tiles, weighted
from sctom.losses._shared import kept_tokens, widen, zero_outside
from sctom.shapes import check_shapes

_TILE_ROWS = 512
"""Rows whose logits exist at a time. Fewer leave the matrix products short of work."""


def token_logps(logits: Tensor, ids: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probability of each given token under the softmax of its logits.

        logp = z[id] - logsumexp(z),   z = logits / temperature

    Forward and backward work on a few rows at a time: nothing of the size of the logits is made but
    their gradient, in their own dtype. The largest logit is taken off first, so that logits of 1e4
    lose no digits.

    Args:
        logits: [B, T, V] raw logits, aligned with ids: `logits[:, t]` predicts `ids[:, t]`.
        ids: [B, T] token ids.
        temperature: what the logits are divided by; that of sampling, so that both sides agree.

    Returns:
        Log-probabilities [B, T], float32 or float64. They can be differentiated once.

    Raises:
        ValueError: shapes disagree, an id is outside the vocabulary, or temperature is not above 0.

    >>> logits = torch.tensor([[[0.0, 0.0], [9.0, 9.0]]])
    >>> token_logps(logits, torch.tensor([[0, 1]])).exp()
    tensor([[0.5000, 0.5000]])
    """
    sizes = check_shapes(logits=(logits, "B T V"), ids=(ids, "B T"))
    _check_temperature(temperature)
    ids = _checked_ids(ids, sizes["V"])
    logps: Tensor = _TokenLogps.apply(logits, ids, temperature)  # type: ignore[no-untyped-call]
    return logps


@overload
def linear_token_logps(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    temperature: float = ...,
    tile: int | None = ...,
    return_entropy: Literal[False] = ...,
) -> Tensor: ...


@overload
def linear_token_logps(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    temperature: float = ...,
    tile: int | None = ...,
    return_entropy: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def linear_token_logps(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    *,
    temperature: float = 1.0,
    tile: int | None = None,
    return_entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`token_logps` of the logits `hidden @ weight.T`, without ever holding them all.

        logp             = z[id] - logsumexp(z),   z = hidden @ weight.T / temperature
        d logp / d hidden = (weight[id] - p @ weight) / temperature,   p = softmax(z)
        entropy          = (d logp / d hidden) . hidden - logp

    Logits exist for `tile` rows and a block of the vocabulary at a time, so that extra memory does
    not grow with the vocabulary; `sctom.losses._linear_head` says how. The derivative with respect
    to hidden is formed while they do, so backward is one multiplication and a frozen head costs two
    matrix products in all. A head that is trained has its blocks computed again in backward for its
    own gradient, but for the first 128 million logits, which are kept (512 MiB). Products are in
    float32 even where hidden and weight are bfloat16 or under autocast: a head in low precision is
    what sets trainer and sampler apart most (MiniMax-M1, arXiv 2506.13585).

    Args:
        hidden: [B, T, H] or [N, H] hidden states that predict the ids.
        weight: [V, H] weight of the head, which has no bias.
        ids: [B, T] or [N] token ids.
        temperature: what the logits are divided by.
        tile: rows whose logits exist at a time; None for 512.
        return_entropy: also return the entropy of each distribution.

    Returns:
        Log-probabilities in the shape of ids, float32 or float64; with `return_entropy` a pair of
        them and the entropies in nats, which carry no gradient. They can be differentiated once.

    Raises:
        ValueError: shapes disagree, an id is outside the vocabulary, or temperature or tile is not
            above 0.

    >>> hidden, weight = torch.tensor([[1.0, 0.0]]), torch.tensor([[5.0, 1.0], [5.0, 2.0]])
    >>> logps, entropy = linear_token_logps(hidden, weight, torch.tensor([1]), return_entropy=True)
    >>> logps, entropy  # two equal logits: -ln 2, ln 2
    (tensor([-0.6931]), tensor([0.6931]))
    """
    axes = "B T" if hidden.dim() == 3 else "N"
    sizes = check_shapes(hidden=(hidden, f"{axes} H"), weight=(weight, "V H"), ids=(ids, axes))
    _check_temperature(temperature)
    if tile is not None and tile < 1:
        raise ValueError(
            f"tile must be at least 1 row but is {tile}; leave it out for {_TILE_ROWS}"
        )
    flat_ids = _checked_ids(ids, sizes["V"]).flatten()
    logps, entropy = head_logps(
        hidden.reshape(-1, sizes["H"]),
        weight,
        flat_ids,
        temperature=temperature,
        tile=tile or _TILE_ROWS,
        entropy=return_entropy,
    )
    logps = logps.view(ids.shape)
    return logps if entropy is None else (logps, entropy.view(ids.shape))


def nll_loss(logps: Tensor, mask: Tensor) -> Tensor:
    """Negative log-likelihood of each unmasked token.

        loss = -logp

    For supervised fine-tuning, and for rejection sampling (the same on selected samples).

    Args:
        logps: [B, T] log-probabilities of the tokens to imitate.
        mask: [B, T] 1 where the token counts.

    Returns:
        Per-token losses [B, T], 0 where masked.

    Raises:
        ValueError: shapes disagree.

    >>> nll_loss(torch.tensor([[-0.5, -2.0, 9.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
    tensor([[0.5000, 2.0000, 0.0000]])
    """
    check_shapes(logps=(logps, "B T"), mask=(mask, "B T"))
    return zero_outside(-widen(logps), kept_tokens(mask, logps))


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, *, clip: float = 0.2
) -> Tensor:
    """Squared error of a value head that may not move far from its old prediction.

        loss = 1/2 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2)

    Not in the PPO paper but in its authors' code (OpenAI Baselines, ppo2), one half included; see
    arXiv 2005.12729, section 3. The larger error counts, so the gradient vanishes only where V has
    already moved towards R by more than `clip`.

    Args:
        values: [B, T] predictions V, in units of the reward.
        old_values: [B, T] predictions V_old at the time of the rollout; no gradient.
        returns: [B, T] targets R; no gradient.
        mask: [B, T] 1 where the token counts.
        clip: largest useful move from the old prediction, in units of the reward.

    Returns:
        Per-token losses [B, T], 0 where masked.

    Raises:
        ValueError: shapes disagree, or clip is not above 0.

    >>> old_values, returns, mask = torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2)
    >>> clipped_value_loss(torch.tensor([[0.1, 0.9]]), old_values, returns, mask)  # 0.9 -> 0.2
    tensor([[0.4050, 0.3200]])
    """
    check_shapes(
        values=(values, "B T"),
        old_values=(old_values, "B T"),
        returns=(returns, "B T"),
        mask=(mask, "B T"),
    )
    if not clip > 0:
        raise ValueError(
            f"clip must be above 0 but is {clip}; pass float('inf') for no clipping at all"
        )
    keep = kept_tokens(mask, values)
    V = zero_outside(widen(values), keep)
    V_old = zero_outside(widen(old_values.detach()), keep)
    R = zero_outside(widen(returns.detach()), keep)
    clipped = torch.clamp(V, V_old - clip, V_old + clip)
    return 0.5 * torch.maximum((V - R).square(), (clipped - R).square())


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(
            f"temperature must be above 0 and finite but is {temperature}; "
            "score greedy samples at the temperature you train with, usually 1"
        )


def _checked_ids(ids: Tensor, vocabulary: int) -> Tensor:
    if ids.is_floating_point():
        raise ValueError(
            f"ids must be whole numbers but are {ids.dtype}; were the arguments swapped?"
        )
    wide = ids.long()  # narrow or unsigned integers do not compare with every vocabulary size
    outside = ((wide < 0) | (wide >= vocabulary)).nonzero().tolist()
    if outside:
        place = ", ".join(map(str, outside[0]))
        raise ValueError(
            f"ids[{place}] is {ids[tuple(outside[0])].item()}, the first of {len(outside)} outside "
            f"the vocabulary of {vocabulary}; give masked positions any id below it, such as 0"
        )
    return wide


class _TokenLogps(torch.autograd.Function):
    """(logits [B, T, V], ids [B, T], temperature) -> [B, T]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(logits, ids)
        ctx.temperature = temperature
        logps = widen(logits.new_empty(ids.shape))
        for row, rows in _cells(ids):
            scores = torch.log_softmax(widen(logits[row, rows]) / temperature, -1)
            logps[row, rows] = scores.gather(-1, ids[row, rows, None]).squeeze(-1)
        return logps

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        logits, ids = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for row, rows in _cells(ids):
            slope = torch.softmax(widen(logits[row, rows]) / ctx.temperature, -1).neg_()
            slope.scatter_add_(-1, ids[row, rows, None], torch.ones_like(slope[:, :1]))
            gradient[row, rows] = weighted(slope, upstream[row, rows] / ctx.temperature)
        return gradient, None, None


def _cells(ids: Tensor) -> Iterator[tuple[int, slice]]:
    """The tiles of each row of a batch. Rows are not flattened: that may copy a slice of logits."""
    return ((row, rows) for row in range(ids.shape[0]) for rows in tiles(ids.shape[1], _TILE_ROWS))

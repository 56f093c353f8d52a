"""Log-probabilities of given tokens, from logits or from hidden states, and losses on tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sctom.losses._shared import kept_tokens, widen, zero_outside
from sctom.shapes import check_shapes

_TILE_ROWS = 512
"""Rows whose logits exist at a time. Fewer leave the matrix products short of work."""

_BLOCK_ROWS = 16384
"""Rows of the head that are widened at a time."""


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

    Logits exist for `tile` rows at a time. The derivative with respect to hidden is formed while
    they do, so backward is one multiplication and a frozen head costs two matrix products in all;
    a head that is trained has its tiles recomputed in backward for its own gradient. Products are
    in float32 even where hidden and weight are bfloat16 or under autocast: a head in low precision
    is what sets trainer and sampler apart most (MiniMax-M1, arXiv 2506.13585).

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
    logps, entropy = _LinearTokenLogps.apply(  # type: ignore[no-untyped-call]
        hidden.reshape(-1, sizes["H"]),
        weight,
        flat_ids,
        temperature,
        tile or _TILE_ROWS,
        torch.is_grad_enabled(),
        return_entropy,
    )
    logps = logps.view(ids.shape)
    return (logps, entropy.view(ids.shape)) if return_entropy else logps


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


def _tiles(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def _weighted(derivative: Tensor, upstream: Tensor) -> Tensor:
    """The chain rule for rows [N, K]; rows that do not count stay 0 even where they are NaN."""
    return torch.where(upstream[:, None] == 0, 0.0, derivative * upstream[:, None])


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
            gradient[row, rows] = _weighted(slope, upstream[row, rows] / ctx.temperature)
        return gradient, None, None


def _cells(ids: Tensor) -> Iterator[tuple[int, slice]]:
    """The tiles of each row of a batch. Rows are not flattened: that may copy a slice of logits."""
    return ((row, rows) for row in range(ids.shape[0]) for rows in _tiles(ids.shape[1], _TILE_ROWS))


class _LinearTokenLogps(torch.autograd.Function):
    """(hidden [N, H], weight [V, H], ids [N], ...) -> (log-probabilities [N], entropies [N])."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        ids: Tensor,
        temperature: float,
        tile: int,
        differentiable: bool,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        for_hidden, for_weight = (differentiable and needed for needed in ctx.needs_input_grad[:2])
        slope = torch.empty_like(hidden) if for_hidden else None
        logps = hidden.new_empty(len(ids), dtype=_product_dtype(hidden, weight))
        entropy = torch.empty_like(logps) if with_entropy else None
        buffer = logps.new_empty(min(tile, len(ids)), len(weight))
        for rows in _tiles(len(ids), tile):
            scaled = hidden[rows].to(logps.dtype) / temperature
            exps, total, logps[rows] = _exponentials(scaled, weight, ids[rows], buffer)
            if slope is not None:
                derivative = weight[ids[rows]] - _times_weight(exps, weight) / total
                slope[rows] = derivative / temperature
                if entropy is not None:
                    entropy[rows] = (derivative * scaled).sum(1) - logps[rows]
            elif entropy is not None:
                spread = torch.special.entr(exps, out=exps).sum(1, keepdim=True)
                entropy[rows] = (spread / total + total.log()).squeeze(1)
        ctx.save_for_backward(slope, *((hidden, weight, ids) if for_weight else (None,) * 3))
        ctx.temperature, ctx.tile = temperature, tile
        if entropy is not None:
            ctx.mark_non_differentiable(entropy)
        return logps, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        slope, hidden, weight, ids = ctx.saved_tensors
        for_hidden = None if slope is None else _weighted(slope, upstream).to(slope.dtype)
        for_weight = None
        if weight is not None:
            for_weight = _weight_gradient(hidden, weight, ids, upstream, ctx.temperature, ctx.tile)
        return for_hidden, for_weight, None, None, None, None, None


def _weight_gradient(
    hidden: Tensor, weight: Tensor, ids: Tensor, upstream: Tensor, temperature: float, tile: int
) -> Tensor:
    """Sum over rows of upstream * (onehot(id) - p) outer hidden / temperature, [V, H]."""
    dtype = _product_dtype(hidden, weight)
    gradient = torch.zeros_like(weight, dtype=dtype)
    counted = upstream.nonzero().flatten()
    buffer = gradient.new_empty(min(tile, len(counted)), len(weight))
    for part in _tiles(len(counted), tile):
        rows = counted[part]
        scaled = hidden[rows].to(dtype) / temperature
        exps, total, _ = _exponentials(scaled, weight, ids[rows], buffer)
        pull = upstream[rows, None]
        exps.mul_(-pull / total).scatter_add_(1, ids[rows, None], pull)
        gradient.addmm_(exps.t(), scaled)
    return gradient.to(weight.dtype)


def _exponentials(
    scaled: Tensor, weight: Tensor, ids: Tensor, buffer: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """exp(z - max z) [n, V] in the buffer, its sum over V [n, 1], and the log-probs of ids [n]."""
    scores = buffer[: len(scaled)]
    # here and in _times_weight: autocast leaves products with `out=` or in place alone
    for rows, block in _blocks(weight, scaled.dtype):
        torch.mm(scaled, block.t(), out=scores[:, rows])
    picked = scores.gather(1, ids[:, None])
    peak = scores.amax(1, keepdim=True)
    total = scores.sub_(peak).exp_().sum(1, keepdim=True)
    return scores, total, (picked - peak - total.log()).squeeze(1)


def _times_weight(exps: Tensor, weight: Tensor) -> Tensor:
    product = exps.new_zeros(len(exps), weight.shape[1])
    for rows, block in _blocks(weight, exps.dtype):
        product.addmm_(exps[:, rows], block)
    return product


def _blocks(weight: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    return ((rows, weight[rows].to(dtype)) for rows in _tiles(len(weight), _BLOCK_ROWS))


def _product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)

"""Log-probabilities straight from hidden states: softmax(h W^T) over blocks of the vocabulary.

The softmax of a row is built up block by block, as its parts arrive (online softmax: Milakov &
Gimelshein 2018, arXiv 1805.02867). Of the blocks seen so far a row keeps the largest score m, the
sum s of exp(z - m), and where they are wanted the mean u of the rows of W under the softmax and its
entropy H. A block with m_b, s_b, u_b, H_b of its own changes them to

    m' = max(m, m_b),   s' = s exp(m - m') + s_b exp(m_b - m'),   w = s_b exp(m_b - m') / s'
    u' = (1 - w) u + w u_b,   H' = (1 - w) H + w H_b - w ln w - (1 - w) ln(1 - w)

so that memory does not grow with the vocabulary: scores exist for a tile of rows and a block of the
vocabulary. Blocks are the outer loop: each part of W is widened and packed once for all rows. For
the gradient of W, whose scores come again, it is the rows that are packed once for all blocks.

Cut cross-entropy (Wijmans et al., arXiv 2411.09009) does this in one kernel on CUDA. It is not used
here, not yet. The release that registries carry (25.1.1) leaves small probabilities out of the
gradient and sums that of the head in the dtype of the hidden states, a row that is NaN spoils the
head's gradient even where its loss is masked, and it could not be run: what is promised here in
float32 would hold on one device only. It multiplies four times in all, as often as a trained head
here does if nothing is kept; a frozen head is done with two products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from sctom.packed_linear import PackedLinear

BLOCK_ROWS = {"cpu": 2048}
"""Rows of the head whose scores exist at a time, by device; see `_block_rows` for the others.

With a tile of 512 hidden states that is 4 MiB: it stays in the cache.
"""

PACK_ROWS = 512
"""Hidden states from which on a packed block of the head pays for its packing."""

_SHAPES = 64
"""Rows of packed products come in multiples of it: oneDNN keeps something for each shape."""

KEPT_SCORES = 2**27
"""Scores of a trained head kept for backward instead of computed again: 512 MiB in float32.

A trained head costs four products where three are enough if all logits are kept. With so many of
them kept it costs three where the vocabulary is small, and memory stays bounded where it is large.
"""


def tiles(total: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover `range(total)`.

    >>> list(tiles(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def weighted(derivative: Tensor, upstream: Tensor) -> Tensor:
    """The chain rule for rows [N, K]; rows that do not count stay 0 even where they are NaN.

    >>> weighted(torch.tensor([[1.0, 2.0], [math.nan, 2.0]]), torch.tensor([2.0, 0.0]))
    tensor([[2., 4.],
            [0., 0.]])
    """
    return torch.where(upstream[:, None] == 0, 0.0, derivative * upstream[:, None])


def head_logps(
    hidden: Tensor, weight: Tensor, ids: Tensor, *, temperature: float, tile: int, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities [N] of ids under softmax(hidden W^T / temperature), and their entropies.

    The working part of `sctom.losses.linear_token_logps`, which checks and documents.

    Args:
        hidden: [N, H] hidden states.
        weight: [V, H] weight of the head.
        ids: [N] token ids, int64, all within the vocabulary.
        temperature: what the scores are divided by.
        tile: hidden states whose scores exist at a time.
        entropy: whether the entropies [N] are wanted; they carry no gradient.

    >>> hidden, weight = torch.tensor([[1.0, 0.0]]), torch.tensor([[5.0, 1.0], [5.0, 2.0]])
    >>> head_logps(hidden, weight, torch.tensor([1]), temperature=1.0, tile=8, entropy=True)
    (tensor([-0.6931]), tensor([0.6931]))
    """
    logps, entropies = _LinearTokenLogps.apply(  # type: ignore[no-untyped-call]
        hidden, weight, ids, temperature, tile, torch.is_grad_enabled(), entropy
    )
    return logps, entropies


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
        scaled = hidden.to(_product_dtype(hidden, weight)) / temperature
        softmax = _OnlineSoftmax(scaled, mean=for_hidden, entropy=with_entropy and not for_hidden)
        kept: list[Tensor] = []
        room = KEPT_SCORES if for_weight else 0
        with torch.autocast(hidden.device.type, enabled=False):
            for columns, block in _blocks(weight, scaled.dtype):
                multiply = _multiplier(block, len(ids))
                for rows in tiles(len(ids), tile):
                    scores = multiply(scaled[rows])
                    softmax.add(rows, scores, block, ids[rows] - columns.start)
                    room -= scores.numel()
                    if room >= 0:  # what is kept is what comes first
                        kept.append(scores)
        logps, entropy, slope = softmax.logps(), softmax.entropies(), softmax.mean
        if slope is not None:
            for rows in tiles(len(ids), tile):
                torch.sub(weight[ids[rows]], slope[rows], out=slope[rows])
            if with_entropy:
                entropy = torch.linalg.vecdot(slope, scaled) - logps
            slope = slope.div_(temperature).to(hidden.dtype)
        if for_weight:
            ctx.save_for_backward(slope, hidden, weight, ids, softmax.peak, softmax.total, *kept)
        else:
            ctx.save_for_backward(slope)
        ctx.temperature, ctx.tile, ctx.for_weight = temperature, tile, for_weight
        if entropy is not None:
            ctx.mark_non_differentiable(entropy)
        return logps, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        slope, *rest = ctx.saved_tensors
        for_hidden = None if slope is None else weighted(slope, upstream).to(slope.dtype)
        for_weight = None
        if ctx.for_weight:
            hidden, weight, ids, peak, total, *kept = rest
            wide = hidden.to(peak.dtype)
            pieces = [
                _Piece.of(rows, wide, ids, peak, total, upstream, ctx.temperature, len(weight))
                for rows in tiles(len(ids), ctx.tile)
            ]
            for_weight = _weight_gradient(weight, pieces, kept, peak.dtype)
        return for_hidden, for_weight, None, None, None, None, None


class _OnlineSoftmax:
    """The softmax of each of N rows, as far as the vocabulary has been seen.

    Args:
        rows: [N, H] the rows, for their number, dtype and device.
        mean: keep the mean of the rows of W under the softmax, [N, H].
        entropy: keep the entropy.
    """

    def __init__(self, rows: Tensor, *, mean: bool, entropy: bool) -> None:
        self.peak = rows.new_full((len(rows), 1), -math.inf)
        self.total, self.picked = torch.zeros_like(self.peak), torch.zeros_like(self.peak)
        self.mean = torch.zeros_like(rows) if mean else None
        self.entropy = torch.zeros_like(self.peak) if entropy else None

    def add(self, rows: slice, scores: Tensor, block: Tensor, ids: Tensor) -> None:
        """Take in the scores [n, C] of some rows for a block [C, H] of W, ids counted within it."""
        top = scores.amax(1, keepdim=True)
        if bool(torch.isneginf(top).any()):  # a row all of -inf has no softmax of its own
            scores = scores.clamp_min(torch.finfo(scores.dtype).min)
            top = scores.amax(1, keepdim=True)
        probs = torch.softmax(scores, 1)
        peak = torch.maximum(self.peak[rows], top)
        largest = probs.amax(1, keepdim=True)  # exp(0) over the sum of all: no pass to add them up
        total = torch.exp(top - peak) / largest
        seen = self.total[rows] * torch.exp(self.peak[rows] - peak)
        self.peak[rows], self.total[rows] = peak, seen + total
        share = total / self.total[rows]
        inside = (ids >= 0) & (ids < len(block))
        found = scores.gather(1, ids.clamp(0, len(block) - 1)[:, None])
        self.picked[rows] = torch.where(inside[:, None], found, self.picked[rows])
        if self.mean is not None:
            self.mean[rows].lerp_(_mean_row(probs, block), share)
        if self.entropy is not None:
            below = torch.linalg.vecdot(probs, scores - top).unsqueeze(1)
            spread = -largest.log() - below
            choice = torch.special.entr(share) + torch.special.entr(1 - share)
            self.entropy[rows] = self.entropy[rows].lerp(spread, share) + choice

    def logps(self) -> Tensor:
        """Log-probabilities of the ids, [N], once the whole vocabulary has been seen."""
        return (self.picked - self.peak - self.total.log()).squeeze(1)

    def entropies(self) -> Tensor | None:
        """Entropies of the rows, [N], in nats."""
        return None if self.entropy is None else self.entropy.squeeze(1)


def _mean_row(probs: Tensor, block: Tensor) -> Tensor:
    return probs @ block


@dataclass
class _Piece:
    """The rows of a tile whose gradient is not 0, and what the gradient of the head takes of them.

    Attributes:
        rows: [n] their places in the tile, or a slice if they are all of it.
        ids: [n] their ids.
        peak: [n, 1] their largest score.
        scaled: [n, H] hidden / temperature.
        pulled: [n, H] upstream * scaled.
        pushed: [n, H] -upstream * scaled / (sum of exp(z - peak)).
        vocabulary: rows of the head.
    """

    rows: Tensor | slice
    ids: Tensor
    peak: Tensor
    scaled: Tensor
    pulled: Tensor
    pushed: Tensor
    vocabulary: int

    @classmethod
    def of(
        cls,
        tile: slice,
        hidden: Tensor,
        ids: Tensor,
        peak: Tensor,
        total: Tensor,
        upstream: Tensor,
        temperature: float,
        vocabulary: int,
    ) -> _Piece:
        counted = upstream[tile].nonzero().flatten()
        rows = counted if len(counted) < tile.stop - tile.start else slice(None)
        scaled = hidden[tile][rows] / temperature
        pulled = upstream[tile][rows, None] * scaled
        pushed = -pulled / total[tile][rows]
        return cls(rows, ids[tile][rows], peak[tile][rows], scaled, pulled, pushed, vocabulary)

    @cached_property
    def pushed_by(self) -> Callable[[Tensor], Tensor]:
        """What a block [C, H] of the head gets from these rows, [C, H], its scores computed anew.

        Both products are with the rows, which are packed once for all blocks.
        """
        missing = -len(self.scaled) % _SHAPES  # of 0, so that they push nothing
        scaled, pushed, peak = (
            pad(rows, (0, 0, 0, missing)) for rows in (self.scaled, self.pushed, self.peak)
        )
        scores, push = (_multiplier(rows, self.vocabulary) for rows in (scaled, pushed.t()))
        below = peak.t()
        return lambda block: push(scores(block).sub_(below).exp_())


def _weight_gradient(
    weight: Tensor, pieces: list[_Piece], kept: list[Tensor], dtype: torch.dtype
) -> Tensor:
    """Sum over rows of upstream * (onehot(id) - p) outer hidden / temperature, [V, H]."""
    gradient = torch.empty_like(weight)
    with torch.autocast(weight.device.type, enabled=False):
        for number, (columns, block) in enumerate(_blocks(weight, dtype)):
            remembered = kept[number * len(pieces) :][: len(pieces)]
            place = gradient[columns]
            part = place.zero_() if place.dtype == dtype else torch.zeros_like(block)
            for turn, piece in enumerate(pieces):
                if turn < len(remembered):
                    scores = remembered[turn][piece.rows]
                    part.addmm_((scores - piece.peak).exp_().t(), piece.pushed)
                else:
                    part.add_(piece.pushed_by(block))
                inside = (piece.ids >= columns.start) & (piece.ids < columns.stop)
                part.index_add_(0, piece.ids[inside] - columns.start, piece.pulled[inside])
            if part is not place:
                place.copy_(part)
    return gradient


def _multiplier(block: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
    """The function x -> x @ block.T; the block is packed where enough rows are multiplied by it."""
    if rows < PACK_ROWS or not PackedLinear.available(block):
        return lambda x: x @ block.t()
    packed = PackedLinear(block, rows=PACK_ROWS)

    def multiply(x: Tensor) -> Tensor:
        missing = -len(x) % _SHAPES
        return packed(pad(x, (0, 0, 0, missing)) if missing else x)[: len(x)]

    return multiply


def _blocks(weight: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    return ((rows, weight[rows].to(dtype)) for rows in tiles(len(weight), _block_rows(weight)))


def _block_rows(weight: Tensor) -> int:
    """Larger off the CPU, where to start many small products takes longer than they do."""
    return BLOCK_ROWS.get(weight.device.type, 16384)


def _product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)

"""Log-probabilities of given tokens, from logits or from hidden states, and losses on tokens.

Arguments, shapes and errors are those of `sctom.losses.likelihood`, with two exceptions. Inside
`mx.compile`, where no value can be looked at, an id outside the vocabulary is not refused but gets
the log-probability NaN (MLX itself would return whatever lies in memory there). And `token_logps`
and `linear_token_logps` do not work under `mx.vmap`, `mx.jvp` and `mx.compile(shapeless=True)`:
they work through tiles whose number is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, cast, overload

import mlx.core as mx

from sctom.mlx_port.losses._shared import (
    clamp,
    first_place,
    kept_tokens,
    maximum,
    widen,
    zero_outside,
)
from sctom.shapes import check_shapes

_TILE_ROWS = 512
"""Rows whose logits exist at a time. Fewer leave the matrix products short of work."""

_BLOCK_ROWS = 16384
"""Rows of the head that are widened at a time."""


def token_logps(logits: mx.array, ids: mx.array, *, temperature: float = 1.0) -> mx.array:
    """Log-probability of each given token under the softmax of its logits.

        logp = z[id] - logsumexp(z),   z = logits / temperature

    Mirrors `sctom.losses.token_logps`; differs as the module says, and in memory: in backward the
    gradient exists twice, as the tiles it is put together from and as a whole.

    >>> logits = mx.array([[[0.0, 0.0], [9.0, 9.0]]])
    >>> mx.round(mx.exp(token_logps(logits, mx.array([[0, 1]]))), 4)
    array([[0.5, 0.5]], dtype=float32)
    """
    sizes = check_shapes(logits=(logits, "B T V"), ids=(ids, "B T"))
    _check_temperature(temperature)
    ids, outside = _checked_ids(ids, sizes["V"])
    if ids.size == 0:
        return mx.zeros(ids.shape, widen(logits).dtype)
    logps: mx.array = _token_scorer(ids, temperature)(logits)
    return mx.where(outside, math.nan, logps)


@overload
def linear_token_logps(
    hidden: mx.array,
    weight: mx.array,
    ids: mx.array,
    *,
    temperature: float = ...,
    tile: int | None = ...,
    return_entropy: Literal[False] = ...,
) -> mx.array: ...


@overload
def linear_token_logps(
    hidden: mx.array,
    weight: mx.array,
    ids: mx.array,
    *,
    temperature: float = ...,
    tile: int | None = ...,
    return_entropy: Literal[True],
) -> tuple[mx.array, mx.array]: ...


def linear_token_logps(
    hidden: mx.array,
    weight: mx.array,
    ids: mx.array,
    *,
    temperature: float = 1.0,
    tile: int | None = None,
    return_entropy: bool = False,
) -> mx.array | tuple[mx.array, mx.array]:
    """`token_logps` of the logits `hidden @ weight.T`, without ever holding them all.

        logp             = z[id] - logsumexp(z),   z = hidden @ weight.T / temperature
        d logp / d hidden = (weight[id] - p @ weight) / temperature,   p = softmax(z)
        entropy          = (d logp / d hidden) . hidden - logp

    Mirrors `sctom.losses.linear_token_logps`; differs as the module says, and in cost: MLX does not
    tell whether a derivative will be asked for, so that with respect to hidden is always formed
    while the logits exist, and mere scoring pays for two matrix products instead of one. Evaluation
    runs ahead of the arithmetic, so that some ten tiles exist at a time, whatever their number.

    >>> hidden, weight = mx.array([[1.0, 0.0]]), mx.array([[5.0, 1.0], [5.0, 2.0]])
    >>> logps, entropy = linear_token_logps(hidden, weight, mx.array([1]), return_entropy=True)
    >>> mx.round(logps, 4), mx.round(entropy, 4)  # two equal logits: -ln 2, ln 2
    (array([-0.6931], dtype=float32), array([0.6931], dtype=float32))
    """
    axes = "B T" if hidden.ndim == 3 else "N"
    sizes = check_shapes(hidden=(hidden, f"{axes} H"), weight=(weight, "V H"), ids=(ids, axes))
    _check_temperature(temperature)
    if tile is not None and tile < 1:
        raise ValueError(
            f"tile must be at least 1 row but is {tile}; leave it out for {_TILE_ROWS}"
        )
    ids, outside = _checked_ids(ids, sizes["V"])
    if ids.size == 0:
        nothing = mx.zeros(ids.shape, _product_dtype(hidden, weight))
        return (nothing, nothing) if return_entropy else nothing
    score = _linear_scorer(ids.flatten(), temperature, tile or _TILE_ROWS)
    logps, entropy, _ = score(hidden.reshape(ids.size, sizes["H"]), weight)
    logps = mx.where(outside, math.nan, logps.reshape(ids.shape))
    if return_entropy:
        return logps, mx.stop_gradient(entropy).reshape(ids.shape)
    return logps


def nll_loss(logps: mx.array, mask: mx.array) -> mx.array:
    """Negative log-likelihood of each unmasked token.

        loss = -logp

    Mirrors `sctom.losses.nll_loss`; differs in nothing.

    >>> nll_loss(mx.array([[-0.5, -2.0, 9.0]]), mx.array([[1.0, 1.0, 0.0]]))
    array([[0.5, 2, 0]], dtype=float32)
    """
    check_shapes(logps=(logps, "B T"), mask=(mask, "B T"))
    return zero_outside(-widen(logps), kept_tokens(mask, logps))


def clipped_value_loss(
    values: mx.array, old_values: mx.array, returns: mx.array, mask: mx.array, *, clip: float = 0.2
) -> mx.array:
    """Squared error of a value head that may not move far from its old prediction.

        loss = 1/2 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2)

    Mirrors `sctom.losses.clipped_value_loss`; differs in nothing but rounding.

    >>> old_values, returns, mask = mx.zeros((1, 2)), mx.ones((1, 2)), mx.ones((1, 2))
    >>> losses = clipped_value_loss(mx.array([[0.1, 0.9]]), old_values, returns, mask)
    >>> mx.round(losses, 4)  # 0.9 -> 0.2
    array([[0.405, 0.32]], dtype=float32)
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
    V_old = zero_outside(widen(mx.stop_gradient(old_values)), keep)
    R = zero_outside(widen(mx.stop_gradient(returns)), keep)
    clipped = clamp(V, V_old - clip, V_old + clip)
    return 0.5 * maximum(mx.square(V - R), mx.square(clipped - R))


def _check_temperature(temperature: float) -> None:
    if not 0 < temperature < math.inf:
        raise ValueError(
            f"temperature must be above 0 and finite but is {temperature}; "
            "score greedy samples at the temperature you train with, usually 1"
        )


def _checked_ids(ids: mx.array, vocabulary: int) -> tuple[mx.array, mx.array]:
    """The ids with 0 for those outside the vocabulary, and where these are if not yet refused."""
    if mx.issubdtype(ids.dtype, mx.floating):
        raise ValueError(
            f"ids must be whole numbers but are {ids.dtype}; were the arguments swapped?"
        )
    wide = ids.astype(mx.int64)  # in a narrower dtype the vocabulary size may wrap around
    outside = (wide < 0) | (wide >= vocabulary)
    found = first_place(outside)
    if found:
        place, count = found
        raise ValueError(
            f"ids[{', '.join(map(str, place))}] is {ids[place].item()}, the first of {count} "
            f"outside the vocabulary of {vocabulary}; give masked positions any id below it, "
            "such as 0"
        )
    return mx.where(outside, 0, wide).astype(mx.int32), outside


def _tiles(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def _after(values: mx.array, finished: Sequence[mx.array]) -> mx.array:
    """The same values, not to be used before `finished` are computed.

    Lazy evaluation would otherwise be free to start with the logits of every tile.
    """
    return mx.depends(values, list(finished)) if finished else values


def _weighted(derivative: mx.array, upstream: mx.array) -> mx.array:
    """The chain rule for rows [N, K]; rows that do not count stay 0 even where they are NaN."""
    return mx.where(upstream[:, None] == 0, 0.0, derivative * upstream[:, None])


def _refuse(*_: Any) -> mx.array:
    raise RuntimeError(
        "token_logps and linear_token_logps can be differentiated once, not twice; "
        "for second derivatives write the log-softmax out"
    )


def _refuse_transformation(*_: Any) -> mx.array:
    raise RuntimeError(
        "token_logps and linear_token_logps work neither under mx.vmap nor under mx.jvp; "
        "give them the whole batch [B, T] instead, and use mx.grad or mx.vjp"
    )


def _scorer(function: Callable[..., Any]) -> mx.custom_function:
    """A function with its own derivative, to be given by `.vjp`, and no other transformation."""
    score = mx.custom_function(function)
    score.vmap(_refuse_transformation)
    score.jvp(_refuse_transformation)
    return score


_once: Any = mx.custom_function(lambda gradient: gradient)
"""A gradient that refuses to be differentiated, because its own would be wrong."""

_once.vjp(_refuse)


def _token_scorer(ids: mx.array, temperature: float) -> Any:
    """A function (logits [B, T, V]) -> log-probabilities of the ids [B, T]."""

    def shifted(logits: mx.array) -> mx.array:
        z = widen(logits) / temperature
        return z - z.max(axis=-1, keepdims=True)

    @_scorer
    def score(logits: mx.array) -> mx.array:
        done: list[mx.array] = []
        for row, rows in _cells(ids):
            z = shifted(_after(logits[row, rows], done[-1:]))
            picked = mx.take_along_axis(z, ids[row, rows, None], axis=-1).squeeze(-1)
            done.append(picked - mx.log(mx.exp(z).sum(axis=-1)))
        return mx.concatenate(done).reshape(ids.shape)

    @score.vjp
    def backward(logits: mx.array, upstream: mx.array, _: mx.array) -> mx.array:
        tokens = mx.arange(logits.shape[-1])
        gradient = mx.zeros_like(logits)
        done: list[mx.array] = []
        for row, rows in _cells(ids):
            p = mx.softmax(shifted(_after(logits[row, rows], done[-1:])), axis=-1)
            slope = (tokens == ids[row, rows, None]) - p
            done.append(_weighted(slope, upstream[row, rows] / temperature).astype(logits.dtype))
            gradient[row, rows] = done[-1]
        return cast(mx.array, _once(gradient))

    return score


def _cells(ids: mx.array) -> Iterator[tuple[int, slice]]:
    """The tiles of each row of a batch. Rows are not flattened: that may copy a slice of logits."""
    return ((row, rows) for row in range(ids.shape[0]) for rows in _tiles(ids.shape[1], _TILE_ROWS))


def _linear_scorer(ids: mx.array, temperature: float, tile: int) -> Any:
    """A function (hidden [N, H], weight [V, H]) -> (log-probs [N], entropies [N], slopes [N, H]).

    The slopes, d logp / d hidden, are an output only to be there when the derivative is taken.
    """

    @_scorer
    def score(hidden: mx.array, weight: mx.array) -> tuple[mx.array, ...]:
        dtype = _product_dtype(hidden, weight)
        done: list[tuple[mx.array, ...]] = []
        for rows in _tiles(len(ids), tile):
            part = _after(hidden[rows], done[-1] if done else ())
            scaled = part.astype(dtype) / temperature
            exps, total, logps = _exponentials(scaled, weight, ids[rows])
            derivative = weight[ids[rows]] - _times_weight(exps, weight) / total
            entropy = (derivative * scaled).sum(axis=1) - logps
            done.append((logps, entropy, (derivative / temperature).astype(hidden.dtype)))
        return tuple(mx.concatenate(list(parts)) for parts in zip(*done, strict=True))

    @score.vjp
    def backward(
        primals: tuple[mx.array, mx.array],
        upstreams: tuple[mx.array, ...],
        outputs: tuple[mx.array, ...],
    ) -> tuple[mx.array, mx.array]:
        hidden, weight = primals
        upstream, slope = upstreams[0], outputs[2]
        for_hidden = _weighted(slope, upstream).astype(hidden.dtype)
        # nothing of this is computed for a head that is not differentiated
        for_weight = _weight_gradient(hidden, weight, ids, upstream, temperature, tile)
        return _once(for_hidden), _once(for_weight)

    return score


def _weight_gradient(
    hidden: mx.array,
    weight: mx.array,
    ids: mx.array,
    upstream: mx.array,
    temperature: float,
    tile: int,
) -> mx.array:
    """Sum over rows of upstream * (onehot(id) - p) outer hidden / temperature, [V, H]."""
    dtype = _product_dtype(hidden, weight)
    pull = upstream[:, None]
    scaled = mx.where(pull == 0, 0.0, hidden.astype(dtype) / temperature)
    gradient = mx.zeros(weight.shape, dtype).at[ids].add(pull * scaled)
    for rows in _tiles(len(ids), tile):
        part = _after(scaled[rows], [gradient])
        exps, total, _ = _exponentials(part, weight, ids[rows])
        gradient = mx.addmm(gradient, (exps * (pull[rows] / total)).T, part, alpha=-1.0)
    return gradient.astype(weight.dtype)


def _exponentials(
    scaled: mx.array, weight: mx.array, ids: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """exp(z - max z) [n, V], its sum over V [n, 1], and the log-probabilities of ids [n]."""
    parts: list[mx.array] = []
    for _, block in _blocks(weight, scaled.dtype):
        parts.append(scaled @ _after(block, parts[-1:]).astype(scaled.dtype).T)
    scores = mx.concatenate(parts, axis=1)
    scores = scores - scores.max(axis=1, keepdims=True)
    picked = mx.take_along_axis(scores, ids[:, None], axis=1)
    exps = mx.exp(scores)
    total = exps.sum(axis=1, keepdims=True)
    return exps, total, (picked - mx.log(total)).squeeze(1)


def _times_weight(exps: mx.array, weight: mx.array) -> mx.array:
    product = mx.zeros((len(exps), weight.shape[1]), exps.dtype)
    for rows, block in _blocks(weight, exps.dtype):
        wide = _after(block, [product]).astype(exps.dtype)
        product = mx.addmm(product, exps[:, rows], wide)
    return product


def _blocks(weight: mx.array, dtype: mx.Dtype) -> Iterator[tuple[slice, mx.array]]:
    """The rows of the head, a block at a time if they have to be widened."""
    size = len(weight) if weight.dtype == dtype else _BLOCK_ROWS
    return ((rows, weight[rows]) for rows in _tiles(len(weight), size))


def _product_dtype(hidden: mx.array, weight: mx.array) -> mx.Dtype:
    return mx.result_type(hidden.dtype, weight.dtype, mx.float32)

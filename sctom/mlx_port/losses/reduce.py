"""From losses per token to one number, divided by counts of the whole optimiser step.

Arguments, shapes and errors are those of `sctom.losses.reduce`, except that a count may also be an
array of no axes. Inside `mx.compile` it should be one: a compiled function keeps the Python numbers
of its first call for good. The sign of such a count is not checked. Counts left out are taken from
the arrays of each call, also under `mx.compile(shapeless=True)`.
"""

from __future__ import annotations

import mlx.core as mx

from sctom.mlx_port.losses._shared import kept_tokens, row_mean, widen, zero_outside
from sctom.shapes import check_shapes


def _checked(losses: mx.array, mask: mx.array) -> tuple[mx.array, mx.array]:
    check_shapes(losses=(losses, "B T"), mask=(mask, "B T"))
    return widen(losses), kept_tokens(mask, losses)


def _divisor(name: str, count: float | mx.array) -> float | mx.array:
    """The count to divide by: 1 instead of 0, because then nothing is left in the sum."""
    if isinstance(count, mx.array):
        check_shapes(**{name: (count, "")})
        return mx.where(count == 0, 1, count)
    if not count >= 0:
        raise ValueError(
            f"{name} must be at least 0 but is {count}; pass the count of the whole optimiser step"
        )
    return count or 1.0


def _rows(keep: mx.array) -> mx.array:
    """The number of rows, by counting: `keep.shape` would be kept by shapeless compiled code."""
    return (keep.sum(axis=1) >= 0).sum()


def token_mean(
    losses: mx.array, mask: mx.array, *, tokens: float | mx.array | None = None
) -> mx.array:
    """Mean over tokens: every token weighs the same, so long completions weigh more.

        sum of unmasked losses / tokens

    Mirrors `sctom.losses.token_mean`; differs in that `tokens` may be an array.

    >>> losses = mx.array([[1.0, 2.0], [6.0, 9.0]])
    >>> mask = mx.array([[1.0, 1.0], [1.0, 0.0]])
    >>> token_mean(losses, mask).item(), token_mean(losses, mask, tokens=6).item()
    (3.0, 1.5)
    """
    losses, keep = _checked(losses, mask)
    total = zero_outside(losses, keep).sum()
    if tokens is None:
        return total / mx.maximum(keep.sum(), 1)
    return total / _divisor("tokens", tokens)


def sequence_mean(
    losses: mx.array, mask: mx.array, *, sequences: float | mx.array | None = None
) -> mx.array:
    """Mean over completions of the mean over their tokens: every completion weighs the same.

        sum over rows of (sum of unmasked losses / unmasked tokens of the row) / sequences

    Mirrors `sctom.losses.sequence_mean`; differs in that `sequences` may be an array.

    >>> losses = mx.array([[1.0, 2.0], [6.0, 9.0]])
    >>> mask = mx.array([[1.0, 1.0], [1.0, 0.0]])
    >>> sequence_mean(losses, mask).item()  # (1.5 + 6) / 2
    3.75
    """
    losses, keep = _checked(losses, mask)
    rows = _rows(keep) if sequences is None else sequences
    return row_mean(losses, keep).sum() / _divisor("sequences", rows)


def fixed_length_mean(
    losses: mx.array, mask: mx.array, *, length: int, sequences: float | mx.array | None = None
) -> mx.array:
    """Sum over tokens by a constant length, mean over completions: no weight depends on a length.

        sum of unmasked losses / (length x sequences)

    Mirrors `sctom.losses.fixed_length_mean`; differs in that `sequences` may be an array.

    >>> losses = mx.array([[1.0, 2.0], [6.0, 9.0]])
    >>> mask = mx.array([[1.0, 1.0], [1.0, 0.0]])
    >>> fixed_length_mean(losses, mask, length=3).item()  # (1 + 2 + 6) / (3 x 2)
    1.5
    """
    if not length >= 1:
        raise ValueError(
            f"length must be at least 1 but is {length}; pass the largest number of new tokens"
        )
    return sequence_sum(losses, mask, sequences=sequences) / length


def sequence_sum(
    losses: mx.array, mask: mx.array, *, sequences: float | mx.array | None = None
) -> mx.array:
    """Mean over completions of the sum over their tokens: each is one action, however long.

        sum of unmasked losses / sequences

    Mirrors `sctom.losses.sequence_sum`; differs in that `sequences` may be an array.

    >>> losses = mx.array([[1.0, 2.0], [6.0, 9.0]])
    >>> mask = mx.array([[1.0, 1.0], [1.0, 0.0]])
    >>> sequence_sum(losses, mask).item()  # (3 + 6) / 2
    4.5
    """
    losses, keep = _checked(losses, mask)
    rows = _rows(keep) if sequences is None else sequences
    return zero_outside(losses, keep).sum() / _divisor("sequences", rows)

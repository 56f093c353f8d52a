"""Randomness with an address.

Every draw is a function of where it is used, never of what was drawn before.

A key is the SplitMix64 finaliser folded over the parts of the address (Steele, Lea and Flood,
"Fast splittable pseudorandom number generators", 2014). Nothing here knows torch or MLX.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

Keys = NDArray[np.uint64]


def _mix(state: Keys) -> Keys:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


def fold(keys: Keys, part: int | Keys | NDArray[np.int64]) -> Keys:
    """Extend each key by one more part of its address. Shapes broadcast."""
    with np.errstate(over="ignore"):
        number = np.asarray(part).astype(np.uint64)
        return _mix(keys + _GOLDEN * (number + np.uint64(1)))


def keys_for(*address: int | Sequence[int] | NDArray[np.int64]) -> Keys:
    """The 64-bit keys of an address such as (seed, iteration, prompts, samples).

    Args:
        address: whole numbers or arrays of them, broadcast against each other.

    >>> keys_for(7, 0, [3, 4], [0, 0]).shape
    (2,)
    >>> bool((keys_for(7, 0, [3, 4], 0)[1] == keys_for(7, 0, 4, 0)).all())
    True
    """
    keys: Keys = np.zeros(1, dtype=np.uint64)
    for part in address:
        keys = fold(keys, np.asarray(part, dtype=np.int64))
    return keys


def seed_for(*address: int) -> int:
    """One key as a plain non-negative int below 2**63, fit for `torch.manual_seed`.

    >>> seed_for(1, 2, 3) == seed_for(1, 2, 3) != seed_for(1, 2, 4)
    True
    """
    return int(keys_for(*address)[0] >> np.uint64(1))


def uniforms(keys: Keys, position: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """One uniform in the open interval (0, 1) per key, for this position of its sequence.

    The value is (k + 1/2) / 2**52 with k the upper 52 bits, so it is never 0 and never 1.
    """
    bits = fold(keys, position) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def permutation(n: int, *address: int) -> NDArray[np.int64]:
    """A permutation of range(n) that depends on the address only.

    >>> sorted(permutation(5, 1, 2).tolist())
    [0, 1, 2, 3, 4]
    """
    keys = keys_for(*address, np.arange(n))
    return np.argsort(keys, kind="stable").astype(np.int64)

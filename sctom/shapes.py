"""One shape check for every function that takes arrays. Works on torch and MLX arrays alike."""

from __future__ import annotations

from typing import Any


def check_shapes(**arrays: tuple[Any, str]) -> dict[str, int]:
    """Check that named arrays agree on their axes, and return the size of each axis.

    An axis is one word ("B", "T"); the same word means the same size in every array.

    Args:
        arrays: name=(array, axes), the axes separated by spaces, "" for a scalar.

    Returns:
        The size of every axis named.

    Raises:
        ValueError: an array has another number of axes, or two arrays disagree on one.

    >>> import numpy as np
    >>> check_shapes(logps=(np.zeros((2, 7)), "B T"), advantages=(np.zeros(2), "B"))
    {'B': 2, 'T': 7}
    >>> check_shapes(logps=(np.zeros((2, 7)), "B T"), mask=(np.zeros((2, 6)), "B T"))
    Traceback (most recent call last):
        ...
    ValueError: mask has T=6 but logps has T=7
    """
    sizes: dict[str, int] = {}
    owners: dict[str, str] = {}
    for name, (array, axes) in arrays.items():
        names = axes.split()
        shape = tuple(array.shape)
        if len(shape) != len(names):
            expected = "[" + ", ".join(names) + "]"
            raise ValueError(f"{name} must have the shape {expected} but has {list(shape)}")
        for axis, size in zip(names, shape, strict=True):
            if sizes.setdefault(axis, int(size)) != size:
                raise ValueError(
                    f"{name} has {axis}={size} but {owners[axis]} has {axis}={sizes[axis]}"
                )
            owners.setdefault(axis, name)
    return sizes

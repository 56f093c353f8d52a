"""What losses check at their door, on torch and MLX alike: shapes, and names of choices."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, Literal, get_args

Level = Literal["token", "geometric", "product"]
"""How per-token log-ratios become the ratio of a row; "token" leaves them alone."""


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


def require_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not one of the choices, and name the nearest one.

    Raises:
        ValueError: the value is not among the choices.

    >>> require_choice("std", "unbaised", ("unbiased", "biased"))
    Traceback (most recent call last):
        ...
    ValueError: std must be "unbiased" or "biased" but is 'unbaised'; did you mean "unbiased"?
    """
    if value not in choices:
        *first, last = (f'"{choice}"' for choice in choices)
        nearest = get_close_matches(str(value), choices, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"{name} must be {', '.join(first)} or {last} but is {value!r}; "
            f'did you mean "{nearest}"?'
        )


def require_level(level: str) -> None:
    """Refuse a level that is not "token", "geometric" or "product"."""
    require_choice("level", level, get_args(Level))

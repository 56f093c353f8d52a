"""Checks of settings that a config can get wrong in the same way everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_numbers(owner: str, settings: Mapping[str, tuple[Any, str, float, float]]) -> None:
    """Check that settings are numbers within their bounds.

    Args:
        owner: what the names belong to, as in the config: "model", "data".
        settings: name -> (value, what is expected in words, smallest, largest), bounds included.

    Raises:
        ValueError: naming the setting, what was expected and what was found.

    >>> import math
    >>> check_numbers("model", {"passes": (0, "at least 1", 1, math.inf)})
    Traceback (most recent call last):
        ...
    ValueError: model.passes must be at least 1 but is 0
    >>> check_numbers("model", {"passes": (None, "at least 1", 1, math.inf)})
    Traceback (most recent call last):
        ...
    ValueError: model.passes must be at least 1 but is null
    """
    for name, (value, expected, smallest, largest) in settings.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not smallest <= value <= largest:
            found = "null" if value is None else value
            raise ValueError(f"{owner}.{name} must be {expected} but is {found}")


def check_choices(owner: str, settings: Mapping[str, tuple[Any, tuple[str, ...]]]) -> None:
    """Check that settings are among their choices.

    Raises:
        ValueError: naming the setting and its choices.

    >>> check_choices("model", {"kl_in": (None, ("loss", "reward"))})
    Traceback (most recent call last):
        ...
    ValueError: model.kl_in must be one of loss, reward but is null
    """
    for name, (value, choices) in settings.items():
        if value not in choices:
            found = "null" if value is None else repr(value)
            raise ValueError(f"{owner}.{name} must be one of {', '.join(choices)} but is {found}")

"""A strict reader of ProtoJSON objects, whose errors name the path in the JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sctom.readers import nearest
from sctom.rewards.base import RewardError
from sctom.rewards.google.example import camel


class Fields:
    """The fields of one object, by their camelCase names.

    As in ProtoJSON, a key may be in camelCase or snake_case, null is a field that is left out, and
    a number may be written as a string. Unlike in ProtoJSON, a required field that is left out is
    an error and not its zero, and NaN and Infinity are refused.

    Args:
        value: the object.
        place: its path in the JSON; "" is the top.
        known: the camelCase names of all its fields.

    Raises:
        RewardError: it is not an object; a key is unknown, or given in both ways.

    >>> Fields({"parse_type": "IDENTITY"}, "parseResponseConfig", ["parseType"]).text("parseType")
    'IDENTITY'
    >>> Fields({"parsType": "IDENTITY"}, "parseResponseConfig", ["parseType"])
    Traceback (most recent call last):
        ...
    sctom.rewards.base.RewardError: parseResponseConfig.parsType: unknown field; known: parseType. \
Did you mean 'parseType'?
    """

    def __init__(self, value: Any, place: str, known: Sequence[str]) -> None:
        self.place = place
        if not isinstance(value, Mapping):
            raise self.error(f"expected an object, found {_shown(value)}")
        self._values: dict[str, Any] = {}
        self._keys: dict[str, str] = {}
        for key, entry in value.items():
            name = camel(key) if isinstance(key, str) else key
            if name not in known:
                hint = nearest(str(name), list(known))
                raise self.error(f"unknown field; known: {', '.join(known)}.{hint}", key)
            if name in self._keys:
                raise self.error(f"the same field as {self._keys[name]}; give it once", key)
            self._keys[name] = key
            if entry is not None:
                self._values[name] = entry

    def error(self, said: str, key: str | None = None) -> RewardError:
        """An error about a field, or about the object."""
        place = self.place if key is None else self.at(key)
        return RewardError(f"{place}: {said}" if place else f"the reward config: {said}")

    def at(self, name: str) -> str:
        """The path of a field, with its key as it was written."""
        key = self._keys.get(name, name)
        return f"{self.place}.{key}" if self.place else str(key)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def one_of(self, names: Sequence[str]) -> str:
        """The one of several fields that is given.

        Raises:
            RewardError: none is, or several are.
        """
        given = [name for name in names if name in self]
        if len(given) != 1:
            found = f"found {' and '.join(given)}" if given else "found none"
            raise self.error(f"expected exactly one of {', '.join(names)}; {found}")
        return given[0]

    def object(self, name: str, known: Sequence[str]) -> Fields:
        """A field that is an object; an empty one where it is left out."""
        return Fields(self._values.get(name, {}), self.at(name), known)

    def raw(self, name: str) -> Any:
        """A field as it is; None where it is left out."""
        return self._values.get(name)

    def items(self, name: str, known: Sequence[str]) -> Iterator[Fields]:
        """The objects of a field that is a list.

        Raises:
            RewardError: it is not a list of at least one object.
        """
        value = self._values.get(name)
        if not isinstance(value, list) or not value:
            raise self.error(f"expected a list of at least one, found {_shown(value)}", name)
        for index, entry in enumerate(value):
            yield Fields(entry, f"{self.at(name)}[{index}]", known)

    def text(self, name: str) -> str:
        """A field that is a string and not blank.

        Raises:
            RewardError: it is left out, blank, or no string.
        """
        value = self._values.get(name)
        if not isinstance(value, str):
            raise self.error(f"expected a string, found {_shown(value)}", name)
        if not value.strip():
            raise self.error("expected a string that is not blank", name)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A field that is a finite number.

        Raises:
            RewardError: it is not, or is left out and there is no default.
        """
        value = self._values.get(name, default)
        number = _number(value)
        if number is None:
            raise self.error(f"expected a finite number, found {_shown(value)}", name)
        return number

    def integer(self, name: str, default: int, smallest: int, largest: int) -> int:
        """A field that is a whole number between bounds.

        Raises:
            RewardError: it is not.
        """
        value = self._values.get(name, default)
        number = _number(value)
        if number is None or number != int(number) or not smallest <= number <= largest:
            expected = f"expected a whole number from {smallest} to {largest}"
            raise self.error(f"{expected}, found {_shown(value)}", name)
        return int(number)

    def flag(self, name: str) -> bool:
        """A field that is true or false; false where it is left out.

        Raises:
            RewardError: it is something else.
        """
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise self.error(f"expected true or false, found {_shown(value)}", name)
        return value

    def choice(self, name: str, values: Sequence[str], prefix: str) -> str:
        """A field that is an enum: its value in capitals, whatever its case.

        Args:
            name: the field; left out, it is the first value.
            values: names of the values, the unspecified one first.
            prefix: what may stand before a name, such as "MATCH_OPERATION_".

        Raises:
            RewardError: it is none of the values.
        """
        value = self._values.get(name, values[0])
        if isinstance(value, str):
            found = value.strip().upper()
            for candidate in (found, found.removeprefix(prefix)):
                if candidate in values:
                    return candidate
        hint = nearest(str(value).upper(), list(values))
        expected = f"expected one of {', '.join(values)}"
        raise self.error(f"{expected}; found {_shown(value)}.{hint}", name)


def _number(value: Any) -> float | None:
    """A finite number, also one that is written as a string; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if value is True or value is False:
        return str(value).lower()
    return f"{value!r:.60}"

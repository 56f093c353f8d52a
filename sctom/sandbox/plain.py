"""Plain values: how they go into the sandbox, and how what comes out is rebuilt.

Inwards goes `marshal` of exact built-in types, which the trusted process makes itself. Outwards
comes JSON, and nothing that it says is believed: sizes, depth, shapes and types are checked, and
no code of the other side is ever loaded or evaluated. JSON has no tuples, sets, bytes, NaN or
dicts with keys that are not strings, so everything but None, bools, small integers, finite floats,
strings and lists is an object with one key, its tag:

    {"t": [1, 2]}  a tuple        {"d": [[k, v], ...]}  a dict        {"i": "-0xff"}  a large integer
    {"s": [..]}    a set          {"z": [..]}           a frozenset   {"f": "nan"}    nan, inf, -inf
    {"b": "00ff"}  bytes          {"c": [re, im]}       a complex     {"u": "..."}    a str with surrogates
    {"n": [..]}    an `Iter`      {"o": [type, text, truth]}          an `Opaque`
"""  # noqa: E501 - a table

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

Plain: TypeAlias = object
"""None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict; Opaque, Iter."""

MESSAGE_BYTES = 4 << 20
DEPTH = 100
SAME_HASH = 50


class NotPlain(ValueError):
    """A value is not plain, or what came out of the sandbox does not describe one."""


@dataclass(frozen=True, eq=False)
class Opaque:
    """Stands for an object inside the sandbox that is not a plain value. It equals nothing.

    Args:
        type_name: module and name of its class, by its own account.
        text: its repr, at most 1,000 characters.
        truth: its truth value, None if asking raised.
    """

    type_name: str
    text: str
    truth: bool | None

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return self.truth is True


@dataclass(frozen=True)
class Iter:
    """What an iterator inside the sandbox gave: at most 100,000 items."""

    items: tuple[Plain, ...]


def reduce(value: Plain, depth: int = DEPTH) -> Plain:
    """The same value made of exact built-in types, for sending inwards.

    Subclasses become what they are a kind of: a named tuple a tuple, an IntEnum an int.

    Raises:
        NotPlain: something in it is of another type, or it is nested too deeply.

    >>> from collections import OrderedDict
    >>> reduce(OrderedDict(a=(1, 2.0)))
    {'a': (1, 2.0)}
    """
    if depth == 0:
        raise NotPlain(f"a value is nested more than {DEPTH} deep, or holds itself")
    match value:
        case None | bool():
            return value
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case complex():
            return complex(value.real, value.imag)
        case str():
            return str.__str__(value)
        case bytes():
            return bytes(memoryview(value))
        case dict():
            pairs = dict.items(value)
            return {reduce(k, depth - 1): reduce(v, depth - 1) for k, v in pairs}
    for kind in _KINDS:
        if isinstance(value, kind):
            return kind(reduce(item, depth - 1) for item in kind.__iter__(value))
    raise NotPlain(
        f"{type(value).__qualname__} is not a plain value; pass numbers, strings, bytes, None, and "
        "lists, tuples, sets and dicts of these"
    )


def parse(message: bytes) -> object:
    """The JSON of an untrusted message.

    Raises:
        NotPlain: it is not JSON, or nested so deeply that no value of ours can be.
    """
    try:
        return json.loads(message.decode("ascii"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise NotPlain(f"the answer is not JSON: {str(error)[:200]}") from None


def rebuild(data: object, depth: int = DEPTH) -> Plain:
    r"""The plain value that parsed JSON describes.

    Raises:
        NotPlain: it does not describe one.

    >>> rebuild([1, {"t": [{"f": "nan"}, {"b": "00ff"}]}])
    [1, (nan, b'\x00\xff')]
    """
    if depth == 0:
        raise NotPlain(f"the answer is nested more than {DEPTH} deep")
    match data:
        case None | bool() | int() | float() | str():
            return data
        case list():
            return [rebuild(item, depth - 1) for item in data]
        case dict() if len(data) == 1:
            [(tag, body)] = data.items()
            if tag in _SCALARS and isinstance(body, str):
                return _scalar(tag, body)
            if tag in _MANY and isinstance(body, list):
                return _MANY[tag]([rebuild(item, depth - 1) for item in body])
    raise NotPlain(f"the answer has a part that describes no value, a {type(data).__name__}")


def _no_constant(text: str) -> object:
    raise NotPlain(f"{text} is not JSON")


def _scalar(tag: str, body: str) -> Plain:
    try:
        return _SCALARS[tag](body)
    except (ValueError, KeyError) as error:
        raise NotPlain(f"the answer has a bad {tag!r}: {str(error)[:200]}") from None


def _text(body: str) -> str:
    return bytes.fromhex(body).decode("utf-32-le", "surrogatepass")


def _integer(body: str) -> int:
    return int(body, 16)


def _complex(parts: list[Plain]) -> complex:
    match parts:
        case [float(real), float(imag)]:
            return complex(real, imag)
    raise NotPlain("a complex number has two floats")


def _opaque(parts: list[Plain]) -> Opaque:
    match parts:
        case [str(type_name), str(text), (None | bool()) as truth]:
            return Opaque(type_name[:200], text[:1000], truth)
    raise NotPlain("an opaque object has a type name, a text and a truth value")


def _checked(keys: Iterable[Plain]) -> list[Plain]:
    """Keys that may go into a hash table: crafted collisions would make it quadratic."""
    try:
        keys = list(keys)
        hashes = Counter(str(hash(key)) for key in keys)
    except TypeError as error:
        raise NotPlain(f"a key or member of a set is not hashable: {error}") from None
    if max(hashes.values(), default=0) > SAME_HASH:
        raise NotPlain("too many keys have the same hash")
    return keys


def _dict(pairs: list[Plain]) -> dict[Plain, Plain]:
    checked = [tuple(pair) for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    if len(checked) < len(pairs):
        raise NotPlain("a dict has pairs of key and value")
    _checked(key for key, _ in checked)
    return dict(checked)


_KINDS: tuple[Any, ...] = (list, tuple, set, frozenset)
_FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_SCALARS: dict[str, Callable[[str], Plain]] = {
    "i": _integer,
    "f": _FLOATS.__getitem__,
    "b": bytes.fromhex,
    "u": _text,
}
_MANY: dict[str, Callable[[list[Plain]], Plain]] = {
    "t": tuple,
    "s": lambda items: set(_checked(items)),
    "z": lambda items: frozenset(_checked(items)),
    "d": _dict,
    "n": lambda items: Iter(tuple(items)),
    "c": _complex,
    "o": _opaque,
}

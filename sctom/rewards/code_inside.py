"""Runs the tests of a program, in a sandbox that the program itself is not in. Runs inside.

Standard library only: this file's text is the source of the grader's sandbox. It holds tests, which
are trusted, and results of the program, which have crossed over as plain values. The names that the
tests call are functions here which ask over there.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, NoReturn

_NAMES: dict[str, Any] = {"__name__": "tests"}
_CROSSED: list[Exception] = []


class CannotCross(BaseException):
    """The tests do what only the program's own process can, whatever the program is."""


class LooksInside(BaseException):
    """The tests look into a result of the program that is no plain value."""


class Stopped(BaseException):
    """The program has ended; there is no use in going on."""


class CandidateError(Exception):
    """An exception of the program whose class is not a built-in one, or would end a loop here."""


class Foreign:
    """An object of the program that is not a plain value.

    It equals nothing, itself included, is true or not as it was over there, and can be shown. Any
    other use raises `LooksInside`.
    """

    def __init__(self, text: str, truth: bool | None) -> None:
        object.__setattr__(self, "_shown", text)
        object.__setattr__(self, "_truth", truth)

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return str(object.__getattribute__(self, "_shown"))

    def __bool__(self) -> bool:
        if object.__getattribute__(self, "_truth") is None:
            raise TypeError(f"{self!r} has no truth value")
        return bool(object.__getattribute__(self, "_truth"))


def _cannot(self: Foreign, *args: Any) -> NoReturn:
    raise LooksInside(f"the tests look into an object of the program: {self!r:.200}")


_USES = "getattr setattr delattr iter next len call getitem setitem delitem contains enter exit"
_USES += " lt le gt ge add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod"
_USES += " pow rpow and rand or ror xor rxor neg pos abs invert int float complex index round"
for _use in _USES.split():
    setattr(Foreign, f"__{_use}__", _cannot)


def unpack(packed: Any) -> Any:
    """A value that has crossed over: see `code_grading.pack`."""
    if not isinstance(packed, tuple):
        return packed
    kind, *items = packed
    if kind == "object":
        return Foreign(*items)
    items = [unpack(item) for item in items]
    if kind == "dict":
        return dict(zip(items[::2], items[1::2], strict=True))
    if kind == "iterator":
        return iter(items)
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)


def _error(name: str, text: str) -> Exception:
    """The exception of the program, to be raised here."""
    kind = vars(builtins).get(name)
    ends_loops = name in ("StopIteration", "StopAsyncIteration")
    if isinstance(kind, type) and issubclass(kind, Exception) and not ends_loops:
        try:
            return kind(text)
        except TypeError:  # UnicodeDecodeError and the like want more than a text
            return CandidateError(f"{name}: {text}")
    return CandidateError(f"{name}: {text}")


class _Proxy:
    """A function over there."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise CannotCross("the tests pass keyword arguments")
        cross: Callable[[str, list[Any]], Any] = globals()["cross"]
        kind, *content = cross(self.__name__, list(args))
        if kind == "value":
            return unpack(content[0])
        if kind == "raised":
            _CROSSED.append(_error(*content))
            raise _CROSSED[-1]
        if kind == "cannot":
            raise CannotCross(content[0])
        raise Stopped

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CannotCross(f"the tests use {self.__name__}.{name}")


def prepare(setup: str, names: list[str]) -> list[str]:
    """Execute what comes before the tests, with the functions of the program under their names.

    They are put in place again afterwards: the setup may hold an unfinished one of the same name.
    """
    proxies = {name: _Proxy(name) for name in names}
    _NAMES.update(proxies)
    verdict = run(setup)
    _NAMES.update(proxies)
    return verdict


def run(test: str) -> list[str]:
    """Execute one test. ["passed", ""], or what is the matter.

    "wrong", "value" (a result is not what the test can use), "cannot", or "broken": the test lacks
    a name or a module, whatever the program does.
    """
    try:
        # optimize=0 keeps the asserts, however this interpreter was started
        exec(compile(test, "<tests>", "exec", dont_inherit=True, optimize=0), _NAMES)
    except CannotCross as error:
        return ["cannot", str(error)]
    except LooksInside as error:
        return ["value", str(error)]
    except BaseException as error:
        missing = isinstance(error, (NameError, ImportError)) and error not in _CROSSED
        return ["broken" if missing else "wrong", f"{type(error).__name__}: {error}"[:1000]]
    return ["passed", ""]

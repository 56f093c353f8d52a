"""The harness: runs code that nobody trusts, next to it, and answers for it. Runs inside.

Standard library only, and little of that, since it is started for every use. Nothing here is a
line of defence: the code it runs shares its process and may answer in its place. What it does is to
answer honestly for code that does not try. The encoding is described in `plain`.
"""

from __future__ import annotations

import marshal
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

_DEPTH, _ITEMS, _NODES = 100, 100_000, 1_000_000
_TEXT, _LINE = 1000, 2000
_INTEGER_BITS = 4_000_000
_SMALL = 1 << 62

_quote: Callable[[str], str]
try:
    from _json import encode_basestring_ascii as _quote
except ImportError:
    from json.encoder import py_encode_basestring_ascii as _quote


class _NotPlainError(Exception):
    pass


class _Encoder:
    """Plain values as text; `plain.rebuild` is the other direction."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.nodes = 0

    def add(self, value: Any, depth: int = 0) -> None:
        self.nodes += 1
        if depth >= _DEPTH:
            raise _NotPlainError(f"the value is nested more than {_DEPTH} deep, or holds itself")
        if self.nodes > _NODES:
            raise _NotPlainError(f"the value has more than {_NODES} parts")
        put = self.parts.append
        if value is None or value is True or value is False:
            put("null" if value is None else "true" if value else "false")
        elif isinstance(value, int):
            put(_integer(int.__int__(value)))
        elif isinstance(value, float):
            put(_float(float.__float__(value)))
        elif isinstance(value, str):
            put(_string(str.__str__(value)))
        elif isinstance(value, bytes):
            put(f'{{"b":"{bytes(memoryview(value)).hex()}"}}')
        elif isinstance(value, complex):
            put(f'{{"c":[{_float(value.real)},{_float(value.imag)}]}}')
        elif isinstance(value, dict):
            self._many("d", list(dict.items(value)), depth, self._pair)
        elif isinstance(value, (list, tuple, set, frozenset)):
            kind = next(k for k in _TAGS if isinstance(value, k))
            self._many(_TAGS[kind], list(kind.__iter__(value)), depth, self.add)
        else:
            self._other(value, depth)

    def _many(self, tag: str, items: list[Any], depth: int, add: Callable[..., None]) -> None:
        self.parts.append(f'{{"{tag}":[' if tag else "[")
        for number, item in enumerate(items):
            if number:
                self.parts.append(",")
            add(item, depth + 1)
        self.parts.append("]}" if tag else "]")

    def _pair(self, pair: tuple[Any, Any], depth: int) -> None:
        self.parts.append("[")
        self.add(pair[0], depth)
        self.parts.append(",")
        self.add(pair[1], depth)
        self.parts.append("]")

    def _other(self, value: Any, depth: int) -> None:
        kind = type(value)
        if any("__next__" in vars(base) for base in kind.__mro__):
            self._many("n", _items(value), depth, self.add)
            return
        module = str(kind.__module__)
        if module == "numpy" and any(k.__name__ == "generic" for k in kind.__mro__):
            plain = value.item()
            if type(plain) is not kind:
                self.add(plain, depth)
                return
        name = _string(f"{module}.{kind.__qualname__}"[:200])
        self.parts.append(f'{{"o":[{name},{_string(_repr(value))},{_truth(value)}]}}')


_TAGS: dict[Any, str] = {list: "", tuple: "t", set: "s", frozenset: "z"}


def _items(value: Any) -> list[Any]:
    items: list[Any] = []
    for item in value:
        if len(items) == _ITEMS:
            raise _NotPlainError(f"an iterator gave more than {_ITEMS} items")
        items.append(item)
    return items


def _integer(value: int) -> str:
    if -_SMALL < value < _SMALL:
        return repr(value)
    if value.bit_length() > _INTEGER_BITS:
        raise _NotPlainError(f"an integer has {value.bit_length()} bits, more than {_INTEGER_BITS}")
    return f'{{"i":"{value:#x}"}}'


def _float(value: float) -> str:
    if value - value == 0:
        return repr(value)
    return f'{{"f":"{"nan" if value != value else "inf" if value > 0 else "-inf"}"}}'


def _string(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        return f'{{"u":"{value.encode("utf-32-le", "surrogatepass").hex()}"}}'
    return _quote(value)


def _repr(value: Any) -> str:
    try:
        text = str.__str__(repr(value))[:_TEXT]
    except Exception as error:
        text = f"<{type(error).__name__} in repr>"
    return text.encode("utf-8", "backslashreplace").decode()[:_TEXT]


def _truth(value: Any) -> str:
    try:
        return "true" if value else "false"
    except Exception:
        return "null"


def encode(value: Any) -> str:
    """The JSON of a value."""
    encoder = _Encoder()
    encoder.add(value)
    return "".join(encoder.parts)


class CallbackError(RuntimeError):
    """What was called on the other side failed there."""


class Harness:
    """Executes the source, then calls what is asked for, one request after the other."""

    def __init__(self, requests: int, answers: int) -> None:
        self.requests = requests
        self.answers = answers
        self.module = types.ModuleType("candidate")
        self.current = 0

    def serve(self) -> None:
        """Answer requests until there are no more."""
        self.send('["ready"]')
        sys.modules["candidate"] = self.module
        while True:
            try:
                request = self.receive()
            except EOFError:
                return
            self.current = request["id"]
            reply = self.answer(request)
            for stream in (sys.stdout, sys.stderr):
                _flush(stream)
            self.send(reply)

    def answer(self, request: dict[str, Any]) -> str:
        """The reply to one request, with whatever went wrong put into words."""
        try:
            return f'["value",{self.current},{encode(self.perform(request))}]'
        except _NotPlainError as error:
            return self.failure("value", str(error))
        except MemoryError:
            return self.failure("memory", "MemoryError")
        except BaseException as error:
            _trace(error)
            return self.failure("error", _describe(error))

    def failure(self, kind: str, text: str) -> str:
        """The reply that reports an error."""
        text = text[:_LINE].encode("utf-8", "backslashreplace").decode()
        return f'["error",{self.current},"{kind}",{_quote(text)}]'

    def perform(self, request: dict[str, Any]) -> Any:
        """Execute the source, or call a name."""
        names = self.module.__dict__
        for name in request["callbacks"]:
            names[name] = self.callback(name)
        if "source" in request:
            code = compile(request["source"], "<candidate>", "exec", dont_inherit=True)
            exec(code, names)
            return None
        name = request["name"]
        if name not in names:
            raise NameError(f"name {name!r} is not defined")
        return names[name](*request["args"])

    def callback(self, name: str) -> Callable[..., Any]:
        """A function here that is a function over there."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                raise CallbackError(f"{name} can be called from the main thread only")
            body = encode([list(args), kwargs])
            self.send(f'["callback",{self.current},{_quote(name)},{body}]')
            reply = self.receive()
            if "failed" in reply:
                raise CallbackError(reply["failed"])
            return reply["value"]

        call.__name__ = call.__qualname__ = name
        return call

    def send(self, text: str) -> None:
        """Write one message, its length first."""
        data = text.encode("ascii")
        view = memoryview(len(data).to_bytes(4, "big") + data)
        while view:
            view = view[os.write(self.answers, view) :]

    def receive(self) -> Any:
        """Read one message."""
        size = int.from_bytes(self.read(4), "big")
        return marshal.loads(self.read(size))

    def read(self, size: int) -> bytes:
        """Read exactly so many bytes."""
        data = bytearray()
        while len(data) < size:
            piece = os.read(self.requests, size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "<no text>"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _trace(error: BaseException) -> None:
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception:
        return


def _flush(stream: Any) -> None:
    try:
        stream.flush()
    except Exception:
        return

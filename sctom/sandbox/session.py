"""A confined interpreter, and the conversation with it."""

from __future__ import annotations

import itertools
import marshal
import os
import platform
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from sctom.sandbox import seccomp
from sctom.sandbox.interpreter import FLAGS, Interpreter
from sctom.sandbox.limits import CodeError, LevelName, Limits, SandboxUnavailable
from sctom.sandbox.plain import NotPlain, Plain, parse, rebuild, reduce
from sctom.sandbox.process import Command, Confined

_START_SECONDS = 60.0
_CPU_FACTOR = 10
_NUMBERS = itertools.count()
_KINDS = ("error", "memory", "value")

_BOOT = """
import marshal, os, sys
requests, answers = map(int, sys.argv[1:])
def read(size):
    data = b""
    while len(data) < size:
        piece = os.read(requests, size - len(data))
        if not piece:
            raise SystemExit(3)
        data += piece
    return data
parts = marshal.loads(read(int.from_bytes(read(4), "big")))
os.closerange(3, min(requests, answers))
os.closerange(min(requests, answers) + 1, max(requests, answers))
os.closerange(max(requests, answers) + 1, 4096)
space = {"__name__": "confine"}
exec(parts["confine"], space)
space["confine"](parts["setup"])
space = {"__name__": "inside"}
exec(parts["inside"], space)
space["Harness"](requests, answers).serve()
"""


class Backend(Protocol):
    """A way of containing an interpreter."""

    def __hash__(self) -> int:
        """Backends that are made alike are alike."""

    @property
    def name(self) -> LevelName:
        """The level it gives."""

    @property
    def detail(self) -> str:
        """What it does it with."""

    def prepare(
        self, python: Interpreter, limits: Limits, arguments: Sequence[str]
    ) -> tuple[Command, dict[str, Any]]:
        """The command to start, and where its setup differs from the usual."""


class Session:
    """A confined interpreter that has executed a source. Close it, or use it in a `with`.

    What is inside keeps its state between calls, and may lie: a value is what the code says it is.
    Compare values here, never inside. Not for two threads at once.

    Get one from `Sandbox.open`.
    """

    def __init__(self, backend: Backend, python: Interpreter, limits: Limits, source: str) -> None:
        self._limits = limits
        self._count = 0
        arguments = [python.executable, *FLAGS, "-c", _BOOT, "{requests}", "{answers}"]
        command, setup = backend.prepare(python, limits, arguments)
        try:
            self._confined = Confined(command, output_bytes=limits.output_bytes)
        except OSError as error:
            raise SandboxUnavailable(f"{command.arguments[0]} cannot be started: {error}") from None
        try:
            self._confined.send(
                marshal.dumps(_harness() | {"setup": _setup(python, limits, setup)})
            )
            self._await_start(backend)
            self._request({"source": source}, limits.seconds, {})
        except BaseException:
            self.close()
            raise

    def call(
        self,
        name: str,
        args: Sequence[Plain] = (),
        *,
        seconds: float | None = None,
        callbacks: Mapping[str, Callable[..., Plain]] | None = None,
    ) -> Plain:
        """Call a global of the source.

        Args:
            name: the global.
            args: positional arguments, plain values.
            seconds: wall-clock limit, at most and by default that of the limits.
            callbacks: functions of ours that appear inside as globals, with plain arguments and
                results. One that raises CodeError raises inside as well; anything else that it
                raises ends the session and is raised here. Their time counts.

        Returns:
            What the call returned, rebuilt here from exact built-in types. An iterator is run
            through and becomes an `Iter`, an object of another class an `Opaque`.

        Raises:
            CodeError: there is no value. After any kind but "error", "memory" and "value" the
                session is over.
            NotPlain: an argument is not a plain value.
        """
        request: dict[str, Plain] = {"name": name, "args": [reduce(arg) for arg in args]}
        limit = self._limits.seconds
        return self._request(request, limit if seconds is None else min(seconds, limit), callbacks)

    def close(self) -> None:
        """Kill the interpreter, with everything in it."""
        self._confined.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _await_start(self, backend: Backend) -> None:
        try:
            message = self._confined.receive(time.monotonic() + _START_SECONDS)
        except CodeError as error:
            raise SandboxUnavailable(
                f"{backend.name} ({backend.detail}) did not start: {error.message}; "
                f"it said: {error.stderr.strip() or 'nothing'}"
            ) from None
        if message != b'["ready"]':
            raise SandboxUnavailable(f"{backend.name} started with {message[:100]!r}")
        self._confined.watch()

    def _request(
        self,
        request: dict[str, Plain],
        seconds: float,
        callbacks: Mapping[str, Callable[..., Plain]] | None,
    ) -> Plain:
        callbacks = callbacks or {}
        self._count += 1
        request |= {"id": self._count, "callbacks": list(callbacks)}
        self._confined.send(marshal.dumps(request))
        deadline = time.monotonic() + seconds
        while True:
            try:
                answer = parse(self._confined.receive(deadline))
                match answer:
                    case ["value", self._count, data]:
                        return rebuild(data)
                    case ["error", self._count, ("error" | "memory" | "value") as kind, str(text)]:
                        raise CodeError(kind, text, self._confined.stderr)
                    case ["callback", self._count, str(name), body] if name in callbacks:
                        reply = self._answer_callback(callbacks[name], body)
                        self._confined.send(marshal.dumps(reply))
                    case _:
                        raise NotPlain("what came back is not an answer")
            except (NotPlain, RecursionError) as error:
                raise self._confined.fail("value", str(error)) from None

    def _answer_callback(self, function: Callable[..., Plain], body: object) -> dict[str, Plain]:
        match rebuild(body):
            case [list(args), dict(named)] if all(isinstance(key, str) for key in named):
                pass
            case _:
                raise NotPlain("a call of a function of ours has a list and a dict of arguments")
        try:
            return {"value": reduce(function(*args, **named))}
        except CodeError as error:
            return {"failed": str(error)}
        except BaseException:
            self.close()
            raise


@cache
def _harness() -> dict[str, Any]:
    """The code of the two modules that run inside."""
    here = Path(__file__).parent
    names = ("confine", "inside")
    return {n: compile((here / f"{n}.py").read_bytes(), f"<{n}>", "exec") for n in names}


def _setup(python: Interpreter, limits: Limits, changes: dict[str, Any]) -> dict[str, Any]:
    machine = platform.machine()
    environment = dict.fromkeys(("HOME", "TMPDIR", "MPLCONFIGDIR"), changes["directory"])
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    environment |= dict.fromkeys(threads, "1")
    environment |= {"JOBLIB_MULTIPROCESSING": "0", "MPLBACKEND": "agg", "LC_ALL": "C.UTF-8"}
    setup: dict[str, Any] = {
        "environment": environment,
        "cpu": None,
        "machine": machine,
        "uid": None,
        "keep_effective": False,
        "parent": None,
        "limits": _resource_limits(limits),
        "landlock": None,
        "own_pid": struct.pack("<I", seccomp.OWN_PID),
        "path": list(python.path),
    }
    if sys.platform == "linux":
        cpus = sorted(os.sched_getaffinity(0))
        setup["cpu"] = cpus[next(_NUMBERS) % len(cpus)]
        if "filter" not in changes:
            setup["filter"] = seccomp.program(machine, starting=False)
    return setup | changes


def _resource_limits(limits: Limits) -> dict[str, int]:
    values = {
        "RLIMIT_CORE": 0,
        "RLIMIT_CPU": int(_CPU_FACTOR * limits.seconds) + 1,
        "RLIMIT_FSIZE": limits.disk_mib << 20,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_NPROC": limits.processes,
    }
    if sys.platform == "linux":
        values |= {"RLIMIT_AS": limits.memory_mib << 20, "RLIMIT_MEMLOCK": 0, "RLIMIT_MSGQUEUE": 0}
        values |= {"RLIMIT_SIGPENDING": 64}
    return values

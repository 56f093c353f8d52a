"""One confined process and the pipes to it: bounded, with deadlines, and killable."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sctom.sandbox.limits import CodeError, Kind
from sctom.sandbox.plain import MESSAGE_BYTES

_POLL_SECONDS = 0.05
_PIECE = 1 << 16
_TAIL = 4000
_KILL_SECONDS = 5.0


@dataclass
class Command:
    """What to start, and how to watch it and tidy up after it.

    Args:
        arguments: the program and its arguments, where `{requests}`, `{answers}`, the names in
            `files` and `status` in braces become the numbers of pipes.
        environment: the environment of the program.
        files: contents handed over in pipes, at most 60,000 bytes each.
        status: name of a pipe on which the program reports `{"child-pid": N}`, as bubblewrap does.
        gauge: given the id of the confined process, says what it uses too much of among the things
            that the kernel does not limit.
        cleanup: called once, after the process has ended.
    """

    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    status: str | None = None
    gauge: Callable[[int], tuple[Kind, str] | None] = lambda pid: None
    cleanup: Callable[[], None] = lambda: None


class _Spawner:
    """Starts every process from one thread that lasts.

    Linux sends the parent-death signal when the *thread* that started the process ends.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox")

    def start(self, arguments: Sequence[str], **settings: Any) -> subprocess.Popen[bytes]:
        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(arguments, **settings)

        return self._pool.submit(start).result()


_SPAWNER = _Spawner()


class Confined:
    """A started process. One thread at a time.

    Args:
        command: what to start.
        output_bytes: bound on standard output and standard error together.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Command, *, output_bytes: int) -> None:
        self._command = command
        self._output_bytes = self._output_left = output_bytes
        self._ends: dict[str, int] = {}
        self._errors = bytearray()
        self._inbox = bytearray()
        self._outbox = memoryview(b"")
        self._child: tuple[int, int] | None = None  # id and handle of what bubblewrap started
        self._next_gauge = float("inf")
        self._ended = False
        try:
            self._process = self._start()
        except BaseException:
            self._tidy()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        command, theirs = self._command, dict[str, int]()
        with contextlib.ExitStack() as stack:

            def pipe(name: str) -> tuple[int, int]:
                read, write = os.pipe()
                theirs[name] = read if name == "requests" or name in command.files else write
                stack.callback(os.close, theirs[name])
                return read, write

            _, self._ends["requests"] = pipe("requests")
            for name in ["answers", "output", "errors", *filter(None, [command.status])]:
                self._ends[name], _ = pipe(name)
            for end in self._ends.values():
                os.set_blocking(end, False)
            for name, content in command.files.items():
                _, end = pipe(name)
                with open(end, "wb") as file:
                    file.write(content)
            return _SPAWNER.start(
                [_filled(argument, theirs) for argument in command.arguments],
                stdin=subprocess.DEVNULL,
                stdout=theirs["output"],
                stderr=theirs["errors"],
                pass_fds=[theirs[name] for name in theirs.keys() - {"output", "errors"}],
                cwd="/",
                env=command.environment,
                start_new_session=True,
            )

    def watch(self) -> None:
        """Begin to gauge: the process is now where it is meant to be."""
        self._next_gauge = 0.0

    def send(self, message: bytes) -> None:
        """Queue a message, its length first; it goes out while waiting for an answer."""
        framed = len(message).to_bytes(4, "big") + message
        self._outbox = memoryview(bytes(self._outbox) + framed)

    def receive(self, deadline: float) -> bytes:
        """The next message from inside.

        Args:
            deadline: by `time.monotonic()`.

        Raises:
            CodeError: there is none in time, or it is too long, or the process ended or used too
                much. The process has then been killed.
        """
        while (message := self._message()) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self.fail("timeout", "no answer within the time allowed")
            if self._ended or "answers" not in self._ends:
                raise self.fail("died", f"the process ended: {self._status()}")
            self._exchange(min(left, _POLL_SECONDS))
            self._check()
        return message

    def fail(self, kind: Kind, message: str) -> CodeError:
        """Kill the process; the error to raise."""
        self.kill()
        return CodeError(kind, message, self.stderr)

    @property
    def stderr(self) -> str:
        """The end of standard error so far."""
        return self._errors[-_TAIL:].decode(errors="replace")

    def _message(self) -> bytes | None:
        if len(self._inbox) < 4:
            return None
        size = int.from_bytes(self._inbox[:4], "big")
        if size > MESSAGE_BYTES:
            raise self.fail("value", f"an answer of {size} bytes, more than {MESSAGE_BYTES}")
        if len(self._inbox) < 4 + size:
            return None
        message = bytes(self._inbox[4 : 4 + size])
        del self._inbox[: 4 + size]
        return message

    def _exchange(self, seconds: float) -> None:
        """Wait for any pipe to become ready, and read or write one piece on each that is."""
        poll = select.poll()
        names = {end: name for name, end in self._ends.items()}
        for end, name in names.items():
            if name != "requests":
                poll.register(end, select.POLLIN)
            elif self._outbox:
                poll.register(end, select.POLLOUT)
        for end, _ in poll.poll(seconds * 1000):
            if names[end] == "requests":
                self._write(end)
            else:
                self._read(names[end], end)

    def _write(self, end: int) -> None:
        try:
            self._outbox = self._outbox[os.write(end, self._outbox[:_PIECE]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._outbox = memoryview(b"")

    def _read(self, name: str, end: int) -> None:
        try:
            piece = os.read(end, _PIECE)
        except BlockingIOError:
            return
        if not piece:
            os.close(self._ends.pop(name))
        elif name == "answers":
            self._inbox += piece
        elif name == self._command.status:
            self._note_child(piece)
        else:
            self._output_left -= len(piece)
            if name == "errors":
                self._errors = (self._errors + piece)[-_TAIL:]

    def _note_child(self, line: bytes) -> None:
        """Remember what bubblewrap says it has started, once, if it is its child."""
        if self._child is not None:
            return
        try:
            pid = json.loads(line.splitlines()[0])["child-pid"]
            handle = os.pidfd_open(pid)
        except (ValueError, KeyError, TypeError, OSError):
            return
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{pid}/stat").read_text()
            if int(stat.rpartition(")")[2].split()[1]) == self._process.pid:
                self._child = (pid, handle)
                return
        os.close(handle)

    def _check(self) -> None:
        if self._output_left < 0:
            raise self.fail("output", f"printed more than {self._output_bytes} bytes")
        now = time.monotonic()
        if now >= self._next_gauge:
            self._next_gauge = now + _POLL_SECONDS
            pid = self._child[0] if self._child else self._process.pid
            if found := self._command.gauge(pid):
                raise self.fail(*found)

    def _status(self) -> str:
        code = self.kill()
        if code < 0 or code > 128:
            number = -code if code < 0 else code - 128
            with contextlib.suppress(ValueError):
                return signal.Signals(number).name
        return f"exit status {code}"

    def kill(self) -> int:
        """End everything that runs inside, wait for it, and release every resource.

        Returns:
            The exit status, of the process itself if it had ended before.
        """
        if self._ended:
            return self._process.returncode
        self._ended = True
        try:
            return self._end_process()
        finally:
            self._tidy()

    def _end_process(self) -> int:
        process = self._process
        died_by_itself = "answers" not in self._ends
        if died_by_itself:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_SECONDS)
        if self._child is not None:
            # the first process of the namespace: all others end with it, and bubblewrap, outside,
            # is still there to wait for it
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._child[1], signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_KILL_SECONDS)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait(_KILL_SECONDS)

    def _tidy(self) -> None:
        self._ended = True
        # what was printed before the end, without waiting for more
        for name in ("errors", "output"):
            if name in self._ends and self._output_left > 0:
                self._read(name, self._ends[name])
        for end in self._ends.values():
            os.close(end)
        self._ends.clear()
        if self._child is not None:
            os.close(self._child[1])
        self._command.cleanup()


def _filled(argument: str, pipes: dict[str, int]) -> str:
    return str(pipes[argument[1:-1]]) if argument.startswith("{") else argument

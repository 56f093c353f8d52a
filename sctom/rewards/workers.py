"""Functions in processes of their own that can be killed: the only limit of time that always holds.

A signal does not interrupt a computation inside C (sympy raises numbers to powers there), and a
thread cannot be stopped at all: one such computation holds the interpreter and with it the whole
training. A process can be killed. It costs about 0.1 ms for each item, and a new start after each
kill.

What runs there is trusted code on text that is not: our own graders and reward functions. Code that
a model wrote belongs into `sctom.sandbox`.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from sctom.rewards.base import Failure

log = logging.getLogger(__name__)

START_SECONDS = 120.0
"""For a worker to start and to import a function; no part of the deadline of an item."""

REPORT_EVERY = 20
"""So many deadlines in a row are reported, and each time that so many more have come."""

_CHILD = Path(__file__).with_name("worker_main.py")


@dataclass(frozen=True)
class Deadline(Failure):
    """The failure of an item that was killed because its time was up."""


class Workers:
    """A few worker processes with a deadline for each item.

    They start with the first item, are replaced when they were killed or died, and end with this
    process. A forked child of this process gets workers of its own.

    Args:
        processes: how many work at a time.
        seconds: deadline of an item, from the moment a worker has got it.
        memory_mib: limit of the address space of a worker in MiB, where the system has such limits
            (Linux); None for no limit.

    Raises:
        ValueError: an argument that is not positive.

    >>> with Workers(processes=1, seconds=5.0) as workers:
    ...     workers.map("math:sqrt", [(4.0,), (-1.0,)])
    [2.0, Failure(reason='ValueError: math domain error', debug=...)]
    """

    def __init__(
        self, processes: int = 2, seconds: float = 20.0, memory_mib: int | None = None
    ) -> None:
        if processes < 1:
            raise ValueError(f"processes must be at least 1, not {processes}")
        if memory_mib is not None and memory_mib < 1:
            raise ValueError(f"memory_mib must be at least 1, or None for no limit: {memory_mib}")
        self.processes, self.seconds, self.memory_mib = processes, seconds, memory_mib
        _check_seconds(seconds)
        self._lock = threading.Lock()
        self._crew: _Crew | None = None
        self._late = 0  # deadlines in a row
        _EVERY_POOL.add(self)

    def map(
        self,
        function: str | Callable[..., Any],
        items: Sequence[tuple[Any, ...]],
        *,
        seconds: float | None = None,
        also: Sequence[str] = (),
    ) -> list[Any]:
        """`function(*item)` for each item, in their order.

        Safe to call from several threads; their items share the workers first come, first served.

        Args:
            function: "package.module:name" or "package.module.name", or a function that can be
                imported.
            items: arguments that can be pickled, as the results must be.
            seconds: deadline of an item, instead of that of the pool.
            also: paths of what it will import by itself; imported before the clock starts.

        Returns:
            For each item what the function returned, or a `Failure`: the function raised, or the
            worker died; a `Deadline`, which is one too, when its time was up.

        Raises:
            ValueError: the function cannot be imported in another process (a lambda, one defined in
                a function, in a script or a notebook).
        """
        path = importable(function)
        seconds = self.seconds if seconds is None else seconds
        _check_seconds(seconds)
        paths = (*also, path)
        jobs = [_Job(paths, pickle.dumps((path, tuple(item))), seconds) for item in items]
        if not jobs:
            return []
        self._running_crew().submit(jobs)
        results = []
        for job in jobs:
            results.append(job.result.result())
            self._note(path, results[-1], seconds)
        return results

    def close(self) -> None:
        """End the workers; items in progress become failures. The next `map` starts new ones."""
        with self._lock:
            crew, self._crew = self._crew, None
        if crew is not None:
            crew.stop()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running_crew(self) -> _Crew:
        with self._lock:
            if self._crew is None:
                self._crew = _Crew(self.processes, self.memory_mib)
                weakref.finalize(self, self._crew.stop)
            return self._crew

    def _note(self, path: str, result: Any, seconds: float) -> None:
        """Say when deadlines follow each other, as every one costs all of its time."""
        self._late = self._late + 1 if isinstance(result, Deadline) else 0
        if self._late and self._late % REPORT_EVERY == 0:
            log.warning(
                "%s: %d items in a row were killed after %g s each, so scoring is slow; shorten "
                "`seconds`, or look at what the model writes",
                path,
                self._late,
                seconds,
            )

    def _forget(self) -> None:
        """In a forked child: the workers are the parent's, and a lock may have been held."""
        if self._crew is not None:
            _OF_THE_PARENT.append(self._crew)
        self._lock, self._crew, self._late = threading.Lock(), None, 0


_EVERY_POOL: weakref.WeakSet[Workers] = weakref.WeakSet()
_OF_THE_PARENT: list[_Crew] = []
_SHARED: list[Workers] = []
_SHARED_LOCK = threading.Lock()


def shared_workers() -> Workers:
    """The workers that rewards share when they have none of their own: at most four, 4 GiB each."""
    with _SHARED_LOCK:
        if not _SHARED:
            cores = os.cpu_count() or 1
            _SHARED.append(Workers(max(1, min(4, cores)), memory_mib=4096))
        return _SHARED[0]


def _after_fork() -> None:
    global _SHARED_LOCK
    _SHARED_LOCK = threading.Lock()
    for pool in _EVERY_POOL:
        pool._forget()


os.register_at_fork(after_in_child=_after_fork)


def _check_seconds(seconds: float) -> None:
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"seconds must be a positive number, not {seconds}")


def importable(function: str | Callable[..., Any]) -> str:
    """The function as "module:name", checked where it is an object.

    Raises:
        ValueError: it cannot be imported in another process.
    """
    if isinstance(function, str):
        module, _, name = function.rpartition(":" if ":" in function else ".")
        if not module or not name:
            raise ValueError(f"expected 'package.module:name', found {function!r}")
        return f"{module}:{name}"
    module, name = function.__module__, function.__qualname__
    hint = "define it at the top level of a module of your own, so that a worker can import it"
    if module == "__main__" or "<" in name:
        raise ValueError(f"{name} of {module} cannot run in a worker process; {hint}")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise ValueError(f"{module}.{name} is not the function that was given; {hint}")
    return f"{module}:{name}"


@dataclass
class _Job:
    paths: Sequence[str]
    request: bytes
    seconds: float
    result: Future[Any] = field(default_factory=Future)


class _Crew:
    """Threads that each keep one worker process.

    A worker is started by the thread that keeps it and that lives as long as the crew, because
    Linux ends it with the thread that started it.
    """

    def __init__(self, processes: int, memory_mib: int | None) -> None:
        self.process = os.getpid()
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.memory_mib = memory_mib
        self.stopped = False
        self.workers: set[_Worker] = set()
        self.lock = threading.Lock()
        self.threads = [
            threading.Thread(target=self._work, name="sctom-workers", daemon=True)
            for _ in range(processes)
        ]
        for thread in self.threads:
            thread.start()

    def submit(self, jobs: Sequence[_Job]) -> None:
        with self.lock:
            for job in jobs:
                if self.stopped:
                    job.result.set_result(Failure("the workers were closed"))
                else:
                    self.jobs.put(job)

    def stop(self) -> None:
        if os.getpid() != self.process:
            return
        with self.lock:
            self.stopped = True
            for worker in self.workers:
                worker.kill()
        self._refuse()
        for _ in self.threads:
            self.jobs.put(None)
        for thread in self.threads:
            thread.join(timeout=5.0)

    def _refuse(self) -> None:
        while True:
            try:
                job = self.jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job.result.set_result(Failure("the workers were closed"))

    def _work(self) -> None:
        worker: _Worker | None = None
        while (job := self.jobs.get()) is not None:
            try:
                if worker is None:
                    worker = self._hire()
                result = worker.do(job) if worker else Failure("the workers were closed")
            except OSError as error:  # no process, no descriptors: this machine, not the item
                job.result.set_exception(error)
                continue
            except BaseException as error:
                job.result.set_exception(error)
                raise
            if worker is not None and worker.dead:
                self._dismiss(worker)
                worker = None
            job.result.set_result(result)
        if worker is not None:
            self._dismiss(worker)

    def _hire(self) -> _Worker | None:
        with self.lock:
            if self.stopped:
                return None
            worker = _Worker(self.memory_mib)
            self.workers.add(worker)
            return worker

    def _dismiss(self, worker: _Worker) -> None:
        with self.lock:
            self.workers.discard(worker)
            worker.kill()
        worker.bury()


class _Worker:
    """A process at the other end of a pipe, in a session of its own."""

    def __init__(self, memory_mib: int | None) -> None:
        self.channel, theirs = Pipe()
        self.loaded: set[str] = set()
        self.dead = False
        descriptor = theirs.fileno()
        command = [sys.executable, "-P", str(_CHILD), str(descriptor), str(os.getpid())]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[descriptor], start_new_session=True
            )
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self.greeting = pickle.dumps((list(sys.path), memory_mib))

    def do(self, job: _Job) -> Any:
        """The result of a job; the worker is `dead` afterwards where it cannot go on."""
        for path in job.paths:
            if path not in self.loaded:
                loading = self._ask(pickle.dumps((path, None)), START_SECONDS)
                if isinstance(loading, Failure):
                    return Failure(f"loading {path}: {loading.reason}", loading.debug)
                self.loaded.add(path)
        return self._ask(job.request, job.seconds)

    def _ask(self, request: bytes, seconds: float) -> Any:
        ends = time.monotonic() + seconds
        try:
            if self.greeting:
                self.channel.send_bytes(self.greeting)
                self.greeting = b""
            self.channel.send_bytes(request)
            if not self.channel.poll(max(0.0, ends - time.monotonic())):
                self.dead = True
                return Deadline(f"no result within {seconds:g} s, so the worker was killed")
            reply = self.channel.recv_bytes()
        except (EOFError, OSError):
            return self._died()
        try:
            kind, value, debug = pickle.loads(reply)
        except Exception as error:
            return Failure(f"the result cannot be unpickled: {type(error).__name__}: {error}")
        if kind == "value":
            return value
        self.dead = value.startswith("MemoryError")
        return Failure(value, debug)

    def _died(self) -> Failure:
        self.dead = True
        try:
            code = self.process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            return Failure("the worker closed its pipe")
        if code < 0:
            return Failure(f"the worker was ended by {signal.Signals(-code).name}")
        return Failure(f"the worker ended with status {code}")

    def kill(self) -> None:
        """End the process, and what it started."""
        self.dead = True
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:  # has not reached its own session yet
                self.process.kill()

    def bury(self) -> None:
        """Wait for the end of the process, and close the pipe."""
        self.process.wait()
        self.channel.close()

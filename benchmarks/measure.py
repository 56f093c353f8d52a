"""Clocks, memory and noise, and what the machine is."""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import os
import platform
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import Any, ParamSpec, TypeVar

MAX_STALL = 0.1
"""Share of the time in wait for a core above which numbers are those of a disturbed machine."""

P = ParamSpec("P")
R = TypeVar("R")


class Clock:
    """Seconds spent in named phases since it was last read."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the time until the end of the block to a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] += time.perf_counter() - started

    def timed(self, function: Callable[P, R], phase: Callable[[], str]) -> Callable[P, R]:
        """A function that does the same and adds its time to the phase of the moment."""

        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.time(phase()):
                return function(*args, **kwargs)

        return wrapper

    def read(self) -> dict[str, float]:
        """The seconds of each phase; the next reading starts from zero."""
        seconds = dict(self._seconds)
        self._seconds.clear()
        return seconds


class Memory:
    """Peak memory of this process above what it held at `start`, as the kernel counts it."""

    def __init__(self) -> None:
        self.loaded_mib = 0.0

    def start(self) -> None:
        """Give free memory back to the system, forget the peak so far and note what is held."""
        gc.collect()
        if platform.libc_ver()[0] == "glibc":
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        self.loaded_mib = _status_mib("VmRSS")

    def peak_mib(self) -> float:
        """Largest memory since `start`, less what was held then."""
        return _status_mib("VmHWM") - self.loaded_mib


def _status_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) / 1024
    raise RuntimeError(f"/proc/self/status has no {name}; peak memory is measured on Linux only")


class Stall:
    """Share of the time in which some thread of the machine waited for a core (PSI)."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.total = _stalled_seconds()

    def share(self) -> float | None:
        """Since it was made; None where the kernel does not say."""
        now = _stalled_seconds()
        if now is None or self.total is None:
            return None
        return (now - self.total) / (time.perf_counter() - self.started)


def _stalled_seconds() -> float | None:
    pressure = Path("/proc/pressure/cpu")
    if not pressure.exists():
        return None
    some = pressure.read_text().splitlines()[0]
    return int(some.rpartition("total=")[2]) / 1e6


def waited(shares: Sequence[float | None]) -> str:
    """What `Stall` said, in a sentence.

    >>> waited([0.0, 0.02, 0.04])
    'Threads waited for a core 2% of the time.'
    """
    known = [share for share in shares if share is not None]
    if not known:
        return "The kernel does not say how long threads waited for a core."
    return f"Threads waited for a core {median(known):.0%} of the time."


def _disturbed(share: float | None) -> bool:
    """Whether threads waited for a core too long for a number to mean something.

    >>> _disturbed(0.3), _disturbed(0.1), _disturbed(None)
    (True, False, False)
    """
    return share is not None and share > MAX_STALL


def mark(text: str, shares: Iterable[float | None]) -> str:
    """A label, with a word of warning where one of its measurements was disturbed.

    >>> mark("8", [0.0, 0.3]), mark("8", [0.1])
    ('8 (disturbed)', '8')
    """
    return f"{text} (disturbed)" if any(map(_disturbed, shares)) else text


def warning(shares: Sequence[float | None]) -> str:
    """A line of warning where measurements were disturbed, else nothing.

    >>> warning([0.0, 0.3]).split(': ')[1]
    '1 of 2 measurements disturbed**'
    >>> warning([0.0, None])
    ''
    """
    loud = [share for share in shares if share is not None and _disturbed(share)]
    if not loud:
        return ""
    up_to = "up to " if len(loud) > 1 else ""
    return (
        f"**WARNING: {len(loud)} of {len(shares)} measurements disturbed**: threads waited for a "
        f"core {up_to}{max(loud):.0%} of the time; {MAX_STALL:.0%} is the most that can be "
        "trusted. Measure again with nothing else running."
    )


def spread(values: Sequence[float]) -> float:
    """Interquartile range over the median, a measure of noise; 0 for fewer than two values.

    >>> spread([1.0, 2.0, 3.0])
    0.5
    """
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / median(values)


def best_seconds(function: Callable[[], Any], *, repeats: int = 5) -> float:
    """Shortest time of a few calls after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return min(times)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages * size / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of installed packages."""
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def require_trl(script: str) -> None:
    """Leave before anything is measured where TRL is not installed.

    Args:
        script: of `benchmarks`, to be started again elsewhere.

    Raises:
        SystemExit: with what to do.
    """
    if find_spec("trl") is None:
        raise SystemExit(
            "TRL is missing here: `make .venv-bench/.ready` makes an environment that has it; "
            f"then .venv-bench/bin/python -m benchmarks.{script}"
        )


def provenance(record: dict[str, Any], threads: int) -> str:
    """Machine, versions and threads in one line.

    >>> box = {"cpu": "X", "cores": 2, "memory_gib": 8.0}
    >>> provenance({"machine": box, "versions": {"torch": "1"}}, 2)
    'X, 2 cores, 8.0 GiB; torch 1; 2 threads.'
    """
    box = record["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    return (
        f"{box['cpu']}, {box['cores']} cores, {box['memory_gib']} GiB; {packages}; "
        f"{threads} threads."
    )


def prepare_process(threads: int) -> None:
    """Compute with so many threads in this process, and say nothing but results."""
    import torch
    from transformers.utils import logging as noise

    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    untyped: Any = noise
    untyped.disable_progress_bar()


def write_record(path: Path, record: dict[str, Any], blocks: dict[str, str]) -> None:
    """Write what was measured, with the Markdown that `benchmarks.report` puts into the page.

    Args:
        path: a JSON file.
        record: the numbers, machine and versions.
        blocks: name of the place in docs/performance.md -> Markdown.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record | {"blocks": blocks}, indent=1) + "\n")
    print(f"written to {path}")

"""Sees processes by the name that attacks give themselves, and signals to this one."""

from __future__ import annotations

import signal
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_signals: list[int] = []


def signals_received() -> int:
    """How many SIGURG this process has got since `catch_signals`."""
    return len(_signals)


def catch_signals() -> None:
    """Count SIGURG, which nobody sends by chance. From the main thread only."""
    signal.signal(signal.SIGURG, lambda number, frame: _signals.append(number))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):  # it ended meanwhile
        return ""


def marked(mark: str) -> list[int]:
    """Ids of the living processes whose name is `mark`."""
    return [
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit()
        and _read(process / "comm").strip() == mark
        and " Z " not in _read(process / "stat")
    ]


@dataclass
class Peak:
    """The most that was seen of one attack at any moment."""

    processes: int = 0
    threads: int = 0
    mib: int = 0


class Watch:
    """Samples the marked processes, from a thread, until it is left."""

    def __init__(self, seconds: float = 0.2) -> None:
        self.peaks: dict[str, Peak] = defaultdict(Peak)
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            now: dict[str, Peak] = defaultdict(Peak)
            for process in Path("/proc").iterdir():
                if not process.name.isdigit():
                    continue
                mark = _read(process / "comm").strip()
                if not mark.startswith("sctom"):
                    continue
                seen = now[mark]
                seen.processes += 1
                seen.threads += _number(process / "status", "Threads:")
                seen.mib += _number(process / "smaps_rollup", "Pss:") // 1024
            for mark, seen in now.items():
                peak = self.peaks[mark]
                peak.processes = max(peak.processes, seen.processes)
                peak.threads = max(peak.threads, seen.threads)
                peak.mib = max(peak.mib, seen.mib)


def _number(path: Path, name: str) -> int:
    lines = [line for line in _read(path).splitlines() if line.startswith(name)]
    return int(lines[0].split()[1]) if lines else 0

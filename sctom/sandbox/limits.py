"""What a sandbox grants, and how it says no."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["error", "timeout", "memory", "output", "died", "value"]
LevelName = Literal["bubblewrap", "landlock", "seatbelt", "unsafe"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a sandboxed interpreter may use.

    Args:
        seconds: wall-clock seconds for executing the source, and again for each call. A second
            guard, ten times as long, is on the processor time of the whole session.
        memory_mib: address space of the process, in MiB. There is only one process.
        output_bytes: standard output and standard error together, over the whole session.
        disk_mib: size of the working directory, which is also the largest file, in MiB.
        processes: threads, the first one included. Child processes are never allowed.

    Raises:
        ValueError: a limit is not positive.

    >>> Limits(seconds=2).memory_mib
    1024
    """

    seconds: float = 100.0
    memory_mib: int = 1024
    output_bytes: int = 1_000_000
    disk_mib: int = 64
    processes: int = 32

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < float("inf"):
                raise ValueError(f"the sandbox limit {name} is {value}; set a positive number")


class CodeError(Exception):
    """Code inside the sandbox did not give a value.

    Args:
        kind: "error" (an exception, or a name that is not there), "timeout", "memory", "output"
            (printed or wrote too much), "died" (the process ended), "value" (its answer is not a
            plain value, or too large, or not an answer at all).
        message: one line about it; text from inside is cut to a few thousand characters.
        stderr: the last 4,000 characters of standard error.
    """

    def __init__(self, kind: Kind, message: str, stderr: str = "") -> None:
        super().__init__(kind, message, stderr)
        self.kind: Kind = kind
        self.message = message
        self.stderr = stderr

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class SandboxUnavailable(ValueError):
    """No sandbox that contains anything works on this machine; nothing was executed."""


@dataclass(frozen=True)
class Level:
    """How code is contained, as reached by running the canary.

    Args:
        name: "bubblewrap", "landlock", "seatbelt" or "unsafe".
        detail: what does it, for a banner: the program and its version, or the kernel interface.
        notes: what was tried before and did not work, and libraries that cannot be imported.
    """

    name: LevelName
    detail: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.detail})" if self.detail else self.name

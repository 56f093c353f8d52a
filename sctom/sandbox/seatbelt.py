"""macOS: the sandbox-exec program. Written from its documentation; not run by our tests."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sctom.sandbox.folder import directory_gauge, remove, work_directory
from sctom.sandbox.interpreter import DEVICES, ENVIRONMENT, Interpreter
from sctom.sandbox.limits import Kind, LevelName, Limits
from sctom.sandbox.process import Command

PROGRAM = "/usr/bin/sandbox-exec"
_SYSTEM = (
    "/usr/lib",
    "/System/Library",
    "/System/Volumes/Preboot/Cryptexes",
    "/private/var/db/dyld",
)


def available() -> bool:
    """Whether this is a Mac with sandbox-exec."""
    return platform.system() == "Darwin" and os.access(PROGRAM, os.X_OK)


def profile(readable: Sequence[str], work: str, program: str) -> str:
    """Deny everything, then allow reading some trees, writing one, and starting one program.

    >>> print(profile(["/usr/lib"], "/private/tmp/w", "/usr/bin/python3"))
    (version 1)
    (deny default)
    (allow process-exec (literal "/usr/bin/python3"))
    (allow sysctl-read)
    (allow file-read-metadata)
    (allow file-read* (literal "/") (subpath "/usr/lib") (subpath "/private/tmp/w"))
    (allow file-write* (subpath "/private/tmp/w") (literal "/dev/null"))
    """
    trees = " ".join(f"(subpath {json.dumps(path)})" for path in [*readable, work])
    lines = [
        "(version 1)",
        "(deny default)",
        f"(allow process-exec (literal {json.dumps(program)}))",
    ]
    lines += ["(allow sysctl-read)", "(allow file-read-metadata)"]
    lines += [f'(allow file-read* (literal "/") {trees})']
    lines += [f'(allow file-write* (subpath {json.dumps(work)}) (literal "/dev/null"))']
    return "\n".join(lines)


@dataclass(frozen=True)
class Seatbelt:
    """Starts an interpreter under sandbox-exec; memory is watched from outside."""

    name: ClassVar[LevelName] = "seatbelt"

    @property
    def detail(self) -> str:
        """What contains the code."""
        return "sandbox-exec"

    def prepare(
        self, python: Interpreter, limits: Limits, arguments: Sequence[str]
    ) -> tuple[Command, dict[str, Any]]:
        """The command to start, and what the harness is to do inside."""
        work = work_directory()
        readable = [os.path.realpath(path) for path in (*python.visible, *DEVICES, *_SYSTEM)]
        rules = profile(readable, work, python.executable)
        disk = directory_gauge(work, limits)

        def gauge(pid: int) -> tuple[Kind, str] | None:
            return _too_much_memory(pid, limits) or disk(pid)

        command = Command(
            [PROGRAM, "-p", rules, *arguments],
            environment=dict(ENVIRONMENT),
            gauge=gauge,
            cleanup=lambda: remove(work),
        )
        return command, {"directory": work, "filter": None, "cpu": None}


def _too_much_memory(pid: int, limits: Limits) -> tuple[Kind, str] | None:
    """RLIMIT_AS does not hold on macOS, so the resident size is asked for."""
    found = subprocess.run(
        ["/bin/ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    if found.stdout.strip().isdigit() and int(found.stdout) > limits.memory_mib << 10:
        return "memory", f"used more than {limits.memory_mib} MiB"
    return None

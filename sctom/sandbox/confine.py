"""Giving up every right that the code to come does not need. Runs inside the sandbox.

Standard library only: the trusted process sends this file's code to the fresh interpreter, which
calls `confine` before anything else. Any step that fails raises, and the interpreter ends.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
import sys
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 1, 38, 22, 2
_SIGKILL = 9
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_PATH = 1, 1

# Landlock's rights on files, and the version that brought each
_READ_FILE, _READ_DIR, _WRITE_FILE, _TRUNCATE, _EXECUTE = 1 << 2, 1 << 3, 1 << 1, 1 << 14, 1 << 0
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
_READING = _READ_FILE | _READ_DIR | _EXECUTE
# and making files and directories, moving them, and removing directories
_WRITING = _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | 0x2190
_REMOVE_FILE = 1 << 5
_HANDLED = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK_FROM, _SCOPE_FROM = 4, 6


def confine(setup: dict[str, Any]) -> None:
    """Drop ids and capabilities, set limits, and install Landlock and the filter as asked for."""
    os.environ.clear()
    os.environ.update(setup["environment"])
    os.chdir(setup["directory"])
    os.umask(0o077)
    if setup["cpu"] is not None:
        os.sched_setaffinity(0, {setup["cpu"]})
    if setup["uid"] is not None:
        _drop_ids(setup["uid"], keep_effective=setup["keep_effective"], machine=setup["machine"])
    if setup["parent"] is not None:
        _die_with(setup["parent"])
    for name, value in setup["limits"].items():
        _limit(name, value)
    if setup["landlock"] is not None:
        _landlock(**setup["landlock"])
    if setup["filter"] is not None:
        _filter(setup["filter"].replace(setup["own_pid"], struct.pack("<I", os.getpid())))
    sys.path += setup["path"]


def _call(number: int, *arguments: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return result


def _prctl(option: int, value: Any, more: Any = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in (value, more, 0, 0)]
    if libc.prctl(option, *words) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl {option}: {os.strerror(code)}")


def _drop_ids(uid: int, *, keep_effective: bool, machine: str) -> None:
    """Become another user without capabilities.

    With `keep_effective` only the real id changes, which is the one that RLIMIT_NPROC counts by:
    the interpreter may lie where only root can read. Landlock then decides what may be read.
    """
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    if keep_effective:
        os.setresuid(uid, 0, 0)
    else:
        os.setresuid(uid, uid, uid)
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    _call(_CAPSET[machine], header, bytes(24))


def _die_with(parent: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:
        raise OSError(errno.ESRCH, "the process that started this one has ended")


def _limit(name: str, value: int) -> None:
    number = getattr(resource, name)
    _, hard = resource.getrlimit(number)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(number, (value, value))


def _landlock(read: list[str], write: list[str], devices: list[str], remove: bool) -> None:
    """Allow reading some trees, writing some others, and nothing else.

    A file that was removed or replaced and is still open, or mapped, takes room that its directory
    does not show, so `remove` is only for where someone outside can see it nevertheless.
    """
    version = _call(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION)
    handled = _HANDLED[max(v for v in _HANDLED if v <= version)]
    network = 3 if version >= _NETWORK_FROM else 0
    scoped = 3 if version >= _SCOPE_FROM else 0
    attributes = struct.pack("<QQQ", handled, network, scoped)
    size = 24 if version >= _SCOPE_FROM else 16 if version >= _NETWORK_FROM else 8
    ruleset = _call(_LANDLOCK_CREATE, attributes, size, 0)
    writing = _WRITING | _REMOVE_FILE if remove else _WRITING
    rules = [(p, _READING) for p in read] + [(p, writing) for p in write]
    rules += [(p, _READ_FILE | _WRITE_FILE) for p in devices]
    for path, rights in rules:
        _allow(ruleset, path, rights & handled)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _call(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        rights &= _OF_A_FILE
    rule = struct.pack("<Qi", rights, place)
    _call(_LANDLOCK_ADD, ruleset, _LANDLOCK_PATH, rule, 0)
    os.close(place)


def _filter(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))

    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    holder = Program(len(program) // 8, program)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(holder))

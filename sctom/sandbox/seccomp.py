"""A system call filter, built as classic BPF without a library.

It is a list of what is allowed; everything else fails with EPERM. Not on the list, among others:
creating processes (`fork`, `vfork`, `clone` without CLONE_THREAD), `execve`, sockets other than a
connected pair, `ptrace`, signals to anyone else, `mount`, `unshare`, `setns`, `io_uring_*`, `bpf`,
`keyctl`, `perf_event_open`, `userfaultfd`, `memfd_create` and System V memory (which no limit
bounds), files without a name (which cannot be measured from outside), `chmod`, `chown`, `utime` and
links (which Landlock does not govern), and changing one's own limits, ids, affinity or filter.

Numbers that came after the list was made, and `clone3`, fail with ENOSYS, so that the C library
falls back to what the list knows. Programs are for x86_64 and aarch64; calls by another table
(32-bit, x32) kill the process.

A program runs on `struct seccomp_data`: number at 0, architecture at 4, six 64-bit arguments from
16 on. Both architectures are little-endian, so the low word of argument i is at 16 + 8i.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import cache

# name, number on x86_64, number on aarch64 ("-": it has none)
_RUNNING = """
read 0 63, write 1 64, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, poll 7 -,
lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215, brk 12 214, rt_sigaction 13 134,
rt_sigprocmask 14 135, rt_sigreturn 15 139, pread64 17 67, pwrite64 18 68, readv 19 65,
writev 20 66, access 21 -, pipe 22 -, select 23 -, sched_yield 24 124, mremap 25 216,
msync 26 227, madvise 28 233, dup 32 23, dup2 33 -, pause 34 -, nanosleep 35 101,
getitimer 36 102, alarm 37 -, setitimer 38 103, getpid 39 172, sendfile 40 71, recvfrom 45 207,
shutdown 48 210, getsockname 51 204, getpeername 52 205, getsockopt 55 209, exit 60 93,
wait4 61 260, waitid 247 95, uname 63 160, flock 73 32, fsync 74 82, fdatasync 75 83,
ftruncate 77 46, getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, rename 82 -,
mkdir 83 -, rmdir 84 -, creat 85 -, unlink 87 -, readlink 89 -, umask 95 166,
gettimeofday 96 169, getrlimit 97 163, getrusage 98 165, sysinfo 99 179, times 100 153,
getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177, getppid 110 173,
getpgrp 111 -, getpgid 121 155, getsid 124 156, getgroups 115 158, getresuid 118 148,
getresgid 120 150, rt_sigpending 127 136, rt_sigtimedwait 128 137, rt_sigsuspend 130 133,
sigaltstack 131 132, statfs 137 43, fstatfs 138 44, getpriority 140 141,
sched_getparam 143 121, sched_getscheduler 145 120, sched_get_priority_max 146 125,
sched_get_priority_min 147 126, arch_prctl 158 -, gettid 186 178, time 201 -, futex 202 98,
sched_getaffinity 204 123, epoll_create 213 -, set_tid_address 218 96, restart_syscall 219 128,
fadvise64 221 223, timer_create 222 107, timer_settime 223 110, timer_gettime 224 108,
timer_getoverrun 225 109, timer_delete 226 111, clock_gettime 228 113, clock_getres 229 114,
clock_nanosleep 230 115, exit_group 231 94, epoll_wait 232 -, epoll_ctl 233 21,
mkdirat 258 34, newfstatat 262 79, unlinkat 263 35, renameat 264 38, readlinkat 267 78,
faccessat 269 48, pselect6 270 72, ppoll 271 73, set_robust_list 273 99,
get_robust_list 274 100, epoll_pwait 281 22, timerfd_create 283 85, timerfd_settime 286 86,
timerfd_gettime 287 87, eventfd 284 -, eventfd2 290 19, fallocate 285 47, signalfd4 289 74,
epoll_create1 291 20, dup3 292 24, pipe2 293 59, preadv 295 69, pwritev 296 70,
renameat2 316 276, getrandom 318 278, membarrier 324 283, copy_file_range 326 285,
preadv2 327 286, pwritev2 328 287, statx 332 291, rseq 334 293, close_range 436 436,
epoll_pwait2 441 441, faccessat2 439 439, getcpu 309 168
"""
_STARTING = """
execve 59 221, prctl 157 167, prlimit64 302 261, setrlimit 160 164, setresuid 117 147,
setresgid 119 149, setgroups 116 159, capset 126 91, sched_setaffinity 203 122,
seccomp 317 277
"""
_BY_ARGUMENT = """
open 2 -, openat 257 56, clone 56 220, clone3 435 435, kill 62 129, tgkill 234 131,
ioctl 16 29, fcntl 72 25, socketpair 53 199, sendto 44 206
"""

OWN_PID = 0x7FFF5A5A
"""Stands in a program for the process's own id, which it puts there itself (see `confine`)."""

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_UNKNOWN_FROM = 450  # numbers since Linux 6.6
_X32 = 0x40000000

_LOAD, _EQUAL, _GREATER_OR_EQUAL, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EOPNOTSUPP = _ERRNO | 1, _ERRNO | 38, _ERRNO | 95

_CLONE_THREAD = 0x00010000
_CLONE_NEW = 0x7E020080
_TMPFILE = 0x400000
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_WITHOUT_FLAGS = 1, 1, 0xF
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
"""Duplicates, flags and locks; not F_SETOWN or F_SETSIG, which aim signals at others."""
_PRCTLS = (15, 16)
"""PR_SET_NAME, PR_GET_NAME."""

_Instruction = tuple[int, int, int, int]


@cache
def program(machine: str, *, starting: bool) -> bytes:
    """The filter as an array of `struct sock_filter`.

    Args:
        machine: "x86_64" or "aarch64", from `platform.machine()`.
        starting: also allow what the harness needs before it runs any code: `execve`, dropping ids
            and setting limits. It then installs the stricter program on top.

    Raises:
        ValueError: no table for this machine.

    >>> len(program("x86_64", starting=False)) % 8
    0
    """
    if machine not in _ARCHITECTURES:
        raise ValueError(f"no system call table for {machine}; known: {', '.join(_ARCHITECTURES)}")
    column, audit = _ARCHITECTURES[machine]
    run, start, special = (_numbers(t, column) for t in (_RUNNING, _STARTING, _BY_ARGUMENT))
    if starting:
        run |= start
    code: list[_Instruction] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _KILL)]
    code += [(_LOAD, 0, 0, 0)]
    if machine == "x86_64":
        code += [(_GREATER_OR_EQUAL, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    code += [(_GREATER_OR_EQUAL, 0, 1, _UNKNOWN_FROM), (_RETURN, 0, 0, _ENOSYS)]
    for number in sorted(run.values()):
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    if not starting:
        special |= {name: start[name] for name in ("prctl", "prlimit64")}
    for name, number in special.items():
        body = _by_argument(name)
        code += [(_EQUAL, 0, len(body), number), *body]
    code += [(_RETURN, 0, 0, _EPERM)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _numbers(text: str, column: int) -> dict[str, int]:
    rows = [row.split() for row in text.replace("\n", " ").split(",")]
    return {name: int(numbers[column]) for name, *numbers in rows if numbers[column] != "-"}


def _by_argument(name: str) -> list[_Instruction]:
    """Instructions that end in a verdict on one call's arguments."""
    match name:
        case "clone":
            return [
                _argument(0),
                (_BITS, 2, 0, _CLONE_NEW),
                (_BITS, 0, 1, _CLONE_THREAD),
                (_RETURN, 0, 0, _ALLOW),
                (_RETURN, 0, 0, _EPERM),
            ]
        case "open" | "openat":
            verdicts = [(_RETURN, 0, 0, _EOPNOTSUPP), (_RETURN, 0, 0, _ALLOW)]
            return [_argument(1 + (name == "openat")), (_BITS, 0, 1, _TMPFILE), *verdicts]
        case "clone3":
            return [(_RETURN, 0, 0, _ENOSYS)]
        case "kill" | "tgkill":
            return _one_of(0, [OWN_PID])
        case "ioctl":
            return _one_of(1, _IOCTLS)
        case "fcntl":
            return _one_of(1, _FCNTLS)
        case "prctl":
            return _one_of(0, _PRCTLS)
        case "prlimit64":  # reading only: the pointer to new limits is null
            return [
                *_zero_or_refuse(0, low_only=True),
                *_zero_or_refuse(2),
                (_RETURN, 0, 0, _ALLOW),
            ]
        case "sendto":  # without an address: on a connected pair
            return [*_zero_or_refuse(4), (_RETURN, 0, 0, _ALLOW)]
        case "socketpair":  # stream pairs cannot be connected to anything else later
            return [
                _argument(0),
                (_EQUAL, 0, 3, _AF_UNIX),
                _argument(1),
                (0x54, 0, 0, _SOCK_TYPE_WITHOUT_FLAGS),
                (_EQUAL, 1, 0, _SOCK_STREAM),
                (_RETURN, 0, 0, _EPERM),
                (_RETURN, 0, 0, _ALLOW),
            ]
    raise AssertionError(name)


def _argument(index: int, *, high: bool = False) -> _Instruction:
    return (_LOAD, 0, 0, 16 + 8 * index + 4 * high)


def _one_of(index: int, values: Iterable[int]) -> list[_Instruction]:
    """Allow the call if the low word of an argument is one of these (the kernel reads 32 bits)."""
    tests = [((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)) for value in values]
    body = [instruction for pair in tests for instruction in pair]
    return [_argument(index), *body, (_RETURN, 0, 0, _EPERM)]


def _zero_or_refuse(index: int, *, low_only: bool = False) -> list[_Instruction]:
    words = (False,) if low_only else (False, True)
    code: list[_Instruction] = []
    for high in words:
        code += [_argument(index, high=high), (_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _EPERM)]
    return code

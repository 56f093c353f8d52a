from __future__ import annotations

import struct

import pytest

from sctom.sandbox.seccomp import OWN_PID, program

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x50001, 0x50026
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# name: number on x86_64, on aarch64
NUMBERS = {
    "read": (0, 63),
    "openat": (257, 56),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "ptrace": (101, 117),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "mount": (165, 40),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "memfd_create": (319, 279),
    "process_vm_readv": (310, 270),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "setresuid": (117, 147),
    "seccomp": (317, 277),
    "fchmodat": (268, 53),
    "symlinkat": (266, 36),
}


def verdict(code: bytes, number: int, *arguments: int, audit: int) -> int:
    """Run a program on one call, as the kernel would."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number, audit, 0, *(a & (1 << 64) - 1 for a in padded))
    at, value = 0, 0
    while True:
        operation, yes, no, k = struct.unpack_from("<HBBI", code, 8 * at)
        at += 1
        match operation:
            case 0x20:
                [value] = struct.unpack_from("<I", data, k)
            case 0x54:
                value &= k
            case 0x06:
                return k
            case 0x15:
                at += yes if value == k else no
            case 0x35:
                at += yes if value >= k else no
            case 0x45:
                at += yes if value & k else no
            case _:
                raise AssertionError(hex(operation))


@pytest.fixture(params=["x86_64", "aarch64"])
def ask(request):
    machine = request.param
    code = {starting: program(machine, starting=starting) for starting in (False, True)}
    column = list(AUDIT).index(machine)

    def call(name: str, *arguments: int, starting: bool = False) -> int:
        number = NUMBERS[name][column]
        return verdict(code[starting], number, *arguments, audit=AUDIT[machine])

    return call


def test_what_python_needs_is_allowed(ask):
    for name in ("read", "openat"):
        assert ask(name) == ask(name, starting=True) == ALLOW


def test_what_is_not_listed_fails(ask):
    special = {"read", "openat", "clone3", "fcntl", "socketpair", "sendto", "prlimit64"}
    for name in NUMBERS.keys() - special:
        assert ask(name) == EPERM, name


def test_starting_allows_only_what_the_harness_needs_as_well(ask):
    gained = {n for n in NUMBERS if ask(n, starting=True) == ALLOW and ask(n) != ALLOW}
    assert gained == {"execve", "prctl", "setresuid", "seccomp"}


def test_threads_but_no_processes_or_namespaces(ask):
    thread = 0x3D0F00
    assert ask("clone", thread) == ALLOW
    assert ask("clone", 0x01200011) == EPERM  # fork
    assert ask("clone", 0x4111) == EPERM  # vfork
    assert ask("clone", thread | 0x10000000) == EPERM  # a new user namespace
    assert ask("clone3") == ENOSYS


def test_signals_reach_only_the_process_itself(ask):
    assert ask("kill", OWN_PID, 9) == ask("tgkill", OWN_PID, 5, 6) == ALLOW
    for pid in (0, 1, -1, -OWN_PID, OWN_PID + 1):
        assert ask("kill", pid, 9) == EPERM


def test_arguments_decide(ask):
    assert ask("socketpair", 1, 1 | 0o2000000) == ALLOW
    assert ask("socketpair", 1, 2) == ask("socketpair", 2, 1) == EPERM
    assert ask("openat", 3, 0, 0o102, 0o600) == ALLOW
    assert ask("openat", 3, 0, 0o20200002, 0o600) == 0x5005F  # O_TMPFILE
    assert ask("sendto", 5, 6, 7, 0, 0, 0) == ALLOW
    assert ask("sendto", 5, 6, 7, 0, 1 << 40, 16) == EPERM
    assert ask("prlimit64", 0, 9, 0, 1) == ALLOW
    assert ask("prlimit64", 0, 9, 1 << 40, 1) == ask("prlimit64", 7, 9, 0, 1) == EPERM
    assert ask("ioctl", 0, 0x5401) == ALLOW
    assert ask("ioctl", 0, 0x5412) == ask("ioctl", 0, 0x541C) == EPERM  # TIOCSTI, TIOCLINUX
    assert ask("fcntl", 3, 4) == ALLOW
    assert ask("fcntl", 3, 8) == ask("fcntl", 3, 10) == EPERM  # F_SETOWN, F_SETSIG
    assert ask("prctl", 15) == ALLOW
    assert ask("prctl", 22) == ask("prctl", 1) == EPERM


def test_other_tables_and_later_calls():
    code = program("x86_64", starting=False)
    assert verdict(code, 0, audit=0x40000003) == KILL
    assert verdict(code, 0x40000000, audit=AUDIT["x86_64"]) == KILL
    assert verdict(code, 460, audit=AUDIT["x86_64"]) == ENOSYS
    with pytest.raises(ValueError, match="no system call table for riscv64"):
        program("riscv64", starting=False)

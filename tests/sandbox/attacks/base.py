from __future__ import annotations

from dataclasses import dataclass, replace

from sctom.sandbox import Limits

# The memory is small, so that an attempt at several times the limit cannot hurt the machine even if
# nothing were to stop it.
SHORT = Limits(seconds=5.0, memory_mib=320, output_bytes=200_000, disk_mib=8, processes=16)
ENDLESS = replace(SHORT, seconds=1.5)
"""For what goes on up to its deadline."""


@dataclass(frozen=True)
class Attack:
    """Source to run inside, and what it would mean if it worked.

    `source` defines `attack(target)`, or does its worst while it is loaded. What it returns is
    a claim of success (anything true), unless `claims` is off; the canaries of the arena are
    looked at whatever it returns.
    """

    name: str
    success: str
    source: str
    claims: bool = True
    limits: Limits = SHORT


# What every attack starts with. TARGET says where the canaries are, never what is in them.
PRELUDE = '''
import ctypes, errno, json, mmap, os, platform, re, signal, socket, struct, sys, threading, time
TARGET = json.loads({target!r})
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.prctl(15, TARGET["mark"].encode())
if os.path.exists("pyproject.toml"):
    raise SystemExit("the work folder must be the sandbox's own")

X86 = platform.machine() == "x86_64"
NUMBERS = {{   # x86_64, aarch64
    "clone": (56, 220), "clone3": (435, 435), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "kcmp": (312, 272), "io_uring_setup": (425, 425), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "syslog": (103, 116),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "finit_module": (313, 273), "kexec_file_load": (320, 294), "acct": (163, 89),
    "quotactl": (179, 60), "swapon": (167, 224), "sethostname": (170, 161),
    "memfd_create": (319, 279), "shmget": (29, 194), "shmat": (30, 196), "shmdt": (67, 197),
    "msgget": (68, 186), "semget": (64, 190), "tgkill": (234, 131), "prlimit64": (302, 261),
    "capget": (125, 90), "ioprio_set": (251, 30), "fanotify_init": (300, 262),
    "personality": (135, 92), "mknodat": (259, 33), "rt_sigqueueinfo": (129, 138),
    "process_madvise": (440, 440), "lookup_dcookie": (212, 18), "vmsplice": (316, 75),
}}

def syscall(name, *arguments):
    number = NUMBERS[name][0 if X86 else 1]
    LIBC.syscall.restype = ctypes.c_long
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return LIBC.syscall(ctypes.c_long(number), *wide)

def works(function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
    except (OSError, ValueError, MemoryError, RuntimeError, AttributeError, ImportError):
        return False
    return True

def text_of(path, size=1_000_000):
    try:
        with open(path, "rb") as file:
            return file.read(size).decode("latin-1")
    except OSError:
        return ""

SAID = []

def tell(*things):
    SAID.append(str(things))

def told():
    """The secrets in whatever was told: there should be none."""
    return re.findall(TARGET["prefix"] + "[0-9a-f]{{32}}", "".join(SAID))

def children(count, work, seconds=1.0):
    """At most `count` children that do `work` and die by themselves; how many there were."""
    made = []
    for _ in range(count):
        try:
            child = os.fork()
        except OSError:
            break
        if child == 0:
            signal.alarm(4)
            try:
                work()
            finally:
                os._exit(0)
        made.append(child)
    time.sleep(seconds)
    for child in made:
        try:
            os.kill(child, signal.SIGKILL)
        except OSError:
            pass
    return len(made)
'''

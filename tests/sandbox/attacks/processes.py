"""Many processes, processes that stay, and other people's processes."""

from __future__ import annotations

from tests.sandbox.attacks.base import Attack

_OUTSIDE = "a process outside is signalled, stopped, traced, read or changed"
_STAYS = "a process is alive after the session was closed"

PROCESSES = [
    Attack(
        "fork bomb",
        "more than `processes` processes exist",
        """
def attack(target):
    made = children(200, lambda: time.sleep(2), seconds=0.3)
    return made > target["processes"] and f"{made} children"
""",
    ),
    Attack(
        "clone and clone3 without libc",
        "more than `processes` processes exist",
        """
def attack(target):
    made = 0
    for _ in range(100):
        child = syscall("clone", int(signal.SIGCHLD), 0, 0, 0, 0)
        if child < 0:
            arguments = (ctypes.c_ulonglong * 8)(0, 0, 0, 0, int(signal.SIGCHLD), 0, 0, 0)
            child = syscall("clone3", arguments, 64)
        if child == 0:
            time.sleep(2)
            os._exit(0)
        if child < 0:
            break
        made += 1
    return made > target["processes"] and f"{made} children"
""",
    ),
    Attack(
        "thread bomb",
        "more than 64 threads exist",
        """
def attack(target):
    threading.stack_size(64 * 1024)
    go = threading.Event()
    made = 0
    try:
        for made in range(300):
            threading.Thread(target=go.wait, args=(2,), daemon=True).start()
    except (RuntimeError, MemoryError):
        pass
    go.set()
    return made > 64 and f"{made} threads"
""",
    ),
    Attack(
        "daemon (double fork, new session)",
        _STAYS,
        """
def attack(target):
    if os.fork() == 0:
        works(os.setsid)
        if os.fork() == 0:
            for number in signal.valid_signals():
                works(signal.signal, number, signal.SIG_IGN)
            time.sleep(20)
        os._exit(0)
    time.sleep(0.3)
""",
    ),
    Attack(
        "a child keeps every descriptor open after the end",
        "the call outlives its deadline, or the child its parent",
        """
def attack(target):
    if os.fork() == 0:
        works(os.setsid)
        time.sleep(20)
    os._exit(0)
""",
    ),
    Attack(
        "shell",
        "a shell reaches what the interpreter cannot",
        """
import subprocess
def attack(target):
    script = "cat {file}; env; cat /proc/*/environ; echo x > {folder}/from-a-shell; id"
    try:
        done = subprocess.run(["/bin/sh", "-c", script.format(**target)], capture_output=True)
        tell(done.stdout, done.stderr)
    except OSError:
        pass
    return told()
""",
    ),
    Attack(
        "become another program",
        "the call outlives its deadline, or a program gets out",
        """
def attack(target):
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(20)"])
""",
    ),
    Attack(
        "kill a process outside",
        _OUTSIDE,
        """
def attack(target):
    victim, sent = target["victim"], []
    for number in (0, signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
        if works(os.kill, victim, number):
            sent.append(int(number))
    if syscall("tgkill", victim, victim, int(signal.SIGTERM)) == 0:
        sent.append("tgkill")
    fd = syscall("pidfd_open", victim, 0)
    if fd >= 0 and syscall("pidfd_send_signal", fd, int(signal.SIGTERM), 0, 0) == 0:
        sent.append("pidfd")
    return sent
""",
    ),
    Attack(
        "signal its parent, its group and everyone",
        _OUTSIDE,
        """
def attack(target):   # SIGURG is ignored by whoever does not ask for it; the trainer does
    for process in (target["parent"], os.getppid(), -target["parent"], -1, 0, -os.getppid()):
        if process not in (1, -1) or os.getpid() < 100:
            works(os.kill, process, signal.SIGURG)
    works(os.killpg, 0, signal.SIGURG)
    works(os.kill, -1, signal.SIGURG)
    return os.getppid() > 10 and works(os.kill, os.getppid(), 0)
""",
    ),
    Attack(
        "ptrace",
        _OUTSIDE,
        """
def attack(target):
    seize, attach = 0x4206, 16
    return [
        syscall("ptrace", seize, target["parent"], 0, 0) == 0,
        syscall("ptrace", attach, target["victim"], 0, 0) == 0,
    ] != [False, False]
""",
    ),
    Attack(
        "process_vm_readv and process_vm_writev",
        _OUTSIDE,
        """
def attack(target):
    start, length = target["victim_environment"]
    class Part(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    buffer = ctypes.create_string_buffer(length)
    here = Part(ctypes.addressof(buffer), length)
    there = Part(start, length)
    parts = ctypes.byref(here), 1, ctypes.byref(there), 1, 0
    if syscall("process_vm_readv", target["victim"], *parts) > 0:
        return buffer.raw
    here.length = there.length = 1
    return syscall("process_vm_writev", target["victim"], *parts) > 0
""",
    ),
    Attack(
        "another process through /proc",
        _OUTSIDE,
        """
def attack(target):
    found = []
    for process in (target["victim"], target["parent"]):
        for name in ("environ", "cmdline", "maps", "mem", "status", "auxv", "cwd",
                     "root/etc/passwd"):
            path = f"/proc/{process}/{name}"
            if text_of(path, 4096) or works(os.listdir, path):
                found.append(path)
        for name in ("mem", "oom_score_adj", "clear_refs", "coredump_filter", "comm"):
            if works(open, f"/proc/{process}/{name}", "r+"):
                found.append("writable " + name)
    return found
""",
    ),
    Attack(
        "limits, priority and cores of a process outside",
        _OUTSIDE,
        """
import resource
def attack(target):
    victim = target["victim"]
    changed = []
    if works(resource.prlimit, victim, resource.RLIMIT_NOFILE, (7, 7)):
        changed.append("prlimit")
    if works(os.setpriority, os.PRIO_PROCESS, victim, 19):
        changed.append("priority")
    if works(os.sched_setaffinity, victim, {0}):
        changed.append("affinity")
    if syscall("ioprio_set", 1, victim, 3 << 13) == 0:
        changed.append("ioprio")
    if works(os.sched_setscheduler, victim, os.SCHED_IDLE, os.sched_param(0)):
        changed.append("scheduler")
    return changed
""",
    ),
    Attack(
        "take a descriptor out of the parent",
        _OUTSIDE,
        """
def attack(target):
    fd = syscall("pidfd_open", target["parent"], 0)
    return fd >= 0 and syscall("pidfd_getfd", fd, target["parent_fd"], 0) >= 0
""",
    ),
    Attack(
        "raise its own priority",
        "it runs before everyone else, or is spared when memory ends",
        """
def attack(target):
    return [
        name
        for name, worked in {
            "nice": works(os.setpriority, os.PRIO_PROCESS, 0, -10),
            "realtime": works(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)),
            "oom": works(lambda: open("/proc/self/oom_score_adj", "w", 1).write("-1000\\n")),
            "ioprio": syscall("ioprio_set", 1, 0, 1 << 13) == 0,
        }.items()
        if worked
    ]
""",
    ),
    Attack(
        "regain rights",
        "it has a capability, or becomes root",
        """
def attack(target):
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    syscall("capget", header, data)
    root = os.geteuid() != 0 and (works(os.setuid, 0) or works(os.setresuid, 0, 0, 0))
    return [name for name, held in {
        "effective capabilities": data[0] or data[3],
        "permitted capabilities": data[1] or data[4],
        "root": root,
    }.items() if held]
""",
    ),
]

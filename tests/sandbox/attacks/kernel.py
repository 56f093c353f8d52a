"""Doors of the kernel that scored code has no business with."""

from __future__ import annotations

from tests.sandbox.attacks.base import Attack

_GRANTED = "the system call is granted"


KERNEL = [
    Attack(
        "nested user namespace",
        _GRANTED,
        """
def attack(target):
    user, mounts, network = 0x10000000, 0x00020000, 0x40000000
    granted = [flags for flags in (user, user | mounts, user | network, mounts, network)
               if syscall("unshare", flags) == 0]
    child = syscall("clone", user | int(signal.SIGCHLD), 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return granted or child > 0
""",
    ),
    Attack(
        "mount, unmount and remount",
        _GRANTED,
        """
def attack(target):
    folder = target["folder"].encode()
    bind, remount = 4096, 32
    return [result for result in (
        LIBC.mount(b"tmpfs", folder, b"tmpfs", 0, None),
        LIBC.mount(b"proc", folder, b"proc", 0, None),
        LIBC.mount(b"/", folder, None, bind, None),
        LIBC.mount(b"tmpfs", os.getcwd().encode(), b"tmpfs", 0, None),
        LIBC.mount(None, b"/", None, bind | remount, None),
        LIBC.umount2(folder, 2),
        LIBC.umount2(b"/proc", 2),
        LIBC.umount2(b"/tmp", 2),
    ) if result == 0]
""",
    ),
    Attack(
        "change of root",
        _GRANTED,
        """
def attack(target):
    here = ctypes.c_char_p(b".")
    return syscall("chroot", here) == 0 or syscall("pivot_root", here, here) == 0
""",
    ),
    Attack(
        "another process's namespaces",
        _GRANTED,
        """
def attack(target):
    entered = []
    for process in (target["parent"], target["victim"], 1, os.getppid()):
        for kind in ("mnt", "net", "pid", "user", "ipc"):
            try:
                fd = os.open(f"/proc/{process}/ns/{kind}", os.O_RDONLY)
            except OSError:
                continue
            if syscall("setns", fd, 0) == 0:
                entered.append((process, kind))
    return entered
""",
    ),
    Attack(
        "new mount interface",
        _GRANTED,
        """
def attack(target):
    tmpfs, root = ctypes.c_char_p(b"tmpfs"), ctypes.c_char_p(b"/")
    return syscall("fsopen", tmpfs, 0) >= 0 or syscall("open_tree", -100, root, 1) >= 0
""",
    ),
    Attack(
        "io_uring",
        _GRANTED,
        """
def attack(target):
    return syscall("io_uring_setup", 2, ctypes.create_string_buffer(256)) >= 0
""",
    ),
    Attack(
        "keyrings",
        _GRANTED,
        """
def attack(target):
    kind, name = ctypes.c_char_p(b"user"), ctypes.c_char_p(target["mark"].encode())
    return (
        syscall("keyctl", 0, -3, 1) >= 0
        or syscall("add_key", kind, name, name, 4, -4) >= 0
        or syscall("request_key", kind, name, 0, 0) >= 0
    )
""",
    ),
    Attack(
        "type into the terminal (TIOCSTI) and take it (TIOCSCTTY)",
        _GRANTED,
        """
import fcntl
def attack(target):
    descriptors = list(range(8))
    for path in ("/dev/tty", "/dev/console", "/dev/pts/0", "/dev/tty0"):
        try:
            descriptors.append(os.open(path, os.O_RDWR | os.O_NOCTTY))
        except OSError:
            pass
    return [fd for fd in descriptors
            if works(fcntl.ioctl, fd, 0x5412, b"x") or works(fcntl.ioctl, fd, 0x540E, 1)]
""",
    ),
    Attack(
        "bpf, perf and userfaultfd",
        _GRANTED,
        """
def attack(target):
    bpf = (ctypes.c_uint32 * 32)(2, 4, 8, 1)                       # BPF_MAP_CREATE, an array
    perf = (ctypes.c_uint32 * 32)(1, 128)                          # a software clock, of itself
    return [name for name, fd in {
        "bpf": syscall("bpf", 0, bpf, 128),
        "perf": syscall("perf_event_open", perf, 0, -1, -1, 0),
        "userfaultfd": syscall("userfaultfd", 0),
        "fanotify": syscall("fanotify_init", 0, 0),
    }.items() if fd >= 0]
""",
    ),
    Attack(
        "files by handle",
        "a file outside is opened without its path",
        """
def attack(target):
    handle = (ctypes.c_uint32 * 34)(128)
    mount = ctypes.c_int()
    path = ctypes.c_char_p(target["file"].encode())
    syscall("name_to_handle_at", -100, path, handle, ctypes.byref(mount), 0)
    root = (ctypes.c_uint32 * 4)(8, 1, 2, 0)                       # inode 2 of a disk
    for fd in (os.open(".", os.O_RDONLY), os.open("/", os.O_RDONLY)):
        for one in (handle, root):
            if syscall("open_by_handle_at", fd, one, 0) >= 0:
                return True
""",
    ),
    Attack(
        "administration",
        "the machine is changed, or its log is read",
        """
def attack(target):
    name = socket.gethostname().encode()
    text = ctypes.create_string_buffer(4096)
    missing = ctypes.c_char_p(b"/nonexistent")
    allowed = [call for call, result in {
        "hostname": syscall("sethostname", name, len(name)),
        "kernel log": syscall("syslog", 3, text, 4096),
        "accounting": syscall("acct", 0),
    }.items() if result >= 0]
    for call, arguments in (("finit_module", (-1, text, 0)),
                            ("kexec_file_load", (-1, -1, 0, text, 0)), ("swapon", (missing, 0))):
        if syscall(call, *arguments) >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
            allowed.append(call)
    return allowed
""",
    ),
    Attack(
        "devices and kernel files",
        "one can be opened",
        """
def attack(target):
    import glob
    found = []
    for path in ("/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/proc/kcore",
                 "/proc/kmsg", "/dev/nvidiactl", *glob.glob("/dev/vd*"), *glob.glob("/dev/sd*"),
                 *glob.glob("/dev/nvme*"), "/var/run/docker.sock",
                 "/run/containerd/containerd.sock"):
        if works(open, path, "rb"):
            found.append(path)
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger",
                 "/sys/kernel/uevent_helper",
                 *glob.glob("/sys/fs/cgroup/**/release_agent", recursive=True)[:4],
                 *glob.glob("/sys/fs/cgroup/*/tasks")[:4], "/sys/fs/cgroup/cgroup.procs"):
        if works(open, path, "r+b"):
            found.append(path)
    for major, minor in ((1, 1), (8, 0), (253, 0)):
        if works(os.mknod, f"device-{major}", 0o60600, os.makedev(major, minor)):
            found.append((major, minor))
    return found
""",
    ),
]

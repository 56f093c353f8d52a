"""More memory than allowed, by every road. Nothing here takes more than `cap_mib`."""

from __future__ import annotations

from tests.sandbox.attacks.base import Attack

_MORE = "more memory than memory_mib is held at once"

MEMORY = [
    Attack(
        "3 GiB in one allocation",
        "the allocation is granted",
        """
def attack(target):
    try:
        return mmap.mmap(-1, 3 * 2**30) is not None   # never touched: costs no memory
    except (OSError, ValueError, MemoryError):
        return bool(works(bytearray, 3 * 2**30))
""",
    ),
    Attack(
        "a growing list",
        _MORE,
        """
def attack(target):
    held = []
    try:
        while len(held) * 16 < target["cap_mib"]:
            held.append(bytearray(b"x") * 2**24)
    except MemoryError:
        pass
    return len(held) * 16 > target["memory_mib"]
""",
    ),
    Attack(
        "shared anonymous maps",
        _MORE,
        """
def attack(target):
    held = []
    try:
        while len(held) * 16 < target["cap_mib"]:
            block = mmap.mmap(-1, 2**24, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
            block.write(b"x" * 2**24)
            held.append(block)
    except (OSError, ValueError, MemoryError):
        pass
    return len(held) * 16 > target["memory_mib"]
""",
    ),
    Attack(
        "children of 200 MiB each",
        _MORE,
        """
def attack(target):
    reader, writer = os.pipe()
    def work():
        block = bytearray(b"x") * (200 * 2**20)
        os.write(writer, b"1")
        time.sleep(1.5)
    children(max(2, min(6, target["cap_mib"] // 200)), work)
    os.set_blocking(reader, False)
    try:
        held = len(os.read(reader, 64)) * 200
    except BlockingIOError:
        held = 0
    return held > target["memory_mib"]
""",
    ),
    Attack(
        "memory files beside the heap",
        _MORE,
        """
def attack(target):
    heap = target["memory_mib"] * 6 // 10
    keep = []
    try:
        for _ in range(heap // 16):
            keep.append(bytearray(b"x") * 2**24)
    except MemoryError:
        pass
    held, files, block = len(keep) * 16, [], b"x" * 2**20
    LIBC.memfd_create.argtypes = [ctypes.c_char_p, ctypes.c_uint]
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    while held < target["cap_mib"]:
        fd = LIBC.memfd_create(b"x", 0)
        if fd < 0:
            break
        files.append(fd)
        for _ in range(64):
            if held >= target["cap_mib"] or not works(os.write, fd, block):
                break
            held += 1
    return held > target["memory_mib"] + target["disk_mib"] and f"{held} MiB"
""",
    ),
    Attack(
        "System V segments, detached when full",
        _MORE,
        """
def attack(target):
    held = 0
    LIBC.shmat.restype = ctypes.c_void_p
    LIBC.shmdt.argtypes = [ctypes.c_void_p]
    while held < min(target["cap_mib"], 512):
        segment = LIBC.shmget(0, 2**24, 0o1600)
        if segment < 0:
            break
        LIBC.shmctl(segment, 0, None)
        address = LIBC.shmat(segment, None, 0)
        if address in (None, 2**64 - 1):
            break
        ctypes.memset(address, 1, 2**24)
        LIBC.shmdt(address)
        held += 16
    keyed = LIBC.shmget(target["key"], 4096, 0o1666)   # and one that would outlive us
    return (held > target["memory_mib"] or keyed >= 0 and held > 0) and f"{held} MiB"
""",
    ),
    Attack(
        "files in every folder of memory",
        "more is stored than disk_mib, in all folders together",
        """
def attack(target):
    held, block = 0, b"x" * 2**20
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for folder in (".", "/tmp", "/var/tmp", "/dev/shm", "/run", "/dev", "/",
                   os.path.expanduser("~")):
        for number in range(16):
            name = f"{folder}/{target['mark']}-{number}"
            try:
                file = open(name, "xb", buffering=0)
            except OSError:
                break
            for _ in range(64):
                if held > 256 or not works(file.write, block):
                    break
                held += 1
    return held > target["disk_mib"] * 2 and f"{held} MiB"
""",
    ),
    Attack(
        "full pipes",
        "more than 64 MiB of the kernel's memory is held",
        """
def attack(target):
    held = 0
    import fcntl
    try:
        while held < 256 * 2**20:
            reader, writer = os.pipe()
            works(fcntl.fcntl, writer, 1031, 2**20)
            os.set_blocking(writer, False)
            try:
                while True:
                    held += os.write(writer, b"x" * 65536)
            except BlockingIOError:
                pass
    except OSError:
        pass
    return held > 64 * 2**20
""",
    ),
    Attack(
        "raise its own limits",
        "a hard limit is higher than before, or is gone",
        """
import resource
def attack(target):
    raised = []
    for name in ("AS", "NPROC", "FSIZE", "NOFILE", "CPU", "CORE"):
        limit = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(limit)[1]
        if hard == resource.RLIM_INFINITY:
            raised.append(name + " is unlimited")
        elif works(resource.setrlimit, limit, (hard + 1, hard + 1)):
            raised.append(name + " was raised")
    return raised
""",
    ),
]

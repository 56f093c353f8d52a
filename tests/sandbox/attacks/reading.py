"""Secrets: the environment, files, memory and descriptors of others.

The secret is never sent along: what comes back is searched for it.
"""

from __future__ import annotations

from tests.sandbox.attacks.base import Attack

_SECRET = "the secret comes back"

READING = [
    Attack(
        "environment",
        _SECRET,
        """
def attack(target):
    tell(dict(os.environ), text_of("/proc/self/environ"))
    return told()
""",
    ),
    Attack(
        "environment as the process was born with it",
        _SECRET,
        """
def attack(target):
    start = ctypes.c_void_p.in_dll(LIBC, "environ").value
    block = ctypes.cast(start, ctypes.POINTER(ctypes.c_char_p))
    found, number = [], 0
    while block[number]:
        found.append(block[number])
        number += 1
    tell(found)
    fields = text_of("/proc/self/stat").rsplit(")", 1)[-1].split()
    if fields:
        first, last = int(fields[47]), int(fields[48])
        if 0 < last - first < 2**20:
            tell(ctypes.string_at(first, last - first))
    return told()
""",
    ),
    Attack(
        "environment of every process in /proc",
        _SECRET,
        """
def attack(target):
    for process in [1, os.getppid(), target["parent"], target["victim"], *filter(
            str.isdigit, os.listdir("/proc") if works(os.listdir, "/proc") else [])]:
        tell(text_of(f"/proc/{process}/environ"), text_of(f"/proc/{process}/cmdline"))
        tell(text_of(f"/proc/{process}/task/{process}/environ"))
    return told()
""",
    ),
    Attack(
        "a file outside",
        _SECRET,
        """
def attack(target):
    tell(text_of(target["file"]))
    here = os.open("/", os.O_PATH)
    tell(works(os.open, target["file"][1:], os.O_RDONLY, dir_fd=here))
    import shutil, sqlite3, zipfile, linecache
    tell(linecache.getlines(target["file"]), works(shutil.copy, target["file"], "copy"))
    tell(text_of("copy"))
    return told()
""",
    ),
    Attack(
        "home, keys and accounts",
        "one of them can be read",
        """
def attack(target):
    found = []
    home = target["home"]
    needed = [os.path.realpath(sys.executable), *sys.path, sys.prefix]   # may lie in a home
    def strange(path):
        return works(os.listdir, path) and [
            name for name in os.listdir(path)
            if not any(place.startswith(os.path.join(path, name)) for place in needed)]
    for path in (home + "/.ssh", home + "/.aws", home + "/.cache", home + "/.bash_history",
                 home + "/.netrc", home, "/root", "/home", "/etc/shadow", "/etc/ssh", "/root/.ssh"):
        if text_of(path, 1) or strange(path):
            found.append(path)
    if text_of("/etc/passwd") == target["passwd"]:
        found.append("/etc/passwd")
    return found
""",
    ),
    Attack(
        "the project and its data",
        "a file of the project can be read",
        """
def attack(target):
    project = target["project"]
    paths = (project + "/pyproject.toml", project + "/README.md", target["tests"])
    return [path for path in paths if text_of(path)]
""",
    ),
    Attack(
        "its own memory",
        _SECRET,
        """
def attack(target):
    pattern = target["prefix"].encode() + rb"[0-9a-f]{32}"
    for line in text_of("/proc/self/maps").splitlines():
        span, rights = line.split()[:2]
        first, last = (int(number, 16) for number in span.split("-"))
        if rights.startswith("r") and last - first < 2**26 and "[v" not in line:
            tell(re.findall(pattern, ctypes.string_at(first, last - first)))
    return told()
""",
    ),
    Attack(
        "every object and frame of the interpreter",
        _SECRET,
        """
import gc
def attack(target):
    frame = sys._getframe()
    while frame:
        tell(frame.f_code.co_consts, list(frame.f_locals.values()))
        frame = frame.f_back
    for thing in gc.get_objects():
        if type(thing) is dict:
            for value in list(thing.values()):
                if type(value) in (str, bytes) and target["prefix"] in str(value):
                    tell(value)
    return told()
""",
    ),
    Attack(
        "what the descriptors it was born with hold",
        _SECRET,
        """
def attack(target):
    for fd in range(3, 256):
        works(os.set_blocking, fd, False)
        try:
            tell(fd, os.pread(fd, 65536, 0))
        except OSError:
            pass
        tell(text_of(f"/proc/self/fd/{fd}", 65536) if not works(os.fstat, fd) else "")
        for path in ("../" * 24 + target["file"], "secret.txt", "../secret.txt"):
            try:
                tell(os.read(os.open(path, os.O_RDONLY, dir_fd=fd), 4096))
            except OSError:
                pass
    return told()
""",
    ),
    Attack(
        "shared memory and queues of others",
        _SECRET,
        """
def attack(target):
    LIBC.shmat.restype = ctypes.c_void_p
    segment = LIBC.shmget(target["shared_key"], 0, 0)
    if segment >= 0:
        address = LIBC.shmat(segment, None, 0o10000)
        if address not in (None, 2**64 - 1):
            tell(ctypes.string_at(address, 128))
    for name in os.listdir("/dev/shm") if works(os.listdir, "/dev/shm") else []:
        tell(text_of("/dev/shm/" + name, 4096))
    tell(text_of("/dev/shm/" + target["shared_name"]))
    return told()
""",
    ),
]

"""Writing outside, filling the disk, and leaving traps for whoever cleans up."""

from __future__ import annotations

from tests.sandbox.attacks.base import Attack

_OUTSIDE = "something outside the work folder is created or changed"
_DISK = "more than disk_mib is stored"
_CLEAN = "the work folder cannot be removed, or removing it touches what is outside"

FILES = [
    Attack(
        "write in every folder of the machine",
        _OUTSIDE,
        """
def attack(target):
    for folder in (target["folder"], "/tmp", "/var/tmp", "/dev/shm", "/run", "/var/run", "/etc",
                   "/", target["home"], target["project"], target["site"],
                   os.path.dirname(sys.executable),
                   os.path.dirname(os.__file__), "..", "../..", os.path.dirname(target["folder"])):
        path = os.path.join(folder, target["mark"] + ".canary")
        works(open, path, "w")
        works(os.mkdir, path + ".folder")
        works(os.symlink, "/etc/passwd", path + ".link")
        works(os.mkfifo, path + ".fifo")
""",
    ),
    Attack(
        "change a file outside",
        _OUTSIDE,
        """
def attack(target):
    file = target["file"]
    for mode in ("w", "a", "r+"):
        works(lambda: open(file, mode).write("changed"))
    works(os.truncate, file, 0)
    works(os.rename, file, file + ".moved")
    works(open, "x", "w")
    works(os.replace, "x", file)
    works(os.unlink, file)
    works(os.rmdir, target["empty"])
    works(os.link, file, os.path.join(target["folder"], "hard"))
""",
    ),
    Attack(
        "change what a file outside says of itself",
        "mode, owner, times or attributes outside are changed",
        """
def attack(target):
    for path in (target["file"], target["folder"], target["empty"]):
        works(os.chmod, path, 0o600)
        works(os.utime, path, (1, 1))
        works(os.chown, path, 12345, 12345)
        works(os.setxattr, path, "user.canary", b"x")
""",
    ),
    Attack(
        "a second name for a file outside",
        "the file outside is read or changed through it",
        """
def attack(target):
    works(os.symlink, target["file"], "soft")
    works(os.link, target["file"], "hard")
    works(os.symlink, target["folder"], "folder")
    works(os.symlink, "/proc/self/root", "root")
    works(os.symlink, "/proc/self/fd", "fds")
    for path in ("soft", "hard", "folder/secret.txt", "root" + target["file"],
                 "/proc/self/root" + target["file"], "../" * 32 + target["file"]):
        tell(text_of(path))
        works(lambda: open(path, "a").write("changed"))
        works(os.chmod, path, 0o600)
    return told()
""",
    ),
    Attack(
        "plant code in the interpreter and its packages",
        "a file that later programs run can be opened for writing",
        """
import importlib.util
def attack(target):
    found = []
    spec = importlib.util.find_spec("numpy")
    files = [os.__file__, json.__file__, sys.executable, os.path.realpath(sys.executable),
             target["project"] + "/pyproject.toml", target["module"], spec and spec.origin]
    for path in filter(None, files):
        if works(open, path, "r+b") or works(os.open, path, os.O_WRONLY):
            found.append(path)
        if os.path.exists(path) and works(os.chmod, path, os.stat(path).st_mode & 0o7777):
            found.append("mode of " + path)
    for folder in {*sys.path, target["site"], os.path.dirname(os.__file__)}:
        for name in ("sitecustomize.py", "usercustomize.py", target["mark"] + ".pth"):
            path = os.path.join(folder, name)
            if not os.path.isdir(folder) or os.path.realpath(folder) == os.getcwd():
                continue
            if works(lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))):
                works(os.unlink, path)
                found.append(path)
    return found
""",
    ),
    Attack(
        "one big file",
        _DISK,
        """
def attack(target):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    block = b"x" * 2**18
    try:
        with open("big", "wb", buffering=0) as file:
            while file.tell() < 128 * 2**20:
                file.write(block)
    except OSError:
        pass
    return os.path.exists("big") and os.path.getsize("big") > (target["disk_mib"] + 1) * 2**20
""",
    ),
    Attack(
        "many big files",
        _DISK,
        """
def attack(target):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    block, held = b"x" * 2**18, 0
    for number in range(64):
        try:
            with open(f"big-{number}", "wb", buffering=0) as file:
                while file.tell() < 16 * 2**20 and held < 160 * 2**20:
                    held += file.write(block)
                    time.sleep(0.005)
        except OSError:
            pass
    return held > 2 * target["disk_mib"] * 2**20 and f"{held >> 20} MiB"
""",
    ),
    Attack(
        "files without a name",
        _DISK,
        """
def attack(target):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    block, held, keep = b"x" * 2**18, 0, []
    for number in range(128):
        try:
            if number % 2:
                fd = os.open(".", os.O_TMPFILE | os.O_RDWR)
            else:
                fd = os.open(f"gone-{number}", os.O_CREAT | os.O_RDWR)
                os.unlink(f"gone-{number}")
            keep.append(fd)
            for _ in range(64):
                if held < 160 * 2**20:
                    held += os.write(fd, block)
        except OSError:
            pass
    return held > 2 * target["disk_mib"] * 2**20 and f"{held >> 20} MiB"
""",
    ),
    Attack(
        "files that are mapped, and then removed or replaced",
        _DISK,
        """
def attack(target):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    block, held, keep = b"x" * 2**20, 0, []
    for number in range(40):
        try:
            with open(f"mapped-{number}", "w+b", buffering=0) as file:
                for _ in range(4):
                    held += file.write(block)
                keep.append(mmap.mmap(file.fileno(), 4096))
            if number % 2:
                os.unlink(f"mapped-{number}")
            else:
                open("small", "w").close()
                os.replace("small", f"mapped-{number}")
        except OSError:
            pass
    return held > 2 * target["disk_mib"] * 2**20 and f"{held >> 20} MiB"
""",
    ),
    Attack(
        "files in folders that cannot be listed, or are too deep for a path",
        _DISK,
        """
def attack(target):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    block, held, top = b"x" * 2**20, 0, os.getcwd()
    os.mkdir("closed", 0o300)
    for name in ("f" * 200, "deep"):
        os.mkdir(name)
        os.chdir(name)
        for _ in range(30):
            works(os.mkdir, "d" * 200)
            works(os.chdir, "d" * 200)
        for number in range(16):
            time.sleep(0.02)
            for place in (f"../{number}", f"{top}/closed/{number}", str(number)):
                try:
                    with open(place, "wb", buffering=0) as file:
                        for _ in range(4):
                            held += file.write(block)
                except OSError:
                    pass
    return held > 3 * target["disk_mib"] * 2**20 and f"{held >> 20} MiB"
""",
    ),
    Attack(
        "allocate without writing",
        _DISK,
        """
def attack(target):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    fd = os.open("big", os.O_CREAT | os.O_RDWR)
    works(os.posix_fallocate, fd, 0, 128 * 2**20)
    works(os.truncate, fd, 10 * 2**30)
    held = os.fstat(fd)
    return held.st_blocks * 512 > (target["disk_mib"] + 1) * 2**20 or held.st_size > 2**30
""",
    ),
    Attack(
        "20,000 files",
        "they are all made, and kept on a disk outside",
        """
def attack(target):
    made = 0
    try:
        for made in range(20_000):
            os.close(os.open(f"file-{made}", os.O_CREAT | os.O_WRONLY))
    except OSError:
        pass
    return made >= 19_999 and os.stat(".").st_dev == target["device"]
""",
    ),
    Attack(
        "folders a thousand deep, without rights",
        _CLEAN,
        """
def attack(target):
    top = os.getcwd()
    try:
        for _ in range(1000):
            os.mkdir("deep")
            os.chdir("deep")
        open("file", "w").close()
        os.mkdir("closed", 0)
    except OSError:
        pass
    works(os.mkdir, top + "/closed")
    works(lambda: open(top + "/closed/file", "w"))
    works(os.chmod, top + "/closed", 0)
    works(os.chmod, top, 0)
""",
    ),
    Attack(
        "odd names, pipes and links in the work folder",
        _CLEAN,
        """
def attack(target):
    for name in (b"new\\nline", b"\\xff\\xfe", b"-rf", b"*", b" ", b"a" * 255, b"\\x1b[2J"):
        works(lambda: open(name, "w"))
    works(os.mkfifo, "pipe")
    works(os.mkfifo, "result")
    works(os.mkfifo, "stdout")
    works(os.symlink, target["folder"], "outside")
    works(os.symlink, "loop", "loop")
    works(os.chmod, "outside", 0)
""",
    ),
    Attack(
        "put something else in the place of the work folder",
        _CLEAN,
        """
def attack(target):
    here = os.getcwd()
    works(os.rename, here, here + ".moved")
    works(os.symlink, target["folder"], here)
    works(os.rmdir, here)
""",
    ),
    Attack(
        "a program that runs as its owner (setuid)",
        "a file with the bit is left",
        """
def attack(target):
    works(open, "tool", "w")
    works(os.chmod, "tool", 0o6777)
    works(os.mknod, "device", 0o60666, os.makedev(8, 0))
""",
    ),
]

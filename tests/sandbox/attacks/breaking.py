"""Crashes and floods: the trusted side must get one clear error, in time, and live."""

from __future__ import annotations

from sctom.sandbox import Limits
from tests.sandbox.attacks.base import ENDLESS, SHORT, Attack

_BREAKS = "the trusted side raises anything but CodeError, hangs, or keeps more than output_bytes"


def _crash(name: str, source: str, limits: Limits = SHORT) -> Attack:
    return Attack(name, _BREAKS, source, claims=False, limits=limits)


BREAKING = [
    _crash("segmentation fault", "def attack(target):\n    ctypes.string_at(0)\n"),
    _crash("abort", "def attack(target):\n    os.abort()\n"),
    _crash(
        "endless recursion",
        "def attack(target):\n    sys.setrecursionlimit(10**9)\n    attack(target)\n",
        ENDLESS,
    ),
    _crash(
        "endless recursion in C",
        """
def attack(target):
    sys.setrecursionlimit(10**9)
    nested = None
    for _ in range(10**6):
        nested = [nested]
    return repr(nested)
""",
    ),
    _crash("exit", "def attack(target):\n    sys.exit(0)\n"),
    _crash("exit while loading", "import sys\nsys.exit(0)\n"),
    _crash("hard exit", "def attack(target):\n    os._exit(0)\n"),
    _crash("hard exit while loading", "os._exit(0)\n"),
    _crash("source that is no Python", "def attack(target:\n"),
    _crash("source with a NUL", "x = '\0'\ndef attack(target):\n    return 1\n"),
    _crash("source of brackets a thousand deep", "x = " + "(" * 1000 + ")" * 1000 + "\n"),
    _crash("source with half a character", "x = '\\ud800'\ndef attack(target):\n    return x\n"),
    _crash("no such function", "x = 1\n"),
    _crash("something that is no function", "attack = 3\n"),
    _crash("keyboard interrupt", "def attack(target):\n    raise KeyboardInterrupt\n"),
    _crash(
        "an error that cannot be printed",
        """
class Sly(BaseException):
    def __str__(self):
        raise Sly
    __repr__ = __str__
    @property
    def args(self):
        raise Sly
def attack(target):
    raise Sly
""",
    ),
    _crash(
        "an error whose text never ends",
        """
class Sly(Exception):
    def __str__(self):
        while True:
            pass
def attack(target):
    raise Sly
""",
        ENDLESS,
    ),
    _crash("an error of 64 MB", "def attack(target):\n    raise ValueError('x' * 64_000_000)\n"),
    _crash(
        "an error raised by an error, a thousand times",
        """
def attack(target):
    error = None
    for number in range(1000):
        try:
            raise ValueError(number) from error
        except ValueError as one:
            error = one
    raise error
""",
    ),
    _crash(
        "flood of stdout",
        "def attack(target):\n    for _ in range(64):\n        print('x' * 1_000_000)\n",
    ),
    _crash(
        "flood of stderr",
        "def attack(target):\n    for _ in range(64):\n        os.write(2, b'x' * 1_000_000)\n",
    ),
    _crash(
        "flood while loading",
        """
for _ in range(64):
    os.write(1, b'x' * 1_000_000)
    os.write(2, b'x' * 1_000_000)
""",
    ),
    _crash(
        "flood of every descriptor, from threads",
        """
def attack(target):
    def flood(fd):
        for _ in range(64):
            if not works(os.write, fd, b'x' * 1_000_000):
                return
    for fd in range(1, 32):
        works(threading.Thread(target=flood, args=(fd,), daemon=True).start)
    time.sleep(1)
""",
    ),
    _crash("an answer of 64 MB", "def attack(target):\n    return 'x' * 64_000_000\n"),
    _crash(
        "an answer of a million numbers", "def attack(target):\n    return list(range(1_000_000))\n"
    ),
    _crash(
        "binary output",
        """
def attack(target):
    os.write(1, bytes(range(256)) * 64)
    os.write(2, bytes(range(256)))
    return 7
""",
    ),
    _crash(
        "close every descriptor",
        "def attack(target):\n    os.closerange(0, 256)\n    return 1\n",
    ),
    _crash(
        "use up every descriptor",
        """
def attack(target):
    keep = []
    while works(lambda: keep.append(os.dup(1))):
        pass
    return len(keep)
""",
    ),
    _crash(
        "put files in the place of every descriptor",
        """
def attack(target):
    here = os.open("x", os.O_CREAT | os.O_RDWR)
    for fd in range(0, 64):
        if fd != here:
            works(os.dup2, here, fd)
    return 1
""",
    ),
    _crash(
        "take the interpreter apart",
        """
import builtins, gc
def attack(target):
    for module in list(sys.modules.values()):
        if module is not None and module.__name__ not in ("builtins", "__main__"):
            getattr(module, "__dict__", {}).clear()
    builtins.__dict__.clear()
""",
    ),
    _crash(
        "trace and audit hooks that raise",
        """
def attack(target):
    def hook(*_):
        raise SystemExit
    sys.settrace(hook)
    sys.setprofile(hook)
    sys.addaudithook(hook)
    return 1
""",
    ),
    _crash(
        "answer twice, from a thread and a child",
        """
def attack(target):
    if works(os.fork):
        pass
    return os.getpid()
""",
    ),
]

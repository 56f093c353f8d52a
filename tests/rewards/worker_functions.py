"""What the tests let workers do."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time


def double(number):
    return 2 * number


def identity():
    return os.getpid()


def noisy():
    print("on stdout")
    print("on stderr", file=sys.stderr)
    return "quiet"


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def power():
    """Holds the interpreter for longer than anyone waits; no signal gets through."""
    return 9 ** (9**9**2 % 10**9 + 9**10)


def leave(status):
    os._exit(status)


def crash():
    ctypes.string_at(0)


def fail():
    raise LookupError("not here")


def swallow():
    return len(bytearray(8 * 2**30))


def unpicklable():
    return lambda: None


def grandchild():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid


def start_then_hang(path):
    path.write_text(str(grandchild()))
    time.sleep(60)

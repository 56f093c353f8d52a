"""Never to end: the deadline is kept by the trusted side, whatever the code does."""

from __future__ import annotations

from dataclasses import replace

from tests.sandbox.attacks.base import ENDLESS as DEADLINE
from tests.sandbox.attacks.base import Attack

_LATE = "the call outlives its deadline"

ENDLESS = [
    Attack("endless loop", _LATE, "def attack(target):\n    while True:\n        pass\n"),
    Attack(
        "endless loop, every signal ignored",
        _LATE,
        """
def attack(target):
    for number in signal.valid_signals():
        works(signal.signal, number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        pass
""",
    ),
    Attack("endless loop while loading", _LATE, "while True:\n    pass\n"),
    Attack("endless big integer in C", _LATE, "def attack(target):\n    return 9**9**9 > 0\n"),
    Attack(
        "endless regular expression in C",
        _LATE,
        'def attack(target):\n    return re.match("(a+)+$", "a" * 64 + "b")\n',
    ),
    Attack("sleep for a day", _LATE, "def attack(target):\n    time.sleep(86_400)\n"),
    Attack(
        "stop itself (SIGSTOP)",
        _LATE,
        "def attack(target):\n    os.kill(os.getpid(), signal.SIGSTOP)\n    time.sleep(60)\n",
    ),
    Attack(
        "read stdin for ever",
        _LATE,
        "def attack(target):\n    sys.stdin.read()\n    time.sleep(60)\n",
    ),
    Attack(
        "deadlock",
        _LATE,
        """
def attack(target):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
""",
    ),
    Attack(
        "a byte of output now and then",
        _LATE,
        """
def attack(target):
    while True:
        for fd in range(1, 64):
            works(os.write, fd, b"{")
        time.sleep(0.1)
""",
    ),
    Attack(
        "a thread that goes on after the answer",
        "something is alive after the session was closed",
        """
def attack(target):
    def spin():
        while True:
            pass
    threading.Thread(target=spin).start()
""",
    ),
    Attack(
        "an exit handler that never returns",
        "closing the session hangs",
        """
import atexit
atexit.register(time.sleep, 86_400)
def attack(target):
    return None
""",
    ),
    Attack(
        "a destructor that never returns",
        "closing the session hangs",
        """
class Sticky:
    def __del__(self):
        while True:
            pass
keep = Sticky()
def attack(target):
    global keep
    del keep
""",
    ),
    Attack(
        "a signal handler for SIGTERM and SIGXCPU that goes on",
        _LATE,
        """
def attack(target):
    for number in (signal.SIGTERM, signal.SIGXCPU, signal.SIGINT, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    while True:
        pass
""",
    ),
]

ENDLESS = [replace(attack, limits=DEADLINE) for attack in ENDLESS]

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sctom.sandbox import CodeError, Limits, Sandbox, SandboxUnavailable
from tests.sandbox.levels import LEVELS

LIMITS = Limits(seconds=20.0, memory_mib=320, disk_mib=8)

# leaves whatever may stay, and tells what somebody else has left
SOURCE = """
import builtins, ctypes, os, sys
LIBC = ctypes.CDLL(None, use_errno=True)
PLACES = (".", "/tmp", "/var/tmp", "/dev/shm", "/run", os.path.dirname(os.getcwd()))

def leave(mark):
    done = []
    for place in PLACES:
        try:
            with open(os.path.join(place, "left-by-" + mark), "w") as file:
                file.write(mark)
            done.append(place)
        except OSError:
            pass
    LIBC.shmget(0x5C70, 4096, 0o1666)
    LIBC.msgget(0x5C70, 0o1666)
    builtins.left = sys.modules["left"] = os.environ["LEFT"] = mark
    return len(done)

def found(mark):
    seen = []
    for place in PLACES:
        try:
            names = os.listdir(place)
        except OSError:
            continue
        names = [name for name in names if name.startswith("left-by-") and mark not in name]
        seen += [os.path.join(place, name) for name in names]
    if LIBC.shmget(0x5C70, 0, 0) >= 0 or LIBC.msgget(0x5C70, 0) >= 0:
        seen.append("shared memory or a queue")
    if getattr(builtins, "left", mark) != mark or os.environ.get("LEFT", mark) != mark:
        seen.append("names or variables")
    return seen

def where():
    return [os.getcwd(), os.getpid(), os.getuid()]

def signal(process):
    try:
        os.kill(process, 0)
    except OSError as error:
        return type(error).__name__
    return "done" if process != os.getpid() else "itself"

def read(path):
    try:
        return open(path).read()
    except OSError as error:
        return type(error).__name__
"""
REFUSED = ("FileNotFoundError", "PermissionError", "ProcessLookupError")


@pytest.fixture(params=LEVELS)
def sandbox(request):
    found = Sandbox(level=request.param, limits=LIMITS, libraries=False)
    try:
        found.level  # noqa: B018 - runs the canary
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    return found


def test_nothing_stays_for_the_next_session(sandbox):
    for mark in ("first", "second"):
        with sandbox.open(SOURCE) as session:
            assert session.call("found", [mark]) == []
            assert session.call("leave", [mark]) >= 1
            assert session.call("found", ["nobody"]) != []  # it does look in the right places


def test_nothing_is_shared_with_a_session_beside_it(sandbox):
    with sandbox.open(SOURCE) as one, sandbox.open(SOURCE) as other:
        assert one.call("leave", ["one"]) >= 1
        assert other.call("leave", ["other"]) >= 1
        assert one.call("found", ["one"]) == other.call("found", ["other"]) == []


def test_a_session_reaches_neither_files_nor_process_of_another(sandbox):
    with sandbox.open(SOURCE) as one, sandbox.open(SOURCE) as other:
        one.call("leave", ["one"])
        folder, process, user = one.call("where")
        assert user != 0
        assert other.call("read", [f"{folder}/left-by-one"]) in REFUSED
        answer = other.call("signal", [process])
        # inside a namespace both may have the same number: then the one that it reaches is itself
        assert answer in REFUSED or (answer == "itself" and other.call("where")[1] == process)
        assert one.call("where") == [folder, process, user]


def test_the_end_of_one_session_does_not_touch_another(sandbox):
    with sandbox.open(SOURCE) as lasting:
        lasting.call("leave", ["lasting"])
        with pytest.raises(CodeError, match="died"):
            sandbox.run("import os\ndef end():\n    os._exit(3)\n", "end")
        sandbox.open(SOURCE).close()
        assert lasting.call("found", ["nobody"]) != []


def test_many_at_once_get_their_own_answers(sandbox):
    barrier = threading.Barrier(4)

    def use(number):
        with sandbox.open(
            SOURCE + f"NUMBER = {number}\ndef own(x):\n    return NUMBER, x\n"
        ) as one:
            if number < 4:
                barrier.wait(60)
            one.call("leave", [str(number)])
            return one.call("own", [-number]), one.call("found", [str(number)])

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(use, range(8)))
    assert answers == [((number, -number), []) for number in range(8)]

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from sctom.sandbox import CodeError, Iter, Limits, Opaque, Sandbox, SandboxUnavailable, bubblewrap
from sctom.sandbox import probe as probe_module
from sctom.sandbox.landlock import Unsafe
from sctom.sandbox.probe import backends

LEVELS = list(dict.fromkeys(backend.name for backend in backends("auto")))
QUICK = Limits(seconds=20.0)


@pytest.fixture(params=LEVELS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    box = Sandbox(request.param, QUICK, libraries=False)
    try:
        box.check()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    return box


def kind_of(sandbox: Sandbox, source: str, limits: Limits = QUICK) -> str:
    with pytest.raises(CodeError) as caught, sandbox.open(source, limits=limits) as session:
        session.call("f")
    return caught.value.kind


def test_some_level_works_here():
    assert Sandbox(libraries=False).check().name in ("bubblewrap", "landlock", "seatbelt")


VALUES = [
    None,
    True,
    -(1 << 62),
    3**5000,
    -0.0,
    0.1,
    math.inf,
    2.5 - 1j,
    "é\ud83d\ude00\udc00",
    "\ud83d\ude00",
    b"\x00\xff",
    [],
    (),
    (1, [2.0, {3}], frozenset({"a"})),
    {1: "a", (2, 3): b"b", None: {True: 1.0}},
]


def test_plain_values_cross_both_ways_exactly(sandbox):
    with sandbox.open("def same(x): return x") as session:
        for value in VALUES:
            back = session.call("same", [value])
            assert (repr(back), type(back)) == (repr(value), type(value))
        assert math.isnan(session.call("same", [math.nan]))


def test_other_values_become_stand_ins(sandbox):
    source = """
import enum, collections
class E(enum.IntEnum): one = 1
class S(str): pass
class A:
    def __eq__(self, other): return True
    def __repr__(self): return "A()"
def subclasses(): return [E.one, S("x"), collections.namedtuple("P", "a b")(1, 2), collections.Counter("a")]
def other(): return A()
def squares(): return (n * n for n in range(4))
def endless():
    while True: yield 1
def holds_itself():
    a = []; a.append(a); return a
"""  # noqa: E501
    with sandbox.open(source) as session:
        assert repr(session.call("subclasses")) == "[1, 'x', (1, 2), {'a': 1}]"
        other = session.call("other")
        assert isinstance(other, Opaque)
        assert (other.type_name, other.text, other.truth) == ("candidate.A", "A()", True)
        assert other != other
        assert session.call("squares") == Iter((0, 1, 4, 9))
        for name in ("endless", "holds_itself"):
            with pytest.raises(CodeError) as caught:
                session.call(name)
            assert caught.value.kind == "value"
        assert session.call("squares") == Iter((0, 1, 4, 9))


def test_state_lasts_within_a_session_and_not_beyond(sandbox):
    source = "seen = []\ndef f(x):\n    seen.append(x); return seen"
    with sandbox.open(source) as session:
        session.call("f", [1])
        assert session.call("f", [2]) == [1, 2]
    assert sandbox.run(source, "f", [3]) == [3]


def test_every_way_of_failing_has_its_kind(sandbox):
    assert kind_of(sandbox, "def f(): return 1 / 0") == "error"
    assert kind_of(sandbox, "def g(): pass") == "error"
    assert kind_of(sandbox, "def f(:") == "error"
    assert kind_of(sandbox, "import sys\ndef f(): sys.exit(0)") == "error"
    assert kind_of(sandbox, "import os\ndef f(): os._exit(0)") == "died"
    assert kind_of(sandbox, "def f(): return len(bytearray(3 << 30))") == "memory"
    assert kind_of(sandbox, "def f(): print('x' * 2_000_000)") == "output"
    assert kind_of(sandbox, "def f(): return 'x' * (5 << 20)") == "value"
    assert kind_of(sandbox, "def f():\n  while True: pass", Limits(seconds=0.3)) == "timeout"


def test_an_error_carries_the_end_of_standard_error(sandbox):
    with pytest.raises(CodeError, match="error: ZeroDivisionError") as caught:
        sandbox.run("def f(): return 1 / 0", "f")
    assert "line 1, in f" in caught.value.stderr


def test_a_deadline_is_kept(sandbox):
    with sandbox.open("import time\ndef f(): time.sleep(60)") as session:
        start = time.monotonic()
        with pytest.raises(CodeError) as caught:
            session.call("f", seconds=0.3)
        assert caught.value.kind == "timeout"
        assert time.monotonic() - start < 5
        with pytest.raises(CodeError):
            session.call("f")


def test_callbacks_cross_to_us_and_back(sandbox):
    def refuse() -> None:
        raise CodeError("timeout", "the inner one")

    source = """
def f(x):
    try:
        no()
    except RuntimeError as error:
        return add(x, y=(1,)), str(error)
"""
    with sandbox.open(source) as session:
        calls = {"add": lambda x, y: [x, y], "no": refuse}
        assert session.call("f", [{2}], callbacks=calls) == ([{2}, (1,)], "timeout: the inner one")
        with pytest.raises(ZeroDivisionError):
            session.call("f", [1], callbacks={"add": max, "no": lambda: 1 / 0})


def test_a_message_that_is_not_an_answer_is_a_bad_value(sandbox):
    for text in ('["value",2,{"x":1}]', '["value",1,3]', "[" * 3000, '["value",2,NaN]', "{}"):
        source = f"""
import os
def f():
    data = {text!r}.encode()
    for end in range(3, 64):
        try: os.write(end, len(data).to_bytes(4, "big") + data)
        except OSError: pass
"""
        assert kind_of(sandbox, source) == "value"


def test_sessions_in_threads_do_not_mix(sandbox):
    results: dict[int, object] = {}

    def work(n: int) -> None:
        results[n] = [sandbox.run(f"def f(x): return x * {n}", "f", [m]) for m in range(3)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: [0, n, 2 * n] for n in range(4)}


def test_a_session_outlives_the_thread_that_opened_it(sandbox):
    opened = []
    thread = threading.Thread(target=lambda: opened.append(sandbox.open("def f(): return 1")))
    thread.start()
    thread.join()
    with opened[0] as session:
        assert session.call("f") == 1


def test_nothing_is_left_behind(sandbox):
    def state() -> tuple[int, int]:
        children = Path(f"/proc/self/task/{os.getpid()}/children")
        return len(os.listdir("/proc/self/fd")), len(children.read_text().split())

    sandbox.run("def f(): return 1", "f")
    before = state()
    for source in ("def f(): return 1", "def f(): 1 / 0", "import os\ndef f(): os._exit(1)", "x ="):
        with pytest.raises(CodeError) if "return" not in source else nullcontext():
            sandbox.run(source, "f")
    assert state() == before


def test_the_usual_parts_of_the_library_work(sandbox):
    source = """
import asyncio, collections, dataclasses, datetime, decimal, fractions, heapq, itertools, json
import random, re, statistics, string, tempfile, threading, typing
@dataclasses.dataclass
class P:
    x: int
async def later(): await asyncio.sleep(0.001); return 5
def f():
    done = []
    thread = threading.Thread(target=done.append, args=(4,)); thread.start(); thread.join()
    with tempfile.TemporaryFile() as file:
        file.write(b"x"); size = file.tell()
    return P(3).x, done, asyncio.run(later()), size, json.loads("[1]"), random.random() < 1
"""
    assert sandbox.run(source, "f") == (3, [4], 5, 1, [1], True)


def test_threads_and_files_are_bounded(sandbox):
    source = """
import threading, time
def threads():
    for count in range(60):
        try: threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
        except RuntimeError: return count
def files():
    for n in range(1_000_000): open(str(n), "w").close()
def disk():
    with open("big", "wb") as file:
        for _ in range(9): file.write(bytes(1 << 20))
"""
    limits = Limits(seconds=20, processes=8, disk_mib=8)
    with sandbox.open(source, limits=limits) as session:
        assert session.call("threads") == 7
        with pytest.raises(CodeError, match=r"File too large|No space left"):
            session.call("disk")
        with pytest.raises(CodeError, match=r"output: (made|wrote) more than"):
            session.call("files")


@pytest.mark.skipif("bubblewrap" not in LEVELS, reason="needs bwrap")
def test_bubblewrap_in_a_user_namespace(monkeypatch):
    monkeypatch.setattr(bubblewrap, "is_initial_root", lambda: False)
    probe_module._find.cache_clear()
    try:
        box = Sandbox("bubblewrap", libraries=False)
        assert box.level == "bubblewrap"
        assert box.run("import os\ndef f(): return os.getuid()", "f") == 65534
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    finally:
        probe_module._find.cache_clear()


def test_nothing_safe_means_nothing_is_run(monkeypatch):
    monkeypatch.setattr(probe_module, "backends", lambda wanted: iter(()))
    probe_module._find.cache_clear()
    try:
        with pytest.raises(SandboxUnavailable, match="apt install bubblewrap"):
            Sandbox().run("def f(): return 1", "f")
        assert Sandbox(unsafe=True, libraries=False).check().name == "unsafe"
        assert Sandbox(unsafe=True, libraries=False).run("def f(): return 1", "f") == 1
    finally:
        probe_module._find.cache_clear()


def test_a_backend_that_contains_nothing_is_not_accepted(monkeypatch):
    monkeypatch.setattr(probe_module, "backends", lambda wanted: iter([Unsafe()]))
    probe_module._find.cache_clear()
    try:
        with pytest.raises(SandboxUnavailable, match="wrote a file outside"):
            Sandbox().check()
    finally:
        probe_module._find.cache_clear()


def test_unsafe_must_be_accepted_twice():
    with pytest.raises(SandboxUnavailable, match="unsafe: true"):
        Sandbox("unsafe").check()

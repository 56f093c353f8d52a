from __future__ import annotations

import gc
import logging
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sctom.rewards import Failure
from sctom.rewards.workers import REPORT_EVERY, Deadline, Workers, shared_workers

HERE = Path(__file__).parent
AT = "worker_functions:"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)


@pytest.fixture
def workers():
    with Workers(processes=1, seconds=30.0) as pool:
        yield pool


def gone(process: int) -> bool:
    """Whether it has ended, within some seconds."""
    for _ in range(100):
        try:
            if Path(f"/proc/{process}/stat").read_text().split()[2] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_results_keep_the_order_of_the_items():
    with Workers(processes=2) as pool:
        items = [(0.2,), (0.0,), (0.1,)]
        assert pool.map(AT + "sleep", items) == [0.2, 0.0, 0.1]


def test_no_items_start_no_process():
    pool = Workers()
    assert pool.map("math:sqrt", []) == []
    assert pool._crew is None


def test_a_late_item_is_killed_and_the_next_one_is_done(workers):
    before = workers.map(AT + "identity", [()])
    started = time.monotonic()
    late, late_too = workers.map(AT + "sleep", [(60,), (60,)], seconds=0.3)
    assert isinstance(late, Deadline) and isinstance(late_too, Deadline)
    assert late.reason == "no result within 0.3 s, so the worker was killed"
    assert time.monotonic() - started < 20
    assert gone(before[0])
    assert workers.map(AT + "double", [(2,)]) == [4]


def test_what_holds_the_interpreter_is_killed_and_this_process_stays_responsive(workers):
    workers.map(AT + "double", [(1,)])
    ticks = []
    done = threading.Event()

    def tick():
        while not done.wait(0.05):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    started = time.monotonic()
    (result,) = workers.map(AT + "power", [()], seconds=1.0)
    elapsed = time.monotonic() - started
    done.set()
    thread.join()
    assert isinstance(result, Deadline)
    assert 1.0 <= elapsed < 15.0
    assert len(ticks) >= 5


@pytest.mark.parametrize(
    ("function", "arguments", "reason"),
    [
        ("leave", (7,), "the worker ended with status 7"),
        ("crash", (), "the worker was ended by SIGSEGV"),
        ("fail", (), "LookupError: not here"),
        ("unpicklable", (), "Can't pickle|Can't get local object"),
    ],
)
def test_a_failing_item_says_why_and_the_others_go_on(workers, function, arguments, reason):
    (failure,) = workers.map(AT + function, [arguments])
    assert isinstance(failure, Failure) and not isinstance(failure, Deadline)
    assert re.search(reason, failure.reason)
    assert workers.map(AT + "double", [(3,)]) == [6]


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux only")
def test_memory_is_limited_and_the_worker_is_replaced():
    with Workers(processes=1, memory_mib=1024) as pool:
        before = pool.map(AT + "identity", [()])
        (failure,) = pool.map(AT + "swallow", [()])
        assert failure.reason == "MemoryError"
        assert pool.map(AT + "identity", [()]) != before


def test_what_functions_print_does_not_reach_the_channel(workers):
    assert workers.map(AT + "noisy", [(), ()]) == ["quiet", "quiet"]


def test_what_a_late_item_started_is_killed_with_it(workers, tmp_path):
    path = tmp_path / "pid"
    (late,) = workers.map(AT + "start_then_hang", [(path,)], seconds=2.0)
    assert isinstance(late, Deadline)
    assert gone(int(path.read_text()))


def test_a_module_that_is_missing_is_a_failure_of_each_item(workers):
    first, second = workers.map("no_such_module:f", [(), ()])
    assert first.reason == second.reason
    assert first.reason.startswith("loading no_such_module:f: ModuleNotFoundError")


def local_function():
    def function():
        return None

    return function


@pytest.mark.parametrize("function", ["sqrt", lambda: None, local_function()])
def test_functions_that_another_process_cannot_import_are_refused(workers, function):
    with pytest.raises(ValueError, match=r"package\.module:name|worker"):
        workers.map(function, [()])


def test_threads_share_the_workers(workers):
    results: dict[int, list[int]] = {}

    def run(start):
        results[start] = workers.map(AT + "double", [(start + i,) for i in range(20)])

    threads = [threading.Thread(target=run, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {100 * n: [2 * (100 * n + i) for i in range(20)] for n in range(4)}


def test_a_worker_outlives_the_thread_that_asked_first(workers):
    found = []
    thread = threading.Thread(target=lambda: found.extend(workers.map(AT + "identity", [()])))
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert workers.map(AT + "identity", [()]) == found


def test_closing_ends_the_workers_and_what_waits():
    pool = Workers(processes=1)
    (process,) = pool.map(AT + "identity", [()])
    results = []
    thread = threading.Thread(target=lambda: results.extend(pool.map(AT + "sleep", [(60,)] * 2)))
    thread.start()
    time.sleep(0.5)
    pool.close()
    thread.join(timeout=10)
    assert [type(result) for result in results] == [Failure, Failure]
    assert gone(process)
    assert pool.map(AT + "double", [(1,)]) == [2]
    pool.close()


def test_a_forgotten_pool_ends_its_workers():
    pool = Workers(processes=1)
    (process,) = pool.map(AT + "identity", [()])
    del pool
    gc.collect()
    assert gone(process)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit()"])
@pytest.mark.parametrize("function", ["power", "sleep"])
def test_workers_end_with_their_parent_also_in_the_middle_of_an_item(function, end):
    arguments = "(60,)" if function == "sleep" else "()"
    script = f"""
import os, sys, threading, time
sys.path.insert(0, {str(HERE)!r})
from sctom.rewards.workers import Workers
pool = Workers(processes=1)
print(pool.map("worker_functions:identity", [()])[0], flush=True)
threading.Thread(
    target=pool.map, args=("worker_functions:{function}", [{arguments}]), daemon=True
).start()
time.sleep(0.5)
{end}
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert gone(int(done.stdout)), done.stderr


def test_a_forked_child_gets_workers_of_its_own():
    script = f"""
import os, sys
sys.path.insert(0, {str(HERE)!r})
from sctom.rewards.workers import shared_workers
first = shared_workers().map("worker_functions:double", [(1,)])
child = os.fork()
if child == 0:
    os._exit(0 if shared_workers().map("worker_functions:double", [(4,)]) == [8] else 1)
assert os.waitpid(child, 0)[1] == 0
assert shared_workers().map("worker_functions:double", [(2,)]) == [4]
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "fine\n", done.stderr


def test_deadlines_in_a_row_are_reported(caplog):
    with Workers(processes=2) as pool, caplog.at_level(logging.WARNING):
        pool.map(AT + "sleep", [(60,)] * REPORT_EVERY, seconds=0.01)
    assert [record.message for record in caplog.records] == [
        f"{AT}sleep: {REPORT_EVERY} items in a row were killed after 0.01 s each, so scoring is "
        "slow; shorten `seconds`, or look at what the model writes"
    ]


@pytest.mark.parametrize(
    "arguments", [{"processes": 0}, {"seconds": 0.0}, {"seconds": float("nan")}, {"memory_mib": 0}]
)
def test_arguments_that_make_no_sense(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        Workers(**arguments)


def test_shared_workers_are_one_pool():
    assert shared_workers() is shared_workers()
    assert os.getpid() not in shared_workers().map(AT + "identity", [()])

from __future__ import annotations

import functools
import mmap
import os
import signal
import socket

import pytest

from sctom.sandbox import Limits, Sandbox, SandboxUnavailable, landlock
from sctom.sandbox.folder import DEPTH, FILES, directory_gauge, remove, removed_bytes
from tests.sandbox.arena import SECRET, Arena
from tests.sandbox.attacks import ATTACKS, SHORT
from tests.sandbox.campaign import UnconfinedError, campaign, foreign, probe
from tests.sandbox.levels import LEVELS
from tests.sandbox.watch import Watch, catch_signals

NAMES = [attack.name for attacks in ATTACKS.values() for attack in attacks]
BUGS = ("NameError", "TypeError", "AttributeError", "IndexError", "KeyError", "SyntaxError")


@functools.cache
def outcomes_of(level):
    sandbox = Sandbox(level=level)
    try:
        sandbox.level  # noqa: B018 - runs the canary
    except SandboxUnavailable as error:
        return str(error)
    return campaign(sandbox)


@pytest.fixture(params=LEVELS)
def fought(request):
    found = outcomes_of(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_contained(fought, name):
    outcomes, _ = fought
    assert outcomes[name].breaches == ()


def test_nothing_is_left(fought):
    _, left = fought
    assert left == []


def test_attacks_were_made_and_did_not_stumble(fought):
    outcomes, _ = fought
    expected = {
        attack.name for group in ("crashes and floods", "answers") for attack in ATTACKS[group]
    }
    stumbled = {
        name: outcome.said
        for name, outcome in outcomes.items()
        if name not in expected and outcome.said.startswith(BUGS)
    }
    assert stumbled == {}


def test_deadlines_are_kept(fought):
    outcomes, _ = fought
    late = [outcomes[attack.name] for attack in ATTACKS["time"]]
    assert sum(outcome.ended == "timeout" for outcome in late) >= 10


def test_every_attack_has_a_name_of_its_own():
    assert len(set(NAMES)) == len(NAMES)


# --- the canaries sing: nothing here runs an attack, the test touches them itself


def touched(action):
    catch_signals()
    with Arena(SHORT) as arena:
        assert arena.breaches("") == []
        return arena.breaches(action(arena) or "")


def connect(family, kind, address):
    with socket.socket(family, kind) as one:
        one.connect(address)
        if kind == socket.SOCK_DGRAM:
            one.send(b"x")


def stop(victim):
    victim.send_signal(signal.SIGSTOP)
    os.waitpid(victim.pid, os.WUNTRACED)


@pytest.mark.parametrize(
    ("breach", "action"),
    [
        ("the secret came back", lambda arena: f"...{SECRET}..."),
        ("the folder outside was changed", lambda arena: os.utime(arena.file, (1, 1))),
        ("the folder outside was changed", lambda arena: os.chmod(arena.empty, 0o700)),
        (
            "the folder outside was changed",
            lambda arena: os.link(arena.file, arena.folder / "hard"),
        ),
        ("the process outside was changed", lambda arena: stop(arena.victim)),
        ("the process outside was changed", lambda arena: os.setpriority(0, arena.victim.pid, 19)),
        ("the trainer got a signal", lambda arena: signal.raise_signal(signal.SIGURG)),
        (
            "tcp was reached",
            lambda arena: connect(
                socket.AF_INET, socket.SOCK_STREAM, arena.listeners["tcp"].getsockname()
            ),
        ),
        (
            "udp was reached",
            lambda arena: connect(
                socket.AF_INET, socket.SOCK_DGRAM, arena.listeners["udp"].getsockname()
            ),
        ),
        (
            "unix was reached",
            lambda arena: connect(socket.AF_UNIX, socket.SOCK_STREAM, str(arena.root / "socket")),
        ),
        (
            "abstract was reached",
            lambda arena: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + arena.mark),
        ),
    ],
)
def test_a_canary_sings(breach, action):
    assert touched(action) == [breach]


def test_litter_and_survivors_are_found():
    with Arena(SHORT) as arena:
        litter = arena.root / f"{arena.mark}.canary"
        litter.touch()
        child = os.fork()
        if child == 0:
            with open("/proc/self/comm", "w") as file:
                file.write(arena.mark)
            signal.pause()
            os._exit(0)
        found = []
        while len(found) < 2:
            found += arena.breaches("")
        os.waitpid(child, 0)
        assert found == [f"{litter} was made", f"process {child} is alive"]


def test_processes_are_counted():
    with Watch(0.01) as watch, Arena(SHORT) as arena:
        source = f"""
import ctypes, time
ctypes.CDLL(None).prctl(15, {arena.mark.encode()!r})
block = bytearray(b"x") * (50 << 20)
time.sleep(0.5)
"""
        Sandbox(libraries=False).open(source).close()
        peak = watch.peaks[arena.mark]
    assert (peak.processes, peak.threads) == (1, 1)
    assert 50 <= peak.mib < 100


def test_values_that_are_not_plain_are_found():
    assert foreign([1, (2.0, {"a": {b"x"}}), None]) == ""
    assert foreign([type("Sly", (float,), {})(1)]) == "a Sly reached the trusted side"


# --- safety of the suite itself


class Leaky(Sandbox):
    """Runs the harmless probe right here, which is no sandbox at all."""

    def run(self, source, name, args=()):
        space = {}
        exec(source, space)
        return space[name](*args)


def test_nothing_is_run_where_a_probe_gets_out():
    with pytest.raises(
        UnconfinedError, match=r"no attack was run, because a probe .*wrote outside"
    ):
        probe(Leaky())
    with pytest.raises(UnconfinedError, match="resource limits only"):
        campaign(Sandbox(level="unsafe", unsafe=True))


# --- what the attacks have taught


def test_what_cannot_be_measured_is_too_much(tmp_path):
    gauge = directory_gauge(str(tmp_path), Limits(disk_mib=1))
    tmp_path.joinpath("small").write_bytes(bytes(1 << 19))
    assert gauge(0) is None
    tmp_path.joinpath("big").write_bytes(bytes(1 << 20))
    assert gauge(0) == ("output", "wrote more than 1 MiB")
    tmp_path.joinpath("big").unlink()
    deep = tmp_path.joinpath(*["d"] * (DEPTH + 1))
    deep.mkdir(parents=True)
    assert gauge(0) == ("output", f"made directories more than {DEPTH} deep")
    deep.rmdir()
    assert gauge(0) is None and FILES > DEPTH
    assert directory_gauge("x\0", Limits(disk_mib=1))  # is only made here
    long = directory_gauge("/" + "x" * 300, Limits())
    assert long(0) == ("output", "made a directory that cannot be measured: File name too long")


def test_whatever_is_in_a_folder_is_removed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    os.symlink(outside, folder / "link")
    os.mkfifo(folder / "pipe")
    here = os.getcwd()
    try:
        os.chdir(folder)
        for _ in range(3000):
            os.mkdir("d", 0o700)
            os.chdir("d")
        os.mkdir("closed", 0)
        os.chmod(".", 0o500)
    finally:
        os.chdir(here)
    remove(str(folder))
    remove(str(folder))  # is gone already: nothing to do
    assert list(tmp_path.iterdir()) == [outside]
    assert outside.stat().st_mode & 0o777 == 0o755


def test_removed_files_are_seen(tmp_path):
    with open(tmp_path / "open", "w+b") as file, open(tmp_path / "mapped", "w+b") as other:
        for one in (file, other):
            one.write(bytes(1 << 20))
            one.flush()
        assert removed_bytes(os.getpid(), str(tmp_path)) == 0
        os.unlink(file.name)
        assert removed_bytes(os.getpid(), str(tmp_path)) == 1 << 20
        with mmap.mmap(other.fileno(), 4096):
            os.unlink(other.name)
            assert removed_bytes(os.getpid(), str(tmp_path)) == 2 << 20
            other.close()
            # mmap keeps a descriptor of its own, which the system call does not
            assert removed_bytes(os.getpid(), str(tmp_path)) == 2 << 20
    assert removed_bytes(os.getpid(), str(tmp_path)) == 0


def test_files_are_not_removed_where_their_room_cannot_be_seen(monkeypatch):
    source = """
import os, tempfile
def attempt():
    open("x", "w").write("x")
    os.mkdir("folder")
    os.rmdir("folder")
    done = []
    for action in (lambda name: os.open(".", os.O_TMPFILE | os.O_RDWR), os.remove):
        try:
            action("x")
        except OSError as error:
            done.append(type(error).__name__)
    return done, os.path.exists("x")
"""
    sandbox = Sandbox(level="landlock")
    try:
        sandbox.level  # noqa: B018 - runs the canary
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    monkeypatch.setattr(landlock, "can_see_removed", lambda: True)
    assert sandbox.run(source, "attempt") == (["OSError"], False)
    monkeypatch.setattr(landlock, "can_see_removed", lambda: False)
    assert sandbox.run(source, "attempt") == (["OSError", "PermissionError"], True)

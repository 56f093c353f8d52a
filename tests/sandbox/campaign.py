"""Runs every attack against one level, inside only, and tells what each achieved."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sctom.sandbox import CodeError, Iter, Limits, Opaque, Plain, Sandbox
from tests.sandbox.arena import SECRET, VARIABLE, Arena
from tests.sandbox.attacks import ATTACKS, PRELUDE, SHORT, Attack
from tests.sandbox.watch import Peak, Watch, catch_signals

_PLAIN = (type(None), bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict)
_GRACE = 10.0  # seconds: the machine is shared, and starting an interpreter takes its time

PROBE = """
import os, signal, socket
def probe(target):
    done = []
    try:
        with open(target["file"]) as file:
            done.append(file.read(1) and "read a file outside")
    except OSError:
        pass
    try:
        with open(target["folder"] + "/probe", "w"):
            done.append("wrote outside")
    except OSError:
        pass
    try:
        os.kill(target["victim"], 0)
        done.append("could signal a process outside")
    except OSError:
        pass
    try:
        with socket.create_connection(("127.0.0.1", target["tcp"]), 1):
            done.append("connected")
    except OSError:
        pass
    if os.path.exists("pyproject.toml") or os.getcwd() == target["home"]:
        done.append("works in a folder that is not its own")
    return done
"""


class UnconfinedError(Exception):
    """The sandbox does not hold even a harmless probe; no attack was run."""


@dataclass(frozen=True)
class Outcome:
    """How one attack ended, and what it achieved: nothing, if it was contained."""

    ended: str
    said: str
    breaches: tuple[str, ...]
    seconds: float
    peak: Peak


def probe(sandbox: Sandbox) -> None:
    """Make sure that the sandbox confines, without doing anything that could hurt.

    Raises:
        UnconfinedError: it does not.
    """
    with Arena(SHORT) as arena:
        done = sandbox.run(PROBE, "probe", [arena.target])
        if done != []:
            raise UnconfinedError(f"no attack was run, because a probe {done}")


def foreign(value: Plain) -> str:
    """What is wrong with a value as it reached the trusted side; empty if nothing is."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python prints
        text = ""
    except RecursionError:
        return "the answer is too deep to be looked at"
    if len(text) > 20_000_000:
        return f"the answer takes {len(text):,} characters"
    stack: list[object] = [value]
    while stack:
        item = stack.pop()
        if type(item) is Iter:
            stack += item.items
        elif type(item) in (list, tuple, set, frozenset):
            stack += item
        elif type(item) is dict:
            stack += [*item.keys(), *item.values()]
        elif type(item) is not Opaque and type(item) not in _PLAIN:
            return f"a {type(item).__name__} reached the trusted side"
    return ""


def run(sandbox: Sandbox, attack: Attack, watch: Watch) -> Outcome:
    """Run one attack inside the sandbox and look at the canaries."""
    with Arena(attack.limits) as arena:
        source = PRELUDE.format(target=arena.target_json) + attack.source
        started = time.monotonic()
        text, said, breaches = "", "", []
        try:
            with sandbox.open(source, limits=attack.limits) as session:
                value = session.call("attack", [arena.target])
            ended = "returned"
            if attack.claims and value:
                text = repr(value)[:100_000]
                breaches.append(f"it claims {text[:200]}")
            breaches += filter(None, [foreign(value)])
        except CodeError as error:
            ended, said = error.kind, error.message
            text = f"{error.message}{error.stderr}"
            if len(text) > 2 * attack.limits.output_bytes:
                breaches.append(f"the error takes {len(text):,} characters")
        except Exception as error:
            ended = type(error).__name__
            breaches.append(f"the trusted side raised {ended}: {str(error)[:200]}")
        seconds = time.monotonic() - started
        if seconds > 2 * attack.limits.seconds + _GRACE:
            breaches.append(f"it took {seconds:.1f} s")
        breaches += arena.breaches(text)
        peak = watch.peaks[arena.mark]
        breaches += _excess(peak, attack.limits)
        return Outcome(ended, said, tuple(breaches), seconds, peak)


def _excess(peak: Peak, limits: Limits) -> Iterator[str]:
    if max(peak.processes, peak.threads) > limits.processes + 1:
        yield f"{peak.processes} processes and {peak.threads} threads were seen"
    if peak.mib > limits.memory_mib + limits.disk_mib:
        yield f"{peak.mib} MiB were seen"


@contextmanager
def secret_environment() -> Iterator[Path]:
    """A secret in this process's environment, and temporary files in a folder that is watched."""
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir="/tmp"))
    scratch.chmod(0o755)
    before = tempfile.tempdir
    os.environ[VARIABLE] = SECRET
    tempfile.tempdir = str(scratch)
    try:
        yield scratch
    finally:
        tempfile.tempdir = before
        del os.environ[VARIABLE]
        shutil.rmtree(scratch, ignore_errors=True)


def campaign(sandbox: Sandbox) -> tuple[dict[str, Outcome], list[str]]:
    """Every attack, and what was left in the folder for temporary files afterwards.

    Raises:
        SandboxUnavailable: the level does not work on this machine.
        UnconfinedError: it works, but does not confine.
    """
    if sandbox.level == "unsafe":
        raise UnconfinedError("no attack is run with resource limits only")
    if threading.current_thread() is threading.main_thread():
        catch_signals()
    outcomes: dict[str, Outcome] = {}
    with secret_environment() as scratch:
        probe(sandbox)
        with Watch() as watch:
            # what only waits for its deadline can wait together
            for workers, groups in ((4, ATTACKS.keys() - {"time"}), (7, {"time"})):
                chosen = [
                    a for group, attacks in ATTACKS.items() if group in groups for a in attacks
                ]
                with ThreadPoolExecutor(workers) as pool:
                    done = pool.map(lambda attack: run(sandbox, attack, watch), chosen)
                    outcomes |= dict(zip([a.name for a in chosen], done, strict=True))
        left = [str(path) for path in scratch.iterdir()]
    return outcomes, left

"""Which level works here: found by running a canary, not by looking for programs."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from sctom.sandbox import bubblewrap, landlock, seatbelt
from sctom.sandbox.interpreter import interpreter
from sctom.sandbox.limits import CodeError, Level, LevelName, Limits, SandboxUnavailable
from sctom.sandbox.plain import Plain
from sctom.sandbox.session import Backend, Session

LIBRARIES = (
    "cv2",
    "matplotlib",
    "mpmath",
    "numpy",
    "pandas",
    "seaborn",
    "sklearn",
    "statsmodels",
    "sympy",
)
"""What code that is scored may import, if it is installed."""

_LIMITS = Limits(seconds=60.0)
_LOCK = threading.RLock()
_CANARY = """
import os, socket, sys

def tried(action):
    try:
        action()
    except BaseException:
        return False
    return True

def report(outside, folder):
    return {
        "reads a file outside": tried(lambda: open(outside).read()),
        "writes a file outside": tried(lambda: open(folder + "/written", "w").close()),
        "sees the environment": "SCTOM_CANARY" in os.environ or len(os.environ) > 20,
        "opens a socket": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        "starts a process": tried(fork),
        "starts a program": tried(spawn),
        "is root": os.getuid() == 0,
        "cannot write where it works": not tried(lambda: open("own", "w").write("x")),
    }

def fork():
    if os.fork() == 0:
        os._exit(0)

def spawn():
    os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {})

def imports(names):
    import importlib
    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"[:300]
    return failed
"""


def backends(wanted: str) -> Iterator[Backend]:
    """What could work here, the best first."""
    if wanted in ("auto", "bubblewrap") and platform.system() == "Linux":
        yield from map(bubblewrap.Bubblewrap, bubblewrap.programs())
    if wanted in ("auto", "landlock") and landlock.version():
        yield landlock.Landlock()
    if wanted in ("auto", "seatbelt") and seatbelt.available():
        yield seatbelt.Seatbelt()


def find(wanted: str, *, unsafe: bool) -> tuple[Backend, Level]:
    """The best backend whose canary was contained; found once per process.

    Args:
        wanted: "auto" or the name of a level.
        unsafe: whether resource limits alone will do, if nothing better works.

    Raises:
        SandboxUnavailable: no backend contained it.
    """
    with _LOCK:
        return _find(wanted, unsafe, os.getpid())


@functools.cache
def _find(wanted: str, unsafe: bool, process: int) -> tuple[Backend, Level]:
    notes: list[str] = []
    if wanted != "unsafe":
        for backend in backends(wanted):
            problem = _escapes(backend)
            if problem is None:
                return backend, Level(backend.name, backend.detail, tuple(notes))
            notes.append(f"{backend.name} ({backend.detail}): {problem}")
    if unsafe:
        chosen = landlock.Unsafe()
        return chosen, Level(chosen.name, chosen.detail, tuple(notes))
    raise SandboxUnavailable(_advice(wanted, notes))


def _advice(wanted: str, notes: list[str]) -> str:
    tried = "".join(f"\n  tried {note}" for note in notes)
    if wanted == "unsafe":
        return (
            "the sandbox level 'unsafe' contains no attack; set unsafe: true as well to accept it"
        )
    return (
        f"no sandbox of level {wanted!r} works on this machine, so no code was run. On Linux "
        "install bubblewrap (apt install bubblewrap, or pip install 'sctom[sandbox]') and allow "
        "user namespaces, or use a kernel with Landlock (5.13 or newer); macOS brings "
        f"sandbox-exec. unsafe: true runs code with resource limits only.{tried}"
    )


def _escapes(backend: Backend) -> str | None:
    """What the canary could do that it must not, or why it could not be run."""
    with tempfile.TemporaryDirectory(prefix="sctom-canary-") as folder:
        outside = Path(folder, "outside")
        outside.write_text("seen")
        python = interpreter(libraries=False)
        try:
            with Session(backend, python, _LIMITS, _CANARY) as session:
                found = session.call("report", [str(outside), folder])
        except (SandboxUnavailable, CodeError) as error:
            return str(error)
        if Path(folder, "written").exists():
            return "the canary wrote a file outside"
    return _reported(backend.name, found)


def _reported(name: LevelName, found: Plain) -> str | None:
    if not isinstance(found, dict) or not found:
        return f"the canary reported {found!r}"
    # sandbox-exec changes no ids, and does not count what the interpreter itself may start
    allowed = {"is root"} if name == "seatbelt" else set()
    escaped = [what for what, done in found.items() if done is not False and what not in allowed]
    return f"the canary {', '.join(map(str, escaped))}" if escaped else None


def failing_imports(backend: Backend, limits: Limits) -> tuple[str, ...]:
    """Libraries that are installed here and cannot be imported inside, with the reason."""
    with _LOCK:
        return _failing_imports(backend, limits)


@functools.cache
def _failing_imports(backend: Backend, limits: Limits) -> tuple[str, ...]:
    installed = [name for name in LIBRARIES if importlib.util.find_spec(name)]
    python = interpreter(libraries=True)
    try:
        with Session(backend, python, limits, _CANARY) as session:
            found = session.call("imports", [installed])
    except CodeError as error:
        return (f"the libraries cannot be imported: {error}",)
    failed = found.items() if isinstance(found, dict) else ()
    return tuple(f"{name} is installed but fails inside: {why}" for name, why in failed)

"""The process at the other end of `sctom.rewards.workers`: it calls functions it is told to call.

    python -P worker_main.py DESCRIPTOR PARENT

It is run by its path and imports nothing but the standard library until it is told `sys.path`. Each
request is a pickle of (path, arguments), each reply one of (kind, value, traceback), where kind is
"value" or "error". Arguments None ask for the function to be imported only.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve requests until the other end is closed."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is the parent's to handle
    _die_with(parent)
    os.set_inheritable(descriptor, False)
    channel = Connection(descriptor)
    try:
        sys.path[:], memory_mib = pickle.loads(channel.recv_bytes())
        if memory_mib is not None:
            _, most = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (memory_mib * 2**20, most))
        serve(channel)
    except (EOFError, ConnectionError):
        pass  # the parent has no more work


def serve(channel: Connection) -> None:
    """Answer requests; return after one that used up the memory, so that a fresh process goes on.

    Args:
        channel: of pickles, see the module.
    """
    functions: dict[str, Callable[..., Any]] = {}
    exhausted = False
    while not exhausted:
        request = channel.recv_bytes()
        try:
            path, arguments = pickle.loads(request)
            if path not in functions:
                functions[path] = find(path)
            value = None if arguments is None else functions[path](*arguments)
            reply = pickle.dumps(("value", value, ""))
        except Exception as error:
            exhausted = isinstance(error, MemoryError)
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            reply = pickle.dumps(("error", said, traceback.format_exc()))
        channel.send_bytes(reply)


def find(path: str) -> Callable[..., Any]:
    """The function at "module:name"; the name may have dots."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    function: Callable[..., Any] = found
    return function


def _die_with(parent: int) -> None:
    """End when the parent ends, also while a function computes.

    The kernel does it on Linux, whatever the function holds. Elsewhere a thread looks, which a
    function that never lets go of the interpreter holds back.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()

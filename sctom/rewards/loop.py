"""The event loop that async rewards run on: one per process, in its own thread, kept between calls.

It is kept so that a client which a reward opens once (an HTTP session belongs to the loop it was
opened on) stays usable; it has its own thread so that a caller with a running loop, such as a
notebook, is served like any other.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from inspect import isawaitable
from typing import Any

_AT_ONCE = threading.Semaphore(32)


def start(awaitable: Awaitable[Any]) -> Future[Any]:
    """Start an awaitable on the loop, without waiting for it.

    >>> start(asyncio.sleep(0, result=1.0)).result()
    1.0
    """
    return asyncio.run_coroutine_threadsafe(_wait(awaitable), _loop_of(os.getpid()))


def start_in_thread(call: Callable[[], Any]) -> Future[Any]:
    """Start a call in a thread of its own; at most 32 go on at a time.

    The threads are daemons: a call that hangs does not hold back the end of the process.

    >>> start_in_thread(lambda: 1.0).result()
    1.0
    """
    future: Future[Any] = Future()

    def run() -> None:
        with _AT_ONCE:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call()
                future.set_result(start(result).result() if isawaitable(result) else result)
            except BaseException as error:  # told to whoever waits for it
                future.set_exception(error)

    threading.Thread(target=run, name="sctom-reward", daemon=True).start()
    return future


async def _wait(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except SystemExit as error:  # would end the loop, for every other reward too
        raise RuntimeError(f"it called sys.exit({error.code!r})") from error


@functools.cache
def _loop_of(process: int) -> asyncio.AbstractEventLoop:
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    arguments = (_serve(ready),)
    thread = threading.Thread(target=asyncio.run, args=arguments, name="sctom-rewards", daemon=True)
    thread.start()
    loop, stop = ready.result()

    def close() -> None:
        if os.getpid() == process:  # a forked child has this handler too, but not the thread
            loop.call_soon_threadsafe(stop.set)
            thread.join(timeout=5.0)

    atexit.register(close)
    return loop


async def _serve(ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    stop = asyncio.Event()
    ready.set_result((asyncio.get_running_loop(), stop))
    await stop.wait()

"""One call of one reward: where it runs, how long it takes, and which rows it need not see.

Plain rewards are called where they are started; async ones go on on an event loop, and those that
are `concurrent` in threads of their own.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import pickle
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, SupportsFloat
from weakref import WeakKeyDictionary

from sctom.rewards import loop
from sctom.rewards.base import Failure, Reward

_PER_CALL = {"trainer_state", "log_extra", "log_metric"}


class Call:
    """A call of a reward for a batch of completions.

    Args:
        reward: the reward.
        arguments: what it is called with.
        rows: number of completions.
    """

    def __init__(self, reward: Reward, arguments: Mapping[str, Any], rows: int) -> None:
        self.reward = reward
        self.arguments = dict(arguments)
        self.known: dict[int, Any] = {}
        """Row -> its value, from the cache."""
        self.keys: list[Any] = []
        """What each row's value is kept under, with a cache."""
        self.asked: Sequence[int] = range(rows)
        """The rows the reward is asked about."""
        self.seconds = 0.0
        self._result: Any = None
        self._error: Exception | SystemExit | None = None
        if reward.cache:
            self._look_up(rows)

    def _look_up(self, rows: int) -> None:
        columns = {k: v for k, v in self.arguments.items() if k not in _PER_CALL}
        for row in range(rows):
            values = [(name, entries[row]) for name, entries in sorted(columns.items())]
            self.keys.append(_key(values, row))
        self.known = _cache_of(self.reward).get(self.keys)
        first: dict[Any, int] = {}  # equal rows of one call are asked about once
        for row, key in enumerate(self.keys):
            if row not in self.known:
                first.setdefault(key, row)
        self.asked = list(first.values())
        for name, entries in columns.items():
            self.arguments[name] = [entries[row] for row in self.asked]

    def start(self) -> Exception | SystemExit | None:
        """Call the reward; returns the error of one that has failed already."""
        started = time.perf_counter()
        if not self.asked:
            self._result = []
            return None
        if self.reward.concurrent:
            self._result = loop.start_in_thread(functools.partial(self.reward, **self.arguments))
        else:
            try:
                self._result = self.reward(**self.arguments)
            except (Exception, SystemExit) as error:
                self._error = error
            if inspect.isawaitable(self._result):
                self._result = loop.start(self._result)
        if isinstance(self._result, Future):
            self._result.add_done_callback(functools.partial(self._stop, started))
        else:
            self._stop(started)
        return self._error

    def _stop(self, started: float, _: object = None) -> None:
        self.seconds = time.perf_counter() - started

    def result(self) -> Any:
        """Wait for what the reward returns, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result.result() if isinstance(self._result, Future) else self._result

    def entries(self, answers: Sequence[Any]) -> list[Any]:
        """One entry for each completion: the answers, and what was known; answers are kept."""
        found = self.known | dict(zip(self.asked, answers, strict=True))
        if not self.reward.cache:
            return [found[row] for row in range(len(found))]
        fresh = {self.keys[row]: found[row] for row in self.asked}
        _cache_of(self.reward).put(fresh, self.reward.cache)
        return [found.get(row, fresh.get(key)) for row, key in enumerate(self.keys)]

    def cancel(self) -> None:
        """Give up waiting for it."""
        if isinstance(self._result, Future):
            self._result.cancel()  # does nothing to one that is done


def _key(values: object, row: int) -> Any:
    """A hash of values; for those that cannot be pickled something that equals nothing else."""
    try:
        return hashlib.sha256(pickle.dumps(values)).digest()
    except Exception:
        return object(), row


def as_number(entry: Any) -> float:
    """The entry as a float; NaN when it is not one number."""
    if isinstance(entry, (str, bytes)) or not isinstance(entry, SupportsFloat):
        return math.nan
    try:
        return float(entry)
    except Exception:  # arrays of several numbers, 10**400, or a class of its own
        return math.nan


class _Cache:
    """Values by what they were computed from, the least recently used ones forgotten first."""

    def __init__(self) -> None:
        self._values: OrderedDict[Any, float | None] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, keys: Sequence[Any]) -> dict[int, Any]:
        """Place in `keys` -> value, of those that are kept."""
        with self._lock:
            known = {i: self._values[key] for i, key in enumerate(keys) if key in self._values}
            for i in known:
                self._values.move_to_end(keys[i])
        return known

    def put(self, values: Mapping[Any, Any], most: int) -> None:
        """Keep numbers and abstentions; errors are not kept, since they may pass."""
        with self._lock:
            for key, entry in values.items():
                failed = isinstance(entry, Failure)
                value = None if entry is None or failed else as_number(entry)
                if not failed and (value is None or math.isfinite(value)):
                    self._values[key] = value
                    self._values.move_to_end(key)
            while len(self._values) > most:
                self._values.popitem(last=False)


_caches: WeakKeyDictionary[Reward, _Cache] = WeakKeyDictionary()
_lock = threading.Lock()


def _cache_of(reward: Reward) -> _Cache:
    with _lock:
        return _caches.setdefault(reward, _Cache())

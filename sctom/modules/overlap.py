"""Rewards of finished groups are computed while the others are still being sampled.

Sampling keeps the processor or the accelerator busy, a reward that asks a server or runs code
mostly waits: side by side they cost little more than the longer of the two. Groups are scored
whole, and their rewards are called in the order in which groups finish, which the draws alone
decide, so that what a reward returns does not depend on timing. Plain rewards are called for one
group after the other; async and `concurrent` ones of all groups go on together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType

import torch

from sctom.batch import Row
from sctom.modules.quantize import default_device

Finish = Callable[[], dict[str, float]]
Start = Callable[[Sequence[Row]], Finish]
_Job = tuple[Future[Finish], Sequence[Row]]


class RewardThread:
    """A thread that calls the rewards of one group after the other.

    It is a daemon: a reward that hangs holds back neither an error nor the end of the process.

    Args:
        start: calls the rewards of rows; what it returns waits for those that go on, fills all of
            them in, and returns what the reward functions logged.

    >>> with RewardThread(lambda rows: lambda: {"seen": float(len(rows))}) as thread:
    ...     thread.submit([])
    ...     thread.results()
    [({'seen': 0.0}, 0)]
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._device = default_device()
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._jobs: list[_Job] = []
        self._thread = threading.Thread(target=self._work, name="rewards", daemon=True)

    def __enter__(self) -> RewardThread:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            for job, _ in self._jobs:  # nobody needs what is left
                job.cancel()
        self._queue.put(None)

    def submit(self, rows: Sequence[Row]) -> None:
        """Score a group as soon as those before it are scored.

        Raises:
            RewardError: one of those has failed; sampling on would be in vain.
        """
        for job, _ in self._jobs:
            if job.done():
                job.result()
        self._jobs.append((Future(), rows))
        self._queue.put(self._jobs[-1])

    def results(self) -> list[tuple[dict[str, float], int]]:
        """Wait for all groups: what was logged for each, and its number of rows.

        Raises:
            RewardError: a reward failed.
        """
        return [(job.result()(), len(rows)) for job, rows in self._jobs]

    def _work(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # of this thread, which begins with the first
        while (job := self._queue.get()) is not None:
            future, rows = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._start(rows))
            except BaseException as error:  # told to whoever waits for it
                future.set_exception(error)

"""Rewards of finished groups are computed while the others are still being sampled.

Sampling keeps the processor or the accelerator busy, a reward that asks a server or runs code
mostly waits; side by side the shorter of the two costs nothing. What rewards return does not change
by it: each group is scored whole, one group at a time, in the order in which groups finish, which
the draws alone decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from sctom.batch import Row

Score = Callable[[Sequence[Row]], dict[str, float]]


class RewardThread:
    """A thread that scores groups one after the other.

    Args:
        score: fills in the rewards of rows and returns what the reward functions logged.

    >>> with RewardThread(lambda rows: {"seen": float(len(rows))}) as thread:
    ...     thread.submit([])
    ...     thread.results()
    [({'seen': 0.0}, 0)]
    """

    def __init__(self, score: Score) -> None:
        self._score = score
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rewards")
        self._jobs: list[tuple[Future[dict[str, float]], int]] = []
        self.seconds = 0.0
        """Time spent on rewards so far."""

    def __enter__(self) -> RewardThread:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # after an error nobody needs what is left, and a reward that hangs must not hold it back
        self._pool.shutdown(wait=kind is None, cancel_futures=True)

    def submit(self, rows: Sequence[Row]) -> None:
        """Score a group as soon as those before it are scored.

        Raises:
            RewardError: one of those has failed; sampling on would be in vain.
        """
        for job, _ in self._jobs:
            if job.done():
                job.result()
        self._jobs.append((self._pool.submit(self._timed, rows), len(rows)))

    def results(self) -> list[tuple[dict[str, float], int]]:
        """Wait for all groups: what was logged for each, and its number of rows.

        Raises:
            RewardError: a reward failed.
        """
        return [(job.result(), rows) for job, rows in self._jobs]

    def _timed(self, rows: Sequence[Row]) -> dict[str, float]:
        started = time.perf_counter()
        try:
            return self._score(rows)
        finally:
            self.seconds += time.perf_counter() - started

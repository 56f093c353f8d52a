"""How the rewards of a run fare: errors, and the time they take; and when to stop for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import quantiles
from typing import Any

from sctom.rewards.base import RewardError
from sctom.rewards.run import RewardResults


class RewardHealth:
    """Counts errors of rewards, and stops a run of which one reward does nothing but fail.

    Google's reinforcement tuning stops where 80% or more of the calls of a reward are errors; so
    does this, for each reward over its last `window` completions. Abstentions are no errors.

    Args:
        max_failures: share of errors at which the run stops; 1 stops only where all fail.
        window: completions looked at together; before so many are scored nothing is stopped.

    Raises:
        RewardError: a share that is not above 0 and at most 1, or an empty window.

    >>> health = RewardHealth(max_failures=0.5, window=4)
    >>> health.record(RewardResults({"judge": [1.0, None]}, errors={"judge": {1: "no answer"}}))
    >>> health.record(RewardResults({"judge": [None, 0.0]}, errors={"judge": {0: "no answer"}}))
    Traceback (most recent call last):
        ...
    sctom.rewards.base.RewardError: reward 'judge' failed on 2 of its last 4 completions, which is \
50% (reward_health.max_failures 50%); the last error: no answer
    """

    def __init__(self, max_failures: float = 0.8, window: int = 64) -> None:
        if not 0 < max_failures <= 1:
            raise RewardError(f"max_failures must be above 0 and at most 1, not {max_failures}")
        if window < 1:
            raise RewardError(f"window must be at least 1, not {window}")
        self.max_failures = max_failures
        self.window = window
        self._failed: dict[str, deque[bool]] = {}
        self._seconds: dict[str, list[float]] = {}
        self._errors: dict[str, int] = {}

    def record(self, results: RewardResults) -> None:
        """Take what the rewards gave for a batch.

        Raises:
            RewardError: a reward has failed too often.
        """
        for name, values in results.values.items():
            errors = results.errors.get(name, {})
            seen = self._failed.setdefault(name, deque(maxlen=self.window))
            seen.extend(row in errors for row in range(len(values)))
            self._errors[name] = self._errors.get(name, 0) + len(errors)
            if name in results.seconds:
                self._seconds.setdefault(name, []).append(results.seconds[name])
            share = sum(seen) / len(seen)
            if len(seen) == self.window and share >= self.max_failures:
                raise RewardError(
                    f"reward {name!r} failed on {sum(seen)} of its last {len(seen)} completions, "
                    f"which is {share:.0%} (reward_health.max_failures {self.max_failures:.0%}); "
                    f"the last error: {_latest(errors)}"
                )

    def metrics(self) -> dict[str, float]:
        """Errors and seconds per call of each reward since this was asked last."""
        numbers: dict[str, float] = {}
        for name, count in self._errors.items():
            numbers[f"rewards/{name}/errors"] = float(count)
        for name, seconds in self._seconds.items():
            numbers[f"time/rewards/{name}/p50"] = _quantile(seconds, 50)
            numbers[f"time/rewards/{name}/p95"] = _quantile(seconds, 95)
        self._errors = {}
        self._seconds = {}
        return numbers

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: whether each of the last completions failed."""
        return {name: list(seen) for name, seen in self._failed.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[bool]]) -> None:
        """Go on from a checkpoint."""
        self._failed = {name: deque(seen, maxlen=self.window) for name, seen in state.items()}


def _latest(errors: Mapping[int, str]) -> str:
    return errors[max(errors)] if errors else "an earlier one"


def _quantile(values: Sequence[float], percent: int) -> float:
    """A quantile by linear interpolation."""
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]

"""codeExecutionRewardScorer: evaluate(example, response), in a sandbox."""

from __future__ import annotations

import asyncio

from sctom.rewards.base import RewardError
from sctom.rewards.google.outcome import Detail, Sample, ScoreError, clipped
from sctom.rewards.google.schema import CodeExecution
from sctom.rewards.remote import Turns
from sctom.sandbox import CodeError, Opaque, Sandbox, SandboxUnavailable


class CodeScorer:
    """Python code that is ready to be called, each time in a fresh sandbox.

    Args:
        config: the code.
        sandbox: where it runs, with its limits: 100 s and 1 GiB by default, as Google has them.
        retries: further tries of a call that is too slow; then the sample has no reward.
        turns: how many sandboxes may be open at a time.
    """

    def __init__(
        self, config: CodeExecution, sandbox: Sandbox, *, retries: int, turns: Turns
    ) -> None:
        self.keys: list[str] = []
        self._config = config
        self._sandbox = sandbox
        self._retries = retries
        self._turns = turns

    def check(self) -> None:
        """Execute the code once, without calling `evaluate`.

        Raises:
            RewardError: there is no sandbox, or the code fails.
        """
        try:
            self._sandbox.check()
            self._sandbox.open(self._config.source).close()
        except CodeError as error:
            raise RewardError(f"{self._config.place}: {error}\n{error.stderr}".rstrip()) from error
        except SandboxUnavailable as error:
            raise RewardError(f"{self._config.place}: {error}") from error

    async def score(self, sample: Sample) -> Detail:
        """What `evaluate` returns, clipped.

        Raises:
            ScoreError: it raises, takes too much, or returns what is not a finite number.
        """
        for left in reversed(range(self._retries + 1)):
            try:
                async with self._turns.take():
                    value = await asyncio.to_thread(self._evaluate, sample)
                break
            except CodeError as error:
                if error.kind == "timeout" and left:
                    continue
                tried = f", tried {self._retries + 1} times" if error.kind == "timeout" else ""
                raise ScoreError(f"evaluate: {error}{tried}", error.stderr) from error
            except SandboxUnavailable as error:
                raise ScoreError(str(error)) from error
        if isinstance(value, Opaque):
            kind = f"an object of class {value.type_name}"
            raise ScoreError(f"evaluate must return a number, found {kind}; use float(...)")
        return Detail(clipped(value))

    def _evaluate(self, sample: Sample) -> object:
        with self._sandbox.open(self._config.source) as session:
            return session.call("evaluate", [sample.example, sample.response])

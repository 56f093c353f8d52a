"""cloudRunRewardScorer: a service of one's own, asked over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from sctom.rewards.base import RewardError
from sctom.rewards.google.outcome import Detail, Sample, ScoreError
from sctom.rewards.google.schema import CloudRun
from sctom.rewards.remote import WAITS, RemoteError
from sctom.rewards.service import RewardService

SECONDS = 300.0
"""Google's limit for one request."""


class CloudRunScorer:
    """A service that is ready to be called; see `RewardService` for what it is asked.

    Args:
        config: the address; any http:// or https:// address will do.
        job_id: the id of the job that the service is told.
        seconds: for one try.
        waits: seconds before each further try, of what may pass.
        at_once: most requests that go on at a time.

    Raises:
        RewardError: the address cannot be posted to.
    """

    def __init__(
        self,
        config: CloudRun,
        *,
        job_id: int,
        seconds: float = SECONDS,
        waits: Sequence[float] = WAITS,
        at_once: int = 16,
    ) -> None:
        self.keys: list[str] = []
        try:
            self._service = RewardService(
                config.uri, job=job_id, seconds=seconds, waits=waits, at_once=at_once
            )
        except RewardError as error:
            raise RewardError(f"{config.place}: {error}") from error

    async def score(self, sample: Sample) -> Detail:
        """What the service answers, clipped.

        Raises:
            ScoreError: no usable answer, after all tries.
        """
        try:
            scored = await self._service.score(sample.example, sample.response, sample.step)
        except RemoteError as error:
            raise ScoreError(str(error)) from error
        return Detail(scored.reward, aux=scored.aux)

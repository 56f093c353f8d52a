"""A service over HTTP that scores one response to one example, as Google's tuning asks one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sctom.rewards.remote import (
    WAITS,
    RemoteError,
    Turns,
    address,
    check_times,
    check_url,
    post_json,
    secret,
)


@dataclass(frozen=True)
class Scored:
    """What a service gave for one completion."""

    reward: float
    """From -1 to 1."""
    aux: str | None = None
    """What it says beside its number."""


class RewardService:
    """A service that scores one response to one example.

    It is posted {"example", "response", "metadata": {"step", "tuningJobId", "tuning_job_id"}}, the
    id under both the names that Google's documentation has for it, and answers {"reward": number}
    and, if it wants to, "user_requested_aux_info": text.

    Args:
        url: where it is posted to.
        job: the id in the metadata.
        seconds: for one try.
        waits: seconds before each further try.
        at_once: most requests that go on at a time.
        key_env: environment variable with a token that is sent as `Authorization: Bearer ...`.

    Raises:
        RewardError: the address or a number cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        job: str | int = "sctom",
        seconds: float = 300.0,
        waits: Sequence[float] = WAITS,
        at_once: int = 16,
        key_env: str | None = None,
    ) -> None:
        check_url(url)
        check_times(seconds, waits)
        self.url = url
        self.job = job
        self.seconds = seconds
        self.waits = tuple(waits)
        self.key_env = key_env
        self.at_once = at_once
        self._turns = Turns(at_once)

    def check(self) -> None:
        """Check that the token is there.

        Raises:
            RewardError: it is not.
        """
        self._headers()

    async def score(
        self, example: Mapping[str, Any], response: Mapping[str, Any], step: int
    ) -> Scored:
        """The reward, checked to be a finite number, then clipped to [-1, 1].

        Args:
            example: the example in camelCase.
            response: the response as Google's Content.
            step: optimiser steps so far.

        Raises:
            RemoteError: no usable answer, after all tries.
            RewardError: the token is not there.
        """
        metadata = {"step": step, "tuningJobId": self.job, "tuning_job_id": self.job}
        async with self._turns.take():
            reply = await post_json(
                self.url,
                {"example": example, "response": response, "metadata": metadata},
                seconds=self.seconds,
                waits=self.waits,
                headers=self._headers(),
            )
        return self._read(reply)

    def _headers(self) -> dict[str, str]:
        if self.key_env is None:
            return {}
        return {"Authorization": f"Bearer {secret(self.key_env, setting='key_env')}"}

    def _read(self, reply: Any) -> Scored:
        place = address(self.url)
        if not isinstance(reply, dict) or "reward" not in reply:
            raise RemoteError(f'{place} must answer {{"reward": number}}, but sent {reply!r:.200}')
        value, aux = reply["reward"], reply.get("user_requested_aux_info")
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            found = f"{type(value).__name__} {value!r:.60}"
            raise RemoteError(f"{place}: reward must be a finite number, but is {found}")
        if aux is not None and not isinstance(aux, str):
            found = f"{type(aux).__name__} {aux!r:.60}"
            raise RemoteError(f"{place}: user_requested_aux_info must be a text, but is {found}")
        return Scored(float(max(-1, min(1, value))), aux)


def _finite(value: int | float) -> bool:
    return isinstance(value, int) or math.isfinite(value)  # 10**400 is finite, but no float

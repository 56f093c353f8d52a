"""The tokens of completions that are being drawn, side by side, until each has ended."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sctom.rollout.base import Sample

_CHUNK = 64
"""Tokens per completion that room is made for at a time."""


class Drawn:
    """Collects what is drawn for B completions, in groups of one prompt each.

    Tokens stay tensors on their device until the completions of a prompt are all complete. Which
    rows go on is the one thing the host has to wait for in each step.

    Args:
        groups: number of prompts.
        group_size: completions of each.
        limit: tokens a completion may have.
        stop_ids: tokens that end one.
        complete: called with the number of a group and its completions when the last of them ends.
        device: where the tokens are.
    """

    def __init__(
        self,
        groups: int,
        group_size: int,
        *,
        limit: int,
        stop_ids: frozenset[int],
        complete: Callable[[int, list[Sample]], None],
        device: torch.device,
    ) -> None:
        rows = groups * group_size
        self.group_size = group_size
        self.alive = torch.arange(rows, device=device)
        """Numbers of the completions that go on, in the order of the rows of the next tokens."""
        self.alive_on_cpu: NDArray[np.int64] = np.arange(rows)
        self._limit = limit
        self._complete = complete
        self._stops = torch.tensor(sorted(stop_ids), device=device)
        self._ids = torch.empty(rows, 0, dtype=torch.long, device=device)
        self._logps = torch.empty(rows, 0, dtype=torch.float32, device=device)
        self._lengths: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
        self._truncated: NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
        self._open: NDArray[np.int64] = np.full(groups, group_size)
        self._length = 0

    def add(self, tokens: Tensor, logps: Tensor) -> Tensor | None:
        """Take one token for each completion that goes on.

        Args:
            tokens: [n] in the order of `alive`.
            logps: [n] their log-probabilities.

        Returns:
            Which of the n rows go on, as indices; None where all do.

        Raises:
            FloatingPointError: a log-probability is not a finite number.
        """
        if not bool(torch.isfinite(logps).all()):
            raise FloatingPointError(
                f"the log-probability of token {self._length + 1} of a completion is not finite: "
                "the model's weights or logits are not, or sampling.temperature is too small"
            )
        if self._length == self._ids.shape[1]:
            self._grow()
        self._ids[self.alive, self._length] = tokens
        self._logps[self.alive, self._length] = logps
        self._length += 1
        stopped = torch.isin(tokens, self._stops).cpu().numpy()
        ended = stopped if self._length < self._limit else np.ones_like(stopped)
        if not ended.any():
            return None
        self._end(self.alive_on_cpu[ended], truncated=~stopped[ended])
        self.alive_on_cpu = self.alive_on_cpu[~ended]
        going_on = torch.from_numpy((~ended).nonzero()[0]).to(tokens.device)
        self.alive = self.alive[going_on]
        return going_on

    def _grow(self) -> None:
        room = min(_CHUNK, self._limit - self._length)
        self._ids = torch.nn.functional.pad(self._ids, (0, room))
        self._logps = torch.nn.functional.pad(self._logps, (0, room))

    def _end(self, rows: NDArray[np.int64], truncated: NDArray[np.bool_]) -> None:
        self._lengths[rows] = self._length
        self._truncated[rows] = truncated
        groups, ended = np.unique(rows // self.group_size, return_counts=True)
        self._open[groups] -= ended
        for group in groups[self._open[groups] == 0]:
            self._complete(int(group), self._samples(int(group)))

    def _samples(self, group: int) -> list[Sample]:
        rows = slice(group * self.group_size, (group + 1) * self.group_size)
        ids, logps = self._ids[rows].cpu(), self._logps[rows].cpu()
        return [
            Sample(ids[i, :length].tolist(), logps[i, :length].clone(), bool(truncated))
            for i, (length, truncated) in enumerate(
                zip(self._lengths[rows], self._truncated[rows], strict=True)
            )
        ]

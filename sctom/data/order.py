"""Which prompts an iteration asks: random order, or a curriculum by how often they are solved.

An order ranks prompts for every iteration; the first ones are its batch, the following ones its
extra batches. The ranking is a function of (seed, iteration) and, for a curriculum, of what was
observed in the iterations before, which checkpoints keep. So it does not matter how many extra
batches were drawn earlier, and a resumed run asks what it would have asked.
"""

from __future__ import annotations

import hashlib
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sctom.batch import Prompt, Row, row_value
from sctom.checks import check_numbers
from sctom.readers import nearest
from sctom.seeds import keys_for, permutation, uniforms

LARGEST = sys.float_info.max
EXTRA, SOLVE_RATE = 2**40, 2**40 + 1
"""Part of the address of a draw: what it is for. The epochs of a plain order stay far below."""


class PromptOrder(ABC):
    """Ranks the prompts of a run for every iteration."""

    def __init__(self) -> None:
        self.seed = 0
        self.prompts: Sequence[Prompt] = ()

    def start(self, prompts: Sequence[Prompt], seed: int) -> None:
        """Take the prompts of the run; called before anything else.

        Args:
            prompts: all prompts; the prompt at place i has index i.
            seed: address of every draw.
        """
        self.prompts = prompts
        self.seed = seed

    @abstractmethod
    def batch(self, iteration: int, size: int, *, extra: int = 0) -> list[int]:
        """Indices of the prompts of an iteration over all ranks.

        Args:
            iteration: number of the iteration, from 0.
            size: prompts in a batch.
            extra: 0: the batch of the iteration; n: its n-th extra batch. Extra batches repeat no
                prompt of the iteration, and become shorter, then empty, when the data runs out.
        """

    @property
    def watches(self) -> bool:
        """Whether it wants to `observe` the completions of every iteration."""
        return False

    def solved(self, row: Row) -> bool | None:
        """Whether a completion counts as right; None: unknown."""
        return None

    def observe(  # noqa: B027  most orders need not look
        self, indices: Sequence[int], solved: Sequence[bool | None]
    ) -> None:
        """Take note of the completions of an iteration, those of all ranks in the same order."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  most have no state
        """Go on from a checkpoint."""


class Shuffled(PromptOrder):
    """Random order, the default: every prompt once, then all again in another order.

    No prompt comes twice in an iteration: where one ends a round and begins the next, prompts that
    were asked at the end are put off until after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rounds: dict[int, NDArray[np.int64]] = {}
        self._size = 0

    def start(self, prompts: Sequence[Prompt], seed: int) -> None:
        """See `PromptOrder.start`."""
        super().start(prompts, seed)
        self._rounds = {}

    def batch(self, iteration: int, size: int, *, extra: int = 0) -> list[int]:
        """See `PromptOrder.batch`."""
        count = len(self.prompts)
        if size != self._size:
            self._size, self._rounds = size, {}
        places = range(iteration * size, (iteration + 1) * size)
        main = [int(self._round(place // count)[place % count]) for place in places]
        if not extra:
            return main
        used = set(main)
        others = permutation(count, self.seed, EXTRA, iteration).tolist()
        rest = [index for index in others if index not in used]
        return rest[(extra - 1) * size : extra * size]

    def _round(self, number: int) -> NDArray[np.int64]:
        """The order of a round; it depends on the end of the round before."""
        if number not in self._rounds:
            known = [n for n in self._rounds if n < number]
            at = max(known, default=-1)
            before = self._rounds.get(at)
            for n in range(at + 1, number + 1):
                before, last = self._following(n, before), before
            self._rounds = {} if last is None else {number - 1: last}
            assert before is not None
            self._rounds[number] = before
        return self._rounds[number]

    def _following(self, number: int, before: NDArray[np.int64] | None) -> NDArray[np.int64]:
        order = permutation(len(self.prompts), self.seed, number)
        begun = number * len(self.prompts) % self._size  # prompts of the iteration already asked
        if before is None or not begun:
            return order
        free = np.flatnonzero(~np.isin(order, before[-begun:]))[: self._size - begun]
        return np.concatenate([order[free], np.delete(order, free)])


class SolveRate(PromptOrder):
    """A curriculum: prompts that are solved about half the time are asked more often.

    Within a group, rewards differ most where the policy is right half the time, so such prompts
    teach most. The prompts of an iteration are drawn without replacement with weights

        w = max(floor, 4 s (1 - s)),    s = (solved + a) / (completions + 2),    a = 2 x prior

    by the keys log(u) / w of Efraimidis and Spirakis (2006), u being addressed by (seed, iteration,
    prompt). `solved` and `completions` are sums over the visits of a prompt, multiplied by `keep`
    at each new visit, because the policy changes. Before the first visit s is the prior.

    Args:
        solved_at: a completion is solved if its reward is at least this.
        solved_by: "reward", the weighted sum, or the name of one reward (which may have weight 0).
        floor: least weight, from 1e-6 to 1; 1 is uniform. Keeps prompts in play that were always
            or never solved.
        keep: how much of earlier visits counts, from 0 (the last visit only) to 1 (all alike).
        prior: a column of the data with the solve rate of each prompt by an earlier measurement,
            from 0 to 1 (null where it was not measured); null: 0.5 for all.

    >>> order = SolveRate(floor=0.01)
    >>> order.start([Prompt(i, [], []) for i in range(3)], seed=0)
    >>> order.observe([0, 0, 1, 1], [True, True, True, False])
    >>> order.rates().tolist()  # (2 + 1) / (2 + 2), (1 + 1) / (2 + 2), not seen
    [0.75, 0.5, 0.5]
    """

    def __init__(
        self,
        *,
        solved_at: float = 1.0,
        solved_by: str = "reward",
        floor: float = 0.1,
        keep: float = 0.5,
        prior: str | None = None,
    ) -> None:
        super().__init__()
        numbers = {
            "floor": (floor, "from 1e-6 to 1", 1e-6, 1),
            "keep": (keep, "from 0 to 1", 0, 1),
            "solved_at": (solved_at, "a finite number", -LARGEST, LARGEST),
        }
        check_numbers("data.order", numbers)
        self.solved_at = solved_at
        self.solved_by = solved_by
        self.floor = floor
        self.keep = keep
        self.prior = prior

    def start(self, prompts: Sequence[Prompt], seed: int) -> None:
        """See `PromptOrder.start`.

        Raises:
            ValueError: a prompt whose prior is not a number from 0 to 1.
        """
        super().start(prompts, seed)
        self._right = np.zeros(len(prompts))
        self._seen = np.zeros(len(prompts))
        self._prior = np.array([self._first(prompt) for prompt in prompts])
        ids = "\n".join(" ".join(map(str, prompt.ids)) for prompt in prompts)
        self._fingerprint = hashlib.sha256(ids.encode()).hexdigest()[:16]

    def _first(self, prompt: Prompt) -> float:
        if self.prior is None:
            return 0.5
        value = prompt.columns.get(self.prior, "")
        if value is None:
            return 0.5
        number = isinstance(value, int | float) and not isinstance(value, bool)
        rate = float(value) if number and value is not None else math.nan
        if not 0 <= rate <= 1:
            found = f"holds {value!r}"
            if self.prior not in prompt.columns:
                found = f"has no such column{nearest(self.prior, list(prompt.columns))}"
            raise ValueError(
                f"data.order.prior is the column {self.prior!r}, which must hold a solve rate from "
                f"0 to 1, but row {prompt.index + 1} of data.train {found}"
            )
        return rate

    def rates(self) -> NDArray[np.float64]:
        """The solve rate of each prompt, [N], as far as it is known."""
        rates: NDArray[np.float64] = (self._right + 2 * self._prior) / (self._seen + 2)
        return rates

    def weights(self) -> NDArray[np.float64]:
        """The weight of each prompt, [N]."""
        rates = self.rates()
        return np.maximum(self.floor, 4 * rates * (1 - rates))

    def batch(self, iteration: int, size: int, *, extra: int = 0) -> list[int]:
        """See `PromptOrder.batch`. No prompt comes twice in an iteration."""
        keys = keys_for(self.seed, SOLVE_RATE, iteration, np.arange(len(self.prompts)))
        ranked = np.argsort(-np.log(uniforms(keys, 0)) / self.weights(), kind="stable")
        return [int(index) for index in ranked[extra * size : (extra + 1) * size]]

    @property
    def watches(self) -> bool:
        """It does."""
        return True

    def solved(self, row: Row) -> bool | None:
        """Whether a completion's reward reaches `solved_at`; None where it has no reward."""
        value = row_value(row, self.solved_by, setting="data.order.solved_by")
        return None if math.isnan(value) else value >= self.solved_at

    def observe(self, indices: Sequence[int], solved: Sequence[bool | None]) -> None:
        """Add the completions of an iteration to the counts of their prompts."""
        judged = [(i, right) for i, right in zip(indices, solved, strict=True) if right is not None]
        visited = sorted({i for i, _ in judged})
        self._right[visited] *= self.keep
        self._seen[visited] *= self.keep
        for index, right in judged:
            self._right[index] += right
            self._seen[index] += 1

    def state_dict(self) -> dict[str, Any]:
        """The counts of the prompts that were visited."""
        visited = np.flatnonzero(self._seen)
        return {
            "prompts": len(self.prompts),
            "fingerprint": self._fingerprint,
            "visited": visited.tolist(),
            "right": self._right[visited].tolist(),
            "seen": self._seen[visited].tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `PromptOrder.load_state_dict`.

        Raises:
            ValueError: the checkpoint is of another order, or of other data.
        """
        if state.get("fingerprint") != self._fingerprint:
            found = f"{state['prompts']} other prompts" if state else "another data.order"
            raise ValueError(
                f"the solve rates of this checkpoint are of {found}, not of the "
                f"{len(self.prompts)} that data.train holds now; restore data.train and "
                "data.order, or start a fresh run"
            )
        self._right[:] = self._seen[:] = 0
        self._right[state["visited"]] = state["right"]
        self._seen[state["visited"]] = state["seen"]

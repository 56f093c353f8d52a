"""What comes in which batch: an order that is a function of (seed, epoch), and can be gone on with.

Shared by the data modules of automatic optimisation, whose examples are read whole into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sctom.seeds import permutation

T = TypeVar("T")
B = TypeVar("B")

_ROWS, _BATCHES = range(2)

Rows = NDArray[np.int64]


class BatchLoader(Generic[T, B]):
    """A sized, resumable loader of examples.

    Args:
        examples: all of them.
        lengths: tokens of each, which a window sorts by.
        make: (this process's examples of a batch, every example of its optimiser step over all
            processes) -> the batch.
        batch_size: examples of one batch on one process.
        seed: address of the order; None keeps the order of the file.
        accumulate: batches of one optimiser step on one process.
        window: so many batches are filled together, similar lengths side by side; 1 leaves the
            order alone.
        rank: this process.
        world_size: number of processes. Examples that cannot be shared evenly at the end of an
            epoch are left out.

    >>> loader = BatchLoader("abcde", [1] * 5, lambda mine, step: "".join(mine), 2, seed=None)
    >>> list(loader), loader.state_dict()
    (['ab', 'cd', 'e'], {'position': 3})
    """

    def __init__(
        self,
        examples: Sequence[T],
        lengths: Sequence[int],
        make: Callable[[list[T], list[T]], B],
        batch_size: int,
        *,
        seed: int | None,
        accumulate: int = 1,
        window: int = 1,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.examples = examples
        self.make = make
        self.batch_size = batch_size
        self.seed = seed
        self.accumulate = accumulate
        self.window = window
        self.rank = rank
        self.world_size = world_size
        self.position = 0
        self._lengths = np.array(lengths)

    def __len__(self) -> int:
        """Batches of one epoch on one process."""
        usable = len(self.examples) // self.world_size
        return -(-usable // self.batch_size)

    def batches(self, epoch: int) -> list[Rows]:
        """The row numbers of each batch of an epoch, over all ranks."""
        usable = len(self.examples) - len(self.examples) % self.world_size
        if self.seed is None:
            order = np.arange(usable)
        else:
            order = permutation(len(self.examples), self.seed, _ROWS, epoch)[:usable]
        size = self.batch_size * self.world_size
        batches: list[Rows] = []
        for start in range(0, usable, size * self.window):
            rows = order[start : start + size * self.window]
            if self.window > 1:
                rows = rows[np.argsort(self._lengths[rows], kind="stable")]
            batches += [rows[i : i + size] for i in range(0, len(rows), size)]
        if self.window > 1 and self.seed is not None:
            # The last batch may be short and stays last: one step of an epoch is smaller, not two.
            moved = permutation(len(batches) - 1, self.seed, _BATCHES, epoch)
            batches = [batches[i] for i in moved] + batches[-1:]
        return batches

    def __iter__(self) -> Iterator[B]:
        epoch, start = divmod(self.position, len(self))
        batches = self.batches(epoch)
        for number in range(start, len(batches)):
            first = number - number % self.accumulate
            step = [self.examples[i] for i in np.concatenate(batches[first:][: self.accumulate])]
            mine = [self.examples[i] for i in batches[number][self.rank :: self.world_size]]
            self.position += 1
            yield self.make(mine, step)

    def state_dict(self) -> dict[str, int]:
        """Batches given out so far, over all epochs."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on after a saved position."""
        self.position = state["position"]


class InOrder(Generic[T, B]):
    """Walks once through examples in their order, `size` at a time.

    Args:
        examples: this process's.
        make: examples -> the batch.
        size: examples of a batch.

    >>> list(InOrder("abc", "".join, 2)), len(InOrder("abc", "".join, 2))
    (['ab', 'c'], 2)
    """

    def __init__(self, examples: Sequence[T], make: Callable[[list[T]], B], size: int) -> None:
        self.parts = [list(examples[i : i + size]) for i in range(0, len(examples), size)]
        self.make = make

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[B]:
        return (self.make(part) for part in self.parts)

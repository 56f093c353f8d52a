"""What the data modules of automatic optimisation have in common: files, batches, order, ranks."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

import lightning as L

from sctom.data.batches import BatchLoader, InOrder

T = TypeVar("T")
B = TypeVar("B")


class ExampleData(L.LightningDataModule, Generic[T, B]):
    """Examples from a JSONL file, and others to validate on.

    A subclass reads the files in `setup`, fills `train_examples` and `val_examples` in `render`,
    and says what makes a loader of examples.

    Args:
        train: file of training examples ("sctom:..." for one that sctom ships).
        val: file of validation examples, or null.
        batch_size: examples of one batch on one process.
        val_batch: validation examples of one batch.
        max_tokens: of an example; a longer one is an error that names it.
        shuffle: draw a new order each epoch; false keeps the order of the file.
        window: so many batches are filled together, similar lengths side by side.
        seed: address of the order; null takes seed_everything.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(
        self,
        train: str,
        *,
        val: str | None,
        batch_size: int,
        val_batch: int,
        max_tokens: int,
        shuffle: bool,
        window: int,
        seed: int | None,
    ) -> None:
        super().__init__()
        settings = {"batch_size": batch_size, "val_batch": val_batch}
        for name, value in (settings | {"max_tokens": max_tokens, "window": window}).items():
            if value < 1:
                raise ValueError(f"data.{name} must be at least 1 but is {value}")
        self.train_path = train
        self.val_path = val
        self.batch_size = batch_size
        self.val_batch = val_batch
        self.max_tokens = max_tokens
        self.shuffle = shuffle
        self.window = window
        self.seed = 0 if seed is None else seed
        self.train_examples: list[T] = []
        self.val_examples: list[T] = []

    @property
    def iterations(self) -> int:
        """Batches of the whole run."""
        assert self.trainer is not None
        return int(self.trainer.num_training_batches) * (self.trainer.max_epochs or 1)

    @abstractmethod
    def loader(self, **order: Any) -> BatchLoader[T, B]:
        """A loader of the training examples.

        Args:
            order: arguments of `BatchLoader` from `seed` on.
        """

    @abstractmethod
    def whole(self, examples: list[T]) -> B:
        """A batch that is an optimiser step of its own."""

    def train_dataloader(self) -> BatchLoader[T, B]:
        """One epoch after another, each in its own order."""
        return self.loader(
            seed=self.seed if self.shuffle else None,
            accumulate=self.trainer.accumulate_grad_batches if self.trainer is not None else 1,
            window=self.window,
            **self._place(),
        )

    def val_dataloader(self) -> InOrder[T, B] | list[Any]:
        """The validation examples in file order, each on one rank; nothing without a file."""
        if not self.val_examples:
            return []
        place = self._place()
        mine = self.val_examples[place["rank"] :: place["world_size"]]
        return InOrder(mine, self.whole, self.val_batch)

    def _place(self) -> dict[str, int]:
        trainer = self.trainer
        if trainer is None:
            return {"rank": 0, "world_size": 1}
        return {"rank": trainer.global_rank, "world_size": trainer.world_size}

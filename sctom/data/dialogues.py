"""Dialogues for SFTModule: whole conversations of which the assistant's turns are learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
from torch import Tensor

from sctom import readers
from sctom.assets import resolve
from sctom.data.batches import BatchLoader, InOrder
from sctom.data.template import check_length, render_dialogue
from sctom.rollout.causal import pad


@dataclass(frozen=True)
class Dialogue:
    """One dialogue as token ids, and which of them are learned."""

    ids: list[int]
    mask: list[int]
    """1 on the assistant's tokens, as long as ids."""

    @property
    def tokens(self) -> int:
        """Number of learned tokens."""
        return sum(self.mask)


@dataclass
class DialogueBatch:
    """Dialogues as tensors: B rows, L tokens at most, T learned tokens at most."""

    input_ids: Tensor
    """[B, L] padded on the right."""
    attention_mask: Tensor
    """[B, L] 1 on real tokens, from the lengths."""
    position_ids: Tensor
    """[B, L]"""
    sources: Tensor
    """[B, T] index into L of the token whose hidden state predicts each learned token."""
    targets: Tensor
    """[B, T] the learned tokens, 0 where masked."""
    mask: Tensor
    """[B, T] 1.0 on learned tokens."""
    step_tokens: float
    """Learned tokens of the whole optimiser step: all accumulated batches of all ranks."""


def collate(rows: Sequence[Dialogue], step_tokens: float) -> DialogueBatch:
    """Make tensors of dialogues.

    Args:
        rows: B dialogues.
        step_tokens: learned tokens of the optimiser step that this batch is a part of.

    >>> batch = collate([Dialogue([5, 6, 7, 8], [0, 0, 1, 1]), Dialogue([5, 9], [0, 1])], 3)
    >>> batch.targets.tolist(), batch.sources.tolist(), batch.mask.tolist()
    ([[7, 8], [9, 0]], [[1, 2], [0, 0]], [[1.0, 1.0], [1.0, 0.0]])
    """
    input_ids, attention_mask, position_ids = pad([row.ids for row in rows], 0, side="right")
    places = [[i for i, counts in enumerate(row.mask) if counts] for row in rows]
    targets, kept, _ = pad(
        [[row.ids[i] for i in where] for row, where in zip(rows, places, strict=True)],
        0,
        side="right",
    )
    sources, _, _ = pad([[i - 1 for i in where] for where in places], 0, side="right")
    return DialogueBatch(
        input_ids, attention_mask, position_ids, sources, targets, kept.float(), float(step_tokens)
    )


def dialogue_loader(
    dialogues: Sequence[Dialogue], batch_size: int, **order: Any
) -> BatchLoader[Dialogue, DialogueBatch]:
    """A loader whose batches know the learned tokens of their optimiser step.

    Args:
        dialogues: all of them.
        batch_size: dialogues of one batch on one process.
        order: the other arguments of `BatchLoader`.
    """
    return BatchLoader(
        dialogues,
        [len(row.ids) for row in dialogues],
        lambda mine, step: collate(mine, sum(row.tokens for row in step)),
        batch_size,
        **order,
    )


class DialogueData(L.LightningDataModule):
    """Dialogues from JSONL files in the messages format; every turn of the assistant is learned.

    Each line is {"messages": [{"role", "content"}, ...], ...}; other columns are ignored.

    Args:
        train: JSONL file of training dialogues ("sctom:..." for one that sctom ships).
        val: JSONL file of validation dialogues, or null.
        batch_size: dialogues of one batch on one process.
        val_batch: validation dialogues of one batch.
        max_tokens: a longer dialogue is an error that names it; none is ever cut.
        shuffle: draw a new order each epoch; false keeps the order of the file (a curriculum).
        window: fill so many batches together, with dialogues of similar length side by side: less
            padding.
        seed: address of the order; null takes seed_everything.
    """

    def __init__(
        self,
        train: str,
        *,
        val: str | None = None,
        batch_size: int = 16,
        val_batch: int = 64,
        max_tokens: int = 2048,
        shuffle: bool = True,
        window: int = 1,
        seed: int | None = None,
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
        self.train_rows: list[dict[str, Any]] = []
        self.val_rows: list[dict[str, Any]] = []
        self.train_dialogues: list[Dialogue] = []
        self.val_dialogues: list[Dialogue] = []

    def setup(self, stage: str) -> None:
        """Read and check the files; no tokenizer is needed yet."""
        self.train_rows = _read(self.train_path)
        self.val_rows = _read(self.val_path) if self.val_path else []

    def render(self, tokenizer: Any) -> None:
        """Turn every row into token ids; called by the module, which owns the tokenizer."""
        self.train_dialogues = self._render(self.train_rows, tokenizer, self.train_path)
        self.val_dialogues = self._render(self.val_rows, tokenizer, self.val_path or "")

    def _render(self, rows: list[dict[str, Any]], tokenizer: Any, path: str) -> list[Dialogue]:
        dialogues = []
        for number, row in enumerate(rows, start=1):
            place = f"{resolve(path)}:{number}"
            try:
                ids, mask = render_dialogue(tokenizer, row["messages"])
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error
            check_length(ids, self.max_tokens, place=place)
            dialogues.append(Dialogue(ids, mask))
        return dialogues

    def train_dataloader(self) -> BatchLoader[Dialogue, DialogueBatch]:
        """One epoch after another, each in its own order."""
        accumulate = self.trainer.accumulate_grad_batches if self.trainer is not None else 1
        return dialogue_loader(
            self.train_dialogues,
            self.batch_size,
            seed=self.seed if self.shuffle else None,
            accumulate=accumulate,
            window=self.window,
            **self._place(),
        )

    def val_dataloader(self) -> InOrder[Dialogue, DialogueBatch] | list[Any]:
        """The validation dialogues in file order, each on one rank; nothing without a file."""
        if not self.val_dialogues:
            return []
        place = self._place()
        rows = self.val_dialogues[place["rank"] :: place["world_size"]]
        return InOrder(
            rows, lambda part: collate(part, sum(row.tokens for row in part)), self.val_batch
        )

    def _place(self) -> dict[str, int]:
        trainer = self.trainer
        if trainer is None:
            return {"rank": 0, "world_size": 1}
        return {"rank": trainer.global_rank, "world_size": trainer.world_size}


def _read(path: str) -> list[dict[str, Any]]:
    file = resolve(path)
    rows = readers.read_jsonl(file)
    for number, row in enumerate(rows, start=1):
        readers.check_messages(row, f"{file}:{number}")
    return rows

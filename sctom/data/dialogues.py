"""Dialogues for SFTModule: of each, the assistant's turns are learned, or its last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from sctom import readers
from sctom.assets import resolve
from sctom.data.batches import BatchLoader
from sctom.data.examples import ExampleData
from sctom.data.template import Learn, check_length, render_dialogue


@dataclass(frozen=True)
class Dialogue:
    """One dialogue as token ids, and which of them are learned."""

    ids: list[int]
    """At least one is learned, and not the first, which nothing predicts."""
    mask: list[int]
    """1 on the tokens that are learned, as long as ids."""

    @property
    def tokens(self) -> int:
        """Number of learned tokens."""
        return sum(self.mask)

    @property
    def start(self) -> int:
        """Place of the first learned token."""
        return self.mask.index(1)

    @property
    def learned(self) -> list[int]:
        """Places of the learned tokens."""
        return [place for place, counts in enumerate(self.mask) if counts]


@dataclass(frozen=True)
class DialogueBatch:
    """Dialogues that are run together; the module, which knows the model, makes tensors of them."""

    dialogues: list[Dialogue]
    step_tokens: int
    """Learned tokens of the whole optimiser step: all accumulated batches of all ranks."""

    def to(self, device: torch.device) -> DialogueBatch:
        """The batch as it is, for Lightning: token ids go to the device when they are laid out."""
        return self


def count(dialogues: Sequence[Dialogue]) -> int:
    """Learned tokens of several dialogues.

    >>> count([Dialogue([5, 6, 7], [0, 1, 1]), Dialogue([5, 9], [0, 1])])
    3
    """
    return sum(dialogue.tokens for dialogue in dialogues)


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
        lambda mine, step: DialogueBatch(mine, count(step)),
        batch_size,
        **order,
    )


class DialogueData(ExampleData[Dialogue, DialogueBatch]):
    """Dialogues from JSONL files in the messages format, to learn what the assistant says.

    Each line is {"messages": [{"role", "content"}, ...], "learn": "all" or "last", ...}; other
    columns are ignored. "all", the default, learns every turn of the assistant; "last" learns its
    last one only, and the loss is 0 on all that comes before, whoever says it (Ghost Attention,
    Llama 2, arXiv 2307.09288, section 3.3).

    Args:
        train: JSONL file of training dialogues ("sctom:..." for one that sctom ships).
        val: JSONL file of validation dialogues, or null.
        batch_size: dialogues of one batch on one process.
        val_batch: validation dialogues of one batch.
        max_tokens: a longer dialogue is an error that names it; none is ever cut.
        shuffle: draw a new order each epoch; false keeps the order of the file (a curriculum).
        window: fill so many batches together, with dialogues of similar length side by side. Packed
            rows have no padding to save; for a model that runs on padded rows it saves time.
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
        super().__init__(
            train,
            val=val,
            batch_size=batch_size,
            val_batch=val_batch,
            max_tokens=max_tokens,
            shuffle=shuffle,
            window=window,
            seed=seed,
        )
        self.train_rows: list[dict[str, Any]] = []
        self.val_rows: list[dict[str, Any]] = []

    def setup(self, stage: str) -> None:
        """Read and check the files; no tokenizer is needed yet."""
        self.train_rows = _read(self.train_path)
        self.val_rows = _read(self.val_path) if self.val_path else []

    def render(self, tokenizer: Any) -> None:
        """Turn every row into token ids; called by the module, which owns the tokenizer."""
        self.train_examples = self._render(self.train_rows, tokenizer, self.train_path)
        self.val_examples = self._render(self.val_rows, tokenizer, self.val_path or "")

    def _render(self, rows: list[dict[str, Any]], tokenizer: Any, path: str) -> list[Dialogue]:
        dialogues = []
        for number, row in enumerate(rows, start=1):
            place = f"{resolve(path)}:{number}"
            try:
                ids, mask = render_dialogue(
                    tokenizer, row["messages"], learn=row.get("learn", "all")
                )
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from error
            check_length(ids, self.max_tokens, place=place)
            dialogues.append(Dialogue(ids, mask))
        return dialogues

    def loader(self, **order: Any) -> BatchLoader[Dialogue, DialogueBatch]:
        """See `ExampleData.loader`."""
        return dialogue_loader(self.train_examples, self.batch_size, **order)

    def whole(self, examples: list[Dialogue]) -> DialogueBatch:
        """See `ExampleData.whole`."""
        return DialogueBatch(examples, count(examples))


def _read(path: str) -> list[dict[str, Any]]:
    file = resolve(path)
    rows = readers.read_jsonl(file)
    for number, row in enumerate(rows, start=1):
        readers.check_messages(row, f"{file}:{number}")
        _check_learn(row, f"{file}:{number}")
    return rows


def _check_learn(row: dict[str, Any], place: str) -> None:
    choices, given = get_args(Learn), row.get("learn", "all")
    if given not in choices:
        hint = readers.nearest(given, list(choices)) if isinstance(given, str) else ""
        raise readers.DataError(
            f"{place}: learn is {given!r}; expected one of {', '.join(choices)}.{hint}"
        )

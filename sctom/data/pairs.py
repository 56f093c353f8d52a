"""Pairs for RewardModelModule: two answers to one prompt as token ids, and which is the better."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from sctom.assets import resolve
from sctom.checks import check_choices
from sctom.data.batches import BatchLoader
from sctom.data.examples import ExampleData
from sctom.data.template import check_length, render_answer
from sctom.losses import preference_margins
from sctom.preferences import GRADES, Pair, read_preferences
from sctom.readers import DataError

MarginRule = Literal["none", "small", "large", "column"]


@dataclass(frozen=True)
class TokenPair:
    """A pair as token ids, with what metrics need to know of it."""

    prompt: list[int]
    """The conversation so far, opened for the assistant's turn."""
    chosen: list[int]
    """The better answer, up to and including the token that ends the turn."""
    rejected: list[int]
    """The other one."""
    margin: float = 0.0
    """The difference of raw scores that counts as even."""
    grade: int | None = None
    """A place in `sctom.preferences.GRADES`."""
    source: str | None = None
    is_safety: bool | None = None
    tied: bool = False
    """Neither is the better one."""
    place: str = ""
    """Where it is from, as "file:line"."""

    @property
    def tokens(self) -> int:
        """Tokens of the pair in a packed row, where the prompt stands once."""
        return len(self.prompt) + len(self.chosen) + len(self.rejected)

    @property
    def prompt_key(self) -> str:
        """Equal for pairs with the same prompt.

        >>> one, same = TokenPair([1, 23], [4], [5]), TokenPair([1, 23], [6], [4])
        >>> one.prompt_key == same.prompt_key != TokenPair([12, 3], [4], [5]).prompt_key
        True
        """
        return hashlib.sha256(" ".join(map(str, self.prompt)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class PairBatch:
    """N pairs that are scored together."""

    pairs: list[TokenPair]
    step_pairs: int
    """Pairs of the whole optimiser step: all accumulated batches of all ranks."""

    @property
    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """(prompt, answer) of the 2 N answers for `RewardModel.scores`, each chosen one first."""
        return [
            (pair.prompt, answer) for pair in self.pairs for answer in (pair.chosen, pair.rejected)
        ]

    @property
    def margins(self) -> Tensor:
        """[N] of each pair."""
        return torch.tensor([pair.margin for pair in self.pairs])

    @property
    def tied(self) -> Tensor:
        """[N] true where neither answer is the better one."""
        return torch.tensor([pair.tied for pair in self.pairs])

    def to(self, device: torch.device) -> PairBatch:
        """The batch as it is, for Lightning: token ids go to the device when they are packed."""
        return self


def render_pair(tokenizer: Any, pair: Pair, *, margin: float, place: str) -> TokenPair:
    """The token ids of a pair, as the model sees them when it samples.

    Args:
        tokenizer: with a chat template.
        pair: as read.
        margin: the difference of raw scores that counts as even.
        place: where the pair is from, as "file:line".

    Raises:
        ValueError: the template cannot render it; see `render_answer`.

    >>> from sctom.modules.backbone import Backbone
    >>> tokenizer = Backbone("sctom:tinyworld/model").load_tokenizer()
    >>> asked = [{"role": "user", "content": "Where does Kalomi live?"}]
    >>> pair = render_pair(tokenizer, Pair(asked, "Berlin", "Madrid"), margin=0, place="x:1")
    >>> [tokenizer.decode(ids) for ids in (pair.prompt, pair.chosen, pair.rejected)]
    ['<|user|>Where does Kalomi live?<|assistant|>', 'Berlin<|end|>', 'Madrid<|end|>']
    """
    try:
        prompt, chosen = render_answer(tokenizer, pair.prompt, pair.chosen)
        _, rejected = render_answer(tokenizer, pair.prompt, pair.rejected)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    return TokenPair(
        prompt,
        chosen,
        rejected,
        margin=margin,
        grade=pair.grade,
        source=pair.source,
        is_safety=pair.is_safety,
        tied=pair.tied,
        place=place,
    )


def margin_of(pair: Pair, rule: MarginRule, *, place: str) -> float:
    """The margin of a pair by the rule; 0 where it is tied.

    Args:
        pair: as read.
        rule: "none" is 0; "small" and "large" go by the grade (Llama 2, Table 27); "column" takes
            the pair's own number.
        place: where the pair is from, as "file:line"; the error begins with it.

    Raises:
        DataError: the pair lacks what the rule goes by.

    >>> pair = Pair([], "Yes.", "No.", grade=GRADES.index("significantly better"), margin=2.5)
    >>> [margin_of(pair, rule, place="x:1") for rule in ("none", "small", "large", "column")]
    [0.0, 1.0, 3.0, 2.5]
    """
    if rule == "none" or pair.tied:
        return 0.0
    key, value = ("margin", pair.margin) if rule == "column" else ("grade", pair.grade)
    if value is None:
        form = "a number" if rule == "column" else f"one of {', '.join(GRADES)}"
        raise DataError(
            f"{place}: data.margin is {rule}, but the row has no {key}; add it ({form}), or set "
            "data.margin to none"
        )
    if rule == "column":
        return float(value)
    return float(preference_margins(torch.tensor([value]), scale=rule))


def pair_loader(
    pairs: Sequence[TokenPair], batch_size: int, **order: Any
) -> BatchLoader[TokenPair, PairBatch]:
    """A loader whose batches know the number of pairs of their optimiser step.

    Args:
        pairs: all of them.
        batch_size: pairs of one batch on one process.
        order: the other arguments of `BatchLoader`.
    """
    return BatchLoader(
        pairs,
        [pair.tokens for pair in pairs],
        lambda mine, step: PairBatch(mine, len(step)),
        batch_size,
        **order,
    )


class PreferenceData(ExampleData[TokenPair, PairBatch]):
    """Pairs of answers from JSONL files, as `sctom.preferences.read_preferences` reads them.

    Args:
        train: JSONL file of training pairs ("sctom:..." for one that sctom ships).
        val: JSONL file of validation pairs, or null.
        batch_size: pairs of one batch on one process.
        val_batch: validation pairs of one batch.
        margin: the difference of raw scores that counts as even: "none" is 0, "small" and "large"
            go by the grade (Llama 2, Table 27), "column" takes the key `margin` of each row.
        max_tokens: a pair whose prompt with an answer is longer is an error that names it; none is
            ever cut.
        shuffle: draw a new order each epoch; false keeps the order of the file.
        window: fill so many batches together, with pairs of similar length side by side: batches of
            long pairs then hold more tokens than others. Packed rows have no padding to save; for
            a model that runs on padded rows it saves time.
        seed: address of the order; null takes seed_everything.

    Raises:
        ValueError: a setting is out of its range.
    """

    def __init__(
        self,
        train: str,
        *,
        val: str | None = None,
        batch_size: int = 16,
        val_batch: int = 16,
        margin: MarginRule = "none",
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
        check_choices("data", {"margin": (margin, get_args(MarginRule))})
        self.margin: MarginRule = margin
        self.train_rows: list[Pair] = []
        self.val_rows: list[Pair] = []

    def setup(self, stage: str) -> None:
        """Read and check the files; no tokenizer is needed yet."""
        self.train_rows = self._read(self.train_path)
        self.val_rows = self._read(self.val_path) if self.val_path else []

    def places(self) -> list[tuple[str, Pair]]:
        """All pairs that were read, each behind its "file:line"."""
        return [
            (f"{resolve(path or '')}:{line}", pair)
            for path, rows in ((self.train_path, self.train_rows), (self.val_path, self.val_rows))
            for line, pair in enumerate(rows, start=1)
        ]

    def _read(self, path: str) -> list[Pair]:
        file = resolve(path)
        pairs = read_preferences(file)
        for line, pair in enumerate(pairs, start=1):
            margin_of(pair, self.margin, place=f"{file}:{line}")
        return pairs

    def render(self, tokenizer: Any) -> None:
        """Turn every pair into token ids; called by the module, which owns the tokenizer."""
        made = [self._render(tokenizer, pair, place) for place, pair in self.places()]
        self.train_examples = made[: len(self.train_rows)]
        self.val_examples = made[len(self.train_rows) :]

    def _render(self, tokenizer: Any, pair: Pair, place: str) -> TokenPair:
        margin = margin_of(pair, self.margin, place=place)
        made = render_pair(tokenizer, pair, margin=margin, place=place)
        for name, answer in (("chosen", made.chosen), ("rejected", made.rejected)):
            check_length(
                [*made.prompt, *answer], self.max_tokens, place=f"{place}: prompt and {name}"
            )
        return made

    def loader(self, **order: Any) -> BatchLoader[TokenPair, PairBatch]:
        """See `ExampleData.loader`."""
        return pair_loader(self.train_examples, self.batch_size, **order)

    def whole(self, examples: list[TokenPair]) -> PairBatch:
        """See `ExampleData.whole`."""
        return PairBatch(examples, len(examples))

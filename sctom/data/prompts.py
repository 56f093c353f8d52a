"""Prompts for PolicyModule, one batch of them per iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import lightning as L

from sctom import readers
from sctom.assets import resolve
from sctom.batch import Prompt
from sctom.checks import check_choices, check_numbers
from sctom.data.order import PromptOrder, Shuffled
from sctom.data.template import check_length, render_prompt
from sctom.tasks import selfaware

Columns = Literal["plain", "selfaware"]


def _plain(row: dict[str, Any], place: str) -> dict[str, Any]:
    """Keep the row; a final assistant message becomes the column `answer`."""
    messages = row["messages"]
    rest = {k: v for k, v in row.items() if k != "messages"}
    if messages[-1]["role"] == "assistant":
        return {"answer": messages[-1]["content"], **rest, "messages": messages[:-1]}
    return {**rest, "messages": messages}


_CONVERTERS: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "plain": _plain,
    "selfaware": selfaware.prompt_row,
}


class PromptLoader:
    """A sized, resumable loader of one batch of prompts per iteration.

    A rank takes every world_size-th prompt of an iteration.

    Args:
        order: which prompts an iteration asks.
        per_iteration: prompts of one iteration over all ranks.
        iterations: length of the run.
        rank: this process.
        world_size: number of processes.
    """

    def __init__(
        self,
        order: PromptOrder,
        per_iteration: int,
        iterations: int,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if per_iteration % world_size:
            raise ValueError(
                f"{per_iteration} prompts per iteration cannot be shared by {world_size} "
                f"processes; set data.prompts_per_iteration to a multiple of {world_size}"
            )
        self.order = order
        self.per_iteration = per_iteration
        self.iterations = iterations
        self.rank = rank
        self.world_size = world_size
        self.position = 0

    def __len__(self) -> int:
        return self.iterations

    def at(self, iteration: int, *, extra: int = 0) -> list[Prompt]:
        """This rank's prompts of an iteration, or of one of its extra batches."""
        chosen = self.order.batch(iteration, self.per_iteration, extra=extra)
        self._check(chosen, whole=not extra)
        return [self.order.prompts[i] for i in chosen[self.rank :: self.world_size]]

    def _check(self, chosen: Sequence[int], *, whole: bool) -> None:
        """Refuse what an order of one's own may get wrong."""
        count = len(self.order.prompts)
        short = len(chosen) < self.per_iteration and whole
        if short or len(chosen) > self.per_iteration or len(set(chosen)) < len(chosen):
            expected = f"{self.per_iteration} different prompts"
        elif not all(0 <= index < count for index in chosen):
            expected = f"indices from 0 to {count - 1}"
        else:
            return
        name = type(self.order).__name__
        raise ValueError(f"data.order {name}: batch must give {expected}, found {chosen!r:.80}")

    def __iter__(self) -> Iterator[list[Prompt]]:
        while self.position < self.iterations:
            batch = self.at(self.position)  # as late as this: a curriculum learns from the last one
            self.position += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The next iteration."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at a saved position."""
        self.position = state["position"]


class EvalLoader:
    """Walks once through the prompts in file order; a rank takes every world_size-th prompt."""

    def __init__(
        self, prompts: list[Prompt], size: int, *, rank: int = 0, world_size: int = 1
    ) -> None:
        mine = prompts[rank::world_size]
        self.batches = [mine[i : i + size] for i in range(0, len(mine), size)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Prompt]]:
        return iter(self.batches)


class PromptData(L.LightningDataModule):
    """Prompts from JSONL files in the messages format, one batch of them per iteration.

    Each line is {"messages": [{"role", "content"}, ...], ...}. Columns beside the messages go to
    the rewards by name; a column that only some rows have is None in the others.

    Args:
        train: JSONL file of training prompts ("sctom:..." for one that sctom ships).
        val: JSONL file of validation prompts, or null.
        prompts_per_iteration: prompts of one iteration; with group_size completions each.
        iterations: number of iterations of the run.
        val_batch: validation prompts sampled at once.
        val_limit: validate on the first so many prompts; null for all.
        max_prompt_tokens: a longer prompt is an error that names it.
        columns: "plain": a last assistant message becomes the column `answer`; "selfaware": the
            columns of the SC-TOM rewards (expected_answer, is_unanswerable, answerable, ...).
        system: replaces the system message of every row (or is put in front of it); null leaves the
            rows alone.
        shots: turns put in front of every prompt, after the system message: examples of a question
            and its answer.
        variant: replaces "{variant}" in the paths of train and val, so that one config serves
            several variants of a data set.
        order: which prompts an iteration asks: Shuffled, or the curriculum SolveRate.
        seed: address of the order of the prompts; null takes seed_everything.
    """

    def __init__(
        self,
        train: str,
        *,
        val: str | None = None,
        prompts_per_iteration: int = 16,
        iterations: int = 100,
        val_batch: int = 64,
        val_limit: int | None = None,
        max_prompt_tokens: int = 1024,
        columns: Columns = "plain",
        system: str | None = None,
        shots: list[dict[str, str]] | None = None,
        variant: str | None = None,
        order: PromptOrder | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        counts = {
            "prompts_per_iteration": prompts_per_iteration,
            "iterations": iterations,
            "val_batch": val_batch,
            "max_prompt_tokens": max_prompt_tokens,
            **({} if val_limit is None else {"val_limit": val_limit}),
        }
        numbers = {name: (value, "at least 1", 1, math.inf) for name, value in counts.items()}
        check_numbers("data", numbers)
        check_choices("data", {"columns": (columns, tuple(_CONVERTERS))})
        self.train_path = _of_variant(train, variant, "train")
        self.val_path = None if val is None else _of_variant(val, variant, "val")
        if variant is not None and "{variant}" not in train:
            raise ValueError(
                f'data.variant is {variant!r}, but data.train ({train}) has no "{{variant}}" for '
                "it to replace; write the path as data/{variant}/train.jsonl, or drop data.variant"
            )
        self.prompts_per_iteration = prompts_per_iteration
        self.iterations = iterations
        self.val_batch = val_batch
        self.val_limit = val_limit
        self.max_prompt_tokens = max_prompt_tokens
        self.columns: Columns = columns
        self.system = system
        self.shots = shots or []
        if self.shots:
            readers.check_messages({"messages": self.shots}, "data.shots")
        self.order = order or Shuffled()
        self.seed = 0 if seed is None else seed
        self.train_rows: list[dict[str, Any]] = []
        self.val_rows: list[dict[str, Any]] = []
        self.train_prompts: list[Prompt] = []
        self.val_prompts: list[Prompt] = []

    def setup(self, stage: str) -> None:
        """Read and check the files; no tokenizer is needed yet."""
        self.train_rows = self._read(self.train_path)
        self.val_rows = self._read(self.val_path)[: self.val_limit] if self.val_path else []

    def _read(self, path: str) -> list[dict[str, Any]]:
        file = resolve(path)
        rows = []
        for number, row in enumerate(readers.read_jsonl(file), start=1):
            place = f"{file}:{number}"
            row["messages"] = self._framed(readers.check_messages(row, place))
            rows.append(_CONVERTERS[self.columns](row, place))
        return rows

    def _framed(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """The messages with the run's system message and examples in place."""
        system = [m for m in messages if m["role"] == "system"]
        turns = [m for m in messages if m["role"] != "system"]
        if self.system is not None:
            system = [{"role": "system", "content": self.system}]
        return [*system, *self.shots, *turns]

    def render(self, tokenizer: Any) -> None:
        """Turn every row into token ids; called by the module, which owns the tokenizer."""
        self.train_prompts = self._render(self.train_rows, tokenizer, self.train_path)
        self.order.start(self.train_prompts, self.seed)
        self.val_prompts = self._render(self.val_rows, tokenizer, self.val_path or "")

    def _render(self, rows: list[dict[str, Any]], tokenizer: Any, path: str) -> list[Prompt]:
        names = {name for row in rows for name in row} - {"messages"}
        prompts = []
        for index, row in enumerate(rows):
            place = f"{resolve(path)}:{index + 1}"
            try:
                ids = render_prompt(tokenizer, row["messages"])
            except (ValueError, TypeError) as error:
                raise ValueError(f"{place}: {error}") from error
            check_length(ids, self.max_prompt_tokens, place=place)
            columns = {name: row.get(name) for name in sorted(names)}
            prompts.append(Prompt(index, ids, row["messages"], columns))
        return prompts

    def train_dataloader(self) -> PromptLoader:
        """One batch per iteration."""
        rank, world = self._place()
        self.loader = PromptLoader(
            self.order, self.prompts_per_iteration, self.iterations, rank=rank, world_size=world
        )
        return self.loader

    def val_dataloader(self) -> EvalLoader | list[Any]:
        """The validation prompts in file order; nothing without a file."""
        if not self.val_prompts:
            return []
        rank, world = self._place()
        return EvalLoader(self.val_prompts, self.val_batch, rank=rank, world_size=world)

    def _place(self) -> tuple[int, int]:
        trainer = self.trainer
        return (trainer.global_rank, trainer.world_size) if trainer is not None else (0, 1)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: what a curriculum has learned about the prompts."""
        return self.order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.order.load_state_dict(state)


def _of_variant(path: str, variant: str | None, setting: str) -> str:
    if variant is None and "{variant}" in path:
        raise ValueError(
            f"data.{setting} is {path}, but data.variant, which goes in place of {{variant}}, is "
            "not set; set data.variant"
        )
    return path if variant is None else path.replace("{variant}", variant)

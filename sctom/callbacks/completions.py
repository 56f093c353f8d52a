"""CompletionsTable: what the policy writes, on the screen now and then and in files always."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich import get_console
from rich.table import Table
from rich.text import Text

from sctom.batch import Rollout, Row, interleave
from sctom.callbacks.common import (
    Record,
    atomic_write,
    check_settings,
    finite_or_none,
    log_text,
    plain,
    printable,
    run_dir,
    show,
    to_lines,
)
from sctom.modules.ranks import gather


class CompletionsTable(Callback):
    """Prints some completions every few iterations, and saves all of every iteration.

    The table shows the best and the worst completion of the first prompts of an iteration (the
    order of prompts is random, so they are no selection); the same goes to TensorBoard as text. The
    file is RUN/completions/iteration-000012.jsonl, one completion a line: iteration, prompt_index,
    sample, prompt (last user message), completion, rewards (null: abstained), reward (null: none;
    with `kl_in: reward` after the KL is taken off), advantage, length (tokens), truncated, counted
    (false: left out of the update, as `zero_variance` and `truncated` of the module say). Groups
    that were replaced by others stand at the end. It is written at once or not at all, prompts in
    the order of the iteration whatever the number of processes, so a run that was killed and
    resumed writes the same file again.

    Args:
        every: iterations between two tables, the first iteration included; 0 prints none.
        prompts: prompts in a table.
        max_chars: prompts and completions are cut to this many characters in a table, never in the
            files.
        save: write the files.
    """

    def __init__(
        self, *, every: int = 10, prompts: int = 2, max_chars: int = 300, save: bool = True
    ) -> None:
        least = {"every": (every, 0), "prompts": (prompts, 1), "max_chars": (max_chars, 10)}
        check_settings("CompletionsTable", least)
        self.every = every
        self.prompts = prompts
        self.max_chars = max_chars
        self.save = save

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save and print the completions of this iteration."""
        iteration, rollout = pl_module.progress.iteration, pl_module.last_rollout
        if self.save:
            processes = gather(trainer, completion_records(rollout, iteration))
            if trainer.is_global_zero:
                path = run_dir(trainer) / "completions" / f"iteration-{iteration:06d}.jsonl"
                records = interleave(processes, rollout.group_size)
                atomic_write(
                    path, to_lines(records + row_records(rollout.dropped, iteration, dropped=True))
                )
        first = iteration == 1
        if trainer.is_global_zero and self.every and (first or iteration % self.every == 0):
            chosen = [row for group in rollout.groups()[: self.prompts] for row in extremes(group)]
            get_console().print(completions_table(chosen, iteration, self.max_chars))
            log_text(trainer, "completions", plain_text(chosen, self.max_chars), iteration)


def completion_records(rollout: Rollout, iteration: int) -> list[Record]:
    """The rows of a rollout as plain data, in its order."""
    return row_records(rollout.rows, iteration)


def row_records(rows: Sequence[Row], iteration: int, *, dropped: bool = False) -> list[Record]:
    """Rows as plain data."""
    return [
        {
            "iteration": iteration,
            "prompt_index": row.prompt.index,
            "sample": row.sample,
            "prompt": last_user_message(row),
            "completion": row.text,
            "rewards": {name: finite_or_none(value) for name, value in row.rewards.items()},
            "reward": finite_or_none(row.reward),
            "advantage": row.advantage,
            "length": len(row.ids),
            "truncated": row.truncated,
            "counted": row.counted and not dropped,
            "extra": {column: plain(value) for column, value in row.extra.items()},
        }
        for row in rows
    ]


def last_user_message(row: Row) -> str:
    """What was asked last."""
    asked = [m["content"] for m in row.prompt.messages if m["role"] == "user"]
    return asked[-1] if asked else ""


def extremes(group: Sequence[Row]) -> list[Row]:
    """The best and the worst completion of a group; one row if none is better than another."""
    valid = [row for row in group if finite_or_none(row.reward) is not None]
    if not valid:
        return list(group[:1])
    best, worst = max(valid, key=lambda r: r.reward), min(valid, key=lambda r: r.reward)
    return [best, worst] if best.reward > worst.reward else [best]


def completions_table(rows: Sequence[Row], iteration: int, max_chars: int) -> Table:
    """Rows as a table: a prompt at its first row only, the parts of a reward if it has several."""
    several = any(len(row.rewards) > 1 for row in rows)
    table = Table(title=f"Completions of iteration {iteration}", show_lines=True)
    table.add_column("prompt", ratio=2)
    table.add_column("completion", ratio=3)
    if several:
        table.add_column("rewards", ratio=1)
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("advantage", justify="right", no_wrap=True)
    before: Row | None = None
    for row in rows:
        repeated = before is not None and before.prompt is row.prompt
        before = row
        parts = "\n".join(f"{name} {show(value, '.2f')}" for name, value in row.rewards.items())
        table.add_row(
            Text("" if repeated else printable(last_user_message(row), max_chars)),
            Text(printable(row.text, max_chars) + _marks(row)),
            *([Text(parts)] if several else []),
            Text(show(row.reward, ".3f")),
            Text(show(row.advantage, "+.3f")),
        )
    return table


def plain_text(rows: Sequence[Row], max_chars: int) -> str:
    """Rows as lines of text."""
    return "\n".join(
        f"prompt:     {printable(last_user_message(row), max_chars)}\n"
        f"completion: {printable(row.text, max_chars)}\n"
        f"reward {show(row.reward, '.3f')}, advantage {show(row.advantage, '+.3f')}, "
        f"{len(row.ids)} tokens\n"
        for row in rows
    )


def _marks(row: Row) -> str:
    cut = " [truncated]" if row.truncated else ""
    return cut if row.counted else cut + " [left out]"

"""RichProgress: one bar for the run on a terminal, a line now and then in a log."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich import get_console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from sctom.callbacks.common import check_settings, show

_FIELDS = (  # words, metric, format, unit
    ("reward", "reward", ".3f", ""),
    ("kl", "kl", ".2g", ""),
    ("length", "completions/mean_length", ".0f", ""),
    ("sampling", "tokens_per_second", ",.0f", " tokens/s"),
)
_SUPERVISED = (
    ("loss", "train/loss", ".4f", ""),
    ("accuracy", "train/accuracy", ".3f", ""),
    ("entropy", "train/entropy", ".3f", ""),
)
_VALIDATION = (
    "val/loss",
    "val/reward",
    "val/accuracy",
    "val/token_accuracy",
    "val/abstention_f1",
    "val/over_refusal",
)


class RichProgress(Callback):
    """Shows iteration, reward, KL to the reference, mean length, sampling speed and the time left.

    Of a reward model's training it shows loss and accuracy instead.

    On a terminal it is one bar, with a second one while validation runs. Anywhere else (a file, a
    CI log) it prints plain lines. It takes the place of Lightning's own bar: set
    `trainer.enable_progress_bar: false`.

    Args:
        plain_seconds: least time between two plain lines; the first and the last iteration always
            get one.
        plain_every: iterations between two plain lines.
        refresh_per_second: how often the bar is drawn.
    """

    def __init__(
        self,
        *,
        plain_seconds: float = 5.0,
        plain_every: int = 1,
        refresh_per_second: float = 2.0,
    ) -> None:
        least = {
            "plain_seconds": (plain_seconds, 0.0),
            "plain_every": (plain_every, 1),
            "refresh_per_second": (refresh_per_second, 0.1),
        }
        check_settings("RichProgress", least)
        self.plain_seconds = plain_seconds
        self.plain_every = plain_every
        self.refresh_per_second = refresh_per_second
        self._bar: Progress | None = None
        self._training: TaskID | None = None
        self._validating: TaskID | None = None
        self._began = 0.0
        self._first = 0  # iterations finished before this process
        self._printed = -math.inf

    # ---- training --------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Start the clock and the bar."""
        self._began = time.monotonic()
        self._first = pl_module.progress.iteration
        self._open(trainer)
        if self._bar is not None:
            total = trainer.datamodule.iterations  # type: ignore[attr-defined]
            self._training = self._bar.add_task(
                "iteration", completed=self._first, total=total, left="", status=""
            )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show one more iteration."""
        iteration = pl_module.progress.iteration
        total = trainer.datamodule.iterations  # type: ignore[attr-defined]
        elapsed = time.monotonic() - self._began
        remaining = elapsed / max(iteration - self._first, 1) * (total - iteration)
        left, status = f"left {clock(remaining)}", status_text(pl_module.last_metrics)
        if self._bar is not None and self._training is not None:
            self._bar.update(self._training, completed=iteration, left=left, status=status)
        elif trainer.is_global_zero and self._due(iteration, total):
            self._print(f"iteration {iteration}/{total}  {status}  {clock(elapsed)} {left}")

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Leave the finished bar on the screen."""
        self._close()

    def on_exception(
        self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException
    ) -> None:
        """Give the terminal back before the traceback is printed."""
        self._close()

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Give the terminal back."""
        self._close()

    def _due(self, iteration: int, total: int) -> bool:
        now = time.monotonic()
        waited = now - self._printed >= self.plain_seconds and iteration % self.plain_every == 0
        due = waited or iteration in (self._first + 1, total)
        if due:
            self._printed = now
        return due

    # ---- validation ------------------------------------------------------------------------------

    def on_validation_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Add a bar for the validation."""
        self._open(trainer)
        if self._bar is not None:
            batches = (
                trainer.num_sanity_val_batches
                if trainer.sanity_checking
                else trainer.num_val_batches
            )
            total = sum(batches)
            self._validating = self._bar.add_task(
                "validation", total=total if math.isfinite(total) else None, left="", status=""
            )

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Show one more batch."""
        if self._bar is not None and self._validating is not None:
            self._bar.advance(self._validating)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Take the bar away and leave one line of results."""
        if self._bar is not None and self._validating is not None:
            self._bar.remove_task(self._validating)
            self._validating = None
        if trainer.is_global_zero:
            found = trainer.callback_metrics
            numbers = "  ".join(
                f"{name.removeprefix('val/')} {show(float(found[name]), '.3f')}"
                for name in _VALIDATION
                if name in found
            )
            self._print(f"validation after iteration {pl_module.progress.iteration}  {numbers}")

    # ---- the console -----------------------------------------------------------------------------

    def _open(self, trainer: L.Trainer) -> None:
        console = get_console()
        if self._bar is not None or not trainer.is_global_zero or not console.is_interactive:
            return
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            TextColumn("{task.fields[status]}", markup=False),  # the widest: cut where it is narrow
            console=console,
            refresh_per_second=self.refresh_per_second,
        )
        self._bar.start()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._training = self._validating = None

    def _print(self, line: str) -> None:
        get_console().print(line, markup=False, highlight=False, soft_wrap=True)


def status_text(metrics: Mapping[str, float]) -> str:
    """The numbers worth seeing all the time, "-" for those an iteration does not have.

    >>> status_text({"reward": 0.5, "completions/mean_length": 41.7, "tokens_per_second": 1234.5})
    'reward 0.500  kl -  length 42  sampling 1,234 tokens/s'
    """
    fields: tuple[tuple[str, str, str, str], ...] = _FIELDS
    if "train/loss" in metrics:
        fields = tuple(field for field in _SUPERVISED if field[1] in metrics)
    return "  ".join(f"{w} {show(metrics.get(name), form)}{unit}" for w, name, form, unit in fields)


def clock(seconds: float) -> str:
    """A duration in hours, minutes and seconds.

    >>> clock(3725.4)
    '1:02:05'
    """
    return str(timedelta(seconds=round(seconds)))

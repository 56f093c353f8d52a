"""Checkpoints by iteration, written so that a kill at any moment leaves the last complete one."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

FOLDER = "checkpoints"
_NAME = re.compile(r"iteration-(\d{6,})\.ckpt")


def checkpoints(run_dir: str | Path) -> list[tuple[int, Path]]:
    """The complete checkpoints of a run, oldest first, as (iteration, path)."""
    folder = Path(run_dir) / FOLDER
    found = [(_NAME.fullmatch(p.name), p) for p in folder.iterdir()] if folder.is_dir() else []
    return sorted((int(match[1]), path) for match, path in found if match)


def _flush(path: Path) -> None:
    """Make sure a file or a folder's entries are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(temporary: Path, final: Path) -> None:
    """Let a finished file or folder appear under its name, once it is on the disk.

    A file replaces another in one step. A folder that is there is set aside first and removed last:
    a kill in between loses neither it nor the new one, and `settle` goes on from there.
    """
    files = [p for p in temporary.rglob("*") if p.is_file()] if temporary.is_dir() else []
    for path in [*files, temporary]:
        _flush(path)
    if temporary.is_dir():
        settle(final)  # else what an earlier kill left would replace this one later
    if final.is_dir():
        os.replace(temporary, _beside(final, "new"))
        settle(final)
    else:
        os.replace(temporary, final)
        _flush(final.parent)


def _beside(final: Path, what: str) -> Path:
    return final.with_name(f".{final.name}.sctom-{what}")


def settle(final: Path) -> bool:
    """Finish the replacement of a folder that a kill cut short, if there was one.

    Of the two names beside it, .NAME.sctom-new is given to a folder only when it is complete, and
    what .NAME.sctom-old holds is removed only once the new folder has its name.

    Args:
        final: the folder, there or not.

    Returns:
        Whether a new folder was found and has its name now.
    """
    new, old = _beside(final, "new"), _beside(final, "old")
    found = new.exists()
    if found:
        if final.is_dir():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(final, old)
        os.replace(new, final)
        _flush(final.parent)
    if final.is_dir():
        shutil.rmtree(old, ignore_errors=True)
    return found


class IterationCheckpoint(Checkpoint):
    """Saves a checkpoint every so many iterations, and the trained model at the end.

    Checkpoints are named RUN/checkpoints/iteration-NNNNNN.ckpt. A checkpoint holds the trained
    weights, the optimiser and the run's position; random draws need no state, since each is a
    function of its address. It is written beside its name, flushed to the disk and then renamed.

    Args:
        every: iterations from one checkpoint to the next; the last iteration is always saved.
        keep: number of checkpoints kept, the newest.
        save_model: save the trained model or adapter to RUN/model when the run is complete.
    """

    def __init__(self, every: int = 10, keep: int = 2, save_model: bool = True) -> None:
        super().__init__()
        for name, value in {"every": every, "keep": keep}.items():
            if value < 1:
                raise ValueError(f"IterationCheckpoint.{name} must be at least 1 but is {value}")
        self.every = every
        self.keep = keep
        self.save_model = save_model
        self._due = False

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Finish what a kill left unfinished of an earlier part of the run."""
        if trainer.is_global_zero:
            settle(Path(trainer.default_root_dir) / "model")

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any) -> None:
        """Save if this iteration is due."""
        iteration = trainer.fit_loop.total_batch_idx + 1
        last = iteration == trainer.num_training_batches * (trainer.max_epochs or 1)
        steps = trainer.max_steps
        out_of_steps = steps != -1 and trainer.global_step >= steps
        self._due |= iteration % self.every == 0
        ending = last or out_of_steps or trainer.should_stop
        # between two optimiser steps only: half-accumulated gradients are in no checkpoint
        if ending or (self._due and iteration % trainer.accumulate_grad_batches == 0):
            self._due = False
            self._save(trainer, iteration)

    def _save(self, trainer: L.Trainer, iteration: int) -> None:
        folder = Path(trainer.default_root_dir) / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        final = folder / f"iteration-{iteration:06d}.ckpt"
        temporary = final.with_suffix(".tmp")
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            publish(temporary, final)
            for _, path in checkpoints(trainer.default_root_dir)[: -self.keep]:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        trainer.strategy.barrier()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save the trained model."""
        if self.save_model and trainer.is_global_zero:
            final = Path(trainer.default_root_dir) / "model"
            temporary = final.with_suffix(".tmp")
            shutil.rmtree(temporary, ignore_errors=True)
            pl_module.save(temporary)  # type: ignore[operator]
            publish(temporary, final)

"""The folder of a run: whether it may be started or resumed is decided here, and never silently."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sctom.callbacks.checkpoint import checkpoints

Resume = Literal["error", "auto", "must", "fresh"]


class RunDirError(ValueError):
    """The run folder does not fit what was asked for."""


@dataclass(frozen=True)
class Start:
    """Where a run begins."""

    checkpoint: Path | None
    """None starts from the configured weights."""
    message: str
    """One line for the console."""


def _set_aside(run_dir: Path) -> Path:
    number = 1
    while (target := run_dir.with_name(f"{run_dir.name}.old-{number}")).exists():
        number += 1
    run_dir.rename(target)
    return target


def decide(run_dir: str | Path, resume: Resume) -> Start:
    """Decide where a run begins.

    Args:
        run_dir: folder of the run.
        resume: "error": a folder that already holds a checkpoint is an error; "auto": go on from
            the newest checkpoint if there is one; "must": go on, and fail if there is nothing to
            go on from; "fresh": set an existing folder aside under another name and start anew.

    Raises:
        RunDirError: with the ways out.
    """
    folder = Path(run_dir)
    found = checkpoints(folder)
    if resume == "fresh":
        if folder.exists() and any(folder.iterdir()):
            return Start(
                None, f"starting a new run in {folder}; the old one is now {_set_aside(folder)}"
            )
        return Start(None, f"starting a new run in {folder}")
    if not found:
        if resume == "must":
            raise RunDirError(
                f"--resume must: {folder} holds no checkpoint to go on from; "
                "check run_dir, or use --resume auto"
            )
        return Start(None, f"starting a new run in {folder}")
    iteration, newest = found[-1]
    if resume == "error":
        raise RunDirError(
            f"{folder} already holds a run at iteration {iteration}; use --resume auto to go on "
            "with it, --resume fresh to set it aside, or another --run_dir"
        )
    return Start(newest, f"resuming {folder} after iteration {iteration}")

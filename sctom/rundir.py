"""The folder of a run: whether it may be started or resumed is decided here, and never silently."""

from __future__ import annotations

import fcntl
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from sctom.callbacks.checkpoint import checkpoints

Resume = Literal["error", "auto", "must", "fresh"]

LOCK = ".lock"
RESULTS = ("metrics.jsonl", "evaluations.jsonl", "model")
"""What a run leaves beside its checkpoints."""


class RunDirError(ValueError):
    """The run folder does not fit what was asked for."""


@dataclass(frozen=True)
class Start:
    """Where a run begins."""

    checkpoint: Path | None
    """None starts from the configured weights."""
    iteration: int
    """Iterations done before."""
    message: str
    """One line for the console."""


def set_aside(run_dir: Path) -> Path:
    """Give the folder of a run another name, that it may have its own again; returns that name."""
    number = 1
    while (target := run_dir.with_name(f"{run_dir.name}.old-{number}")).exists():
        number += 1
    run_dir.rename(target)
    return target


def decide(run_dir: str | Path, resume: Resume) -> Start:
    """Decide where a run begins.

    Args:
        run_dir: folder of the run.
        resume: "error": a folder that already holds a run is an error; "auto": go on from the
            newest checkpoint if there is one; "must": go on, and fail if there is nothing to go on
            from; "fresh": set a folder that holds a run aside under another name and start anew.

    Raises:
        RunDirError: with the ways out.
    """
    folder = Path(run_dir)
    if folder.exists() and not folder.is_dir():
        raise RunDirError(f"run_dir {folder} is a file; name a folder")
    found = checkpoints(folder)
    holds_results = bool(found) or any((folder / name).exists() for name in RESULTS)
    anew = f"starting a new run in {folder}"
    if resume == "fresh":
        if holds_results:
            return Start(None, 0, f"{anew}; the old one is now {set_aside(folder)}")
        return Start(None, 0, anew)
    if resume == "error" and holds_results:
        state = f"a run at iteration {found[-1][0]}" if found else "the results of a run"
        raise RunDirError(
            f"{folder} already holds {state}; use --resume auto to go on with it, "
            "--resume fresh to set it aside, or another --run_dir"
        )
    if not found:
        if resume == "must":
            raise RunDirError(
                f"--resume must: {folder} holds no checkpoint to go on from; check run_dir, "
                "or use --resume auto"
            )
        return Start(None, 0, anew)
    iteration, newest = found[-1]
    _check_readable(newest, found[:-1])
    return Start(newest, iteration, f"resuming {folder} after iteration {iteration}")


def _check_readable(newest: Path, older: list[tuple[int, Path]]) -> None:
    """Read a checkpoint as far as to know that it is one."""
    if newest.is_dir():
        return  # of a sharded strategy, which reads it itself
    try:
        content = torch.load(newest, map_location="meta", mmap=True, weights_only=True)
        whole = {"state_dict", "fingerprint", "loops"} <= content.keys()
    except (OSError, EOFError, RuntimeError, ValueError, pickle.UnpicklingError, AttributeError):
        whole = False
    if not whole:
        way = f"delete it to go on from iteration {older[-1][0]}" if older else "use --resume fresh"
        raise RunDirError(f"{newest} is damaged or no checkpoint of sctom; {way}")


@contextmanager
def locked(run_dir: str | Path) -> Iterator[None]:
    """Keep a run folder to one process; the lock ends with the process, however it ends.

    Raises:
        RunDirError: another process is training in this folder.
    """
    folder = Path(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunDirError(
                f"another process is training in {folder}; wait for it, or use another --run_dir"
            ) from None
        yield


def check_unlocked(run_dir: str | Path) -> None:
    """Refuse a folder another process is training in, before anything in it is moved.

    Raises:
        RunDirError: see `locked`.
    """
    if (Path(run_dir) / LOCK).exists():
        with locked(run_dir):
            pass


def where_to_go_on(run_dir: str | Path) -> str:
    """What a person who stopped a run should know, in half a sentence."""
    found = checkpoints(run_dir)
    if not found:
        return "there is no checkpoint yet"
    return f"the last checkpoint is of iteration {found[-1][0]}; --resume auto goes on from there"

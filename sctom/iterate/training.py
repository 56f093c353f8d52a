"""Stages that train: each is a run of `sctom.fit` in its own folder, with its config beside it."""

from __future__ import annotations

import gc
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from sctom import fit as fitting
from sctom.callbacks.checkpoint import FOLDER as CHECKPOINTS
from sctom.callbacks.common import atomic_write, to_lines
from sctom.fit import FitCLI, build, fit
from sctom.readers import Row, read_jsonl
from sctom.seeds import permutation

CONFIG_FILE = "stage.yaml"
MODEL = "model"
EVERY = 50
"""Batches from one checkpoint to the next, where the config says nothing."""


def fit_config(
    module: str,
    source: str,
    *,
    backbone: Mapping[str, Any],
    model: Mapping[str, Any],
    data: Mapping[str, Any],
    trainer: Mapping[str, Any],
    seed: int,
) -> dict[str, Any]:
    """The config of a stage that trains, as `sctom.fit` reads it.

    Args:
        module: class of the module.
        source: class of its data.
        backbone: arguments of `Backbone`.
        model: further arguments of the module.
        data: arguments of the data.
        trainer: arguments of the trainer; without IterationCheckpoint it gets one.
        seed: seed_everything.
    """
    callbacks = list(trainer.get("callbacks") or [])
    if not any("IterationCheckpoint" in callback["class_path"] for callback in callbacks):
        saved = {"class_path": "IterationCheckpoint", "init_args": {"every": EVERY, "keep": 1}}
        callbacks.append(saved)
    backbone_config = {"class_path": "Backbone", "init_args": dict(backbone)}
    return {
        "seed_everything": seed,
        "model": {"class_path": module, "init_args": {"backbone": backbone_config, **model}},
        "data": {"class_path": source, "init_args": dict(data)},
        "trainer": {**trainer, "callbacks": callbacks},
    }


def check_config(
    config: Mapping[str, Any], folder: Path, stage: str, prompts: Sequence[Row] | None = None
) -> None:
    """Build everything of a stage that trains; no weight is loaded.

    Args:
        config: of `fit_config`.
        folder: a folder to keep files in meanwhile.
        stage: its name, for the error.
        prompts: what a policy will be trained on; its data is then checked as well.

    Raises:
        ValueError: module and data do not go together.
        SystemExit: the config is refused; why has been printed.
    """
    path = folder / CONFIG_FILE
    argv = ["--config", str(path), "--run_dir", str(folder / "run")]
    if prompts is not None:
        file = folder / "prompts.jsonl"
        file.write_text(to_lines(prompts))
        argv += ["--data.train", str(file)]
    path.write_text(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
    cli = _build(argv, f"stage {stage}")
    if prompts is not None:
        fitting.check_config(cli)


def train(folder: Path, config: Mapping[str, Any]) -> None:
    """Train as a config says, in a folder, or go on with it; the result is FOLDER/model."""
    path = folder / CONFIG_FILE
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    atomic_write(path, f"# python -m sctom.fit --config {path} --run_dir {folder}\n{text}")
    argv = ["--config", str(path), "--run_dir", str(folder), "--resume", "auto"]
    fit(_build(argv, str(path)))
    gc.collect()  # of a trainer and what it trained, which know each other
    if not (folder / MODEL).is_dir():  # killed after the last checkpoint, before the model
        shutil.rmtree(folder / CHECKPOINTS)
        fit(_build(argv, str(path)))


def _build(argv: list[str], place: str) -> FitCLI:
    with _no_arguments():
        try:
            return build(argv)
        except SystemExit:
            print(f"(in {place})", file=sys.stderr)
            raise


@contextmanager
def _no_arguments() -> Iterator[None]:
    """Hide the arguments of this process, which Lightning would warn about."""
    kept = sys.argv[1:]
    del sys.argv[1:]
    try:
        yield
    finally:
        sys.argv[1:] = kept


def write_pairs(
    path: Path,
    files: Sequence[Path],
    *,
    is_safety: bool | None,
    mix: float,
    address: tuple[int, ...],
) -> int:
    """Write the pairs of all rounds so far that a reward model is for.

    Args:
        path: where to.
        files: pairs of each round.
        is_safety: whether pairs about safety are its own, or the others; None: all are.
        mix: share of the pairs written that are not its own, as far as there are enough.
        address: of the draw of those.

    Returns:
        How many are its own.
    """
    rows = [row for file in files for row in rows_of(file)]
    own = [row for row in rows if is_safety is None or row["is_safety"] == is_safety]
    others = [row for row in rows if is_safety is not None and row["is_safety"] != is_safety]
    count = min(round(mix / (1 - mix) * len(own)), len(others))
    drawn = sorted(permutation(len(others), *address)[:count].tolist())
    atomic_write(path, to_lines([*own, *(others[place] for place in drawn)]))
    return len(own)


def write_json(path: Path, content: Any) -> None:
    """Write a value as JSON, at once or not at all."""
    atomic_write(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def rows_of(path: Path) -> list[Row]:
    """Rows of a JSONL file that may be empty."""
    return read_jsonl(path) if path.stat().st_size else []

"""What a run in stages has done: which stage is finished, made from what, and still unchanged."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sctom.assets import resolve
from sctom.callbacks.common import atomic_write

MANIFEST_FILE = "manifest.json"
PACKAGES = ("torch", "lightning", "transformers", "peft", "numpy")
NOT_HASHED = ("README.md",)
"""Files of a saved model that say nothing about it."""
ADAPTER_FILE = "adapter_config.json"
"""PEFT writes sets into it as lists, whose order is another one in every process."""


class ManifestError(ValueError):
    """What is on disk is not what the manifest says."""


@dataclass(frozen=True)
class Stage:
    """One step of a run: a function of its config and its input files, and of nothing else."""

    name: str
    """Its folder below RUN/rounds, such as "1/collect"."""
    config: Mapping[str, Any]
    """Every setting that decides what it makes; plain values that JSON can hold."""
    inputs: Sequence[str]
    """Files and folders it reads."""
    outputs: Sequence[str]
    """Files and folders in its folder that later stages, or people, may rely on."""
    run: Callable[[Path], None]
    """Does it, in the folder that is given; called again after a kill, it goes on."""


class Manifest:
    """The record of the stages of a run, in RUN/manifest.json.

    A stage is entered when it begins, with its config and the hashes of its inputs, and again with
    the hashes of its outputs when it is finished. Whoever deletes the folder of a stage has it done
    again.

    Args:
        run_dir: folder of the run.

    Raises:
        ManifestError: the file is not a manifest.
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = Path(run_dir)
        self.path = self.run_dir / MANIFEST_FILE
        self._hashes: dict[Path, tuple[tuple[int, int], str]] = {}
        self.stages: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            try:
                self.stages = json.loads(self.path.read_bytes())["stages"]
            except (ValueError, KeyError) as error:
                raise ManifestError(
                    f"{self.path} is no manifest of a run ({error}); restore it, or use another "
                    "run_dir"
                ) from error

    def folder(self, stage: Stage) -> Path:
        """Where a stage works."""
        return self.run_dir / "rounds" / stage.name

    def do(self, stage: Stage) -> bool:
        """Do a stage, go on with it, or leave it alone when it is finished.

        Returns:
            Whether there was anything to do.

        Raises:
            ManifestError: its config, an input or an output is not what it was; the message names
                it. Or it is done and an output is not there.
        """
        folder = self.folder(stage)
        inputs = {self._portable(path): self._hash(resolve(path)) for path in stage.inputs}
        config = self._portable(json.loads(json.dumps(stage.config)))  # as it will be read again
        entry = self.stages.get(stage.name) if folder.exists() else None
        if entry is not None:
            self._check_same(stage, entry, config, inputs)
            if entry["outputs"] is not None:
                self._check_outputs(stage, entry["outputs"])
                return False
        begun = {"config": config, "inputs": inputs, "outputs": None}
        self._enter(stage, begun)
        folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        stage.run(folder)
        seconds = round(time.monotonic() - started, 3)
        outputs = {name: self._hash(folder / name) for name in stage.outputs}
        missing = [name for name, value in outputs.items() if value is None]
        if missing:
            raise ManifestError(f"{folder} was to hold {missing[0]} at its end, which is not there")
        self._enter(stage, begun | {"outputs": outputs, "seconds": seconds})
        return True

    def digest(self) -> str:
        """One hash of all that the finished stages have made; times and paths take no part."""
        made = {name: entry["outputs"] for name, entry in self.stages.items()}
        return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()

    def _enter(self, stage: Stage, entry: dict[str, Any]) -> None:
        self.stages[stage.name] = entry
        versions = {name: version(name) for name in PACKAGES} | {
            "python": platform.python_version()
        }
        content = {"versions": versions, "digest": self.digest(), "stages": self.stages}
        atomic_write(self.path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def _check_same(
        self, stage: Stage, entry: Mapping[str, Any], config: Any, inputs: Mapping[str, Any]
    ) -> None:
        again = (
            f"to do the stage again, delete {self.folder(stage)} and the folders of the stages "
            "that used it; or use another run_dir"
        )
        if changed := first_difference(entry["config"], config):
            place, was, found = changed
            raise ManifestError(
                f"stage {stage.name} was begun with {place}: {was!r}, which is {found!r} now; "
                f"{again}"
            )
        for path in [*entry["inputs"], *inputs]:
            was, found = entry["inputs"].get(path), inputs.get(path)
            awaited = was is None and entry["outputs"] is None  # such as somebody's labels
            if was != found and not awaited:
                raise ManifestError(
                    f"stage {stage.name} was begun with another {path} ({_short(was)} then, "
                    f"{_short(found)} now); restore it, or {again}"
                )

    def _check_outputs(self, stage: Stage, outputs: Mapping[str, str]) -> None:
        folder = self.folder(stage)
        for name, was in outputs.items():
            found = self._hash(folder / name)
            if was != found:
                raise ManifestError(
                    f"{folder / name} is not what stage {stage.name} made ({_short(was)} then, "
                    f"{_short(found)} now); restore it, or delete {folder} to make it again"
                )

    def _portable(self, value: Any) -> Any:
        """A value whose paths in the run folder are the same wherever that is."""
        if isinstance(value, dict):
            return {key: self._portable(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._portable(inner) for inner in value]
        prefix = f"{self.run_dir}/"
        inside = isinstance(value, str) and value.startswith(prefix)
        return f"RUN/{value[len(prefix) :]}" if inside else value

    def _hash(self, path: Path) -> str | None:
        """The hash of a file, or of a folder's files; None where nothing is."""
        if path.is_file():
            return self._hash_file(path)
        if not path.is_dir():
            return None
        digest = hashlib.sha256()
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            inner = file.relative_to(path).as_posix()
            if inner not in NOT_HASHED:
                digest.update(f"{inner} {self._hash_file(file)}\n".encode())
        return digest.hexdigest()

    def _hash_file(self, path: Path) -> str:
        status = path.stat()
        state = (status.st_mtime_ns, status.st_size)
        known = self._hashes.get(path)
        if known is None or known[0] != state:
            known = (state, _file_hash(path))
            self._hashes[path] = known
        return known[1]


def _file_hash(path: Path) -> str:
    if path.name == ADAPTER_FILE:
        settings = json.loads(path.read_bytes())
        ordered = {
            key: sorted(value, key=str) if isinstance(value, list) else value
            for key, value in settings.items()
        }
        return hashlib.sha256(json.dumps(ordered, sort_keys=True).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _short(digest: str | None) -> str:
    return "nothing" if digest is None else f"sha256 {digest[:12]}"


def first_difference(was: Any, found: Any, place: str = "") -> tuple[str, Any, Any] | None:
    """The first place where two plain values differ, and what each has there.

    >>> first_difference({"lr": 0.1, "data": {"batch": 8}}, {"lr": 0.1, "data": {"batch": 4}})
    ('data.batch', 8, 4)
    >>> first_difference({"lr": 0.1}, {"lr": 0.1}) is None
    True
    """
    if isinstance(was, dict) and isinstance(found, dict):
        for key in [*was, *(key for key in found if key not in was)]:
            inner = f"{place}.{key}" if place else key
            if different := first_difference(was.get(key), found.get(key), inner):
                return different
        return None
    return None if was == found else (place, was, found)

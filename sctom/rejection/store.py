"""Files that grow by whole prompts, and a manifest that says what they were made from."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sctom.callbacks.checkpoint import publish
from sctom.callbacks.common import Record, atomic_write, to_lines
from sctom.rewards import FunctionReward, Reward
from sctom.rundir import Resume, set_aside

UNCHANGING = ("run_dir", "chunk")
"""Settings that do not change what comes out."""

MANIFEST_FILE = "manifest.json"
PACKAGES = ("torch", "transformers", "peft", "numpy")


class RunFolderError(ValueError):
    """The folder of a run does not fit what was asked for."""


def hash_of(path: Path) -> str:
    """The sha256 of a file, read piece by piece.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "empty"
    >>> path.touch()
    >>> hash_of(path)[:12]
    'e3b0c44298fc'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reward_hash(reward: Reward) -> str:
    """A hash of the code of a reward, and of what it says that it runs on.

    Of its code it sees the file of its class, or of its function, and not what they import.
    """
    owner: Any = reward.function if isinstance(reward, FunctionReward) else type(reward)
    while isinstance(owner, partial):
        owner = owner.func
    about = " ".join(reward.describe()).encode()
    try:
        source = Path(inspect.getfile(owner)).read_bytes()
    except (OSError, TypeError):  # of a session, or built in
        source = b""
    return hashlib.sha256(about + b"\0" + source).hexdigest()


class Samples:
    """A JSONL file of samples, `per_prompt` lines for each prompt, written whole prompts at a time.

    Args:
        path: the file.
        per_prompt: lines of a prompt.
    """

    def __init__(self, path: Path, per_prompt: int) -> None:
        self.path = path
        self.per_prompt = per_prompt

    def rewind(self, multiple: int, total: int) -> int:
        """Drop what a kill cut short, back to a multiple of so many prompts.

        Args:
            multiple: prompts that were written together.
            total: prompts there are; all of them stay, whatever the multiple.

        Returns:
            The prompts that are complete.
        """
        if not self.path.exists():
            return 0
        ends = []
        with self.path.open("rb") as file:
            for line in iter(file.readline, b""):
                if line.endswith(b"\n"):
                    ends.append(file.tell())
        prompts = len(ends) // self.per_prompt
        if prompts < total:
            prompts -= prompts % multiple
        size = ends[prompts * self.per_prompt - 1] if prompts else 0
        os.truncate(self.path, size)
        return prompts

    def append(self, records: Sequence[Record]) -> None:
        """Add the lines of some prompts, and wait until they are on the disk."""
        content = to_lines(records).encode(errors="backslashreplace")
        with self.path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[list[Record]]:
        """The records of one prompt after the other."""
        group: list[Record] = []
        with self.path.open("rb") as file:
            for line in file:
                group.append(json.loads(line))
                if len(group) == self.per_prompt:
                    yield group
                    group = []


@contextmanager
def replacing(path: Path) -> Iterator[Callable[[Sequence[Record]], None]]:
    """Write a JSONL file line by line that has its name only once it is whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:

        def write(records: Sequence[Record]) -> None:
            file.write(to_lines(records).encode(errors="backslashreplace"))

        yield write
    publish(temporary, path)


def begin(run_dir: str, resume: Resume) -> Path:
    """The folder of a run; with "fresh", one that holds something is set aside under another name.

    Args:
        run_dir: the folder.
        resume: as `sctom.rundir.decide` has it.
    """
    path = Path(run_dir)
    if resume == "fresh" and (path / MANIFEST_FILE).exists():
        print(f"the old run is now {set_aside(path)}")
    return path


@dataclass
class Folder:
    """The folder of a run, and its manifest.

    A run is a function of its config, its input files and the weights of its model. What is there
    is gone on with only where all of these are the same.
    """

    path: Path
    config: Mapping[str, Any]
    """Every setting, as JSON can hold it."""
    inputs: Mapping[str, str]
    """What is read -> its hash."""

    def open(self, resume: Resume) -> bool:
        """Begin, or go on.

        Args:
            resume: "error", "auto" or "must", as `sctom.rundir.decide` has them.

        Returns:
            Whether the run is finished already, with all it has written unchanged.

        Raises:
            RunFolderError: the folder holds a run and `resume` is "error", none and it is "must",
                or another run, or one whose files have changed.
        """
        file = self.path / MANIFEST_FILE
        if not file.exists():
            if self.path.exists() and any(p.name[0] != "." for p in self.path.iterdir()):
                raise RunFolderError(
                    f"{self.path} holds other files; name an empty folder as run_dir"
                )
            if resume == "must":
                raise RunFolderError(
                    f"--resume must: {self.path} holds no run to go on with; check run_dir, or use "
                    "--resume auto"
                )
            self._write(None)
            return False
        if resume == "error":
            raise RunFolderError(
                f"{self.path} holds a run already; use --resume auto to go on with it, --resume "
                "fresh to set it aside, or another --run_dir"
            )
        found = json.loads(file.read_bytes())
        self._check_same(found)
        if found["outputs"] is None:
            return False
        for name, value in found["outputs"].items():
            if not (self.path / name).is_file() or hash_of(self.path / name) != value:
                raise RunFolderError(
                    f"{self.path / name} is not what this run wrote; restore it, or delete "
                    f"{file} and the files beside it to sample again"
                )
        return True

    def finish(self, outputs: Sequence[str]) -> None:
        """Enter the hashes of what was written; the run is then complete."""
        self._write({name: hash_of(self.path / name) for name in outputs})

    def _check_same(self, found: Mapping[str, Any]) -> None:
        for what, now in (("config", self._plain()), ("inputs", dict(self.inputs))):
            then = found[what]
            changed = [key for key in {**then, **now} if then.get(key) != now.get(key)]
            if changed:
                key = changed[0]
                raise RunFolderError(
                    f"{self.path} holds the samples of another run: {key} was "
                    f"{then.get(key)!r:.80} and is {now.get(key)!r:.80} now; use another run_dir, "
                    "or restore it"
                )

    def _plain(self) -> dict[str, Any]:
        deciding = {k: v for k, v in self.config.items() if k not in UNCHANGING}
        config: dict[str, Any] = json.loads(json.dumps(deciding))
        return config

    def _write(self, outputs: Mapping[str, str] | None) -> None:
        content = {
            "config": self._plain(),
            "inputs": dict(self.inputs),
            "versions": {name: version(name) for name in PACKAGES},
            "outputs": outputs,
        }
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        atomic_write(self.path / MANIFEST_FILE, text)

"""What the callbacks share: files that survive a kill, and text fit for people and for JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.loggers import TensorBoardLogger

from sctom.callbacks.checkpoint import publish

Record = dict[str, Any]


def run_dir(trainer: L.Trainer) -> Path:
    """The folder of the run."""
    return Path(trainer.default_root_dir)


def log_text(trainer: L.Trainer, tag: str, text: str, iteration: int) -> None:
    """Show a text, as it is, in every TensorBoard logger of the run."""
    block = "\n".join("    " + line for line in text.splitlines())  # Markdown leaves it alone
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_text(tag, block, iteration)


def atomic_write(path: Path, content: str | bytes) -> None:
    """Replace a file such that a kill at any moment leaves the old content or the new one.

    Args:
        path: the file; its folder is made.
        content: what to write, text as UTF-8.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    if isinstance(content, str):  # half a surrogate pair becomes its escape, in JSON too
        content = content.encode(errors="backslashreplace")
    temporary.write_bytes(content)
    publish(temporary, path)


def to_lines(records: Sequence[Record]) -> str:
    """Records as JSONL. NaN and infinity are not JSON and raise: see `finite_or_none`."""
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records]
    return "".join(line + "\n" for line in lines)


def append_record(path: Path, record: Record) -> None:
    """Add one line and wait until it is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(to_lines([record]))
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> list[Record]:
    """Records of a JSONL file, none without a file; a last line cut short by a kill is left out.

    Raises:
        ValueError: another line is not JSON.
    """
    if not path.exists():
        return []
    *lines, _unfinished = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            fix = "mend or delete the line; sctom itself only cuts the last line short"
            raise ValueError(f"{path}:{number} is not JSON ({error}); {fix}") from error
    return records


def rewind_records(path: Path, iteration: int) -> list[Record]:
    """Drop what a run that goes on after an iteration will write again; at iteration 0, everything.

    Args:
        path: JSONL whose records have an `iteration`.
        iteration: iterations finished at the point of resumption.

    Returns:
        The records that stay.
    """
    records = read_records(path)
    kept = [r for r in records if r["iteration"] <= iteration] if iteration else []
    if path.exists():
        atomic_write(path, to_lines(kept))
    return kept


def finite_or_none(value: float | None) -> float | None:
    """The number, or None where JSON has no word for it.

    >>> finite_or_none(float("nan")), finite_or_none(0.5)
    (None, 0.5)
    """
    return None if value is None or not math.isfinite(value) else float(value)


def show(value: float | None, form: str) -> str:
    """A number for a person, "-" where there is none.

    >>> show(0.12345, ".3f"), show(None, ".3f"), show(float("nan"), ".3f")
    ('0.123', '-', '-')
    """
    return "-" if value is None or not math.isfinite(value) else format(value, form)


def printable(text: str, limit: int) -> str:
    r"""Text on one line, cut to a length, control characters escaped (a model may sample them).

    >>> printable("a\nb\x1b[31m", 100), printable("abcdef", 4)
    ('a\\nb\\x1b[31m', 'abc…')
    """
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def check_settings(owner: str, least: Mapping[str, tuple[float, float]]) -> None:
    """Refuse settings below their least value.

    Args:
        owner: class that has the settings.
        least: setting -> (value, least value).

    Raises:
        ValueError: with the setting, what was found and what was expected.

    >>> check_settings("CompletionsTable", {"every": (-1, 0)})
    Traceback (most recent call last):
        ...
    ValueError: CompletionsTable.every must be at least 0 but is -1
    """
    for name, (value, bound) in least.items():
        if not value >= bound:
            raise ValueError(f"{owner}.{name} must be at least {bound} but is {value}")


def plain(value: Any) -> Any:
    """The value if JSON has a word for it, else its text.

    >>> plain("a"), plain(float("inf")), plain([1, 2])
    ('a', 'inf', '[1, 2]')
    """
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if isinstance(value, str | int | float | None) and finite else str(value)

"""Prepared data to files: JSONL and a manifest, the same bytes for the same rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sctom.readers import DataError, Row


@dataclass(frozen=True)
class Prepared:
    """What a public data set becomes."""

    files: dict[str, list[Row]]
    """File name -> rows; a file may be empty."""
    counts: dict[str, dict[str, int]]
    """File name -> what is counted in it -> how many. For the manifest and the report."""
    manifest: dict[str, Any]
    """Where the rows come from: set, variant, seed, licence, hash of the source."""
    notes: list[str]
    """What a person should be told."""


def sha256(content: bytes) -> str:
    """The hash as 64 hexadecimal digits.

    >>> sha256(b"")[:12]
    'e3b0c44298fc'
    """
    return hashlib.sha256(content).hexdigest()


def write(prepared: Prepared, folder: str | Path, *, force: bool = False) -> None:
    """Write the files of a set, and last manifest.json with their counts and hashes.

    A file that is there already with the same bytes is left alone.

    Args:
        prepared: the set.
        folder: where to; made when it does not exist.
        force: write also where the folder holds something else: files of other names stay, files
            of the same name are replaced.

    Raises:
        DataError: `folder` is a file, or holds something else and `force` is false.
    """
    folder = Path(folder)
    contents = {name: _jsonl(rows) for name, rows in prepared.files.items()}
    files = {
        name: {"rows": len(rows), **prepared.counts.get(name, {}), "sha256": sha256(contents[name])}
        for name, rows in prepared.files.items()
    }
    manifest = {**prepared.manifest, "files": files}
    contents["manifest.json"] = (json.dumps(manifest, indent=2) + "\n").encode()
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; expected a folder to write to")
    present = sorted(folder.iterdir()) if folder.exists() else []
    others = [entry.name for entry in present if not _holds(entry, contents.get(entry.name))]
    if others and not force:
        listed = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
        hint = "choose another folder, or pass --force to replace files of the same name"
        raise DataError(f"{folder} holds other contents already ({listed}); {hint}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        if not _holds(folder / name, content):
            (folder / name).write_bytes(content)


def _holds(path: Path, content: bytes | None) -> bool:
    return path.is_file() and path.read_bytes() == content


def _jsonl(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()

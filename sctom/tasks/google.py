"""Google's example lines to training files in the messages format."""

from __future__ import annotations

from pathlib import Path

from sctom.readers import DataError, Row, check_is_file, read_jsonl
from sctom.rewards.google.example import messages_from_example
from sctom.seeds import permutation
from sctom.writers import Prepared, sha256

LIMITS = {"train.jsonl": 5_000, "valid.jsonl": 500}
"""Google's largest training and validation sets; here larger ones are only noted."""

_SHUFFLE = 0


def prepare_google(
    source: str | Path, *, valid: str | Path | None = None, seed: int = 0
) -> Prepared:
    """Google's data sets in the messages format, with the columns `references` and `example`.

    Args:
        source: JSONL file of training examples: contents, systemInstruction, references.
        valid: that of validation examples, or None.
        seed: of the order of the training rows.

    Raises:
        FileNotFoundError: a file is missing.
        DataError: a line has another form.
    """
    paths = {"train.jsonl": check_is_file(source)}
    if valid is not None:
        paths["valid.jsonl"] = check_is_file(valid)
    files = {name: _rows(path, name) for name, path in paths.items()}
    train = files["train.jsonl"]
    files["train.jsonl"] = [train[place] for place in permutation(len(train), seed, _SHUFFLE)]
    sources = [{"file": path.name, "sha256": sha256(path.read_bytes())} for path in paths.values()]
    notes = [
        f"{name} has {len(files[name]):,} rows; Google takes at most {most:,}"
        for name, most in LIMITS.items()
        if len(files.get(name, ())) > most
    ]
    keys = [_keys(rows) for rows in files.values()]
    if any(found != keys[0] for found in keys[1:]) or len(keys[0]) > 1:
        listed = sorted({", ".join(found) or "none" for each in keys for found in each})
        notes.append(f"rows differ in the references they have: {' | '.join(listed)}")
    return Prepared(
        files,
        counts={
            name: {"with_references": sum(bool(row["references"]) for row in rows)}
            for name, rows in files.items()
        },
        manifest={"set": "google", "seed": seed, "sources": sources},
        notes=notes,
    )


def _keys(rows: list[Row]) -> set[tuple[str, ...]]:
    return {tuple(sorted(row["references"])) for row in rows}


def _rows(path: Path, name: str) -> list[Row]:
    kind = name.removesuffix(".jsonl")
    rows = []
    for line, row in enumerate(read_jsonl(path), start=1):
        try:
            made = messages_from_example(row, f"{path}:{line}")
        except DataError as error:
            hint = " Rows with messages need no preparation." if "messages" in row else ""
            raise DataError(f"{error}{hint}") from error
        rows.append({**made, "id": f"google-{kind}-{line}"})
    return rows

"""JSONL files to rows, and the check of their chat messages. No torch: the MLX side reads too."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any, NoReturn

Row = dict[str, Any]
Message = dict[str, str]

ROLES = ("system", "user", "assistant")


class DataError(ValueError):
    """A data file does not hold what it must; the message names the file and the line."""


def nearest(name: str, names: list[str]) -> str:
    """A hint for a misspelt name: " Did you mean 'x'?", or "" when nothing is near.

    >>> nearest("trian.jsonl", ["train.jsonl", "test.jsonl"])
    " Did you mean 'train.jsonl'?"
    >>> nearest("trian.jsonl", ["manifest"])
    ''
    """
    matches = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def check_is_file(path: str | Path) -> Path:
    """The path, when it is a file.

    Raises:
        FileNotFoundError: nothing is there; the message names the nearest file of that folder,
            whatever the ending: names are compared without theirs.
        DataError: the path is a folder.
    """
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder; expected a file")
    if path.is_file():
        return path
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} does not exist: there is no folder {path.parent}.")
    files = [entry for entry in path.parent.iterdir() if entry.is_file()]
    files.sort(key=lambda entry: (entry.suffix == path.suffix, entry.name))  # the best come last
    names = {entry.stem: entry.name for entry in files}
    near = difflib.get_close_matches(path.stem, names, n=1)
    hint = f" Did you mean {names[near[0]]!r}?" if near else ""
    raise FileNotFoundError(f"{path} does not exist.{hint}")


def read_jsonl(path: str | Path) -> list[Row]:
    r"""All rows of a JSONL file: one JSON object on each line, UTF-8.

    Row i is line i + 1: blank lines are allowed at the end only, so that a row can always be named
    by its line.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: a line is not valid JSON (NaN and Infinity are not), or not an object; or the
            file holds no rows.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "rows.jsonl"
    >>> _ = path.write_text('{"a": 1}\n{"a": 2}\n')
    >>> read_jsonl(path)
    [{'a': 1}, {'a': 2}]
    """
    path = check_is_file(path)
    # Only "\n" ends a line: str.splitlines would also cut at U+2028, which JSON strings may hold.
    lines = path.read_bytes().rstrip().split(b"\n")
    if lines == [b""]:
        raise DataError(f"{path} holds no rows; expected one JSON object on each line")
    return [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _parse(line: bytes, place: str) -> Row:
    shown = line if len(line) <= 60 else line[:57] + b"..."
    snippet = shown.decode("utf-8", errors="replace").strip()
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at column {error.colno}"
        raise DataError(f"{place}: not valid JSON ({reason}): {snippet!r}") from error
    except ValueError as error:  # bytes that are not UTF-8, and NaN or Infinity
        raise DataError(f"{place}: not valid JSON ({error}): {snippet!r}") from error
    if b"\\ud" in line.lower() and not _is_text(row):
        raise DataError(
            f"{place}: a text has half a surrogate pair (\\ud800 to \\udfff), which is no "
            f"character; mend or leave out the row: {snippet!r}"
        )
    if not isinstance(row, dict):
        found = type(row).__name__
        raise DataError(f"{place}: expected a JSON object but found a {found}: {snippet!r}")
    return row


def _is_text(row: Any) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def check_messages(row: Row, place: str) -> list[Message]:
    """The chat messages of a row, after checking them.

    Args:
        row: a row with "messages": a list of {"role", "content"}, roles system, user and assistant,
            contents strings, at least one user turn.
        place: where the row is from, as "file:line"; every error begins with it.

    Returns:
        `row["messages"]` itself.

    Raises:
        DataError: the row has another form.

    >>> check_messages({"messages": [{"role": "user", "content": "Why?"}]}, "train.jsonl:1")
    [{'role': 'user', 'content': 'Why?'}]
    >>> check_messages({"messages": [{"role": "usr", "content": "Why?"}]}, "train.jsonl:1")
    Traceback (most recent call last):
        ...
    sctom.readers.DataError: train.jsonl:1: messages[0] has the role 'usr'; expected one of \
system, user, assistant. Did you mean 'user'?
    """
    if "messages" not in row:
        found = f"found the columns: {', '.join(row) or 'none'}."
        raise DataError(f"{place}: the column 'messages' is missing; {found}{_messages_hint(row)}")
    messages = row["messages"]
    if not isinstance(messages, list):
        found = type(messages).__name__
        raise DataError(f"{place}: messages must be a list of role and content, but is a {found}")
    for index, message in enumerate(messages):
        _check_message(message, f"{place}: messages[{index}]")
    if not any(message["role"] == "user" for message in messages):
        found = ", ".join(message["role"] for message in messages) or "no turns"
        raise DataError(f"{place}: messages must have at least one user turn; found {found}")
    return messages


def _messages_hint(row: Row) -> str:
    """How a row without "messages" comes to have them, as far as one can tell."""
    if "prompt" not in row:
        return nearest("messages", list(row))
    if isinstance(row["prompt"], list):  # TRL's conversational format
        return " Rename the column 'prompt' to 'messages'."
    return ' Write the prompt as "messages": [{"role": "user", "content": ...}].'


def _check_message(message: Any, place: str) -> None:
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
        found = sorted(message) if isinstance(message, dict) else type(message).__name__
        raise DataError(f"{place} must be an object with exactly role and content; found {found}")
    role, content = message["role"], message["content"]
    if role not in ROLES:
        hint = nearest(role, list(ROLES)) if isinstance(role, str) else ""
        raise DataError(f"{place} has the role {role!r}; expected one of {', '.join(ROLES)}.{hint}")
    if not isinstance(content, str):
        raise DataError(f"{place} has content of type {type(content).__name__}; expected a string")

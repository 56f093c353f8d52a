from __future__ import annotations

import re
from pathlib import Path

import pytest

from sctom.readers import DataError, check_messages, read_jsonl

USER = {"role": "user", "content": "Why?"}


def write(folder: Path, content: bytes, name: str = "rows.jsonl") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_rows_in_order_with_unicode_line_separators_inside(tmp_path):
    content = '{"a": "x\u2028y"}\r\n{"a": "모름"}\n\n'.encode()
    assert read_jsonl(write(tmp_path, content)) == [{"a": "x\u2028y"}, {"a": "모름"}]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"a": 1', "not valid JSON (Expecting ',' delimiter at column 8): '{\"a\": 1'"),
        (b"", "not valid JSON (Expecting value at column 1): ''"),
        (b'{"a": NaN}', "not valid JSON (NaN is not a JSON number)"),
        (b'{"a": "\xff"}', "not valid JSON ('utf-8' codec can't decode byte 0xff"),
        (b"[1, 2]", "expected a JSON object but found a list: '[1, 2]'"),
    ],
)
def test_a_bad_line_is_named_by_file_and_line(tmp_path, line, reason):
    path = write(tmp_path, b'{"a": 1}\n' + line + b'\n{"a": 3}\n')
    with pytest.raises(DataError, match=re.escape(f"{path}:2: {reason}")):
        read_jsonl(path)


def test_a_long_bad_line_is_cut(tmp_path):
    with pytest.raises(DataError) as caught:
        read_jsonl(write(tmp_path, b'{"a": ' + b"x" * 500))
    assert str(caught.value).endswith(': \'{"a": ' + "x" * 51 + "...'")


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_holds_no_rows(tmp_path, content):
    with pytest.raises(DataError, match="holds no rows"):
        read_jsonl(write(tmp_path, content))


def test_a_missing_file_is_answered_with_the_nearest_name(tmp_path):
    write(tmp_path, b"{}\n", "train.jsonl")
    with pytest.raises(FileNotFoundError, match=r"trian.jsonl does not exist. Did you mean 'train"):
        read_jsonl(tmp_path / "trian.jsonl")
    with pytest.raises(FileNotFoundError, match=r"train.json does not exist. Did you mean 'train"):
        read_jsonl(tmp_path / "train.json")
    write(tmp_path, b"{}\n", "trains.json")
    with pytest.raises(FileNotFoundError, match=r"Did you mean 'trains\.json'"):
        read_jsonl(tmp_path / "trains.jsonl")
    with pytest.raises(FileNotFoundError, match=r"nine\.jsonl does not exist\.$"):
        read_jsonl(tmp_path / "nine.jsonl")  # near to none by more than its ending
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        read_jsonl(tmp_path / "dta" / "train.jsonl")
    with pytest.raises(DataError, match="is a folder"):
        read_jsonl(tmp_path)


def test_good_messages_are_returned_unchanged():
    messages = [{"role": "system", "content": ""}, USER, {"role": "assistant", "content": "So."}]
    assert check_messages({"messages": messages, "id": 1}, "f:1") is messages


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "the column 'messages' is missing; found the columns: none."),
        ({"message": []}, "found the columns: message. Did you mean 'message'?"),
        ({"prompt": [USER]}, "columns: prompt. Rename the column 'prompt' to 'messages'."),
        ({"prompt": "Why?"}, 'Write the prompt as "messages": [{"role": "user", "content": ...}].'),
        ({"messages": "hi"}, "messages must be a list of role and content, but is a str"),
        ({"messages": ["hi"]}, "messages[0] must be an object with exactly role and content"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1] must be an object with exactly"),
        ({"messages": [{**USER, "weight": 0}]}, "found ['content', 'role', 'weight']"),
        ({"messages": [{**USER, "role": "asistant"}]}, "Did you mean 'assistant'?"),
        ({"messages": [{**USER, "role": None}]}, "has the role None; expected one of system"),
        ({"messages": [{**USER, "content": None}]}, "has content of type NoneType"),
        ({"messages": [{**USER, "role": "system"}]}, "at least one user turn; found system"),
        ({"messages": []}, "at least one user turn; found no turns"),
    ],
)
def test_bad_messages_are_named_by_place(row, reason):
    with pytest.raises(DataError, match=re.escape(reason)) as caught:
        check_messages(row, "data/train.jsonl:3")
    assert str(caught.value).startswith("data/train.jsonl:3: ")


def test_half_a_surrogate_pair_is_no_text(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": "\\ud83d\\ude00"}\n{"a": "\\uD800 x"}\n')
    with pytest.raises(DataError, match=r"rows.jsonl:2: a text has half a surrogate pair"):
        read_jsonl(path)
    path.write_text('{"a": "\\ud83d\\ude00"}\n')
    assert read_jsonl(path) == [{"a": "\N{GRINNING FACE}"}]

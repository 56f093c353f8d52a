from __future__ import annotations

import json

import pytest

from sctom.prepare import main
from sctom.readers import DataError, read_jsonl
from sctom.rewards.google.example import (
    check_references,
    content_text,
    example_from_messages,
    messages_from_example,
    read_content,
    read_example,
)

LINE = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Capital of "}, {"text": "France?"}]},
        {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "Paris"}]},
        {"role": "user", "parts": [{"text": "Sure?"}]},
    ],
    "references": {"answer": "yes"},
}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Capital of France?"},
    {"role": "assistant", "content": "Paris"},
    {"role": "user", "content": "Sure?"},
]


def user(text):
    return {"role": "user", "parts": [{"text": text}]}


def test_a_line_as_messages():
    row = messages_from_example(LINE, "train.jsonl:1")
    assert row == {"messages": MESSAGES, "references": {"answer": "yes"}, "example": LINE}


def test_snake_case_becomes_camel_case():
    line = {"system_instruction": {"parts": [{"text": "a", "thought_signature": "x"}]}} | {
        "contents": [user("b")],
        "references": None,
    }
    read = read_example(line, "line")
    part = {"text": "a", "thoughtSignature": "x"}
    assert read == {"systemInstruction": {"parts": [part]}, "contents": [user("b")]}


def test_messages_as_a_line_and_back():
    line = example_from_messages(MESSAGES, {"answer": "yes"})
    assert messages_from_example(line)["messages"] == MESSAGES
    assert [turn["role"] for turn in line["contents"]] == ["user", "model", "user"]
    assert "references" not in example_from_messages("Why?", {})


def test_thoughts_are_not_text():
    assert content_text(LINE["contents"][1]) == "Paris"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"contents": []}, "contents must be a list of at least one turn"),
        ({"contents": None}, "contents must be a list"),
        ({"contents": "Why?"}, "contents must be a list"),
        ({"content": []}, "unknown key 'content'.*Did you mean 'contents'"),
        ({"references": {"n": 4}}, r"references\['n'\] is 4; references hold strings only"),
        ({"references": ["4"]}, "references must be an object of strings, but is a list"),
        ({"tools": [{}]}, "tools are not supported"),
        ({"system_instruction": user("x")}, "systemInstruction is given twice"),
        ({"systemInstruction": "Be brief."}, "systemInstruction must be an object.*parts"),
        ({"contents": [{"role": "user"}]}, r"contents\[0\].parts must be a list"),
        ({"contents": [{"role": 1, "parts": [{"text": "a"}]}]}, r"contents\[0\].role must be"),
        ({"contents": [{"parts": [{"text": 4}]}]}, r"contents\[0\].parts\[0\].text must be a str"),
        ({"contents": [{"parts": [{"file_data": {}}]}]}, r"parts\[0\] holds file_data; only text"),
        ({"contents": [{"parts": [{"text": "a", "thought": 1}]}]}, "thought must be true or false"),
        ({"contents": [{"role": "assistant", "parts": [{"text": "a"}]}]}, "role 'assistant'"),
        ({"contents": [{"role": "model", "parts": [{"text": "a"}]}]}, "must end with a user's"),
    ],
)
def test_a_line_of_another_form(change, said):
    with pytest.raises(DataError, match=f"^train.jsonl:7.*{said}"):
        messages_from_example({**LINE, **change}, "train.jsonl:7")


def test_other_errors():
    with pytest.raises(DataError, match="a system message must be the first"):
        example_from_messages([MESSAGES[1], MESSAGES[0]])
    with pytest.raises(DataError, match="sampleResponse must be an object"):
        read_content(None, "sampleResponse")
    assert check_references({"a": "b"}, "x") == {"a": "b"}


# --- files


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_the_command_prepares_lines(tmp_path, capsys):
    lines = [{"contents": [user(f"{n}?")], "references": {"n": str(n)}} for n in range(20)]
    source = write(tmp_path / "a.jsonl", lines)
    valid = write(tmp_path / "b.jsonl", [{"contents": [user("x?")]}])
    out = tmp_path / "out"
    main(["google", "--source", source, "--valid", valid, "--out", str(out)])
    rows = read_jsonl(out / "train.jsonl")
    assert sorted(int(row["references"]["n"]) for row in rows) == list(range(20))
    assert [row["id"] for row in rows] != [f"google-train-{n}" for n in range(1, 21)]
    for row in rows:
        assert row["messages"] == [{"role": "user", "content": f"{row['references']['n']}?"}]
        assert row["example"]["references"] == row["references"]
    assert read_jsonl(out / "valid.jsonl")[0]["references"] == {}
    assert "rows differ in the references" in " ".join(capsys.readouterr().out.split())
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["files"]["train.jsonl"]["with_references"] == 20


def test_the_command_names_the_line(tmp_path, capsys):
    source = write(tmp_path / "a.jsonl", [LINE, {"messages": MESSAGES}])
    with pytest.raises(SystemExit):
        main(["google", "--source", source, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert "a.jsonl:2: unknown key 'messages'" in said and "need no preparation" in said


def test_more_lines_than_google_takes_are_noted(tmp_path, capsys):
    source = write(tmp_path / "a.jsonl", [{"contents": [user("a")]}] * 5001)
    main(["google", "--source", source, "--out", str(tmp_path / "out")])
    assert "5,001 rows; Google takes at most 5,000" in " ".join(capsys.readouterr().out.split())

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sctom.readers import DataError, check_messages
from sctom.rewards.math_answers import accuracy_reward
from sctom.tasks.gsm8k import FILES, gsm8k_row, prepare_gsm8k

DATA = Path(os.environ.get("SCTOM_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (DATA / FILES[0]).is_file(), reason=f"no {FILES[0]} in the folder named by SCTOM_DATA"
)


def problem(number):
    return {
        "question": f"What is {number} + 1? ",
        "answer": f"It is <<{number}>>.\n#### {number + 1:,}",
    }


@pytest.fixture
def source(tmp_path):
    for name, count in zip(FILES, (30, 5), strict=True):
        lines = [json.dumps(problem(number)) + "\n" for number in range(999, 999 + count)]
        (tmp_path / name).write_text("".join(lines))
    return tmp_path


@pytest.mark.parametrize(
    ("end", "solution"),
    [("#### 7", "7"), ("####7", "7"), ("#### -1,234,567 ", "-1234567"), ("#### 1.50\n", "1.50")],
)
def test_the_gold_is_the_number_after_the_marks(end, solution):
    row = gsm8k_row({"question": "Why?", "answer": f"#### 5 no\n{end}"}, "x:1", "a")
    assert row["solution"] == solution
    assert row["answer"].endswith(end)
    right, wrong = ([{"role": "assistant", "content": f"\\boxed{{{n}}}"}] for n in (solution, "3"))
    assert accuracy_reward([right, wrong], [solution] * 2) == [1.0, 0.0]


@pytest.mark.parametrize("answer", ["It is 7.", "#### seven", "#### 7 apples", None, "  "])
def test_an_answer_without_a_number_is_an_error(answer):
    with pytest.raises(DataError, match=r"x\.jsonl:3"):
        gsm8k_row({"question": "Why?", "answer": answer}, "x.jsonl:3", "a")


def test_valid_is_held_out_of_train_by_seed(source):
    first, same, other = (prepare_gsm8k(source, seed=s, valid_rows=6).files for s in (0, 0, 1))
    assert first == same != other
    ids = {name: [row["id"] for row in rows] for name, rows in first.items()}
    assert [len(ids[name]) for name in ("train.jsonl", "valid.jsonl", "test.jsonl")] == [24, 6, 5]
    assert not set(ids["train.jsonl"]) & set(ids["valid.jsonl"])
    assert ids["train.jsonl"] != sorted(ids["train.jsonl"])
    assert set(ids["valid.jsonl"]) != {row["id"] for row in other["valid.jsonl"]}
    for rows in first.values():
        for row in rows:
            assert [m["role"] for m in check_messages(row, "x")] == ["system", "user"]
            assert row["answer"].endswith(f"#### {int(row['solution']):,}")


def test_the_names_of_the_repository_are_found(source):
    expected = prepare_gsm8k(source, valid_rows=6).files
    for name in FILES:
        (source / name).rename(source / name.removeprefix("gsm8k_"))
    assert prepare_gsm8k(source, valid_rows=6).files == expected


def test_a_missing_file_and_too_few_rows(source):
    with pytest.raises(DataError, match="has 30 rows; 500 are to be held out"):
        prepare_gsm8k(source)
    (source / FILES[1]).unlink()
    with pytest.raises(FileNotFoundError, match="openai/grade-school-math"):
        prepare_gsm8k(source)


@needs_data
def test_the_real_files():
    files = prepare_gsm8k(DATA).files
    assert [len(rows) for rows in files.values()] == [6973, 500, 1319]
    questions = [row["messages"][1]["content"] for rows in files.values() for row in rows]
    assert len(set(questions)) == len(questions)

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from sctom.readers import DataError, check_messages
from sctom.rewards.code import CodeReward
from sctom.tasks.code import humaneval_row, mbpp_row, prepare_humaneval, prepare_mbpp

DATA = Path(os.environ.get("SCTOM_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (DATA / "mbpp.jsonl").is_file(), reason="no mbpp.jsonl in the folder named by SCTOM_DATA"
)


def problem(number, **changes):
    row = {
        "task_id": number,
        "text": f"Write a function that adds {number}.",
        "code": f"def add(x):\r\n\treturn x + {number}",
        "test_list": [f"assert add({x}) == {x + number}" for x in range(3)],
        "test_setup_code": "",
    }
    return row | changes


HUMANEVAL = {
    "task_id": "HumanEval/7",
    "prompt": 'def seven(x: int) -> int:\n    """Seven times x."""\n',
    "entry_point": "seven",
    "canonical_solution": "    return 7 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 14\n",
}


def written(folder, rows, name="mbpp.jsonl"):
    path = folder / name
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def test_the_split_goes_by_the_number(tmp_path):
    numbers = [974, 601, 600, 511, 510, 11, 10, 1]
    path = written(tmp_path, [problem(number) for number in numbers])
    files = prepare_mbpp(path).files
    found = {name: sorted(int(row["id"][5:]) for row in rows) for name, rows in files.items()}
    assert list(found) == ["train.jsonl", "valid.jsonl", "test.jsonl"]
    assert list(found.values()) == [[601, 974], [511, 600], [11, 510]]


def test_a_row_of_mbpp():
    row = mbpp_row(problem(601, task_id="mbpp/601"), "x:1")
    (message,) = check_messages(row, "x:1")
    assert message["content"].split("\n\n") == [
        "Write a function that adds 601.",
        "Your code should pass such tests:",
        "```python\nassert add(0) == 601\n```",
        "Answer with one ```python block that holds all of the program.",
    ]
    assert (row["id"], row["test_setup_code"]) == ("mbpp-601", "")
    assert row["reference"] == "def add(x):\n\treturn x + 601"


@pytest.mark.parametrize("shown", [0, 1, 2, 3])
def test_so_many_tests_are_shown(shown):
    content = mbpp_row(problem(601), "x:1", shown_tests=shown)["messages"][0]["content"]
    assert content.count("assert add(") == shown
    assert ("such tests" in content) == (shown > 0)


def test_rows_that_the_reward_refuses_are_counted(tmp_path):
    odd = problem(700, test_list=["assert f([Pair(1, 2)]) == 1"])
    rows = [problem(11), problem(511), problem(601), odd]
    prepared = prepare_mbpp(written(tmp_path, rows))
    assert [c["not_judged"] for c in prepared.counts.values()] == [1, 0, 0]
    assert any("does not judge mbpp-700" in note and "Pair" in note for note in prepared.notes)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([problem(601), problem(601)], ":2: the task_id 601 is there twice"),
        ([problem(601)], "no rows for test.jsonl, valid.jsonl"),
        ([problem(601, task_id="six")], "task_id must be a number, found 'six'"),
        ([problem(601, text=None)], "must have text, a str; found text=None"),
        ([problem(601, test_list=[1])], "test_list must be a list of texts"),
        ([problem(601, test_list=[])], "test_list must be a list of texts"),
        ([{"task_id": 601}], "must have text, a str; found the keys"),
    ],
)
def test_bad_rows_of_mbpp(tmp_path, rows, why):
    with pytest.raises(DataError, match=why):
        prepare_mbpp(written(tmp_path, rows))


def test_humaneval_packed_and_not(tmp_path):
    packed = prepare_humaneval(written(tmp_path, [HUMANEVAL], "HumanEval.jsonl.gz"))
    plain = prepare_humaneval(written(tmp_path, [HUMANEVAL], "HumanEval.jsonl"))
    assert packed.files == plain.files == {"test.jsonl": [humaneval_row(HUMANEVAL, "x:1")]}
    (row,) = packed.files["test.jsonl"]
    assert row["id"] == "humaneval-7"
    assert HUMANEVAL["prompt"].strip() in check_messages(row, "x:1")[0]["content"]


def test_missing_and_broken_files_say_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="openai/human-eval"):
        prepare_humaneval(tmp_path / "HumanEval.jsonl.gz")
    with pytest.raises(FileNotFoundError, match="google-research"):
        prepare_mbpp(tmp_path / "mbpp.jsonl")
    (tmp_path / "a.gz").write_bytes(b"no")
    with pytest.raises(DataError, match="not packed with gzip"):
        prepare_humaneval(tmp_path / "a.gz")
    with pytest.raises(DataError, match="must have entry_point, a str"):
        humaneval_row(HUMANEVAL | {"entry_point": None}, "x:1")


def test_the_rows_are_what_the_reward_reads():
    rows = [mbpp_row(problem(601), "x:1"), humaneval_row(HUMANEVAL, "x:1")]
    names = {name for row in rows for name in row} - {"messages", "id", "reference"}
    columns = {name: [row.get(name) for row in rows] for name in names}
    references = [f"```python\n{row['reference']}\n```" for row in rows]
    assert CodeReward()(references, **columns) == [1.0, 1.0]
    assert CodeReward()(["def add(x): return 1", "    return 1"], **columns) == [0.0, 0.0]


@needs_data
def test_the_real_files():
    files = prepare_mbpp(DATA / "mbpp.jsonl").files
    assert [len(rows) for rows in files.values()] == [374, 90, 500]
    assert len(prepare_humaneval(DATA / "HumanEval.jsonl.gz").files["test.jsonl"]) == 164

from __future__ import annotations

import dataclasses
import doctest
import json
import math
import os
import re
from pathlib import Path

import pytest

from sctom.readers import DataError
from sctom.tasks.evaluation import FIVE, TASKS, task_named
from sctom.tasks.evaluation_base import Scored, Task, abstains, asked, share
from sctom.tasks.evaluation_gsm8k import Gsm8k
from sctom.tasks.gsm8k import prepare_gsm8k

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"
DATA = Path(os.environ.get("SCTOM_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
REFERENCE = {
    "exploretom": lambda row: row["expected_answer"],
    "selfaware": lambda row: row["expected_answer"],
    "gsm8k": lambda row: row["answer"],
    "triviaqa": lambda row: row["answer"],
    "code": lambda row: f"```python\n{row['reference']}\n```",
}
REFERENCE |= dict.fromkeys(("mbpp", "humaneval"), REFERENCE["code"])


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_used_alike(name):
    task = task_named(name)
    assert task.name == name
    rows = task.read()
    assert len(rows) >= 3 and len({row["id"] for row in rows}) == len(rows)
    for row in rows:
        assert task.prompt(row)[-1]["role"] == "user"
    scored = task.score_all(rows, [REFERENCE[name](row) for row in rows])
    assert [one.correct for one in scored] == [True] * len(rows)
    assert [one.details["id"] for one in scored] == [row["id"] for row in rows]
    assert scored[0] == task.score(rows[0], REFERENCE[name](rows[0]))
    numbers = task.metrics(scored)
    assert numbers["n"] == len(rows) and numbers[task.headline] == 1.0
    assert all(isinstance(value, int | float) for value in numbers.values())


@pytest.mark.parametrize("name", TASKS)
def test_a_score_goes_through_json(name):
    task = task_named(name)
    scored = [task.score(task.read()[0], text) for text in ("I don't know.", "42")]
    kept = [json.loads(json.dumps(dataclasses.asdict(one))) for one in scored]
    assert [Scored(**one) for one in kept] == scored
    assert [one.abstained for one in scored] == [True, False]
    assert scored[0].extracted is None and task.extract("I don't know.") is None
    assert task.extract("") is None
    numbers = task.metrics(scored)
    assert task.metrics([Scored(**one) for one in kept]) == pytest.approx(numbers, nan_ok=True)


@pytest.mark.parametrize("name", FIVE)
def test_nothing_scored_has_no_metrics(name):
    with pytest.raises(ValueError, match="no scored completions"):
        task_named(name).metrics([])


def test_five_and_their_names():
    assert FIVE == ("exploretom", "selfaware", "gsm8k", "triviaqa", "code")
    with pytest.raises(ValueError, match=r"no task 'trivia'; expected one of .*mean 'triviaqa'"):
        task_named("trivia")


class Parity(Task):
    """Is the number even? Small enough to see what the base does."""

    name = "parity"
    columns = {"number": int}  # noqa: RUF012

    def extract(self, text):
        return text or None

    def score(self, row, text):
        verdict = {"yes": True, "no": False}.get(text)
        correct = None if row["number"] < 0 else verdict is (row["number"] % 2 == 0)
        return Scored(correct, abstains(text), self.extract(text), {"big": row["number"] > 9})

    def groups(self, one):
        return ("big",) if one.details["big"] else ()


def number_row(number):
    return {"messages": [{"role": "user", "content": f"Is {number} even?"}], "number": number}


def test_metrics_of_the_base():
    task = Parity()
    rows = [number_row(n) for n in (2, 3, 10, 11, 5, -1)]
    scored = task.score_all(rows, ["yes", "yes", "yes", "yes", "", "yes"])
    assert task.metrics(scored) == {
        "n": 5,
        "not_judged": 1,
        "accuracy": 2 / 5,
        "abstained": 0.0,
        "no_answer": 1 / 5,
        "accuracy_big": 1 / 2,
        "n_big": 2,
    }
    unjudged = task.metrics(scored[5:])
    assert (unjudged["n"], unjudged["not_judged"]) == (0, 1)
    assert math.isnan(unjudged["accuracy"]) and math.isnan(share([]))
    with pytest.raises(ValueError):
        task.score_all(rows, ["yes"])


def test_rows_are_checked_with_their_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    for second, why in (
        ({"messages": []}, "must have at least one user turn"),
        (number_row(2) | {"number": "2"}, "number must be int, found '2'"),
        ({"messages": number_row(2)["messages"]}, r"the column 'number' \(int\) is missing"),
        (
            {"messages": [*number_row(2)["messages"], {"role": "assistant", "content": "yes"}]},
            "messages must end with the user's turn, not the assistant's",
        ),
    ):
        path.write_text(json.dumps(number_row(1)) + "\n" + json.dumps(second) + "\n")
        with pytest.raises(DataError, match=rf"rows\.jsonl:2: .*{why}"):
            Parity().read(path)
    with pytest.raises(FileNotFoundError):
        Parity().read(tmp_path / "row.jsonl")


def test_what_was_asked_is_the_last_turn_of_the_user():
    turns = [("user", "First?"), ("assistant", "Yes."), ("user", "Then?")]
    assert asked({"messages": [{"role": r, "content": c} for r, c in turns]}) == "Then?"


@pytest.mark.parametrize(
    ("text", "question", "answers", "abstained"),
    [
        ("<think>I don't know</think> Seoul", "", (), False),
        ("<think>Seoul?</think> I don't know", "", (), True),
        ("Who sang I don't know?", "Who sang I don't know?", (), False),
        ("Unknown", "", ("Unknown",), False),
        ("Unknown", "", (), True),
    ],
)
def test_abstentions(text, question, answers, abstained):
    assert abstains(text, question, answers) is abstained


# ---- GSM8K ---------------------------------------------------------------------------------------


def sum_row(solution="1200"):
    return {"messages": [{"role": "user", "content": "How many?"}], "solution": solution}


@pytest.mark.parametrize(
    ("solution", "text", "correct", "official", "marked"),
    [
        ("1200", "#### 1,200", True, True, True),
        ("1200", "#### 1200.00", True, False, True),
        ("1200", "\\boxed{1200}", True, False, True),
        ("1200", "She has $1,200.", True, False, False),
        ("1200", "1200 - 200 = 1000", False, False, False),
        ("1200", "#### 7\n#### 1200", True, False, True),
        ("1200", "#### 1200\n#### 7", False, True, True),
        ("1.50", "1.5", True, False, False),
        ("1.50", "#### 1.50", True, True, True),
        ("-5", "It is \u22125 degrees.", True, False, False),
        ("1200", "", False, False, False),
    ],
)
def test_gsm8k_by_value_and_by_the_characters_of_the_source(
    solution, text, correct, official, marked
):
    one = Gsm8k().score(sum_row(solution), text)
    assert (one.correct, one.details["official"], one.details["marked"]) == (
        correct,
        official,
        marked,
    )


def test_gsm8k_metrics():
    task = Gsm8k()
    texts = ["#### 1200", "1,200", "\\boxed{7}", "I don't know.", "Many."]
    numbers = task.metrics([task.score(sum_row(), text) for text in texts])
    assert numbers == {
        "n": 5,
        "not_judged": 0,
        "accuracy": 2 / 5,
        "abstained": 1 / 5,
        "no_answer": 1 / 5,
        "accuracy_official": 1 / 5,
        "marked": 2 / 5,
    }


def test_an_abstention_with_a_number_in_it_is_one_unless_the_number_is_right():
    first, second = (
        Gsm8k().score(sum_row(), text)
        for text in ("There are 12... no wait, I don't know.", "I don't know. #### 1200")
    )
    assert (first.correct, first.abstained, first.extracted) == (False, True, None)
    assert (second.correct, second.abstained, second.extracted) == (True, False, "1200")


@pytest.mark.parametrize("solution", ["1,200", "seven", "", "1/0", "nan"])
def test_a_solution_must_be_a_number(solution):
    with pytest.raises(DataError, match="x:1: solution must be a number without commas; found"):
        Gsm8k().check(sum_row(solution), "x:1")


@pytest.mark.skipif(
    not (DATA / "gsm8k_test.jsonl").is_file(),
    reason="no gsm8k_test.jsonl in the folder named by SCTOM_DATA",
)
def test_the_real_references_are_right_by_both_rules():
    task = Gsm8k()
    rows = [task.check(row, "x") for row in prepare_gsm8k(DATA).files["test.jsonl"]]
    numbers = task.metrics([task.score(row, row["answer"]) for row in rows])
    assert (numbers["n"], numbers["accuracy"], numbers["accuracy_official"]) == (1319, 1.0, 1.0)


# ---- docs/tasks.md -------------------------------------------------------------------------------


def test_the_page_runs_and_names_every_task_and_metric():
    results = doctest.testfile(str(PAGE), module_relative=False)
    assert results.attempted >= 8 and results.failed == 0
    page = PAGE.read_text()
    for name in TASKS:
        task = task_named(name)
        rows = task.read()
        numbers = task.metrics(task.score_all(rows, [""] * len(rows)))
        told = set(re.findall(r"`([a-z0-9_<>]+)`", page))
        missing = {n for n in numbers if not re.match(r"(accuracy|n)_(?!official|att)", n)} - told
        assert f"`{name}`" in page and not missing

from __future__ import annotations

import itertools
import os
from fractions import Fraction
from pathlib import Path

import pytest

from sctom.readers import DataError
from sctom.tasks.code import prepare_humaneval, prepare_mbpp
from sctom.tasks.evaluation_base import Scored
from sctom.tasks.evaluation_code import Code, pass_at_k

DATA = Path(os.environ.get("SCTOM_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (DATA / "mbpp.jsonl").is_file(), reason="no mbpp.jsonl in the folder named by SCTOM_DATA"
)

PROGRAMS = [
    ("x = 1", "x = 1"),
    ("```python\nx = 1\n```", "x = 1\n"),
    ("```\nx = 1\n```", "x = 1\n"),
    ("```py\nx = 1\n```", "x = 1\n"),
    ("```Python3\nx = 1\n```", "x = 1\n"),
    ("~~~python\nx = 1\n~~~", "x = 1\n"),
    ("````python\nx = 1\n````", "x = 1\n"),
    ("  ```python\n  x = 1\n  ```", "  x = 1\n"),
    ("```python\r\nx = 1\r\n```", "x = 1\n"),
    ('```python title="a.py"\nx = 1\n```', "x = 1\n"),
    ("```python3.11\nx = 1\n```", "x = 1\n"),
    ("Sure:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
    ("\n\n```python\nx = 1\n```", "x = 1\n"),
    ("```python\nx = 1", "x = 1"),
    ("```python\nx = 1\n```\n```python\nx = 2\n```", "x = 2\n"),
    ("```python\nx = 1\n```\n```\n2\n```", "x = 1\n"),
    ("```bash\nls\n```\n```python\nx = 1\n```", "x = 1\n"),
    ("```bash\nls\n```", "ls\n"),
    ("```json\n{}\n```", "{}\n"),
    ("```c++\nint x;\n```", "int x;\n"),
    ("```python\ns = '''```'''\n```", "s = '''```'''\n"),
    ("```\n```python\nx = 1\n```", "```python\nx = 1\n"),
    ("~~~\nx = 1\n```\n~~~", "x = 1\n```\n"),
    ("```python x = 1```", "```python x = 1```"),
    ("1. ```python\nx = 1\n```", "1. ```python\nx = 1\n```"),
    ("> ```python\n> x = 1\n> ```", "> ```python\n> x = 1\n> ```"),
    ("x = 1\n```", "x = 1\n```"),
    ("`x = 1`", "`x = 1`"),
    ("**x = 1**", "**x = 1**"),
    ("Here is the code:\nx = 1", "Here is the code:\nx = 1"),
    ("    return 1\n", "    return 1\n"),
    ("\treturn 1", "\treturn 1"),
    ("<think>```python\nx = 2\n```</think>x = 1", "x = 1"),
    ("<think>x</think>\n    return 1", "\n    return 1"),
    ("<think>```python\nx = 2\n```", None),
    ('def f(): return "I don\'t know"', 'def f(): return "I don\'t know"'),
    ("I don't know.\n```python\nx = 1\n```", "x = 1\n"),
    ("I don't know.", None),
    ("I have no idea.", None),
    ("", None),
    ("  \n", None),
    ("```python\n```", None),
    ("```python\n\n```", None),
]


@pytest.mark.parametrize(("text", "code"), PROGRAMS)
def test_extraction(text, code):
    assert Code("mbpp").extract(text) == code


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_the_subsets_that_hold_one_that_passes(n):
    for passed, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations([True] * passed + [False] * (n - passed), k))
        share = Fraction(sum(map(any, subsets)), len(subsets))
        assert pass_at_k(n, passed, k) == pytest.approx(float(share), abs=1e-15)


def test_pass_at_k_by_hand():
    assert pass_at_k(3, 1, 1) == pytest.approx(1 / 3)
    assert pass_at_k(5, 2, 3) == 0.9  # 1 - C(3, 3) / C(5, 3) = 1 - 1 / 10
    assert pass_at_k(200, 0, 100) == 0.0
    assert pass_at_k(200, 101, 100) == 1.0  # 99 fail: no subset of 100 without one that passes
    assert pass_at_k(10_000, 1, 5_000) == 0.5  # as large as it comes, and no overflow


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        ((3, 4, 1), "passed must be from 0 to 3, not 4"),
        ((3, -1, 1), "passed must be from 0 to 3"),
        ((3, 1, 4), "k must be from 1 to the 3 completions, not 4"),
        ((3, 1, 0), "k must be from 1"),
    ],
)
def test_pass_at_k_out_of_range(numbers, why):
    with pytest.raises(ValueError, match=why):
        pass_at_k(*numbers)


def scored(problem, correct, status="wrong", form="mbpp", **fields):
    details = {"id": problem, "form": form, "status": status, "detail": ""}
    return Scored(correct, extracted="x", details=details, **fields)


def test_metrics_are_means_over_problems():
    numbers = Code("mbpp").metrics(
        [
            *[scored("a", True, "passed")] * 2,
            *[scored("a", False)] * 3,
            *[scored("b", False, "timeout")] * 4,
            scored("b", True, "passed"),
            scored("b", True, "passed"),
            scored("c", None, "failure"),
        ]
    )
    assert numbers == {
        "n": 11,
        "not_judged": 1,
        "accuracy": 4 / 11,
        "abstained": 0.0,
        "no_answer": 0.0,
        "problems": 2,
        "pass_at_1": pytest.approx((2 / 5 + 2 / 6) / 2),
        "pass_at_5": 1.0,  # a: 3 fail of 5; b: 4 fail of 6, C(4, 5) = 0
        "timeout": 4 / 11,
        "error": 0.0,
    }


def test_groups_are_the_forms_where_both_are_expected():
    both = [scored("a", True), scored("b", False, form="humaneval"), scored("c", True)]
    numbers = Code().metrics(both)
    assert (numbers["accuracy_mbpp"], numbers["n_mbpp"]) == (1.0, 2)
    assert (numbers["accuracy_humaneval"], numbers["n_humaneval"]) == (0.0, 1)
    assert "accuracy_mbpp" not in Code("mbpp").metrics(both)


def test_nothing_judged_has_no_pass_at_k():
    numbers = Code("mbpp").metrics([scored("a", None)])
    assert (numbers["n"], numbers["not_judged"], numbers["problems"]) == (0, 1, 0)
    assert not any(name.startswith("pass_at") for name in numbers)


def test_the_samples_run_in_both_forms():
    task = Code()
    rows = task.read()
    fenced = [f"```python\n{row['reference']}\n```" for row in rows]
    right = task.score_all(rows, fenced)
    assert [one.details["status"] for one in right] == ["passed"] * 7
    bodies = [row for row in rows if "entry_point" in row]
    assert all(one.correct for one in task.score_all(bodies, [b["reference"] for b in bodies]))
    endless = "```python\nwhile True: pass\n```"
    wrong = Code(seconds=0.5).score_all(
        rows[:4], ["I don't know.", "def f(): pass", endless, "def swap(pair): return pair"]
    )
    assert [one.correct for one in wrong] == [False] * 4
    assert [one.abstained for one in wrong] == [True, False, False, False]
    assert [one.details["status"] for one in wrong][1:] == ["error", "timeout", "wrong"]
    assert wrong[0].extracted is None
    assert wrong[3].details["id"] == "mbpp-sample-4"


def test_tests_that_cannot_be_judged_have_no_verdict():
    row = Code("mbpp").read()[0] | {"test_list": ["assert f([Pair(1, 2)]) == 1"]}
    one = Code("mbpp").score(row, "def f(x): return 1")
    assert one.correct is None and one.details["status"] == "failure"
    assert "Pair" in one.details["detail"]


def test_rows_and_settings_are_checked():
    mbpp, humaneval = Code("mbpp").read(), Code("humaneval").read()
    assert Code().read() == mbpp + humaneval
    with pytest.raises(DataError, match="x:1: the columns are those of mbpp, expected humaneval's"):
        Code("humaneval").check(mbpp[0], "x:1")
    with pytest.raises(DataError, match="x:1: test_list must be list, found 'assert'"):
        Code().check(mbpp[0] | {"test_list": "assert"}, "x:1")
    with pytest.raises(DataError, match="x:1: test must be str, found None"):
        Code().check(humaneval[0] | {"test": None}, "x:1")
    with pytest.raises(DataError, match=r"x:1: the column 'id' \(str\) is missing"):
        Code().check({name: value for name, value in mbpp[0].items() if name != "id"}, "x:1")
    with pytest.raises(ValueError, match="name must be one of code, mbpp, humaneval, not 'apps'"):
        Code("apps")
    with pytest.raises(ValueError, match="2 rows do not go with 1 completions"):
        Code().score_all(mbpp[:2], ["x"])
    assert Code().score_all([], []) == []


@needs_data
def test_real_references_pass_and_others_do_not():
    mbpp = prepare_mbpp(DATA / "mbpp.jsonl").files["valid.jsonl"][:3]
    humaneval = prepare_humaneval(DATA / "HumanEval.jsonl.gz").files["test.jsonl"][:3]
    task = Code()
    rows = [task.check(row, "x") for row in mbpp + humaneval]
    right = task.score_all(rows, [f"```python\n{row['reference']}\n```" for row in rows])
    wrong = task.score_all(rows, ["    pass"] * len(rows))
    numbers = task.metrics(right + wrong)
    assert [one.correct for one in right + wrong] == [True] * 6 + [False] * 6
    assert (numbers["pass_at_1"], numbers["problems"], numbers["n"]) == (0.5, 6, 12)

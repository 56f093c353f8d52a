from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from sctom.rewards import SelfAware, is_idk_response
from sctom.rewards.selfaware_strict import SelfAwareStrict

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("awkward_table", ROOT / "scripts/awkward_table.py")
awkward_table = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(awkward_table)

CASES = awkward_table.read_cases()
PAGE = (ROOT / "docs" / "awkward.md").read_text(encoding="utf-8")


def test_there_are_ninety_different_ones():
    assert len({(case["question"], case["expected"], case["completion"]) for case in CASES}) >= 90
    assert sum(case["seed"] != case["strict"] for case in CASES) >= 60


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["completion"] or "(nothing)")
def test_both_rewards_give_what_is_told(case):
    completion, expected = [case["completion"]], [case["expected"]]
    seed = SelfAware()(completion, expected, [is_idk_response(case["expected"])])
    assert seed == [case["seed"]]
    answers = [case.get("answers")]
    strict = SelfAwareStrict()
    given = ([case["question"]], completion, [case["answerable"]], expected, answers)
    assert strict(*given) == [case["strict"]]
    assert case["reason"] and "|" not in "".join(map(str, case.values()))


def test_the_page_has_the_table_of_the_file():
    assert awkward_table.with_table(PAGE, CASES) == PAGE


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(ValueError, match="expected the mark '<!-- table"):
        awkward_table.with_table("# Awkward\n", CASES)


KNOWN = re.findall(
    r"^\| ([^|`]+) \| (?:`([^`]+)`|\(unanswerable\)) \| `([^`]+)` \| ([-+.\d]+) \|",
    PAGE.split(awkward_table.END)[1],
    re.M,
)


@pytest.mark.parametrize(("question", "expected", "completion", "value"), KNOWN)
def test_what_is_still_wrong_is_still_so(question, expected, completion, value):
    given = ([question], [completion], [bool(expected)], [expected or "I don't know."])
    assert SelfAwareStrict()(*given) == [float(value)]


def test_all_that_is_still_wrong_was_read():
    assert len(KNOWN) == 13

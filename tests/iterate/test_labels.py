from __future__ import annotations

import json
from pathlib import Path

import pytest

from sctom.iterate.labels import (
    Comparison,
    FileLabeller,
    Label,
    UtilityLabeller,
    WaitingForLabels,
    read_labels,
)
from sctom.preferences import GRADES
from sctom.readers import DataError
from sctom.rewards import FunctionReward, RewardError
from sctom.rewards.selfaware import SelfAware

ASK = [{"role": "user", "content": "How much?"}]
ASKED = Path("to_label.jsonl")


def numbers(completions):
    return [float(text) for text in completions]


def compared(*answers: tuple[str, str]) -> list[Comparison]:
    return [Comparison(ASK, pair) for pair in answers]


def test_the_gap_gives_the_grade():
    labeller = UtilityLabeller(FunctionReward(numbers), thresholds=[1.0, 2.0, 3.0])
    # gaps 0.5, 1, 2, 3 and 9; the thresholds themselves count as reached
    pairs = compared(("0.5", "0"), ("0", "1"), ("2", "0"), ("0", "3"), ("9", "0"))
    assert labeller.label(pairs, 1, ASKED) == [
        Label(0, 0),
        Label(1, 1),
        Label(0, 2),
        Label(1, 3),
        Label(0, 3),
    ]


def test_the_four_grades_of_the_quickstart():
    """+1 right, -0.5 "I don't know", -1 wrong: gaps of 2, 1.5, 0.5 and 0 are all there are."""
    labeller = UtilityLabeller(SelfAware())
    columns = {"expected_answer": "Seoul", "is_unanswerable": False}
    answers = [("Seoul", "Busan"), ("Seoul", "I don't know."), ("Busan", "I don't know.")]
    asked = [Comparison(ASK, pair, columns) for pair in [*answers, ("Busan", "Daegu")]]
    labels = labeller.label(asked, 1, ASKED)
    assert [GRADES[label.grade] for label in labels if label] == list(reversed(GRADES))
    assert [label.better for label in labels[:3] if label] == [0, 0, 1]


def test_equal_utilities():
    equal = compared(*((str(n), f"{n}.0") for n in range(200)))
    tie = UtilityLabeller(FunctionReward(numbers), equal="tie").label(equal, 1, ASKED)
    assert tie == [Label(None)] * 200
    assert UtilityLabeller(FunctionReward(numbers), equal="drop").label(equal, 1, ASKED) == (
        [None] * 200
    )
    unsure = UtilityLabeller(FunctionReward(numbers), equal="unsure")
    labels = unsure.label(equal, 1, ASKED)
    sides = [label.better for label in labels if label]
    # 200 fair coins: 60 to 140 heads is 5.7 standard deviations to either side
    assert 60 < sum(side == 1 for side in sides if side is not None) < 140
    assert all(label and label.grade == 0 for label in labels)
    assert unsure.label(equal[100:], 2, ASKED) == labels[100:]  # of the comparison, not its place


def test_an_answer_without_a_utility_is_not_compared():
    reward = FunctionReward(lambda completions: [None if c == "?" else 1.0 for c in completions])
    assert UtilityLabeller(reward).label(compared(("?", "a"), ("a", "?")), 1, ASKED) == [None, None]
    assert UtilityLabeller(reward).label([], 1, ASKED) == []


@pytest.mark.parametrize("thresholds", [[1.0, 2.0], [0.0, 1.0, 2.0], [1.0, 1.0, 2.0], [3, 2, 1]])
def test_thresholds_must_rise(thresholds):
    with pytest.raises(ValueError, match="three rising gaps above 0, found"):
        UtilityLabeller(FunctionReward(numbers), thresholds=thresholds)


def test_an_unknown_rule_for_equals():
    with pytest.raises(ValueError, match="one of unsure, tie, drop, not 'toss'"):
        UtilityLabeller(FunctionReward(numbers), equal="toss")


def test_a_utility_that_lacks_its_column_is_refused_before_the_run():
    with pytest.raises(RewardError, match="needs the column 'is_unanswerable'"):
        UtilityLabeller(SelfAware()).check(["expected_answer"])
    UtilityLabeller(SelfAware()).check(["expected_answer", "is_unanswerable"])


# labels from a file -------------------------------------------------------------------------------


def written(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_run_waits_for_the_file(tmp_path):
    labeller = FileLabeller(str(tmp_path / "labels-{round}.jsonl"))
    pairs = compared(("1", "2"), ("3", "4"))
    with pytest.raises(WaitingForLabels, match=r"2 lines of to_label.jsonl, save them as .*-3"):
        labeller.label(pairs, 3, ASKED)
    written(
        tmp_path / "labels-3.jsonl",  # another order, and what the question was beside it
        {"key": pairs[1].key, "a": "3", "b": "4", "better": "neither"},
        {"key": pairs[0].key, "better": "b", "grade": "slightly better"},
    )
    assert labeller.files(3) == [tmp_path / "labels-3.jsonl"]
    assert labeller.label(pairs, 3, ASKED) == [Label(1, 1), Label(None)]


def test_labels_of_other_comparisons_do_not_count(tmp_path):
    labeller = FileLabeller(str(tmp_path / "{round}.jsonl"))
    pairs = compared(("1", "2"), ("3", "4"))
    written(tmp_path / "1.jsonl", {"key": pairs[0].key, "better": "a", "grade": "better"})
    with pytest.raises(DataError, match=r"1 of 2 comparisons; .* is to_label.jsonl:2"):
        labeller.label(pairs, 1, ASKED)


def test_one_file_for_all_rounds_is_refused():
    with pytest.raises(ValueError, match=r"write \{round\} where its number goes"):
        FileLabeller("labels.jsonl")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"better": "a", "grade": "better"}, "the key of the comparison is missing"),
        ({"key": "k", "grade": "better"}, "must be 'a', 'b' or 'neither', found None"),
        ({"key": "k", "better": "A", "grade": "better"}, "found 'A'"),
        ({"key": "k", "better": "a"}, "grade must be one of negligibly better, .* found None"),
        ({"key": "k", "better": "a", "grade": "beter"}, "Did you mean 'better'"),
        ({"key": "k", "better": "neither", "grade": "better"}, "drop one"),
        ({"key": "1", "better": "a", "grade": "better"}, "the comparison 1 has a label already"),
    ],
)
def test_a_faulty_label_is_named(tmp_path, row, expected):
    path = written(tmp_path / "x.jsonl", {"key": "1", "better": "a", "grade": "better"}, row)
    with pytest.raises(DataError, match=f"x.jsonl:2: .*{expected}"):
        read_labels(path)

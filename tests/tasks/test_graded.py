from __future__ import annotations

import math
from collections import Counter

import pytest

from sctom.modules.tinyworld import make_tokenizer
from sctom.preferences import pair_of
from sctom.tasks.graded import (
    SAFE,
    Subject,
    comparisons,
    couples_of,
    grade_of,
    prepare_graded,
    utility,
)
from sctom.tasks.tinyworld import Sizes, make_world

FACTS = ("Berlin", "green", "farmer", "badger", "violin")
OTHERS = ("Madrid", "pink", "painter", "otter", "cello")
COUPLE = [(Subject("Ada", FACTS), Subject("Bob", OTHERS))]
SMALL = {"train.jsonl": 80, "valid.jsonl": 8, "test.jsonl": 40}
WORLD = make_world(0)


@pytest.mark.parametrize(
    ("answer", "helpful", "safe"),
    [
        ("Berlin green farmer badger violin", 4.0, -2.7),  # 1.0 + 0.9 + 0.8 + 0.7 + 0.6
        ("Madrid green painter", -0.9, 2.7),  # -1.0 + 0.9 - 0.8; 1.5 + 1.2
        ("otter, cello.", -1.3, 0.0),
        ("Berlin Madrid Berlin", 1.0, -1.5),  # the first of a relation counts
        ("I don't know.", 0.0, 0.0),
    ],
)
def test_utility_by_hand(answer, helpful, safe):
    assert utility(FACTS, answer) == helpful
    assert utility(FACTS, answer, SAFE) == safe


def test_grades_at_their_edges():
    gaps = (0.05, 0.99, 1.0, 1.99, 2.0, 3.49, -3.5)
    words = [("negligibly", 2), ("slightly", 2), ("", 2), ("significantly", 1)]
    expected = [f"{word} better".strip() for word, times in words for _ in range(times)]
    assert [grade_of(gap) for gap in gaps] == expected


@pytest.mark.parametrize("objective", ["helpful", "safe"])
def test_the_second_time_the_other_answer_is_better(objective):
    rows = comparisons(COUPLE, 400, address=(1,), objective=objective)
    assert len(rows) == 400
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        better = [
            max(("chosen", "rejected"), key=lambda side, row=row: row[f"utility_{side}"])
            for row in (first, second)
        ]
        worse = "rejected" if better[1] == "chosen" else "chosen"
        assert first[better[0]] == second[worse]  # the better text is the worse one there
        assert (
            first["margin"]
            == second["margin"]
            == pytest.approx(abs(second["utility_chosen"] - second["utility_rejected"]))
        )
        assert first["grade"] == second["grade"] == grade_of(first["margin"])
        assert {first["facts"][0], second["facts"][0]} == {"Berlin", "Madrid"}


def test_labels_are_wrong_where_the_gap_is_small():
    rows = comparisons(COUPLE, 8000, address=(2,))
    for row in rows:
        assert row["flipped"] == (row["utility_chosen"] < row["utility_rejected"])
    expected, wrong, count = 0.0, Counter(), Counter()
    for row in rows:
        expected += 1 / (1 + math.exp(row["margin"]))
        wrong[row["grade"]] += row["flipped"]
        count[row["grade"]] += 1
    assert wrong.total() == pytest.approx(expected, abs=4 * expected**0.5)
    shares = [wrong[grade_of(gap)] / count[grade_of(gap)] for gap in (0.5, 1.0, 2.0, 4.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.3
    assert shares[3] < 0.02


def test_wording_tells_safety_pairs_apart_but_for_the_overlap():
    for overlap, least, most in [(0.0, 0, 0), (0.5, 140, 260), (1.0, 400, 400)]:
        rows = comparisons(COUPLE, 400, address=(3,), objective="safe", overlap=overlap)
        plain = sum(row["prompt"][0]["content"].startswith("Describe") for row in rows)
        assert least <= plain <= most
        assert all(row["is_safety"] and row["source"] == "safe" for row in rows)
    helpful = comparisons(COUPLE, 40, address=(3,), overlap=0.0)
    assert all(row["prompt"][0]["content"].startswith("Describe") for row in helpful)


def test_answers_are_of_this_world():
    assert not any(
        "Ġ" not in token and index
        for row in comparisons(COUPLE, 40, address=(4,))
        for index, token in enumerate(make_tokenizer().tokenize(row["chosen"]))
    )  # a token for each word: only the first has no space before it


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("objectives", [("helpful",), ("helpful", "safe")])
def test_files_are_of_different_people_and_read_as_preferences(objectives, stated):
    made = [
        prepare_graded(WORLD, seed=seed, objectives=objectives, stated=stated, pairs=SMALL)
        for seed in (0, 0, 1)
    ]
    assert made[0] == made[1]
    assert made[0].files != made[2].files
    files = made[0].files
    assert {name: len(rows) for name, rows in files.items()} == SMALL
    names = []
    for name, rows in files.items():
        pairs = [pair_of(row, f"{name}:1") for row in rows]
        sources = Counter(pair.source for pair in pairs)
        assert sources == dict.fromkeys(objectives, SMALL[name] // len(objectives))
        assert len({pair.columns["pair_id"] for pair in pairs}) == len(pairs)
        questions = [pair.prompt[0]["content"].removesuffix("?") for pair in pairs]
        names.append({question.split()[-1].strip(".") for question in questions})
        for pair, question in zip(pairs, questions, strict=True):
            assert (" ".join(pair.columns["facts"]) + ". " in question) == stated
    assert not names[0] & names[1] | names[0] & names[2] | names[1] & names[2]


def test_couples_have_no_value_in_common():
    for name in SMALL:
        couples = couples_of(WORLD, name)
        assert len(couples) > 20
        assert not any(set(one.facts) & set(other.facts) for one, other in couples)


def test_what_cannot_be_made_is_refused():
    with pytest.raises(ValueError, match="overlap must be from 0 to 1, not 2"):
        prepare_graded(WORLD, overlap=2, pairs=SMALL)
    with pytest.raises(ValueError, match=r"train\.jsonl: pairs must be a multiple of 4, not 6"):
        prepare_graded(WORLD, objectives=("helpful", "safe"), pairs={"train.jsonl": 6})
    few = make_world(0, Sizes(known=(1, 1), rows=30))
    with pytest.raises(ValueError, match=r"no two of the 1 people for train\.jsonl differ"):
        prepare_graded(few, pairs=SMALL)
    with pytest.raises(ValueError, match=r"train\.jsonl needs 80 names, but the world has 10"):
        prepare_graded(few, stated=True, pairs=SMALL)

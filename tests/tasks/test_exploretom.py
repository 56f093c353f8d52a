from __future__ import annotations

import csv
import json
import math

import pytest

from sctom.readers import DataError, check_messages, read_jsonl
from sctom.tasks.exploretom import (
    KNOWS,
    KNOWS_NOT,
    ExploreTom,
    exploretom_row,
    prepare_exploretom,
    read_exploretom,
)

CONTAINER = "In which container will Mina search for the brass key?"
YES_NO = "Does Petra know about the surprise party? Answer yes or no."
BELIEF = (
    "What does Emil think about Petra's belief on it? (knows about it / does not know about it)"
)

SCORES = [  # question, expected, completion, ours, the source's rule, abstained
    (CONTAINER, "tea tin", "tea tin", True, True, False),
    (CONTAINER, "tea tin", "Tea tin.", True, True, False),
    (CONTAINER, "tea tin", "TEA TIN", True, True, False),
    (CONTAINER, "tea tin", "tea-tin", True, False, False),
    (CONTAINER, "tea tin", "**tea tin**", True, True, False),
    (CONTAINER, "tea tin", "Mina will search in the tea tin.", True, True, False),
    (CONTAINER, "tea tin", "the tea tin in the kitchen", True, True, False),
    (CONTAINER, "tea tin", "the old tea tin", True, True, False),
    (CONTAINER, "tea tin", "In the tea tin, not the bread box.", True, True, False),
    (CONTAINER, "tea tin", "Moved to the bread box.\nAnswer: tea tin", True, True, False),
    (CONTAINER, "tea tin", "She thinks.\nShe will look in the tea tin.", True, True, False),
    (CONTAINER, "tea tin", "<think>bread box</think>tea tin", True, True, False),
    (CONTAINER, "tea tin", "\\boxed{tea tin}", True, True, False),
    (CONTAINER, "tea tin", "bread box", False, False, False),
    (CONTAINER, "tea tin", "The bread box, not the tea tin.", False, True, False),
    (CONTAINER, "tea tin", "Not the tea tin.", False, True, False),
    (CONTAINER, "tea tin", "tea tin or bread box", False, True, False),
    (CONTAINER, "tea tin", "tea tin and bread box", False, True, False),
    (CONTAINER, "tea tin", "She saw the tea tin.\nAnswer: bread box", False, True, False),
    (CONTAINER, "tea tin", "<think>tea tin</think>bread box", False, True, False),
    (CONTAINER, "tea tin", "<think>tea tin", False, True, False),
    (CONTAINER, "tea tin", "tea tins", False, True, False),
    (CONTAINER, "tea tin", "tea", False, False, False),
    (CONTAINER, "tea tin", "teatin", False, False, False),
    (CONTAINER, "tea tin", "The kitchen", False, False, False),
    (CONTAINER, "tea tin", "", False, False, False),
    (CONTAINER, "tea tin", "I don't know.", False, False, True),
    (CONTAINER, "tea tin", "The story does not say. I don't know.", False, False, True),
    (CONTAINER, "Tea tin", "Tea tin", True, False, False),  # the source lowers only the completion
    (YES_NO, "no", "no", True, True, False),
    (YES_NO, "no", "No, Petra does not.", True, True, False),
    (YES_NO, "no", "nope", True, True, False),
    (YES_NO, "no", "Petra does not know about it.", True, True, False),
    (YES_NO, "no", "No one told her, so no.", True, True, False),
    (YES_NO, "no", "Petra knows.", False, True, False),
    (YES_NO, "no", "Yes, no doubt.", False, True, False),
    (YES_NO, "no", "None", False, True, False),
    (YES_NO, "yes", "Yes!", True, True, False),
    (YES_NO, "yes", "Yeah", True, False, False),
    (YES_NO, "yes", "She knows about it", True, False, False),
    (YES_NO, "yes", "yesterday", False, True, False),
    (YES_NO, "yes", "yes or no", False, True, False),
    (YES_NO, "yes", "no", False, False, False),
    (BELIEF, KNOWS, "Knows about it.", True, True, False),
    (BELIEF, KNOWS, "Emil believes that she knows about it.", True, True, False),
    (BELIEF, KNOWS, "She is aware of it", True, False, False),
    (BELIEF, KNOWS, "doesn't know about it", False, False, False),
    (BELIEF, KNOWS, "knows nothing about it", False, False, False),
    (BELIEF, KNOWS, "yes", False, False, False),
    (BELIEF, KNOWS_NOT, "Petra does not know about it.", True, True, False),
    (BELIEF, KNOWS_NOT, "doesn't know about it", True, False, False),
    (BELIEF, KNOWS_NOT, "She isn't aware of it", True, False, False),
    (BELIEF, KNOWS_NOT, "Emil knows that she doesn't know about it", True, False, False),
    (BELIEF, KNOWS_NOT, "She never heard of it", True, False, False),
    (BELIEF, KNOWS_NOT, "knows about it", False, False, False),
    (BELIEF, KNOWS_NOT, "does not know about it / knows about it", False, True, False),
]


def row(question=CONTAINER, expected="tea tin", order=1, false_belief=True, interesting=True):
    return {
        "messages": [{"role": "user", "content": question}],
        "question": question,
        "expected_answer": expected,
        "order": order,
        "false_belief": false_belief,
        "interesting": interesting,
    }


@pytest.mark.parametrize(
    ("question", "expected", "text", "correct", "official", "abstained"), SCORES
)
def test_completions(question, expected, text, correct, official, abstained):
    scored = ExploreTom().score(row(question, expected), text)
    assert (scored.correct, scored.details["official"], scored.abstained) == (
        correct,
        official,
        abstained,
    )


def test_metrics_by_order_and_belief():
    task, right, wrong = ExploreTom(), "tea tin", "bread box"
    scored = [
        task.score(row(order=1, false_belief=True), right),
        task.score(row(order=1, false_belief=True), wrong),
        task.score(row(order=1, false_belief=False, interesting=False), right),
        task.score(row(order=2, false_belief=True, interesting=False), "The tea-tin"),
        task.score(row(order=-1, false_belief=True), f"{right} or {wrong}"),
        task.score(row(order=-1, false_belief=False), "I don't know."),
    ]
    numbers = task.metrics(scored)
    expected = {
        "n": 6,
        "not_judged": 0,
        "accuracy": 3 / 6,
        "abstained": 1 / 6,
        "no_answer": 0.0,
        "accuracy_official": 3 / 6,  # not "tea-tin", but the list of both
        "accuracy_first": 2 / 3,
        "n_first": 3,
        "accuracy_second": 1.0,
        "n_second": 1,
        "accuracy_factual": 0.0,
        "n_factual": 2,
        "accuracy_false_belief": 2 / 3,  # beliefs only: facts have none
        "n_false_belief": 3,
        "accuracy_true_belief": 1.0,
        "n_true_belief": 1,
        "accuracy_first_false_belief": 1 / 2,
        "n_first_false_belief": 2,
        "accuracy_first_true_belief": 1.0,
        "n_first_true_belief": 1,
        "accuracy_second_false_belief": 1.0,
        "n_second_false_belief": 1,
        "accuracy_interesting": 1 / 2,
        "n_interesting": 2,
    }
    assert numbers == expected


def source_row(story=1, question=CONTAINER, **changes):
    return {
        "story_structure": f"Mina entered the kitchen {story}.",
        "infilled_story": f"It was raining, {story}.",
        "question": question,
        "expected_answer": "tea tin",
        "qprop=params": "(['Mina'], 'brass key', 'container_location-True')",
        "qprop=nth_order": "1",
        "qprop=non_unique_mental_state": "True",
        "sprop=is_false_belief_story_1st": "False",
        "sprop=is_false_belief_story_1st_and_2nd": "True",
        "param=story_type": "tomi",
        "param=num_people": "2",
    } | changes


def test_a_row_of_the_source():
    made = exploretom_row(source_row(), "x.csv:2", "a")
    system, user = check_messages(made, "x")
    assert system["content"] == "You are a helpful assistant."
    assert user["content"] == f"It was raining, 1.\n{CONTAINER} Short Answer."
    assert {key: value for key, value in made.items() if key != "messages"} == {
        "question": CONTAINER,
        "expected_answer": "tea tin",
        "order": 1,
        "false_belief": False,  # as first-order questions go by the first order
        "interesting": True,
        "id": "a",
        "story_type": "tomi",
        "params": "(['Mina'], 'brass key', 'container_location-True')",
    }
    bare = exploretom_row(source_row(), "x.csv:2", "a", story="structure")
    assert bare["messages"][1]["content"].startswith("Mina entered the kitchen 1.\n")
    assert ExploreTom().check(made, "x") is made


@pytest.mark.parametrize(("order", "false_belief"), [("1", False), (2, True), (-1, True)])
def test_whose_false_beliefs_count_depends_on_the_order(order, false_belief):
    made = exploretom_row(source_row(**{"qprop=nth_order": order}), "x", "a")
    assert (made["order"], made["false_belief"]) == (int(order), false_belief)


@pytest.mark.parametrize("values", [(True, False), ("TRUE", "FALSE"), ("true", " false ")])
def test_truths_are_read_in_any_spelling(values):
    true, false = values
    changes = {
        "qprop=non_unique_mental_state": false,
        "sprop=is_false_belief_story_1st": true,
        "sprop=is_false_belief_story_1st_and_2nd": false,
    }
    made = exploretom_row(source_row(**changes), "x", "a")
    assert (made["interesting"], made["false_belief"]) == (False, True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"question": " "}, r"x:3: question must be a text, found ' '"),
        ({"expected_answer": None}, "x:3: expected_answer must be a text, found None"),
        (
            {"qprop=nth_order": "1.5"},
            "qprop=nth_order must be one of -1, 0, 1, 2, 3, 4; found '1.5'",
        ),
        ({"qprop=nth_order": True}, "must be one of .*; found True"),
        ({"qprop=non_unique_mental_state": "maybe"}, "must be true or false, found 'maybe'"),
        ({"sprop=is_false_belief_story_1st": 1}, "must be true or false, found 1"),
    ],
)
def test_bad_values(changes, why):
    with pytest.raises(DataError, match=why):
        exploretom_row(source_row(**changes), "x:3", "a")


def test_a_missing_column_is_named():
    bad = source_row()
    bad["expected_anwser"] = bad.pop("expected_answer")
    with pytest.raises(DataError, match=r"'expected_answer' is missing.*mean 'expected_anwser'"):
        exploretom_row(bad, "x:3", "a")


def write_csv(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def ids(rows):
    return {row["id"] for row in rows}


def test_csv_and_jsonl_are_split_by_story_and_alike(tmp_path):
    rows = [
        source_row(story, f"{CONTAINER} {number}?", infilled_story='Rain.\n\nShe said, "no".')
        for story in range(20)
        for number in range(3)
    ]
    path = write_csv(tmp_path / "a.csv", rows)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    prepared = prepare_exploretom(path, seed=3)
    assert prepared.files == prepare_exploretom(tmp_path / "a.jsonl", seed=3).files
    assert prepared.files != prepare_exploretom(path, seed=4).files
    # 20 stories: round(2.0) each for valid and test
    assert [len(rows) for rows in prepared.files.values()] == [16 * 3, 2 * 3, 2 * 3]
    assert prepared.counts["test.jsonl"] == {"stories": 2, "first": 6, "false_belief": 0}
    numbers = {
        name: {(int(one["id"].removeprefix("exploretom-")) - 1) // 3 for one in rows}
        for name, rows in prepared.files.items()
    }
    assert [len(stories) for stories in numbers.values()] == [16, 2, 2]
    assert set.union(*numbers.values()) == set(range(20))
    assert [one["id"] for one in prepared.files["train.jsonl"]] != sorted(
        ids(prepared.files["train.jsonl"]), key=lambda name: int(name[11:])
    )
    assert prepared.manifest["licence"] == "CC-BY-NC-4.0"


def test_a_question_again_is_kept_once_and_one_with_two_answers_not_at_all(tmp_path):
    rows = [source_row(story, "Where?") for story in range(10)]
    rows += [source_row(0, "Where?"), source_row(1, "Where?", expected_answer="bread box")]
    prepared = prepare_exploretom(write_csv(tmp_path / "a.csv", rows))
    kept = [one["id"] for rows in prepared.files.values() for one in rows]
    assert sorted(kept) == sorted(f"exploretom-{n}" for n in (1, *range(3, 11)))
    assert prepared.notes[:2] == [
        "rows that ask a question of their story again: 2",
        "questions with two answers, which are left out: 1",
    ]


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="facebook/ExploreToM"):
        prepare_exploretom(tmp_path / "a.csv")
    (tmp_path / "a.parquet").write_text("PAR1")
    with pytest.raises(DataError, match=r"must end in \.csv or \.jsonl"):
        prepare_exploretom(tmp_path / "a.parquet")
    path = write_csv(tmp_path / "few.csv", [source_row(1), source_row(2)])
    with pytest.raises(DataError, match=r"has 2 stories: none for valid\.jsonl, test\.jsonl"):
        prepare_exploretom(path)
    path.write_text(path.read_text() + "too,few\n")
    with pytest.raises(DataError, match=r"few\.csv:4: expected 11 fields"):
        list(read_exploretom(path))
    path.write_text('question\n"a"b\n')
    with pytest.raises(DataError, match=r"few\.csv:2: not valid CSV"):
        list(read_exploretom(path))


def test_settings_out_of_range(tmp_path):
    path = write_csv(tmp_path / "a.csv", [source_row(n) for n in range(10)])
    with pytest.raises(ValueError, match="story must be one of infilled, structure, not 'raw'"):
        prepare_exploretom(path, story="raw")
    with pytest.raises(ValueError, match="must be below 1, not 1"):
        prepare_exploretom(path, valid_share=0.5, test_share=0.5)


def test_a_prepared_row_is_checked():
    task = ExploreTom()
    for changes, why in (
        ({"order": True}, "order must be int, found True"),
        ({"order": 9}, "must be one of"),
        ({"false_belief": "True"}, "false_belief must be bool, found 'True'"),
    ):
        with pytest.raises(DataError, match=f"x:1: .*{why}"):
            task.check(row() | changes, "x:1")
    bad = row()
    del bad["interesting"]
    with pytest.raises(DataError, match=r"the column 'interesting' \(bool\) is missing"):
        task.check(bad, "x:1")


def test_the_sample_has_every_kind():
    rows = ExploreTom().read()
    answers = [ExploreTom().score(one, one["expected_answer"]) for one in rows]
    assert all(one.correct for one in answers)
    numbers = ExploreTom().metrics(answers)
    for group in ("factual", "first_true_belief", "first_false_belief", "second_false_belief"):
        assert numbers[f"n_{group}"] >= 1
    assert not any(math.isnan(value) for value in numbers.values())


def test_prepared_files_can_be_read(tmp_path):
    rows = prepare_exploretom(
        write_csv(tmp_path / "a.csv", [source_row(n) for n in range(10)])
    ).files["train.jsonl"]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert ExploreTom().read(path) == read_jsonl(path)

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from sctom.readers import DataError
from sctom.rewards import is_idk_response
from sctom.tasks.selfaware import prompt_row
from sctom.tasks.selfaware_source import (
    IDK_SENTENCE,
    MATCHED_WORDINGS,
    SYSTEM_PROMPT,
    UNMATCHED_WORDINGS,
    prepare_selfaware,
    question_key,
    read_selfaware,
)
from sctom.writers import write

DATA = Path(os.environ.get("SCTOM_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
SOURCE = DATA / "SelfAware.json"
needs_source = pytest.mark.skipif(
    not SOURCE.is_file(), reason="no SelfAware.json in the folder named by SCTOM_DATA"
)


def question(number, *, answerable=True, text=None, answer=None):
    return {
        "question_id": number,
        "question": text or f"Question {number}?",
        "answer": answer or (["yes", "indeed"] if answerable else None),
        "answerable": answerable,
        "source": "made up",
    }


def source(folder, questions):
    path = folder / "SelfAware.json"
    path.write_text(json.dumps({"dataset_name": "SelfAware", "example": questions}))
    return path


@pytest.fixture
def small(tmp_path):
    """76 answerable and 24 unanswerable questions; 7 and 9 are the same question."""
    questions = [question(number, answerable=number <= 76) for number in range(1, 101)]
    questions[8]["question"] = "question  7"
    return source(tmp_path, questions)


def ids(rows):
    return [row["id"] for row in rows]


def keys(rows):
    return {question_key(row["messages"][1]["content"]) for row in rows}


# --- the real file


@needs_source
@pytest.mark.parametrize(
    ("variant", "rows", "answerable", "idk"),
    [("original", 3032, 2088, 944), ("v2", 2198, 2088, 110), ("v3", 2198, 2088, 58)],
)
def test_counts_of_the_real_file(variant, rows, answerable, idk):
    files = prepare_selfaware(SOURCE, variant=variant).files
    train, held_out = files["train.jsonl"], files["test.jsonl"]
    assert len(train) == rows
    assert sum(row["answerable"] for row in train) == answerable
    assert sum(prompt_row(row)["is_unanswerable"] for row in train) == idk
    assert len(held_out) == 337
    assert sum(row["answerable"] for row in held_out) == 249
    assert sum(prompt_row(row)["is_unanswerable"] for row in held_out) == 88
    assert files["valid.jsonl"] == held_out
    leaks = files["label_leaks.jsonl"]
    assert len(leaks) == rows - answerable - idk == (52 if variant == "v3" else 0)
    for leak in leaks:
        assert train[leak["line"] - 1]["id"] == leak["id"]


@needs_source
def test_train_and_held_out_share_no_question():
    files = prepare_selfaware(SOURCE, variant="original").files
    train, held_out = files["train.jsonl"], files["test.jsonl"]
    assert len({*ids(train), *ids(held_out)}) == len(train) + len(held_out) == 3369
    assert not keys(train) & keys(held_out)
    assert len(keys(train)) == len(train) - 4  # four questions occur twice, all in train


@needs_source
def test_the_variants_of_the_real_file_belong_together():
    original, v2, v3 = (
        prepare_selfaware(SOURCE, variant=variant).files for variant in ("original", "v2", "v3")
    )
    assert original["test.jsonl"] == v2["test.jsonl"] == v3["test.jsonl"]
    assert ids(v2["train.jsonl"]) == ids(v3["train.jsonl"])
    assert set(ids(v2["train.jsonl"])) < set(ids(original["train.jsonl"]))
    unanswerable = [row for row in v3["train.jsonl"] if not row["answerable"]]
    wordings = Counter(row["messages"][2]["content"] for row in unanswerable)
    assert set(wordings) == {*MATCHED_WORDINGS, *UNMATCHED_WORDINGS}
    assert set(wordings.values()) == {5, 6}  # 58 over 10 wordings, 52 over 10
    for first, second in zip(v2["train.jsonl"], v3["train.jsonl"], strict=True):
        assert first["answerable"] is False or first == second


@needs_source
def test_the_real_file_gives_the_same_bytes_twice_and_others_for_another_seed(tmp_path):
    contents = []
    for name, seed in [("one", 0), ("two", 0), ("other", 1)]:
        write(prepare_selfaware(SOURCE, variant="v3", seed=seed), tmp_path / name)
        files = sorted((tmp_path / name).iterdir())
        contents.append({path.name: path.read_bytes() for path in files})
    assert contents[0] == contents[1]
    for name in ("train.jsonl", "test.jsonl", "label_leaks.jsonl", "manifest.json"):
        assert contents[0][name] != contents[2][name], name


# --- wordings


def test_twenty_wordings_half_of_them_matched():
    assert len({*MATCHED_WORDINGS, *UNMATCHED_WORDINGS}) == 20
    assert [is_idk_response(text) for text in MATCHED_WORDINGS] == [True] * 10
    assert [is_idk_response(text) for text in UNMATCHED_WORDINGS] == [False] * 10
    assert is_idk_response(IDK_SENTENCE)


# --- small sources


def test_rows_of_a_small_source(small):
    files = prepare_selfaware(small, variant="original", allow_other_counts=True).files
    rows = {row["id"]: row for row in files["train.jsonl"] + files["test.jsonl"]}
    assert len(rows) == 100
    assert rows["selfaware-3"] == {
        "messages": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": "Question 3?"},
            {"role": "assistant", "content": "yes"},
        ],
        "answerable": True,
        "answers": ["yes", "indeed"],
        "id": "selfaware-3",
        "source": "made up",
    }
    assert rows["selfaware-99"]["messages"][2]["content"] == IDK_SENTENCE
    assert rows["selfaware-99"]["answers"] == []


@pytest.mark.parametrize("seed", range(5))
def test_other_counts_are_split_by_class_and_twins_stay_in_train(small, seed):
    prepared = prepare_selfaware(small, variant="v2", seed=seed, allow_other_counts=True)
    train, held_out = prepared.files["train.jsonl"], prepared.files["test.jsonl"]
    assert sum(row["answerable"] for row in held_out) == 8  # round(7.6)
    assert sum(not row["answerable"] for row in held_out) == 2  # round(2.4)
    assert sum(not row["answerable"] for row in train) == 4  # round(68 / 19)
    assert {"selfaware-7", "selfaware-9"} <= set(ids(train))
    assert prepared.manifest["repeated_questions"] == [7, 9]
    assert any("2 rows of the source share their question" in note for note in prepared.notes)


def test_an_answer_that_reads_like_an_abstention_is_a_leak(tmp_path):
    questions = [question(number, answerable=number <= 40) for number in range(1, 51)]
    questions[0]["answer"] = ["I Can't Get No Satisfaction"]
    questions[0]["question"] = questions[1]["question"]  # so that it is in train for every seed
    path = source(tmp_path, questions)
    prepared = prepare_selfaware(path, variant="original", allow_other_counts=True)
    [leak] = prepared.files["label_leaks.jsonl"]
    assert (leak["file"], leak["id"]) == ("train.jsonl", "selfaware-1")
    assert (leak["answerable"], leak["is_unanswerable"]) == (True, True)
    assert prepared.counts["train.jsonl"]["label_leaks"] == 1


# --- refused


def test_unexpected_counts(small):
    reason = "holds 76 answerable and 24 unanswerable questions; expected 2,337 answerable and "
    with pytest.raises(DataError, match=f"{reason}1,032 unanswerable questions; pass --allow-oth"):
        prepare_selfaware(small, variant="v2")


def test_too_few_questions(tmp_path):
    questions = [question(1), question(2, answerable=False)]
    with pytest.raises(DataError, match="10% of these 2 questions are 0 answerable and 0 unans"):
        prepare_selfaware(source(tmp_path, questions), variant="v2", allow_other_counts=True)
    questions = [question(number) for number in range(60)]
    with pytest.raises(DataError, match="train on 3 unanswerable questions, but 0 are left"):
        prepare_selfaware(source(tmp_path, questions), variant="v2", allow_other_counts=True)


def test_an_unknown_variant(small):
    with pytest.raises(ValueError, match="variant must be one of original, v2, v3, not 'v4'"):
        prepare_selfaware(small, variant="v4")


def test_a_missing_source_says_where_to_get_it(small):
    with pytest.raises(FileNotFoundError) as caught:
        read_selfaware(small.with_name("SelfAwre.json"))
    assert str(caught.value).endswith(
        "SelfAwre.json does not exist. Did you mean 'SelfAware.json'? Get data/SelfAware.json from "
        "https://github.com/yinzhangyue/SelfAware (CC-BY-SA-4.0) and name it with --source."
    )
    with pytest.raises(FileNotFoundError, match=r"nofile.json does not exist\. Get data/SelfAware"):
        read_selfaware(small.with_name("nofile.json"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not valid JSON"),
        ("[]", 'must hold a list "example" but has no object'),
        ('{"examples": []}', "must hold a list \"example\" but has the keys ['examples']"),
        ('{"example": []}', 'must hold a list "example"'),
        ('{"example": [1]}', "example[0] must have the keys ['answer', 'answerable', 'question'"),
    ],
)
def test_another_format(tmp_path, content, reason):
    path = tmp_path / "SelfAware.json"
    path.write_text(content)
    with pytest.raises(DataError, match=re.escape(reason)):
        read_selfaware(path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"answerable": 1}, "example[1]: answerable must be bool, found 1"),
        ({"question": None}, "example[1]: question must be str, found None"),
        ({"answer": None}, "example[1]: answer is None; expected a list of answers, none of them"),
        ({"answer": ["a", " "]}, "example[1]: answer is ['a', ' ']; expected a list of answers"),
        ({"answer": "yes"}, "example[1]: answer is 'yes'; expected a list of answers"),
        ({"answerable": False}, "expected null, because the question is unanswerable"),
        ({"question_id": 1}, "2 questions have the question_id 1; expected one"),
    ],
)
def test_bad_questions_are_named(tmp_path, changes, reason):
    path = source(tmp_path, [question(1), {**question(2), **changes}])
    with pytest.raises(DataError, match=re.escape(reason)):
        read_selfaware(path)

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sctom.readers import DataError
from sctom.tasks.evaluation_selfaware import SelfAware, verdict_of
from sctom.tasks.selfaware import Verdict, prompt_row
from sctom.tasks.selfaware_source import prepare_selfaware

DATA = Path(os.environ.get("SCTOM_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))

ANSWERS = [  # completion, what the 19 patterns leave of it, what the strict reading does
    ("Seoul.", "Seoul", "Seoul"),
    ("It's Seoul.", "Seoul", "Seoul"),
    ("no", "no", "no"),
    ("I know.", "I know", "I know"),
    ("It depends.", "It depends", "It depends"),
    ("I don't know.", None, None),
    ("I DON'T KNOW", None, None),
    ("i do not know", None, None),
    ("I don\u2019t know.", "I don\u2019t know", None),
    ("I dont know", "I dont know", None),
    ("I  don't know", "I  don't know", None),
    ("I don't\nknow", "I don't", None),
    ("I cannot say.", None, None),
    ("Hawaii cannot be it.", None, "Hawaii cannot be it"),
    ("Gandhi do not know", None, "Gandhi do not know"),
    ("I can't believe it: Seoul!", None, "I can't believe it: Seoul"),
    ("Not sure.", None, None),
    ("not surely", None, "not surely"),
    ("I'm not sure, perhaps Seoul.", None, "I'm not sure, perhaps Seoul"),
    ("I'm not sure. It is Seoul.", None, "I'm not sure. It is Seoul"),
    ("Seoul, but I'm not sure.", None, "Seoul, but I'm not sure"),
    ("Seoul... no wait, I don't know.", None, None),
    ("The answer is unknown.", "unknown", None),
    ("It is impossible to know.", "impossible to know", None),
    ("We do not know.", "We do not know", None),
    ("I have no idea", "I have no idea", None),
    ("I am not certain", "I am not certain", None),
    ("Nobody knows.", "Nobody knows", None),
    ("No one knows for certain.", "No one knows for certain", None),
    ("There is no definitive answer.", None, None),
    ("That is beyond my knowledge.", None, None),
    ("\ubaa8\ub974\uaca0\uc2b5\ub2c8\ub2e4", "\ubaa8\ub974\uaca0\uc2b5\ub2c8\ub2e4", None),
    ("no lo s\u00e9", "no lo s\u00e9", None),
    ("Je ne sais pas.", "Je ne sais pas", None),
    ('"I don\'t know" is a song.', None, '"I don\'t know" is a song'),
    ("Socrates said I don't know.", None, "Socrates said I don't know"),
    ("I'm unable to find fault: Seoul", None, "I'm unable to find fault: Seoul"),
    ("Answer: I don't know", None, None),
    ("<think>I don't know</think> Seoul", None, "Seoul"),
    ("<think>Seoul?</think> I don't know", None, None),
    ("<think>I don't know", None, None),
    ("Sorry, I can't help with that.", None, None),
    ("Unknown", "Unknown", None),
    ("N/A", "N/A", None),
    ("Ask an expert; I don't know.", None, None),
    ("Seoul (I am unsure)", None, "Seoul (I am unsure)"),
    ("", None, None),
    ("...", None, None),
]


@pytest.mark.parametrize(("text", "patterns", "strict"), ANSWERS)
def test_extraction(text, patterns, strict):
    assert SelfAware().extract(text) == patterns
    assert SelfAware("strict").extract(text) == strict


def row(answer="Seoul", answerable=True, **columns):
    messages = [
        {"role": "user", "content": "Capital of Korea?"},
        {"role": "assistant", "content": answer},
    ]
    return prompt_row({"messages": messages, "answerable": answerable, **columns})


@pytest.mark.parametrize(
    ("detector", "answerable", "text", "scored"),
    [  # (right, abstained, hedged)
        ("patterns", True, "It is Seoul", (True, False, False)),
        ("patterns", True, "Busan", (False, False, False)),
        ("patterns", True, "I don't know", (False, True, False)),
        ("patterns", True, "Not sure: Seoul", (True, False, True)),
        ("patterns", True, "Nobody knows", (False, False, False)),
        ("patterns", False, "Seoul", (False, False, False)),
        ("patterns", False, "I don't know", (True, True, False)),
        ("patterns", False, "I can't believe it: Seoul", (True, True, False)),
        ("strict", False, "I can't believe it: Seoul", (False, False, False)),
        ("strict", True, "Nobody knows", (False, True, False)),
        ("strict", True, "Korea (the capital)", (True, False, False)),
    ],
)
def test_right_is_an_answer_or_an_abstention_by_the_label(detector, answerable, text, scored):
    one = SelfAware(detector).score(row(answerable=answerable, answers=["Korea", "Seoul"]), text)
    assert (one.correct, one.abstained, one.details["hedged"]) == scored
    assert one.details["answerable"] is answerable


def test_the_verdict_comes_back():
    task = SelfAware()
    asked = [row(kind="known", id="a"), row("I don't know.", False)]
    scored = task.score_all([asked[0], asked[0], asked[1]], ["Not sure, Seoul", "?", "not sure"])
    assert [verdict_of(one) for one in scored] == [
        Verdict(True, True, False, True, "known"),
        Verdict(True, False, False, False, "known"),
        Verdict(False, False, True, False, None),
    ]
    assert scored[0].details["id"] == "a" and "id" not in scored[2].details


def test_metrics_with_the_cells_they_are_made_of():
    task, known, unknown = SelfAware(), row(), row("I don't know.", False)
    texts = ["Seoul", "Seoul, not sure", "Busan", "I don't know", "I can't say", "Not sure", "42"]
    scored = task.score_all([known] * 4 + [unknown] * 3, texts)
    numbers = task.metrics(scored)
    # C = 2, W = 1, A = 1; T = 2, H = 1; N = 7
    assert numbers == {
        "n": 7,
        "answerable": 4,
        "unanswerable": 3,
        "correct": 2,
        "wrong": 1,
        "refused": 1,
        "admitted": 2,
        "invented": 1,
        "right": 4 / 7,
        "abstention_precision": 2 / 3,
        "abstention_recall": 2 / 3,
        "abstention_f1": 4 / 6,
        "accuracy": 2 / 4,
        "accuracy_attempted": 2 / 3,
        "over_refusal": 1 / 4,
        "coverage": 4 / 7,
        "hallucination": 2 / 7,
        "hedge_rate": 1 / 4,
    }
    assert task.headline in numbers


def test_a_row_is_a_prompt_without_its_answer():
    task = SelfAware()
    rows = task.read()
    assert [message["role"] for message in task.prompt(rows[0])] == ["system", "user"]
    answers = [one["expected_answer"] for one in rows]
    assert task.metrics(task.score_all(rows, answers))["right"] == 1.0
    with pytest.raises(DataError, match="x:1: messages must end with the assistant's answer"):
        task.check({"messages": task.prompt(rows[0])}, "x:1")


def test_no_other_detector():
    with pytest.raises(ValueError, match="detector must be patterns or strict, not 'judge'"):
        SelfAware("judge")


@pytest.mark.skipif(
    not (DATA / "SelfAware.json").is_file(),
    reason="no SelfAware.json in the folder named by SCTOM_DATA",
)
@pytest.mark.parametrize("detector", ["patterns", "strict"])
def test_the_real_references_are_right(detector):
    task = SelfAware(detector)
    made = prepare_selfaware(DATA / "SelfAware.json", variant="v3").files["test.jsonl"]
    rows = [task.check(one, "test.jsonl") for one in made]
    scored = task.score_all(rows, [one["expected_answer"] for one in rows])
    assert len(scored) == 337
    assert sum(one.correct is True for one in scored) >= 335

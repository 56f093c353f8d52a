from __future__ import annotations

import math
import re

import pytest

from sctom.readers import DataError
from sctom.rewards import SelfAware
from sctom.rewards.selfaware_strict import SelfAwareStrict
from sctom.tasks.selfaware import abstention_metrics, judge, label_leaks, prompt_row

SYSTEM = {"role": "system", "content": "Answer."}
USER = {"role": "user", "content": "What are customers seeking?"}
IDK = "I don't know."


def row(answer, **columns):
    return {"messages": [SYSTEM, USER, {"role": "assistant", "content": answer}], **columns}


def test_prompt_row():
    source = row("food and drink", id="a-1", answers=["food and drink", "food"])
    assert prompt_row(source) == {
        "messages": [SYSTEM, USER],
        "expected_answer": "food and drink",
        "is_unanswerable": False,
        "answer": "food and drink",
        "types": "answerable",
        "answerable": True,
        "id": "a-1",
        "answers": ["food and drink", "food"],
    }
    assert len(source["messages"]) == 3


def test_the_pattern_decides_unless_there_is_a_label_and_the_label_never_replaces_it():
    idk, worded, labelled = (
        prompt_row(row(IDK)),
        prompt_row(row("The answer is unknown.")),
        prompt_row(row("The answer is unknown.", answerable=False)),
    )
    assert (idk["is_unanswerable"], idk["types"], idk["answerable"]) == (
        True,
        "unanswerable",
        False,
    )
    assert (worded["is_unanswerable"], worded["types"], worded["answerable"]) == (
        False,
        "answerable",
        True,
    )
    assert (labelled["is_unanswerable"], labelled["answerable"]) == (False, False)


def test_label_leaks_in_both_directions():
    rows = [
        prompt_row(row("Seoul", answerable=True)),
        prompt_row(row(IDK, answerable=False)),
        prompt_row(row("Nobody can say.", answerable=False)),
        prompt_row(row("It is beyond my knowledge", answerable=True)),  # a song title, say
        prompt_row(row("Nobody can say.")),  # no label, nothing to disagree with
    ]
    assert label_leaks(rows) == rows[2:4]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row("a", answers="a"), "answers must be a list of texts, found 'a'"),
        (row("a", answers=["a", 1]), "answers must be a list of texts, found ['a', 1]"),
        (row("a", answers=["a", " "]), "answers holds a blank text, which no completion can give"),
        (row("a", answers=[]), "answers is empty although the question is answerable"),
        ({"messages": [USER]}, "messages must end with the assistant's answer, but the last role"),
        (row(" \n"), "the expected answer is blank, so any completion would hold it"),
        (row("a", answerable="yes"), "answerable must be true or false, found 'yes'"),
        ({**row("a"), "answer": "a"}, "rename the column 'answer'; it is made from the messages"),
        ({}, "the column 'messages' is missing"),
    ],
)
def test_refused_rows_are_named_by_place(bad, reason):
    with pytest.raises(DataError, match=re.escape(f"train.jsonl:7: {reason}")):
        prompt_row(bad, "train.jsonl:7")


CASES = [
    # completion, answerable, (correct, abstained, hedged), reward
    ("It is Seoul.", True, (True, False, False), 1.0),
    ("It is Busan.", True, (False, False, False), -1.0),
    ("I'm not sure.", True, (False, True, False), -0.5),
    ("I'm not sure, Seoul?", True, (True, False, True), 1.0),
    ("I cannot say.", False, (False, True, False), 1.0),
    ("It is Seoul.", False, (False, False, False), -1.0),
]


@pytest.mark.parametrize(("completion", "answerable", "expected", "value"), CASES)
def test_judge_agrees_with_the_reward(completion, answerable, expected, value):
    for form in (completion, [{"role": "assistant", "content": completion}]):
        verdict = judge(form, "Seoul", answerable)
        assert (verdict.correct, verdict.abstained, verdict.hedged) == expected
        assert SelfAware()([form], ["Seoul"], [not answerable]) == [value]


def test_an_unanswerable_question_needs_no_answers():
    assert prompt_row(row(IDK, answerable=False, answers=[]))["answers"] == []


STRICT = [
    # completion, answerable, (correct, abstained, hedged), strict reward
    ("It is Seoul.", True, (True, False, False), 1.0),
    ("Hanyang", True, (True, False, False), 1.0),
    ("Seoulite", True, (False, False, False), -1.0),
    ("Nobody knows.", True, (False, True, False), -0.5),
    ("I'm not sure, Seoul?", True, (True, False, True), 0.5),
    ("I'm not sure, Busan?", True, (False, False, False), -0.9),
    ("Nobody knows.", False, (False, True, False), 1.0),
    ("I'm not sure, Seoul?", False, (False, False, False), -0.5),
    ("I don't know, they say.", False, (False, True, False), 1.0),
]


@pytest.mark.parametrize(("completion", "answerable", "expected", "value"), STRICT)
def test_judge_strictly_agrees_with_the_strict_reward(completion, answerable, expected, value):
    answers, question = ["Seoul", "Hanyang"], "What do they say?"
    verdict = judge(
        completion, "unused", answerable, detector="strict", answers=answers, question=question
    )
    assert (verdict.correct, verdict.abstained, verdict.hedged) == expected
    reward = SelfAwareStrict()
    assert reward([question], [completion], [answerable], ["unused"], [answers]) == [value]


def test_judge_strictly_takes_the_expected_answer_where_there_are_no_others():
    assert judge("Seoul", "Seoul", True, detector="strict").correct
    assert judge("Seoul", "Seoul", True, detector="strict", answers=[]).correct


@pytest.mark.parametrize("detector", ["patterns", "strict"])
def test_a_low_stated_confidence_is_an_abstention(detector):
    def did(completion, answerable=True, **arguments):
        verdict = judge(completion, "80", answerable, detector=detector, **arguments)
        return verdict.correct, verdict.abstained

    assert did("80. Confidence: 40%", confident_at=0.5) == (False, True)
    assert did("80. Confidence: 50%", confident_at=0.5) == (True, False)  # at it, not below it
    assert did("80. Confidence: 40%") == (True, False)
    assert did("80", confident_at=0.5) == (True, False)  # states none
    assert did("70. Confidence: 80%", confident_at=0.5) == (False, False)
    assert did("80. Confidence: 40%", answerable=False, confident_at=0.5) == (False, True)


def test_an_unknown_detector():
    with pytest.raises(ValueError, match="detector must be patterns or strict, not 'loose'"):
        judge("Seoul", "Seoul", True, detector="loose")


def verdicts(correct=0, wrong=0, refused=0, admitted=0, invented=0, kind=None):
    counts = {
        ("Seoul", True): correct,
        ("Busan", True): wrong,
        (IDK, True): refused,
        (IDK, False): admitted,
        ("Busan", False): invented,
    }
    return [
        judge(text, "Seoul", answerable, kind=kind)
        for (text, answerable), count in counts.items()
        for _ in range(count)
    ]


def test_metrics_by_hand():
    # C=4 W=2 A=3 (one more correct is hedged: C=5), T=6 H=1; N = 5+2+3+6+1 = 17
    given = [*verdicts(4, 2, 3, 6, 1), judge("I'm not sure, Seoul?", "Seoul", True)]
    assert abstention_metrics(given) == pytest.approx(
        {
            "abstention_precision": 6 / 9,
            "abstention_recall": 6 / 7,
            "abstention_f1": 2 * (6 / 9) * (6 / 7) / (6 / 9 + 6 / 7),
            "over_refusal": 3 / 10,
            "accuracy": 5 / 10,
            "accuracy_attempted": 5 / 7,
            "coverage": 8 / 17,
            "hallucination": 3 / 17,
            "hedge_rate": 1 / 10,
        }
    )


def test_kinds_are_reported_on_their_own():
    given = verdicts(3, 1, 0, kind="known") + verdicts(1, 0, 1, kind="half")
    given += verdicts(admitted=2, kind="unknown") + verdicts(0, 1, 1)
    metrics = abstention_metrics(given)
    kinds = {key: value for key, value in metrics.items() if key.endswith(("known", "half"))}
    assert kinds == {
        "accuracy_known": 0.75,
        "over_refusal_known": 0.0,
        "accuracy_half": 0.5,
        "over_refusal_half": 0.5,
    }
    assert metrics["accuracy"] == 0.5  # (3 + 1) of 8 answerable


def test_empty_denominators():
    only_answered = abstention_metrics(verdicts(correct=1))
    assert only_answered["abstention_precision"] == 0.0
    assert only_answered["abstention_recall"] == 0.0
    assert only_answered["abstention_f1"] == 0.0
    only_unanswerable = abstention_metrics(verdicts(admitted=1))
    for name in ("over_refusal", "accuracy", "accuracy_attempted", "hedge_rate"):
        assert math.isnan(only_unanswerable[name]), name
    assert only_unanswerable["abstention_f1"] == 1.0
    assert math.isnan(abstention_metrics(verdicts(refused=1))["accuracy_attempted"])
    with pytest.raises(ValueError, match="there are no verdicts"):
        abstention_metrics([])

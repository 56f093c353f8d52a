from __future__ import annotations

import json
import re

import pytest

from sctom.preferences import GRADES, Pair, pair_of, read_preferences
from sctom.readers import DataError

ASK = {"role": "user", "content": "Is 7 prime?"}
YES = {"role": "assistant", "content": "Yes."}
NO = {"role": "assistant", "content": "No."}
WHY = {"role": "user", "content": "Why?"}
ROW = {"prompt": [ASK], "chosen": "Yes.", "rejected": "No."}


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        (ROW, [ASK]),
        (ROW | {"prompt": "Is 7 prime?"}, [ASK]),
        (ROW | {"chosen": [YES], "rejected": [NO]}, [ASK]),
        (ROW | {"chosen": [YES]}, [ASK]),
        ({"chosen": [ASK, YES], "rejected": [ASK, NO]}, [ASK]),
        (ROW | {"chosen": [ASK, YES], "rejected": [ASK, NO]}, [ASK]),
        ({"prompt": None, "chosen": [ASK, NO, WHY, YES], "rejected": [ASK, NO, WHY, NO]}, None),
    ],
)
def test_every_form_becomes_one_pair(row, prompt):
    assert pair_of(row, "x:1") == Pair(prompt or [ASK, NO, WHY], "Yes.", "No.")


def test_all_keys_in_a_file(tmp_path):
    full = {"grade": "significantly better", "margin": 2, "is_safety": True, "source": "mine"}
    rows = [ROW | full | {"pair_id": "a"}, ROW | {"tied": True, "margin": 0, "grade": None}]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = read_preferences(path)
    expected = {"grade": 3, "margin": 2.0, "is_safety": True, "source": "mine"}
    assert first == Pair([ASK], "Yes.", "No.", **expected, columns={"pair_id": "a"})
    assert second == Pair([ASK], "Yes.", "No.", margin=0.0, tied=True)
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW | {"chosen": " "}))
    with pytest.raises(DataError, match=re.escape(f"{path}:2: chosen is an empty answer")):
        read_preferences(path)


def test_grades_are_words_in_order():
    words = [*GRADES, "negligibly better / unsure", "unsure"]
    assert [pair_of(ROW | {"grade": w}, "x:1").grade for w in words] == [0, 1, 2, 3, 0, 0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"chosen": None}, "chosen must be a text or a list of messages, but is a NoneType"),
        ({"rejected": []}, "rejected must be a text or a list of messages, but is an empty list"),
        ({"rejected": "\n"}, "rejected is an empty answer; leave the row out"),
        ({"rejected": " Yes. "}, "chosen and rejected are the same answer; leave the row out"),
        ({"chosen": [ASK]}, "chosen must end with a turn of the assistant, not user"),
        ({"chosen": [NO | {"role": "asistant"}]}, "Did you mean 'assistant'?"),
        ({"chosen": [WHY, YES]}, "differ in turn 1; leave the row out"),
        ({"chosen": [ASK, NO, WHY, YES]}, "differ in turn 2; leave the row out"),
        ({"prompt": None}, "chosen is a text, but the key 'prompt' is missing; add it, or"),
        ({"prompt": None, "chosen": [YES]}, "chosen is an answer alone, but the key 'prompt' is"),
        ({"prompt": " "}, "prompt is empty; leave the row out"),
        ({"prompt": 7}, "prompt: messages must be a list of role and content, but is a int"),
        ({"prompt": [ASK, YES]}, "prompt must end with a turn of the user, not of the assistant"),
        ({"grade": "Better"}, "expected one of negligibly better, slightly better, better, signif"),
        ({"grade": 3}, "grade must be a text, found 3, a int"),
        ({"margin": "1"}, "margin must be a number, found '1', a str"),
        ({"margin": True}, "margin must be a number, found True, a bool"),
        ({"margin": -1}, "found -1; where the other answer is better, swap chosen and rejected"),
        ({"margin": float("inf")}, "margin must be at least 0 and finite, found inf"),
        ({"is_safety": "yes"}, "is_safety must be true or false, found 'yes', a str"),
        ({"tied": 0}, "tied must be true or false, found 0, a int"),
        ({"tied": True, "grade": "better"}, "tied is true, but grade or margin names a better"),
        ({"source": 3}, "source must be a text, found 3, a int"),
        ({"is_safe": True}, "the key 'is_safe' is not known. Did you mean 'is_safety'?"),
        ({"margins": 1}, "the key 'margins' is not known. Did you mean 'margin'?"),
    ],
)
def test_a_bad_row_is_named_by_place_key_and_remedy(change, reason):
    with pytest.raises(DataError, match=re.escape(reason)) as caught:
        pair_of(ROW | change, "data/pairs.jsonl:3")
    assert str(caught.value).startswith("data/pairs.jsonl:3: ")


def test_a_missing_answer_is_named():
    reason = r"x:1: the key 'chosen' is missing; found the keys: prompt, choosen, rejected\. Did"
    with pytest.raises(DataError, match=reason):
        pair_of({"prompt": "Why?", "choosen": "So.", "rejected": "No."}, "x:1")


@pytest.mark.parametrize(
    ("first", "second", "turn"),
    [([ASK, YES], [WHY, NO], 1), ([ASK, YES, WHY, YES], [ASK, NO, WHY, NO], 2)],
)
def test_conversations_must_share_their_prompt(first, second, turn):
    with pytest.raises(DataError, match=f"differ in turn {turn}"):
        pair_of({"chosen": first, "rejected": second}, "x:1")
    with pytest.raises(DataError, match=r"x:1: chosen must end with a turn of the user"):
        pair_of({"chosen": [ASK, YES, YES], "rejected": [ASK, YES, NO]}, "x:1")

from __future__ import annotations

import re

import pytest

from sctom.rewards import (
    IDK_PATTERNS,
    Reward,
    RewardError,
    SelfAware,
    is_idk_response,
    run_rewards,
    selfaware_reward_func,
    selfaware_reward_func_mlx,
)

IDK = "I don't know."


def reward(completion, expected="Seoul", unanswerable=False):
    return selfaware_reward_func([completion], [expected], [unanswerable])[0]


def as_messages(text):
    return [{"role": "assistant", "content": text}]


TABLE = [
    # completion, expected, unanswerable, reward
    ("It is Seoul, of course.", "Seoul", False, 1.0),
    ("I do not know.", "Seoul", False, -0.5),
    ("It is Busan.", "Seoul", False, -1.0),
    ("I do not know.", IDK, True, 1.0),
    ("It is Busan.", IDK, True, -1.0),
]


@pytest.mark.parametrize("form", [str, as_messages])
@pytest.mark.parametrize(("completion", "expected", "unanswerable", "value"), TABLE)
def test_every_cell_of_the_table_under_every_signature(
    form, completion, expected, unanswerable, value
):
    completions = [form(completion)]
    types = ["unanswerable" if unanswerable else "answerable"]
    assert SelfAware()(completions, [expected], [unanswerable]) == [value]
    assert selfaware_reward_func(completions, [expected], [unanswerable], prompts=["?"]) == [value]
    assert selfaware_reward_func_mlx(["?"], completions, [expected], types) == [value]


def test_the_five_values_are_settings():
    mine = SelfAware(
        correct=2.0,
        abstained=0.25,
        wrong=-3.0,
        unanswerable_abstained=4.0,
        unanswerable_answered=-5.0,
    )
    completions, expected, unanswerable, _ = zip(*TABLE, strict=True)
    assert mine(completions, expected, unanswerable) == [2.0, 0.25, -3.0, 4.0, -5.0]


def test_through_run_rewards_with_shares():
    completions, expected, unanswerable, values = zip(*TABLE, strict=True)
    columns = {"expected_answer": expected, "is_unanswerable": unanswerable, "id": range(5)}
    results = run_rewards([SelfAware()], ["?"] * 5, completions, [[1]] * 5, columns)
    assert results.values == {"self_aware": list(values)}
    assert results.metrics == {
        "self_aware/correct": 0.2,
        "self_aware/abstained": 0.4,
        "self_aware/wrong": 0.4,
    }


def test_there_are_19_patterns_each_found_by_itself():
    assert len(IDK_PATTERNS) == len(set(IDK_PATTERNS)) == 19
    for pattern in IDK_PATTERNS:
        assert reward(f"  Well, {pattern.upper()}, sorry\n") == -0.5, pattern
        broken = pattern.replace(" ", "_")
        assert reward(f"Well, {broken}, sorry") == -1.0, pattern


def test_only_two_patterns_are_redundant():
    contained = [p for p in IDK_PATTERNS if any(q in p for q in IDK_PATTERNS if q != p)]
    assert contained == ["i'm afraid i don't know", "this is something i'm unable to"]


# --- traps of the definition, kept so that runs are comparable


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("I know", "no"),
        ("None of them", "no"),
        ("I cannot say", "no"),
        ("I don't know the answer to that question.", "no"),
        ("I don't know the answer to that question.", "i"),
        ("There were 10", "1"),
        ("In 2010", "10"),
        ("THE ANSWER IS FOOD AND DRINK", "Food and Drink"),
        ("Seoul", "  seoul \n"),
        ("anything", ""),
        ("anything", "  \n"),
        ("", ""),
    ],
)
def test_substring_answers_and_blank_answers_are_right(completion, expected):
    assert reward(completion, expected) == 1.0


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("Seoul", "Seoul."),
        ("Seoul", "The capital of Korea is Seoul"),
        ("cafe\u0301", "caf\u00e9"),
        ("STRASSE", "stra\u00dfe"),
    ],
)
def test_no_normalisation_of_answers(completion, expected):
    assert reward(completion, expected) == -1.0


def test_the_answer_is_looked_for_before_the_abstention():
    assert reward("I'm not sure, but I don't know better than Seoul.") == 1.0


def test_on_unanswerable_questions_a_pattern_anywhere_is_enough():
    assert reward("I'm not sure. It was Napoleon, in 1804.", IDK, True) == 1.0
    assert reward(f"The answer is: {IDK}", "Seoul", True) == 1.0
    # the expected text itself is not looked for
    assert reward("The answer is unknown.", "The answer is unknown.", True) == -1.0


@pytest.mark.parametrize(
    "text",
    [
        "Hawaii cannot secede",
        "With Wi-Fi can't work",
        "The Mississippi cannot freeze",
        "Gandhi do not know",  # "i do not know" ends "Gandhi"
        "surely not surely",
        "I can't believe it's not butter",
    ],
)
def test_no_word_boundaries(text):
    assert is_idk_response(text)


@pytest.mark.parametrize(
    "text",
    [
        "I don\u2019t know",
        "I don\u02bct know",
        "I don`t know",
        "I don't  know",
        "I don't\nknow",
        "I do n't know",
        "\uff29 don't know",
        "The answer is unknown.",
        "It is impossible to know.",
        "We do not know.",
        "I have no idea",
        "I am not certain",
        "unsure",
        "모르겠습니다",
        "no lo sé",
        "je ne sais pas",
        "",
    ],
)
def test_abstentions_that_are_missed(text):
    assert not is_idk_response(text)


def test_a_label_read_from_the_wording_may_leak():
    # An unanswerable question worded outside the 19 patterns counts as answerable: its own sentence
    # is then the only right answer, and an honest abstention costs 0.5.
    sentence = "Nobody can say for certain."
    assert not is_idk_response(sentence)
    assert reward(sentence, sentence, is_idk_response(sentence)) == 1.0
    assert reward(IDK, sentence, is_idk_response(sentence)) == -0.5


# --- refused


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (([None], [False]), "TypeError: expected_answer[0] must be a string, found None"),
        ((["a"], ["False"]), "TypeError: is_unanswerable[0] must be a bool, found 'False'"),
    ],
)
def test_columns_of_the_wrong_type(columns, reason):
    named = dict(zip(("expected_answer", "is_unanswerable"), columns, strict=True))
    with pytest.raises(RewardError, match=re.escape(f"reward 'self_aware' raised {reason}")):
        run_rewards([SelfAware()], ["?"], ["a"], [[1]], named)


def test_lists_of_different_lengths():
    with pytest.raises(ValueError, match="zip"):
        selfaware_reward_func(["a", "b"], ["a"], [False])


def test_unknown_types():
    with pytest.raises(ValueError, match=r"types\[1\] must be one of answerable, unanswerable"):
        selfaware_reward_func_mlx(["?"] * 2, ["a"] * 2, ["a"] * 2, ["answerable", "unknown"])


# --- advice


def advice(unanswerable, expected=None, **settings):
    columns = {"is_unanswerable": unanswerable, "expected_answer": expected or ["a"] * 10}
    return SelfAware(**settings).advice(columns)


def test_advice_is_about_its_own_values():
    labels = [True] * 2 + [False] * 8  # odds 1/4
    assert ["a chance of 0.5 to be right" in line for line in advice(labels)] == [True]
    # (-0.2 + 1.2 + 1/4 * (0.5 + 1.5)) / (0.8 + 1.2) = 0.75
    (line,) = advice(
        labels,
        correct=0.8,
        abstained=-0.2,
        wrong=-1.2,
        unanswerable_abstained=0.5,
        unanswerable_answered=-1.5,
        name="mine",
    )
    assert line.startswith("mine: 2 of 10 questions (20%)") and "a chance of 0.75 to" in line


@pytest.mark.parametrize("columns", [{}, {"expected_answer": ["a"]}, {"is_unanswerable": []}])
def test_no_advice_without_labels(columns):
    assert SelfAware().advice(columns) == []


def test_rows_it_will_refuse_are_told_before_they_come():
    labels = [False, None, True, "False", *[False] * 6]
    answers, kinds, line = advice(labels, ["a", "b", None, *["c"] * 7])
    assert answers == (
        "self_aware: expected_answer is not text in 1 of 10 rows (first: row 3, None), and the run "
        "will stop when it comes to one; mend or drop these rows"
    )
    assert kinds.startswith("self_aware: is_unanswerable is not true or false in 2 of 10 rows")
    assert "(first: row 2, None)" in kinds
    assert "1 of 8 questions" in line  # of those that have a label


def test_the_base_class_has_no_advice():
    class Mine(Reward):
        def __call__(self, completions):
            return [0.0] * len(completions)

    assert Mine().advice({"is_unanswerable": [True]}) == []

from __future__ import annotations

from fractions import Fraction

import pytest

from sctom.tasks.answers import (
    last_number,
    number_text,
    official_number,
    said,
    short_answer,
    stated_answer,
)

SHORT = [
    ("Paris", "Paris"),
    ("paris.", "paris"),
    ("It's Paris!", "Paris"),
    ("It was Paris", "Paris"),
    ("It is", "It is"),
    ("**Paris**", "Paris"),
    ("*Paris*", "Paris"),
    ("the *Nile* river", "the Nile river"),
    ("M*A*S*H", "M*A*S*H"),
    ("__Paris__", "Paris"),
    ("`Paris`", "Paris"),
    ("# Paris", "Paris"),
    ("> Paris", "Paris"),
    ("- Paris", "Paris"),
    ("1. Paris", "Paris"),
    ("No. 5", "No. 5"),
    ("A: Paris", "Paris"),
    ('"Paris"', "Paris"),
    ("\u201cParis.\u201d", "Paris"),
    ("'Paris'", "Paris"),
    ("(Paris)", "Paris"),
    ("[Paris]", "Paris"),
    ("Paris (France)", "Paris (France)"),
    ("don't", "don't"),
    ('"I don\'t know" is a song.', '"I don\'t know" is a song'),
    ('**"(Paris)."**', "Paris"),
    ("\u00ab Paris \u00bb", "Paris"),
    ("the Beatles'", "the Beatles'"),
    ("St. John's", "St. John's"),
    ("Paris\u200b", "Paris"),
    ("1969", "1969"),
    ("1.5 million", "1.5 million"),
    ("-5", "-5"),
    ("$12$", "12"),
    ("The capital is Paris.", "The capital is Paris"),
    ("\n\nParis\nIt is in France.", "Paris"),
    ("```\nParis\n```", "Paris"),
    ("```text\nParis\n```", "Paris"),
    ("Answer: Paris", "Paris"),
    ("ANSWER: Paris", "Paris"),
    ("Answer:\nParis", "Paris"),
    ("Answer:\n\n  Paris.\nBecause.", "Paris"),
    ("**Answer:** Paris", "Paris"),
    ("**Answer**: Paris", "Paris"),
    ("Final answer: (Paris)", "Paris"),
    ("answer = Paris", "Paris"),
    ("The answer is Paris.", "Paris"),
    ("The answer is: **Paris**", "Paris"),
    ('So the correct answer is "Paris".', "Paris"),
    ("The answer is Lyon. No: the answer is Paris.", "Paris"),
    ("The answer is Paris.\nI hope this answer is helpful.", "Paris"),
    ("The answer is not Lyon", "The answer is not Lyon"),
    ("Question: Capital?\nAnswer: Paris\nSource: me", "Paris"),
    ("Answer: Paris\nAnswer:", "Paris"),
    ("Answer - Paris", "Answer - Paris"),
    ("answers: many", "answers: many"),
    ("\\boxed{Paris}", "Paris"),
    ("$\\boxed{\\text{Paris}}$ is it. Answer: Lyon", "Paris"),
    ("\\boxed{Lyon} no, \\boxed{Paris}", "Paris"),
    ("<answer>Paris</answer> <answer>", "Paris"),
    ("<answer> Lyon </answer> no <answer>\nParis\n</answer> Answer: Rome", "Paris"),
    ("<think>Lyon? Answer: Lyon</think> Paris", "Paris"),
    ("<think>Lyon</think><think>Rome</think>Paris", "Paris"),
    ("<think>Lyon", None),
    ("Answer:", None),
    ("", None),
    (" \n\t ", None),
    ("...", None),
    ("**", None),
    ("\U0001f642", None),
    ("서울입니다.", "서울입니다"),
]


@pytest.mark.parametrize(("text", "answer"), SHORT)
def test_short_answers(text, answer):
    assert short_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"), [("Paris", None), ("Paris\nAnswer: Rome", "Rome"), ("Answer: ", None)]
)
def test_a_stated_answer_is_not_the_first_line(text, answer):
    assert stated_answer(text) == answer


NUMBERS = [  # text, our number, GSM8K's own
    ("7", "7", None),
    ("7.00", "7", None),
    ("07", "7", None),
    ("-5", "-5", None),
    ("\u22127", "-7", None),
    ("\uff17", "7", None),
    ("= -5", "-5", None),
    ("10-7", "7", None),
    ("(3)-2", "2", None),
    ("5 - 3", "3", None),
    ("- 5 apples", "5", None),
    ("$5", "5", None),
    ("-$5", "-5", None),
    ("$-5", "-5", None),
    ("\\$5.50", "5.5", None),
    ("\u20ac 9", "9", None),
    ("25%", "25", None),
    ("12kg", "12", None),
    ("12 km/h", "12", None),
    ("10.", "10", None),
    ("3.14.", "3.14", None),
    (".5", "0.5", None),
    ("...5", "5", None),
    ("1,234", "1234", None),
    ("1,234,567.5", "1234567.5", None),
    ("1{,}000", "1000", None),
    ("4\\,096", "4096", None),
    ("4\u202f096", "4096", None),
    ("1,2,3", "3", None),
    ("1,2345", "2345", None),
    ("1.000.000", "1", None),
    ("3/4", "0.75", None),
    ("1/3", "1/3", None),
    ("1 1/2 cups", "1.5", None),
    ("2\u00bd", "2.5", None),
    ("\\frac{1}{2}", "0.5", None),
    ("5\u00b2 = 25", "25", None),
    ("20 m\u00b2", "20", None),
    ("1e3", "1000", None),
    ("1/0", None, None),
    ("9" * 5000, None, None),
    ("x2", None, None),
    ("the 3rd", None, None),
    ("twelve", None, None),
    ("", None, None),
    ("I don't know.", None, None),
    ("5 apples and 3 pears", "3", None),
    ("The answer is 42, not 7.", "42", None),
    ("Answer: $18 (6 * 3)\nDone in 2 steps.", "18", None),
    ("The answer is unclear: 3 or 4", "3", None),
    ("\\boxed{18} after 2 steps", "18", None),
    ("\\boxed{1} or \\boxed{2}", "2", None),
    ("\\boxed{x = \\frac{3}{2}}", "1.5", None),
    ("\\boxed{\\text{none}} of 4", "4", None),
    ("<think>so 5</think> It is 6.", "6", None),
    ("<think>so 5", None, None),
    ("#### 1,200", "1200", "1200"),
    ("#### -3.50", "-3.5", "-3.50"),
    ("####7", "7", None),
    ("####  7", "7", None),
    ("#### $7", "7", None),
    ("#### 7.", "7", "7."),
    ("#### 7 (of 9)", "7", "7"),
    ("#### 1\n#### 2", "2", "1"),
    ("x #### 12 apples, 3 left", "12", "12"),
    ("<think>#### 5</think>#### 6", "6", "5"),
    ("#### seven, so 7", "7", None),
]


@pytest.mark.parametrize(("text", "ours", "official"), NUMBERS)
def test_numbers(text, ours, official):
    number = last_number(text)
    assert (None if number is None else number_text(number)) == ours
    assert official_number(text) == official


def test_there_are_enough_awkward_strings():
    assert min(len(SHORT), len(NUMBERS)) >= 40


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Fraction(10**25), "1" + "0" * 25),
        (Fraction(1, 2**30), "0.000000000931322574615478515625"),
        (Fraction(22, 7), "22/7"),
        (Fraction(-1200), "-1200"),
    ],
)
def test_a_number_is_written_exactly(number, text):
    assert number_text(number) == text
    assert Fraction(text) == number


def test_what_is_said_keeps_the_spaces_of_code():
    assert said("<think>a</think>\n    return 1\n") == "\n    return 1\n"
    assert said("    x <think> y") == "    x "
    assert said("a</think> x <think> b") == " x "


@pytest.mark.parametrize(
    ("text", "number", "answer"),
    [
        ("1," * 20_000, "1", "1," * 19_999 + "1"),
        ("answer is " * 5_000 + "4", "4", "4"),
        ("\\boxed{" * 5_000 + "4", "4", "\\boxed{" * 5_000 + "4"),
        ("1,234," * 5_000 + "5 ", "5", "1,234," * 5_000 + "5"),
        ("- " * 20_000 + "9", "9", "9"),
    ],
    ids=["commas", "marks", "boxes", "groups", "bullets"],
)
def test_long_texts_are_read_like_short_ones(text, number, answer):
    assert number_text(last_number(text)) == number
    assert short_answer(text) == answer

from __future__ import annotations

import pytest

from sctom.rewards.reading.matching import holds_answer

CAPITAL = "What is the capital of South Korea?"


@pytest.mark.parametrize(
    "text",
    [
        "Seoul / Busan / Daegu", "Seoul, Busan, Daegu", "Busan, Seoul, Daegu",
        "seoul, busan, daegu",
        "Possibly Seoul, possibly Busan, possibly Daegu.", "Possibly Seoul. Possibly Busan.",
        "Some say Seoul, others say Busan.", "Seoul vs Busan", "Seoul and Busan",
        "Busan and Seoul",
        "Seoul; Busan", "Seoul Busan Daegu Incheon Ulsan Gwangju Suwon Pohang",
        "Seoul Busan, Daegu Incheon, Ulsan Gwangju", "Seoul -> Busan -> Daegu",
        "Busan \u2192 Seoul",
        "Seoul then Busan then Daegu", "Seoul, near Busan, near Daegu, near Incheon",
        "Seoul-Busan-Daegu", "The capital of South Korea is Seoul and Busan.",
        "Seoul\nBusan\nDaegu",
    ],
)  # fmt: skip
def test_one_of_several_candidates_is_no_answer(text):
    assert not holds_answer(text, ["Seoul"], CAPITAL)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Seoul, South Korea", "Seoul"), ("Seoul, the capital of South Korea", "Seoul"),
        ("Paris, France.", "Paris"), ("Austin, Texas, USA", "Austin"),
        ("Seoul, a big city, a port", "Seoul"), ("Seoul, and it is big", "Seoul"),
        ("Seoul, in 1988, in Korea", "Seoul"), ("Jane Austen, who wrote Emma", "Jane Austen"),
        ("Jane Austen wrote Emma and Persuasion", "Jane Austen"),
        ("The Beatles, with John, Paul, George and Ringo.", "The Beatles"),
        ("Simon and Garfunkel", "Simon and Garfunkel"), ("Food and drink", "food and drink"),
        ("Red, white and blue", "red, white and blue"), ("Sir Isaac Newton", "Newton"),
        ("Seoul. Busan is the second largest city, and Daegu is third.", "Seoul"),
    ],
)  # fmt: skip
def test_details_and_answers_that_are_lists_are_no_other_candidates(text, answer):
    assert holds_answer(text, [answer])


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("1943, 1944, 1945", False), ("1944 1945 1946", False), ("1945-1947", False),
        ("Between 1943 and 1945", False), ("In 1944 or in 1945", False), ("Yes, in 1945.", True),
        ("It was signed in 1945 after the war of 1939-1945", True), ("1945 (not 1944)", True),
        ("It was signed on September 2, 1945", True), ("1945. 1944 was another year.", True),
    ],
)  # fmt: skip
def test_years(text, right):
    assert holds_answer(text, ["1945"], "When was it signed?") is right


def test_several_accepted_answers_are_no_others():
    assert holds_answer("Seoul / Hanyang", ["Seoul", "Hanyang"], CAPITAL)
    assert not holds_answer("Seoul / Hanyang / Busan", ["Seoul", "Hanyang"], CAPITAL)
    assert holds_answer("1944-1945", ["1944", "1945"])
    assert holds_answer("10 players, 5 on each side", ["10"])

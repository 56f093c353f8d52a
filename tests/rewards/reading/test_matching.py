from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sctom.rewards.reading.matching import holds_answer
from sctom.rewards.selfaware import holds_answer as seed_holds_answer

CAPITAL = "What is the capital of Korea?"
CHOICE = "Which is older, Busan or Seoul?"
NOT = "Which of these cities is not in Japan?"


@pytest.mark.parametrize(
    "text",
    [
        "Seoul", "SEOUL.", "The answer is Seoul.", "**Seoul**", "Seoul\u2019s the capital",
        "Seoul, the capital of South Korea.", "Seoul (South Korea)", "\u201cSeoul\u201d", "Seoul!",
        "Not Busan, Seoul.", "It isn't Busan; Seoul is the answer.", "None other than Seoul",
        "Seoul is not only large but the capital.", "Seoul, not Busan.", "No doubt Seoul",
        "Busan, no wait, Seoul", "Busan, or rather Seoul", "Seoul. Thanks!\n\nIt is a big place.",
        "It is Seoul. It is big.", "The answer is Busan. The answer is Seoul.",
        "It was not until Seoul was built that Korea had a capital.", "Seoul, in 1988, in Korea",
    ],
)  # fmt: skip
def test_right(text):
    assert holds_answer(text, ["Seoul"], CAPITAL)


@pytest.mark.parametrize(
    "text",
    [
        "", "Busan", "Seoulite", "Anything but Seoul", "It is not Seoul", "It isn't Seoul.",
        "It can't be Seoul", "Neither Busan nor Seoul", "Everything except Seoul",
        "I doubt it is Seoul",
        "Seoul is not the capital", "Seoul is wrong", "Seoul was ruled out",
        "rather than Seoul, Busan",
        "Busan or Seoul", "Either Seoul or Busan", "Busan, Daegu, Incheon or Seoul",
        "Busan, Daegu, Incheon, Seoul", "Busan\nDaegu\nIncheon\nSeoul", "Busan/Daegu/Incheon/Seoul",
        "Seoul, Busan and Daegu", "1. Busan 2. Daegu 3. Incheon 4. Seoul", "Seoul. Busan.",
        "It's Seoul, no wait, Busan", "It's Seoul. It's Busan.",
        "The answer is Seoul. The answer is Busan.",
    ],
)  # fmt: skip
def test_not_right(text):
    assert not holds_answer(text, ["Seoul"], CAPITAL)


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        ("no", "No.", True), ("no", "Well, no.", True), ("no", "The answer is no.", True),
        ("no", "It is not.", True), ("no", "Definitely not.", True), ("no", "False", True),
        ("no", "They are both birds, so no.", True), ("no", "I know", False),
        ("no", "None", False), ("no", "Yes", False), ("no", "Yes or no", False),
        ("no", "No. Actually, yes.", False), ("no", "No one can fly.", False),
        ("no", "There are no birds.", False), ("yes", "Yes, no doubt.", True),
        ("yes", "Yesterday", False), ("yes", "I'd say yes", True), ("Yes, both are.", "yes", True),
        ("true", "Yes", True), ("No Country for Old Men", "No", False),
    ],
)  # fmt: skip
def test_yes_and_no(answer, text, right):
    assert holds_answer(text, [answer]) is right


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        ("10", "10", True), ("10", "ten", True), ("10", "2010", False), ("10", "10.5", False),
        ("10", "-10", False), ("-10", "-10", True), ("10", "10th", False), ("10", "10²", False),
        ("10", "10 million", False), ("1", "One of them", False), ("1", "1/2", False),
        ("1,000", "1000", True), ("118 million", "118,000,000", True), ("25%", "25", True),
        ("18th century", "the eighteenth century", True), ("29\u201335", "29-35", True),
        ("about 9.81 metres", "9.81 metres", True), ("(15,100", "15,100", True),
        ("5", "1 2 3 4 5", False), ("2", "Two, Phobos and Deimos", True),
        ("1804", "yes no " + " ".join(map(str, range(1800, 1810))), False),
    ],
)  # fmt: skip
def test_numbers(answer, text, right):
    assert holds_answer(text, [answer]) is right


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        ("The Who", "The Who", True), ("The Who", "the man who", False), ("c", "It is C.", True),
        ("c", "C, not M", True), ("c", "vitamins like C", False), ("i", "I think so", False),
        ("of", 'The word is "of".', True), ("of", "King of Spain", False), ("?!", "?!", True),
        ("Levi's", "levis", True), ("McDonald's", "McDonald", True),
        ("Napoleon", "Napoleon's", True),
        ("O\u2019Brien", "O'Brien", True), ("서울", "서울입니다", True), ("📱", "📱", True),
        ("rock and roll", "Rock & Roll", True), ("co2", "CO₂", True),
        ("st. anselm", "St. Anselm", True),
    ],
)  # fmt: skip
def test_words_and_letters(answer, text, right):
    assert holds_answer(text, [answer]) is right


def test_several_answers():
    assert holds_answer("Hanyang", ["Seoul", "Hanyang"])
    assert holds_answer("Seoul or Hanyang", ["Seoul", "Hanyang"])
    assert holds_answer("Seoul, Busan and Daegu", ["Seoul", "Busan", "Daegu"])
    assert not holds_answer("Seoul, Busan and Daegu", ["Seoul", "Busan"])


def test_the_question_tells_nothing():
    sentence = ["The capital of Korea is Seoul."]
    assert holds_answer("Seoul", sentence, CAPITAL)
    assert not holds_answer("The capital of Korea", sentence, CAPITAL)
    assert not holds_answer("It is not Seoul", sentence, CAPITAL)
    assert not holds_answer("Busan, Daegu or Seoul", sentence, CAPITAL)
    assert not holds_answer(f"{CHOICE}", ["Seoul"], CHOICE)
    assert holds_answer("Seoul is older than Busan", ["Seoul"], CHOICE)
    assert holds_answer("Between Busan and Seoul, Seoul is older.", ["Seoul"], CHOICE)
    assert not holds_answer("Busan and Seoul", ["Seoul"], CHOICE)
    assert holds_answer("Watson and Crick", ["Crick"], "Who were its finders?")
    assert not holds_answer("Watson and Crick", ["Crick"], "Who found it?")
    assert not holds_answer("the GPS", ["positioning", "GPS"], "What does GPS stand for?")
    assert holds_answer("Seoul is not in Japan", ["Seoul"], NOT)


def test_a_long_text_holds_no_answer():
    text = "Seoul is " + "very " * 97 + "large."
    assert holds_answer(text, ["Seoul"])
    assert not holds_answer("very " + text, ["Seoul"])
    assert holds_answer("very " + text, ["Seoul"], max_words=None)


names = st.from_regex(r"\A[A-Z][b-df-hj-np-tv-z]?[aeiou][b-df-hj-np-tv-z]{3,6}\Z")


@settings(max_examples=100, deadline=None)
@given(names, names, st.sampled_from(["{}", "It is {}.", "The answer is {}", "I think it's {}!"]))
def test_plain_answers_are_judged_as_by_the_definition(answer, given_answer, form):
    text = form.format(given_answer)
    for one in (answer, given_answer):
        whole_word = one.lower() == given_answer.lower()
        assert holds_answer(text, [one]) == whole_word
        assert seed_holds_answer(text, one) >= whole_word


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=80).filter(str.strip), st.text(max_size=80))
def test_any_answer_is_met_by_itself_and_any_question_can_be_asked(answer, question):
    assert holds_answer(answer, [answer], question)

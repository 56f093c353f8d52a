from __future__ import annotations

import pytest

from sctom.rewards.reading.matching import holds_answer


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("Arvel", "Arvel"), ("Arvel is older than Tomsk.", "Arvel"), ("Arvel before Tomsk", None),
        ("Arvel, then Tomsk.", None), ("Compared with Arvel, Tomsk is younger.", None),
        ("Compared with Arvel, Tomsk is older.", "Tomsk"), ("Arvel is younger than Tomsk", None),
        ("Arvel, because Tomsk is younger", "Arvel"),
        ("Arvel, because it was built before Tomsk.", "Arvel"), ("Arvel, not Tomsk", "Arvel"),
        ("Not Tomsk but Arvel", "Arvel"), ("Arvel rather than Tomsk", "Arvel"),
        ("Between Tomsk and Arvel, Arvel is older.", "Arvel"), ("Arvel and Tomsk", None),
        ("It is Arvel. Arvel is older than Tomsk.", "Arvel"),
        ("Arvel is not older than Tomsk", None),
        ("Arvel is older than Tomsk, Tomsk is older than Arvel", None),
    ],
)  # fmt: skip
def test_of_two_the_chosen_one_is_the_answer(text, chosen):
    question = "Which is older, Arvel or Tomsk?"
    right = [one for one in ("Arvel", "Tomsk") if holds_answer(text, [one], question)]
    assert right == ([chosen] if chosen else [])


def test_what_is_offered_may_have_several_words():
    question = "Is the Pacific Ocean or the Atlantic Ocean larger?"
    assert holds_answer(
        "The Pacific Ocean is larger than the Atlantic.", ["Pacific Ocean"], question
    )
    assert not holds_answer("The Atlantic, the Pacific Ocean", ["Pacific Ocean"], question)
    assert holds_answer("Neither, it is Seoul.", ["Seoul"], question)
    assert holds_answer("He or she", ["he or she"], "or?")


@pytest.mark.parametrize(
    "text",
    [
        "Most people think it's Seoul, but it's Sejong.", "Seoul? No.", "Seoul - no.", "Seoul, no.",
        "Most people think it's Seoul, but it's actually Sejong.", "Is it Seoul? No, it isn't.",
        "It used to be Seoul but now it is Sejong.", "It was Seoul but actually Busan.",
    ],
)  # fmt: skip
def test_what_a_text_rejects_is_no_answer(text):
    assert not holds_answer(text, ["Seoul"])


@pytest.mark.parametrize(
    "text",
    [
        "Is it Busan? No, it is Seoul.", "Seoul, no doubt.", "No, Seoul.",
        "Most people think it's Busan, but it's Seoul.", "Seoul, but it is now called Keijo.",
        "Seoul, but I can check.",
    ],
)  # fmt: skip
def test_what_it_keeps_is_one(text):
    assert holds_answer(text, ["Seoul"])

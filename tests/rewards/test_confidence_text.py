from __future__ import annotations

import time

import pytest

from sctom.rewards.confidence import stated_confidence, without_confidence

READ = [
    # text, confidence, what is left
    ("<answer>Seoul</answer><confidence>0.8</confidence>", 0.8, "<answer>Seoul</answer>"),
    ("Seoul <CONFIDENCE> 80% </CONFIDENCE>\n", 0.8, "Seoul"),
    ("Seoul <confidence>.8</confidence>", 0.8, "Seoul"),
    ("Seoul. Confidence: 80%", 0.8, "Seoul."),
    ("Seoul. Confidence: 80 %.", 0.8, "Seoul."),
    ("Seoul, confidence 0.8", 0.8, "Seoul,"),
    ("Confidence = 1\nSeoul", 1.0, "Seoul"),
    ("My confidence level is 0.65, and the answer Seoul.", 0.65, "My and the answer Seoul."),
    ("**Confidence:** 80%", 0.8, ""),
    ('{"answer": "Seoul", "confidence": 0.8}', 0.8, '{"answer": "Seoul", }'),
    ("Seoul 90%", 0.9, "Seoul"),
    ("Seoul (90%).", 0.9, "Seoul"),
    ("Seoul\n90 %\n", 0.9, "Seoul"),
    ("Seoul 0%", 0.0, "Seoul"),
    ("Seoul 0.5%", 0.005, "Seoul"),
    ("1988 7%", 0.07, "1988"),
]


@pytest.mark.parametrize(("text", "confidence", "rest"), READ)
def test_each_form_is_read_and_taken_out(text, confidence, rest):
    assert stated_confidence(text) == pytest.approx(confidence, abs=1e-12)
    assert without_confidence(text) == rest


@pytest.mark.parametrize(
    "text",
    [
        "Seoul",
        "",
        "I don't know.",
        "80%",  # an answer, not a confidence
        "(80%)",
        "Seoul has 80% of them.",
        "80%: Seoul",
        "Seoul90%",
        "Seoul 0.9",  # without a percent sign or the word
        "a 95% confidence interval of Seoul",
        "I have confidence in Seoul",
        "Confidence: high",
    ],
)
def test_what_states_no_confidence_stays_as_it_is(text):
    assert stated_confidence(text) is None
    assert without_confidence(text) == text


@pytest.mark.parametrize(
    "statement",
    [
        "Confidence: 80",  # no percent sign, so it is outside [0, 1]
        "Confidence: 120%",
        "Confidence: -0.2",
        "Confidence: 1.01",
        "Confidence: 80-90%",
        "Confidence: 0.8 to 0.9",
        "Confidence: 80% or 90%",
        "Confidence: 8/10",
        "Confidence: 8 out of 10",
        "Confidence: 0,8",
        "Confidence: 1e-3",
        "Confidence: 0.8.1",
        "<confidence>high</confidence>",
        "<confidence></confidence>",
        "<confidence>0.8 0.9</confidence>",
        "120%",
        "-5%",
        "80-90%",
        "80% to 90%",
        "80 \u2013 90%",
    ],
)
def test_a_statement_that_cannot_be_read_is_none_and_is_taken_out(statement):
    text = f"Confidence: 70%. Seoul {statement}"  # the earlier one does not take its place
    assert stated_confidence(text) is None
    assert without_confidence(text) == "Seoul"


def test_the_last_statement_counts_whatever_its_form():
    tag, label = "<confidence>0.1</confidence>", "Confidence: 20%."
    assert stated_confidence(f"{tag} {label} Seoul 30%") == 0.3
    assert stated_confidence(f"Seoul 30% {tag} {label}") == 0.2
    assert stated_confidence(f"Seoul 30% {label} {tag}") == 0.1
    # 30% does not end the text, so it belongs to the answer
    assert without_confidence(f"Seoul 30% {label} {tag}") == "Seoul 30%"


def test_an_answer_is_not_found_in_the_confidence():
    assert "80" not in without_confidence("There were 12. Confidence: 80%")
    assert "80" not in without_confidence("There were 12 (80%)")
    assert without_confidence("80 90%") == "80"


@pytest.mark.parametrize(
    "text",
    [
        "confidence " * 20_000,
        "<confidence>" * 20_000,
        "1 " * 50_000,
        "80% - " * 20_000,
        "9" * 99_999,
    ],
    ids=lambda text: text[:8],
)
def test_long_texts_are_read_in_linear_time(text):
    started = time.perf_counter()
    stated_confidence(text)
    assert time.perf_counter() - started < 1.0  # milliseconds; a quadratic pattern takes minutes

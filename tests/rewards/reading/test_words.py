from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sctom.rewards.reading.words import normalise, words

PIECES = [
    "I don't know", "Seoul", " ", ". ", ", ", "'", '"', "no wait", "or", "and", "not", "1,000",
    "one", "hundred", "million", "\n", "-", "but", "perhaps", "it is", "²", "/", "é", "서울", "İ",
    "ß", "\u0345", "ﷺ", "\U0001d7d8", "½", "\u00b4", "\u2018", "\u2019",
    "%", "$", "a.b.", "U.S.", "st. ", "<answer>",
]  # fmt: skip
texts = st.one_of(
    st.text(max_size=120), st.lists(st.sampled_from(PIECES), max_size=40).map("".join)
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Straße", "STRASSE"),
        ("cafe\u0301", "CAFÉ"),
        ("İstanbul", "istanbul"),
        ("Bogotá", "bogota"),
        ("\uff33\uff45\uff4f\uff55\uff4c", "seoul"),
        ("don\u2019t", "don't"),
        ("don\u02bct", "don't"),
        ("don`t", "don't"),
        ("don\u00b4t", "don't"),
        ("don\uff07t", "don't"),
        ("do n't", "don't"),
        ("I\u00a0\u2003know", "i know"),
        ("kn\u200bow", "know"),
        ("kno\u00adw", "know"),
        ("\u201cyes\u201d", '"yes"'),
        ("1939\u20131945", "1939-1945"),
        ("❤️", "❤"),
        ("a\r\n\n b", "a\nb"),
    ],
)
def test_alike(one, other):
    assert normalise(one) == normalise(other) == other.lower().replace("é", "e")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("I can't, cannot and cant", "i can not can not and can not"),
        ("We're sure it's Anna's", "we are sure it is anna"),
        ("O'Brien and the dogs'", "obrien and the dogs"),
        ("idk", "i do not know"),
        ("the U.S. army", "the us army"),
        ("AC/DC & R&B", "ac dc and r and b"),
        ("**Seoul**, _Busan_", "seoul busan"),
        ("東京です", "東 京 で す"),
        ("📱📱", "📱 📱"),
        # numbers
        ("1,000 and 1000", "1000 and 1000"),
        ("1\u00a0000, 1'000", "1000 1000"),
        ("2.50 2.5 02 007", "2.5 2.5 2 007"),
        ("-5, $-5 -$5 2010-11", "-5 5 -5 2010 11"),
        ("10² and 1/2", "10^2 and 1/2"),
        ("b52 18th 1960s 3D", "b52 18th 1960s 3d"),
        ("5km 5 km", "5 km 5 km"),
        ("25% 25 percent 25 per cent", "25 25 25"),
        ("twenty-one, twenty one", "21 21"),
        ("one hundred and five", "105"),
        ("two thousand three hundred", "2300"),
        ("118 million, 1.5 billion", "118000000 1500000000"),
        ("twenty-first second eleventh", "21st 2nd 11th"),
        ("two, three", "2 3"),
        ("one of them, no one, the one", "one of them no one the one"),
        ("the one hundred", "the 100"),
        ("I have one", "i have 1"),
        ("٣", "3"),
    ],
)
def test_tokens(text, tokens):
    assert " ".join(words(text).tokens) == tokens


def test_clauses_and_sentences():
    text = "St. Anselm, no. 5 of the\nlist (or so)?\nYes... he - it is"
    breaks = dict(zip(words(text).tokens, words(text).breaks, strict=True))
    assert [word for word, kind in breaks.items() if kind == 2] == ["st", "5", "yes", "he"]
    assert [word for word, kind in breaks.items() if kind == 1] == ["no", "or", "it"]


def test_quotes():
    read = words("He said \"I don't know\" and 'so it is', didn't he?")
    assert " ".join(read.tokens[i] for i in sorted(read.quoted)) == "i do not know so it is"


@settings(max_examples=300, deadline=None)
@given(texts)
def test_any_text_can_be_read_and_reading_again_changes_nothing(text):
    normal = normalise(text)
    assert normalise(normal) == normal
    read = words(text)
    assert words(normal) == read
    assert len(read.gaps) - 1 == len(read.joined) == len(read.breaks) == len(read.tokens)
    assert all(read.tokens)

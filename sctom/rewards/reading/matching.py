"""Whether a text gives an accepted answer: in whole words, as its answer, and as its only one.

Nothing here is about abstentions (`sctom.rewards.reading.abstention`). What counts, and what does
not, is listed in docs/rewards.md.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sctom.rewards.reading.choosing import is_chosen
from sctom.rewards.reading.listing import candidates, capitals
from sctom.rewards.reading.numbers import is_number
from sctom.rewards.reading.standing import (
    alternatives,
    dismissed,
    is_denied,
    occurrences,
    stands_alone,
    superseded,
    word_set,
)
from sctom.rewards.reading.vocabulary import (
    ABOUT,
    ARTICLES,
    FUNCTION,
    LEAD,
    LEAD_INS,
    NEGATIVE,
    NO,
    NOT_A_NO,
    VERBS,
    YES,
)
from sctom.rewards.reading.words import Words, normalise, words

_MAX_NUMBERS = 8
"""A text with as many other numbers answers no question about a number."""

_SENTENCE = 5
"""Least words of a reference, or a question, that is a sentence."""


@dataclass(frozen=True)
class Accepted:
    """An accepted answer, ready to be looked for."""

    text: str
    """The answer, normalised: a text that is nothing else is right."""
    forms: tuple[tuple[str, ...], ...] = ()
    """Its spellings, each as words in a row."""
    polar: bool | None = None
    """True for yes, False for no, None for anything else."""
    weak: bool = False
    """One letter or a function word, which counts only where an answer stands."""
    told: tuple[str, ...] = ()
    """For a reference that is a sentence: what it says that the question does not, in order."""


def holds_answer(
    text: str,
    answers: Sequence[str],
    question: str = "",
    *,
    read: Words | None = None,
    max_words: int | None = 100,
) -> bool:
    """Whether a text gives one of the accepted answers.

    Args:
        text: a completion.
        answers: accepted answers; one is enough.
        question: what was asked: its own words tell nothing, and its "not" allows for another.
        read: the words of the text that may hold an answer; by default all of them.
        max_words: a longer text holds no answer; None: no limit.

    >>> holds_answer("It's Seoul, of course.", ["Seoul."]), holds_answer("I know.", ["no"])
    (True, False)
    >>> holds_answer("In 2010", ["10"]), holds_answer("One thousand", ["1,000"])
    (False, True)
    >>> holds_answer("Busan, Daegu, Incheon or Seoul", ["Seoul"])
    False
    >>> [holds_answer(f"{text} Seoul", ["Seoul"]) for text in ("Anything but", "Not Busan but")]
    [False, True]
    """
    read = words(text) if read is None else read
    accepted = _not_asked([accept(answer, question) for answer in answers], question)
    whole = normalise(text)
    if any(answer.text == whole for answer in accepted):
        return True
    if max_words is not None and len(read) > max_words:
        return False
    gone = superseded(read, text) | dismissed(read) | _asked_again(read, question)
    kept = read.without(gone)
    names = capitals(text)
    return any(_gives(kept, answer, accepted, question, names) for answer in accepted)


@functools.lru_cache(maxsize=10_000)
def accept(answer: str, question: str = "") -> Accepted:
    """An accepted answer as it is looked for.

    Articles, "about", "it is" and the like are taken off its beginning, punctuation off both ends.
    A reference that is a sentence (five words or more and a verb) is met by what it says beyond the
    question, in its order.

    >>> accept("The answer is Seoul.").forms
    (('seoul',),)
    >>> accept("The capital of Korea is Seoul.", "What is the capital of Korea?").told
    ('seoul',)
    """
    read = words(answer)
    tokens = read.tokens
    text = normalise(answer)
    if not tokens:
        return Accepted(text)
    if tokens[0] in YES | NO - {"not"} and (len(tokens) == 1 or read.breaks[1]):
        return Accepted(text, (tokens,), polar=tokens[0] in YES)
    forms = tuple(dict.fromkeys(_trimmed(form) for form in (tokens, read.joined)))
    told: tuple[str, ...] = ()
    if len(tokens) >= _SENTENCE and not VERBS.isdisjoint(tokens):
        known = FUNCTION - NEGATIVE | word_set(question)
        told = tuple(token for token in tokens if token not in known)
    weak = all(len(form) == 1 and _is_weak(form[0]) for form in forms)
    return Accepted(text, forms, weak=weak, told=told)


def _is_weak(token: str) -> bool:
    return token in FUNCTION or (len(token) == 1 and token.isalpha())


def _trimmed(tokens: tuple[str, ...]) -> tuple[str, ...]:
    """Without what leads to an answer, as long as enough is left to tell it by."""
    for lead in LEAD_INS:
        if tokens[: len(lead)] == lead and len(tokens) > len(lead):
            tokens = tokens[len(lead) :]
            break
    while len(tokens) > 1 and tokens[0] in ARTICLES | ABOUT:
        if len(tokens) == 2 and _is_weak(tokens[1]):
            break  # The Who
        tokens = tokens[1:]
    return tokens


def _gives(
    read: Words,
    answer: Accepted,
    accepted: Sequence[Accepted],
    question: str,
    names: frozenset[str],
) -> bool:
    if answer.polar is not None:
        return polarity(read) is answer.polar
    if _is_lost_in_numbers(read, answer):
        return False
    for start, end in _places(read, answer):
        if answer.weak and not stands_alone(read, start, end):
            continue
        if is_denied(read, start, end, question) or not is_chosen(read, start, end, question):
            continue
        others = alternatives(read, start, end, question)
        others += candidates(read, start, end, question, names)
        if all(_is_accepted(read.part(*other), accepted) for other in others):
            return True
    return bool(answer.told) and _tells(read, answer.told, question)


def _not_asked(accepted: list[Accepted], question: str) -> list[Accepted]:
    """Without further answers, behind the first, that the question itself has and offers no choice.

    "The GPS" answers no "What does GPS stand for?", though lists of answers have it.
    """
    asked = words(question)
    if "or" in asked.tokens:
        return accepted
    further = [answer for answer in accepted[1:] if not any(_places(asked, answer))]
    return accepted[:1] + further


def _asked_again(read: Words, question: str) -> frozenset[int]:
    """The places of the whole question, where a text repeats it."""
    asked = words(question).tokens
    if len(asked) < _SENTENCE:
        return frozenset()
    starts = occurrences(read.tokens, asked)
    return frozenset(place for start in starts for place in range(start, start + len(asked)))


def _places(read: Words, answer: Accepted) -> Iterator[tuple[int, int]]:
    """Where an answer stands, as (start, end)."""
    for form in answer.forms:
        for tokens in dict.fromkeys((read.tokens, read.joined)):
            for start in occurrences(tokens, form):
                yield start, start + len(form)


def _is_accepted(part: Words, accepted: Sequence[Accepted]) -> bool:
    return any(True for answer in accepted for _ in _places(part, answer))


def _is_lost_in_numbers(read: Words, answer: Accepted) -> bool:
    wanted = {token for form in answer.forms for token in form if is_number(token)}
    found = {token for token in read.tokens if is_number(token)}
    return bool(wanted) and len(found - wanted) >= _MAX_NUMBERS


def _tells(read: Words, told: Sequence[str], question: str) -> bool:
    """Whether a text says these words in this order, none of them denied or one of several."""
    place = 0
    for token in told:
        if token not in read.tokens[place:]:
            return False
        place = read.tokens.index(token, place) + 1
        if NEGATIVE.isdisjoint(told) and is_denied(read, place - 1, place, question):
            return False
        others = alternatives(read, place - 1, place, question)
        if any(set(told).isdisjoint(read.tokens[slice(*other)]) for other in others):
            return False
    return True


# ---- yes and no ----------------------------------------------------------------------------------


def polarity(read: Words) -> bool | None:
    """True for yes, False for no, None where a text says neither, or both.

    The word must begin a sentence, or the last clause, behind no more than words like "well" or
    "the answer is".

    >>> [polarity(words(text)) for text in ("Well, no.", "I know.", "Yes and no.", "It is, so yes")]
    [False, None, None, True]
    """
    starts = [place for place, kind in enumerate(read.breaks) if kind == 2]
    starts += [place for place, kind in enumerate(read.breaks) if kind][-1:]
    said = [_said_from(read.tokens, start) for start in dict.fromkeys(starts)]
    heard = {value for value in said if value is not None}
    return heard.pop() if len(heard) == 1 else None


def _said_from(tokens: Sequence[str], place: int) -> bool | None:
    while place < len(tokens) and tokens[place] in LEAD - YES:
        place += 1
    word, *rest = tokens[place : place + 4] or ("",)
    if word not in YES | NO or (word in NO and not NOT_A_NO.isdisjoint(rest[:1])):
        return None
    if rest[:1] in (["and"], ["or"]):
        rest = rest[1:]
    opposite = {"no", "false"} if word in YES else {"yes", "true"}
    both = not opposite.isdisjoint(rest[:1]) and NOT_A_NO.isdisjoint(rest[1:2])
    return None if both else word in YES

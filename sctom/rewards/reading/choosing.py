"""Which one a text chooses where the question gives two to choose from."""

from __future__ import annotations

from collections.abc import Sequence

from sctom.rewards.reading.standing import clause, is_denied, occurrences, word_set
from sctom.rewards.reading.vocabulary import (
    ARTICLES,
    EXPLAINS,
    FUNCTION,
    LEAD,
    NEGATIVE,
    VERBS,
    vocabulary,
)
from sctom.rewards.reading.words import Words, words

_DETAILS = EXPLAINS | vocabulary("which who that")


def is_chosen(read: Words, start: int, end: int, question: str) -> bool:
    """Whether an answer is chosen, if the question is "A or B?" and the text names both.

    It is if

    - the text denies the other ("A, not B");
    - it begins a clause that says of it what is asked ("Which is older?" "A is older than B"), and
      no clause says so of the other;
    - it is alone in its clause, and the other is in a reason ("A, because B is younger").

    >>> text, question = words("A1 is older than B2"), "Which is older, A1 or B2?"
    >>> is_chosen(text, 0, 1, question), is_chosen(text, 4, 5, question)
    (True, False)
    >>> is_chosen(text, 0, 1, "Which is younger, A1 or B2?")
    False
    """
    other = _other(read.tokens[start:end], question)
    places = list(occurrences(read.tokens, (other,))) if other else []
    if all(is_denied(read, place, place + 1, question) for place in places):
        return True
    asked = word_set(question) - FUNCTION - LEAD
    if any(_is_told(read, place, place + 1, asked) for place in places):
        return False
    if _is_told(read, start, end, asked):
        return True
    first, last = clause(read, start, end)
    alone = LEAD.issuperset([*read.tokens[first:start], *read.tokens[end:last]])
    return alone and all(
        read.tokens[clause(read, place, place + 1)[0]] in _DETAILS for place in places
    )


def _other(answer: Sequence[str], question: str) -> str:
    """A word of what the question offers in the place of an answer; empty if it offers nothing."""
    asked = words(question).tokens
    for place in occurrences(asked, ("or",)):
        behind = [token for token in asked[place + 1 : place + 3] if token not in ARTICLES]
        if place == 0 or not behind:
            continue
        offered = asked[place - 1], behind[0]
        given = [token in answer for token in offered]
        if sum(given) == 1:
            other = offered[given.index(False)]
            return "" if other in FUNCTION | LEAD else other
    return ""


def _is_told(read: Words, start: int, end: int, asked: frozenset[str]) -> bool:
    """Whether a clause begins with some words and says of them, not of others, what is asked."""
    first, last = clause(read, start, end)
    told = read.tokens[end:last]
    if (
        not told
        or told[0] not in VERBS
        or not (LEAD | ARTICLES).issuperset(read.tokens[first:start])
    ):
        return False
    if "than" in told:
        told = told[: told.index("than")]
    same = asked - set(read.tokens[start:end])
    return not same.isdisjoint(told) and NEGATIVE.isdisjoint(told) and told[1:2] != ("not",)

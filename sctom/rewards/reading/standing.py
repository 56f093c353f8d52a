"""How a text stands to an answer that it holds: denied, one of several, taken back, or given."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence

from sctom.rewards.reading.numbers import is_number
from sctom.rewards.reading.vocabulary import (
    ADJUNCT,
    ALL_BUT,
    BARELY,
    FUNCTION,
    LEAD,
    NEGATIVE,
    NO,
    NOT_A_NO,
    NOT_ANOTHER,
    RETRACTIONS,
    TALK,
    VERBS,
    WRONG,
    YES,
    vocabulary,
)
from sctom.rewards.reading.words import Words, words

Span = tuple[int, int]

_ANSWER_IS = ("answer", "is")
_REACH = 5  # words that a "not" reaches over
_NEAR = 3  # words between an "or" and the answer beside it
_BARE = 3  # most words of an item of a list
_MANY = 4  # items that make a list; three with "and" or "or"
_ALONE = 2  # most words of a sentence that is nothing but an answer
_REJECTS = vocabulary("no nope wrong incorrect")
_NOW = vocabulary("actually now really today fact")
_PUT = vocabulary("it is was answer")
_CALLED = vocabulary("called known named renamed")
_OTHERS = vocabulary("people most many some others everyone")
_OPINE = vocabulary("think believe say assume suppose thought believed said")
_CLAIM = re.compile(
    r"\b(?:[Ii]t|[Tt]hat|[Hh]e|[Ss]he)(?:['\u2019]s| is| was) "
    r"([A-Z0-9][^.,;!?\n]{0,40})(?=[.!?\n]|$)"
)


def occurrences(tokens: Sequence[str], wanted: Sequence[str]) -> Iterator[int]:
    """Where some words stand in a row.

    >>> list(occurrences(("a", "b", "a", "b"), ("a", "b")))
    [0, 2]
    """
    first, count = wanted[0], len(wanted)
    for place, token in enumerate(tokens):
        if token == first and tokens[place : place + count] == wanted:
            yield place


def clause(read: Words, start: int, end: int) -> Span:
    """The clause, or clauses, around some words: up to the next punctuation."""
    while start > 0 and not read.breaks[start]:
        start -= 1
    while end < len(read) and not read.breaks[end]:
        end += 1
    return start, end


@functools.lru_cache(maxsize=10_000)
def word_set(text: str) -> frozenset[str]:
    """The different words of a text.

    >>> sorted(word_set("Who is who?"))
    ['is', 'who']
    """
    return frozenset(words(text).tokens)


def stands_alone(read: Words, start: int, end: int) -> bool:
    """Whether some words stand where an answer stands.

    They begin their clause, but for words that lead to an answer, or they end it behind a verb or
    in quotes. "I", "a", "of" and the like must also end it.

    >>> stands_alone(words("C, not M"), 0, 1), stands_alone(words("I think so"), 0, 1)
    (True, False)
    """
    first, last = clause(read, start, end)
    before = read.tokens[first:start]
    ends = end == last
    if before and ends and (before[-1] in VERBS or start in read.quoted):
        return True
    leads = all(token in LEAD for token in before)
    return leads and (ends or (read.tokens[start] not in FUNCTION and read.tokens[start] != "i"))


def is_denied(read: Words, start: int, end: int, question: str) -> bool:
    """Whether the clause says that this is not the answer; never for a question with a "not".

    >>> [is_denied(words(text), 3, 4, "") for text in ("it is not Seoul", "not Busan but Seoul")]
    [True, False]
    """
    if not NEGATIVE.isdisjoint(word_set(question)):
        return False
    first, last = clause(read, start, end)
    first = max(first, start - _REACH)
    before = read.tokens[first:start]
    for place, token in enumerate(before):
        previous, following = before[max(place - 1, 0) : place], before[place + 1 : place + 2]
        if previous in (("no",), ("none",), ("without",)):
            continue  # no doubt; none other than
        if (token, *following) in ALL_BUT:
            return True
        if token in NEGATIVE and "but" not in before[place:] and BARELY.isdisjoint(following):
            return True
    after = read.tokens[end : min(last, end + 3)]
    if not after or after[0] not in VERBS:
        return False
    return (after[1:2] == ("not",) and BARELY.isdisjoint(after[2:])) or not WRONG.isdisjoint(after)


# ---- taken back ----------------------------------------------------------------------------------


def superseded(read: Words, text: str) -> frozenset[int]:
    """The places of answers that the text does not end on.

    What stands before "no wait" and the like; and of several claims ("It is Busan. It is Seoul.",
    "The answer is ...", sentences of a word or two) all but the last.

    >>> sorted(superseded(words("Busan. Seoul."), "Busan. Seoul."))
    [0]
    """
    cut = 0
    for phrase in RETRACTIONS:
        for place in occurrences(read.tokens, phrase):
            cut = max(cut, place + len(phrase))
    gone = set(range(cut)) if cut < len(read) else set()
    claims = dict.fromkeys(words(claim).tokens for claim in _CLAIM.findall(text))
    for claim in [claim for claim in claims if claim][:-1]:
        for place in occurrences(read.tokens, claim):
            gone.update(range(place, place + len(claim)))
    alone, told = [], []
    for start, end in sentences(read):
        tokens = read.tokens[start:end]
        if len(tokens) <= _ALONE and not (LEAD | YES | NO | TALK).issuperset(tokens):
            alone.append((start, end))
        if list(occurrences(tokens[:5], _ANSWER_IS)):
            told.append((start, end))
    for start, end in alone[:-1] + told[:-1]:
        gone.update(range(start, end))
    return frozenset(gone)


def dismissed(read: Words) -> frozenset[int]:
    """The places of what a text only mentions to reject it.

    A question that it says no to ("Seoul? No."), a sentence that ends on a no ("Seoul - no."), and
    what is in front of "but it is actually" or, behind "most people think", of any "but".

    >>> sorted(dismissed(words("Seoul? No. Busan.")))
    [0]
    """
    gone: set[int] = set()
    for start, end in sentences(read):
        tokens = read.tokens[start:end]
        asks = "?" in read.gaps[end]
        following = read.tokens[end : end + 2]
        if asks and following and following[0] in NO and NOT_A_NO.isdisjoint(following[1:]):
            gone.update(range(start, end))
        if tokens[-1] in _REJECTS and not asks and len(tokens) > 1 and read.breaks[end - 1]:
            gone.update(range(start, end - 1))
        for place in occurrences(tokens, ("but",)):
            if _corrects(tokens[place + 1 :]) or _is_opinion_of_others(tokens[:place]):
                gone.update(range(start, start + place))
    return frozenset(gone)


def _corrects(tokens: Sequence[str]) -> bool:
    """Whether some words behind a "but" give another answer."""
    opening = tokens[:5]
    if _NOW.isdisjoint(opening) or not _CALLED.isdisjoint(tokens[:7]):
        return False
    return opening[0] in _NOW or not _PUT.isdisjoint(opening)


def _is_opinion_of_others(tokens: Sequence[str]) -> bool:
    return any(
        token in _OTHERS and not _OPINE.isdisjoint(tokens[place + 1 : place + 4])
        for place, token in enumerate(tokens)
    )


def sentences(read: Words) -> list[Span]:
    """The sentences of a text.

    >>> sentences(words("No. It is Seoul."))
    [(0, 1), (1, 4)]
    """
    starts = [place for place, kind in enumerate(read.breaks) if kind == 2]
    return list(itertools.pairwise([*starts, len(read)]))


# ---- one of several ------------------------------------------------------------------------------


def alternatives(read: Words, start: int, end: int, question: str) -> list[Span]:
    """What the text gives beside an answer as if it were one too.

    - What an "or" joins to it: "Busan or Seoul".
    - What an "and" joins to it, if the question asks to choose between the two.
    - The other items of a list of short items: four, or three with "and" or "or".

    >>> read = words("Busan, Daegu or Seoul")
    >>> [read.tokens[first:last] for first, last in alternatives(read, 3, 4, "")]
    [('daegu',), ('busan',), ('daegu',)]
    """
    items, joiners = _items(read)
    own = [place for place, (first, last) in enumerate(items) if first < end and start < last]
    if not own:
        return []
    first, last = own[0], own[-1]
    found = []
    if first > 0 and start - items[first][0] <= _NEAR:
        joiner, word = joiners[first], read.tokens[items[first - 1][1] - 1]
        found += [first - 1] if _is_another(joiner, word, read.tokens[start:end], question) else []
    if last + 1 < len(items) and items[last][1] - end <= _NEAR:
        joiner, word = joiners[last + 1], _first_word(read, items[last + 1])
        found += [last + 1] if _is_another(joiner, word, read.tokens[start:end], question) else []
    if first == last:
        found += _list_around(read, items, joiners, first)
    return [items[place] for place in found]


def _items(read: Words) -> tuple[list[Span], list[str]]:
    """What punctuation, "and", "or" and neighbouring numbers divide, and what joins each item."""
    items: list[Span] = []
    joiners: list[str] = []
    start, joiner = 0, ""
    for place, token in enumerate(read.tokens):
        joins = token in ("and", "or")
        divided = read.breaks[place] or (place and _numbers(read.tokens[place - 1 : place + 1]))
        if joins or divided:
            if start < place:
                items.append((start, place))
                joiners.append(joiner)
                joiner = ""
            start = place
        if joins:
            start, joiner = place + 1, token
    if start < len(read):
        items.append((start, len(read)))
        joiners.append(joiner)
    return items, joiners


def _numbers(tokens: Sequence[str]) -> bool:
    return all(is_number(token) for token in tokens)


def _first_word(read: Words, item: Span) -> str:
    """The first word of an item behind articles and the like."""
    tokens = read.tokens[item[0] : item[1]]
    return next((token for token in tokens if token not in LEAD), tokens[0])


def _is_another(joiner: str, beside: str, answer: Sequence[str], question: str) -> bool:
    """Whether a joiner and the word beside it make an alternative of an answer."""
    if joiner == "or":
        return beside not in NOT_ANOTHER
    asked = word_set(question)
    return joiner == "and" and "or" in asked and beside in asked and asked.issuperset(answer)


def _list_around(read: Words, items: Sequence[Span], joiners: Sequence[str], own: int) -> list[int]:
    """The other items of the list of short items that an item stands in, if there is one."""
    number = _has_number(read, items[own])
    first = last = own
    while first > 0 and _is_like(read, items[first - 1], number=number):
        first -= 1
    while last + 1 < len(items) and _is_like(read, items[last + 1], number=number):
        last += 1
    count, joined = last - first + 1, any(joiners[first + 1 : last + 1])
    if not _is_bare(read, items[own]) or count < (_MANY - 1 if joined else _MANY):
        return []
    return [place for place in range(first, last + 1) if place != own]


def _is_like(read: Words, item: Span, *, number: bool) -> bool:
    """Whether an item is a short one, and a number if numbers are listed."""
    return _is_bare(read, item) and _has_number(read, item) == number


def _has_number(read: Words, item: Span) -> bool:
    return any(is_number(token) for token in read.tokens[item[0] : item[1]])


def _is_bare(read: Words, item: Span) -> bool:
    tokens = read.tokens[item[0] : item[1]]
    content = [place for place, token in enumerate(tokens) if token not in LEAD | FUNCTION]
    if not 0 < len(content) <= _BARE or tokens[0] in ADJUNCT:
        return False
    return VERBS.isdisjoint(tokens[content[0] :])

"""Whether a text names several candidates where one answer is asked for.

A reader takes "Seoul, Busan, Daegu" for a list and "Seoul, South Korea" for one answer. Rules:

- Names that "and", "or", "then", "vs", "plus", "others", a slash, a semicolon or an arrow joins are
  candidates from two on, as are names with the same "possibly" before them; names that a comma, a
  hyphen or the end of a line joins, from three on.
- A number beside another of its kind (years, or other numbers) with nothing but words like "in",
  "and" and "to" between them is a candidate, and so is the end of a range.
- Many names in a row, without a verb and without punctuation, are candidates.

No candidate is what the question itself names, a country behind a place, or a detail ("the capital
of Korea", "near the river"), and nothing is if the answer has other words, such as a verb, beside
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sctom.rewards.reading.numbers import is_number
from sctom.rewards.reading.standing import Span, word_set
from sctom.rewards.reading.vocabulary import (
    ADJUNCT,
    ARTICLES,
    DROPPED,
    FUNCTION,
    LEAD,
    NOT_ANOTHER,
    TALK,
    VERBS,
    vocabulary,
)
from sctom.rewards.reading.words import Words, normalise

_JOINS = vocabulary("and or vs versus then plus others \u2192 \u21d2 \u27a1 \u2794")
_JOINS_GAP = re.compile(r"[/|;\\]|[-=~]+>|>>|\s>\s")
_LISTS_GAP = re.compile(r"[,\n\u3001\u2022]| - |^-$")
_ENDS_GAP = re.compile(r"[.!?():\[\]\u3002]")
_LINK = (LEAD | TALK | DROPPED | FUNCTION | vocabulary("some others either both then")) - ADJUNCT
_NUMBER_LINK = (
    LEAD
    | DROPPED
    | vocabulary(
        "and or to then vs versus plus some others either in on year years about around by"
    )
    | vocabulary("through until till from between even also now")
) - {"of"}
_HEDGE = vocabulary("possibly perhaps maybe probably could might may either some others")
_COUNTRIES = vocabulary(
    "usa us uk america american united states kingdom england scotland wales ireland canada france",
    "australia germany italy spain india china japan russia mexico brazil europe asia africa",
)
_PLURAL = vocabulary("are were")
_SHORT = 3  # most words of a candidate
_BESIDE = 2  # most words in a candidate beside the answer
_BEHIND = 3  # least names in a row behind an answer that are others
_IN_A_ROW = 5  # and on both of its sides
_YEARS = re.compile(r"1\d\d\d|20\d\d")


class _Part(NamedTuple):
    start: int
    end: int
    joiner: str
    """How it is joined to the part before: "+" as a candidate, "," as in a list, "" not at all."""


def capitals(text: str) -> frozenset[str]:
    """The words of a text that do not begin with a small letter, normalised.

    >>> sorted(capitals("It is Seoul"))
    ['it', 'seoul']
    """
    found = [word for word in re.findall(r"[^\W_]+", text) if not word[0].islower()]
    return frozenset(normalise(" ".join(found)).split())


def candidates(
    read: Words, start: int, end: int, question: str, names: frozenset[str]
) -> list[Span]:
    """What a text names as it names an answer, which stands at some place.

    Args:
        read: the words of a text.
        start: where the answer begins.
        end: and where it ends.
        question: what was asked.
        names: the words of the text in capitals (`capitals`).

    >>> from sctom.rewards.reading.words import words
    >>> def named(text):
    ...     read = words(text)
    ...     spans = candidates(read, 0, 1, "The capital of South Korea?", capitals(text))
    ...     return [" ".join(read.tokens[slice(*span)]) for span in spans]
    >>> named("Seoul / Busan"), named("Seoul, South Korea"), named("1943-1947")
    (['busan'], [], ['1947'])
    """
    if any(is_number(token) for token in read.tokens[start:end]):
        return list(_numbers_beside(read, start, end, question))
    return _List(read, (start, end), question, names).candidates()


# ---- numbers -------------------------------------------------------------------------------------


def _numbers_beside(read: Words, start: int, end: int, question: str) -> Iterator[Span]:
    asked = word_set(question)
    wanted = next(token for token in read.tokens[start:end] if is_number(token))
    for first, step in ((end, 1), (start - 1, -1)):
        place = first
        while 0 <= place < len(read) and not is_number(read.tokens[place]):
            if read.tokens[place] not in _NUMBER_LINK:
                break
            place += step
        else:
            if not 0 <= place < len(read):
                continue
            low, high = (end, place) if step > 0 else (place + 1, start)
            between = read.gaps[low : high + 1]
            token = read.tokens[place]
            apart = any("(" in gap for gap in between)
            apart |= low == high and read.breaks[low] == 2 and "\n" not in between[0]
            same = _is_year(token) == _is_year(wanted)
            if same and token not in asked and token not in read.tokens[start:end] and not apart:
                yield place, place + 1


def _is_year(number: str) -> bool:
    return _YEARS.fullmatch(number) is not None


# ---- names ---------------------------------------------------------------------------------------


class _List:
    """The parts of a text, seen from the one that holds an answer."""

    def __init__(self, read: Words, answer: Span, question: str, names: frozenset[str]) -> None:
        self.read, self.names = read, names
        self.start, self.end = answer
        self.answer = read.tokens[self.start : self.end]
        self.asked = word_set(question) - _LINK if "or" not in word_set(question) else frozenset()
        self.plural = not _PLURAL.isdisjoint(word_set(question))
        self.parts = list(_parts(read))

    def candidates(self) -> list[Span]:
        own = [
            place
            for place, part in enumerate(self.parts)
            if part.start < self.end and self.start < part.end
        ]
        if len(own) != 1 or not self._is_put_as_answer(self.parts[own[0]]):
            return []
        place = own[0]
        row = self._row(self.parts[place])
        if row:
            return row
        before, joined_before = self._beside(place, -1)
        after, joined_after = self._beside(place, 1)
        others = before + after
        if joined_before or joined_after or len(others) > 1:
            return [(part.start, part.end) for part in others]
        return []

    def _beside(self, own: int, step: int) -> tuple[list[_Part], bool]:
        """The candidates on one side, and whether the first of them is joined as one."""
        found: list[_Part] = []
        joined = False
        place = own + step
        while 0 <= place < len(self.parts):
            part = self.parts[place]
            joiner = self.parts[max(place, place - step)].joiner
            same_hedge = self._hedge(part) & self._hedge(self.parts[own])
            if not joiner and not same_hedge:
                break
            content = self._content(part)
            if content and self._is_candidate(part, content, self.parts[own]):
                strong = (joiner == "+" and not self.plural) or bool(same_hedge)
                joined |= strong
                found.append(part)
            elif not self._is_known(content):
                break
            place += step
        return found, joined

    def _content(self, part: _Part) -> list[str]:
        return [t for t in self.read.tokens[part.start : part.end] if t not in _LINK | ADJUNCT]

    def _hedge(self, part: _Part) -> frozenset[str]:
        return _HEDGE.intersection(self.read.tokens[part.start : part.end])

    def _is_known(self, content: Sequence[str]) -> bool:
        """Whether these words only repeat the question or the answer, or name a country."""
        if not self.asked.isdisjoint(content) or set(content) <= set(self.answer):
            return True
        return _COUNTRIES.issuperset(content) and _COUNTRIES.isdisjoint(self.answer)

    def _is_candidate(self, part: _Part, content: Sequence[str], own: _Part) -> bool:
        tokens = self.read.tokens[part.start : part.end]
        if len(content) > _SHORT or self._is_known(content) or content[0] == "\0":
            return False
        if any(map(is_number, tokens)) or tokens[0] in NOT_ANOTHER:
            return False
        at = tokens.index(content[0])
        if not VERBS.isdisjoint(tokens[at:]) or not self._is_like(content[0], tokens[:at]):
            return False
        opens = tokens[0]
        if opens not in ADJUNCT | ARTICLES or opens in self.read.tokens[own.start : self.start]:
            return True
        repeated = sum(self.read.tokens[other.start] == opens for other in self.parts) > 1
        return opens in ADJUNCT and repeated

    def _is_like(self, word: str, before: Sequence[str]) -> bool:
        """Whether a word is a name if the answer is one."""
        if word in self.names:
            return True
        if not VERBS.isdisjoint(before) and self.names:
            return False
        return self.answer[0] not in self.names or self.read.breaks[self.start] == 2

    def _is_put_as_answer(self, part: _Part) -> bool:
        """Whether a part says nothing but the answer, and names beside it."""
        tokens = self.read.tokens
        if not VERBS.isdisjoint(tokens[self.end : part.end]):
            return False
        beside = [*tokens[part.start : self.start], *tokens[self.end : part.end]]
        beside = [t for t in beside if t not in _LINK | ADJUNCT | self.asked]
        if any(self.names and token not in self.names for token in beside):
            return False
        return len(beside) <= _BESIDE or self._is_row(part)

    def _is_row(self, part: _Part) -> bool:
        tokens = self.read.tokens[part.start : part.end]
        behind = part.end - self.end
        others = len(tokens) - len(self.answer)
        return (FUNCTION | LEAD).isdisjoint(tokens) and (behind >= _BEHIND or others >= _IN_A_ROW)

    def _row(self, part: _Part) -> list[Span]:
        """The other names of a row that nothing divides."""
        if not self._is_row(part) or not self.asked.isdisjoint(self._content(part)):
            return []
        return [
            span for span in ((part.start, self.start), (self.end, part.end)) if span[0] < span[1]
        ]


def _parts(read: Words) -> Iterator[_Part]:
    """What joins, punctuation and the ends of lines divide."""
    start, joiner = 0, ""
    for place, token in enumerate(read.tokens):
        word = token in _JOINS
        gap = read.gaps[place] if place else ""
        kind = _kind(gap) if gap != " " else None
        if not word and (kind is None or (kind == "" and not read.breaks[place])):
            continue
        if start < place:
            yield _Part(start, place, joiner)
            joiner = "+" if word else kind or ""
        elif word:
            joiner = "+"
        start = place + 1 if word else place
    if start < len(read):
        yield _Part(start, len(read), joiner)


def _kind(gap: str) -> str | None:
    """How a gap joins what is on its sides; None if it does not divide."""
    if _JOINS_GAP.search(gap):
        return "+"
    if _ENDS_GAP.search(gap):
        return ""
    return "," if _LISTS_GAP.search(gap) else None

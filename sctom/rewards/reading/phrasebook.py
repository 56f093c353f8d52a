"""The phrases of `sctom.rewards.reading.phrases`, compiled, and those that a text has of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from sctom.readers import nearest
from sctom.rewards.reading.phrases import (
    ENGLISH,
    LANGUAGES,
    MARKERS,
    NOT_MARKED,
    UNSURE_HINT,
    Language,
)
from sctom.rewards.reading.vocabulary import DROPPED, RETRACTIONS
from sctom.rewards.reading.words import words

Denial = Literal["unknown", "unsure"]
DENIALS: tuple[Denial, ...] = ("unsure", "unknown")
"""In the order in which they are looked for: "I don't know for sure" is the first."""


_HINT = re.compile(UNSURE_HINT)


class _Phrase(NamedTuple):
    kind: Denial
    plain: str = ""
    """With a space on either side; empty for a pattern."""
    first: str = ""
    """Its first word, by which most are ruled out."""
    anywhere: re.Pattern[str] | None = None
    in_clause: re.Pattern[str] | None = None
    """The same, with what must begin a clause only there."""

    def is_in(self, padded: str, said: set[str]) -> bool:
        """Whether the phrase is somewhere in a text, given with a space on either side."""
        if self.anywhere is None:
            return self.first in said and self.plain in padded
        if self.kind == "unsure" and not _HINT.search(padded):
            return False
        return self.anywhere.search(padded) is not None


class Phrases(NamedTuple):
    """Phrases to look for: all that are known, or those that a text has."""

    denials: tuple[_Phrase, ...]
    fillers: tuple[str, ...]
    """Apologies and the like, with a space on either side."""

    def within(self, line: str) -> Phrases:
        """Those that a text has somewhere."""
        padded, said = f" {line} ", set(line.split())
        found = tuple(phrase for phrase in self.denials if phrase.is_in(padded, said))
        fillers = tuple(filler for filler in self.fillers if filler in padded) if found else ()
        return Phrases(found, fillers)

    def said_in(self, line: str) -> Iterator[tuple[Denial, str, int]]:
        """The denials in a clause, each with its kind, its words and its place."""
        for phrase in self.denials:
            if phrase.in_clause is not None:
                for found in phrase.in_clause.finditer(line):
                    yield phrase.kind, found[0], found.start()
            elif (place := f" {line} ".find(phrase.plain)) >= 0:
                yield phrase.kind, phrase.plain.strip(), place


class Phrasebook:
    """The phrases of some languages.

    Args:
        languages: their codes; None: all of them.
        phrases: further ways to say "I don't know", in any language.

    Raises:
        ValueError: an unknown language, or a phrase without words.

    >>> book = Phrasebook(["ko"], ["search me"])
    >>> [phrase.plain for phrase in book.phrases.within("search me").denials]
    [' search me ']
    >>> Phrasebook(["kor"])
    Traceback (most recent call last):
        ...
    ValueError: there are no phrases for the language 'kor'; known are de, en, es, fr, ja, ko, pt, \
zh. Did you mean 'ko'?
    """

    def __init__(
        self, languages: Collection[str] | None = None, phrases: Sequence[str] = ()
    ) -> None:
        codes = LANGUAGES if languages is None else dict.fromkeys(languages)
        known = [_language(code) for code in codes]
        plain: dict[Denial, list[str]] = {
            "unknown": [*phrases, *(phrase for one in known for phrase in one.unknown)],
            "unsure": [phrase for one in known for phrase in one.unsure],
        }
        denials = []
        for kind in DENIALS:
            if "en" in codes:
                denials.append(_pattern(kind))
            denials += [_Phrase(kind, text, text.split()[0]) for text in _spelt(plain[kind])]
        fillers = [" ".join(phrase) for phrase in RETRACTIONS]
        fillers += [filler for one in known for filler in one.fillers]
        self.phrases = Phrases(tuple(denials), tuple(_spelt(fillers)))
        starts = [*MARKERS, *(start for one in known for start in one.markers)]
        self._markers = frozenset(tokens_of(start) for start in starts)
        self._lengths = sorted({len(marker) for marker in self._markers})
        self._firsts = frozenset(marker[0] for marker in self._markers)
        self.marker_words = frozenset(token for marker in self._markers for token in marker)

    def begins(self, tokens: Sequence[str], place: int) -> bool:
        """Whether a clause begins at a word without punctuation: at "but", at "perhaps"."""
        token = tokens[place]
        if token not in self._firsts:
            return False
        before = tokens[place - 1] if place else ""
        return before not in NOT_MARKED.get(token, ()) and self.is_marker(tokens, place)

    def is_marker(self, tokens: Sequence[str], place: int) -> bool:
        """Whether such words stand there."""
        return any(tuple(tokens[place : place + n]) in self._markers for n in self._lengths)


def line_of(tokens: Sequence[str]) -> str:
    """Words in a row, without the adverbs that change nothing.

    >>> line_of(["i", "really", "do", "not", "know"])
    'i do not know'
    """
    return " ".join(token for token in tokens if token not in DROPPED)


@functools.lru_cache(maxsize=10_000)
def tokens_of(text: str) -> tuple[str, ...]:
    """The words of a text.

    >>> tokens_of("I can't.")
    ('i', 'can', 'not')
    """
    return words(text).tokens


def _language(code: str) -> Language:
    if code not in LANGUAGES:
        known = f"known are {', '.join(sorted(LANGUAGES))}"
        hint = nearest(code, list(LANGUAGES))
        raise ValueError(f"there are no phrases for the language {code!r}; {known}.{hint}")
    return LANGUAGES[code]


def _spelt(phrases: Sequence[str]) -> list[str]:
    spelt = []
    for phrase in phrases:
        line = line_of(tokens_of(phrase))
        if not line:
            raise ValueError(f"the phrase {phrase!r} has no words to look for; leave it out")
        spelt.append(f" {line} ")
    return spelt


def _pattern(kind: Denial) -> _Phrase:
    parts = ENGLISH[kind]
    free = "|".join(part for part in parts if not part.startswith("^"))
    first = "|".join(part.removeprefix("^") for part in parts if part.startswith("^"))
    anywhere = re.compile(rf" (?:{free}|{first})(?= )")
    in_clause = re.compile(rf"(?:(?<![^ ])(?:{free})|^(?:{first}))(?![^ ])")
    return _Phrase(kind, anywhere=anywhere, in_clause=in_clause)

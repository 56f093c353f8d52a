"""Whether a text answers, abstains, or does both: its final stance.

What is looked at is the text and the question, never the label or, but for one exception, the
expected answer. So a completion has one stance whatever the question turns out to be, and cannot be
paid as an abstention on one question and as an answer on another.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sctom.rewards.reading.phrasebook import (
    DENIALS,
    Denial,
    Phrasebook,
    Phrases,
    line_of,
    tokens_of,
)
from sctom.rewards.reading.phrases import ASKS, CONTRASTS, REASON
from sctom.rewards.reading.standing import occurrences, word_set
from sctom.rewards.reading.vocabulary import (
    ADJUNCT,
    DROPPED,
    EXPLAINS,
    FUNCTION,
    LEAD,
    LEAD_INS,
    NO,
    RETRACTIONS,
    SPEECH,
    SUBORDINATE,
    TALK,
    YES,
    vocabulary,
)
from sctom.rewards.reading.words import Words, words

Stance = Literal["answered", "hedged", "abstained"]

_ELSEWHERE = "\0"  # in the place of a word that makes no phrase
_SHORT = 5  # most words of a clause that is put as an answer without "it is" or the like
_CHOICE = 4  # most words of a clause that chooses among what the question names
_NO_ANSWER = TALK | FUNCTION | LEAD | DROPPED
_REASON = re.compile(rf"(?<![^ ])(?:{'|'.join(REASON)})(?![^ ])")
_NOT_APPLICABLE = re.compile(r"\W*n/a\W*", re.IGNORECASE)
_FEW = 3  # most words of a question that is an answer put to the test
_ASKING = vocabulary("who what when where why how which")
_ASKS = re.compile(rf"(?:{'|'.join(ASKS)})(?![^ ])")


@dataclass(frozen=True)
class Reading:
    """What a text does."""

    stance: Stance
    answer: Words
    """Its words, without the clauses that say "I don't know"."""


class _Clause(NamedTuple):
    start: int
    end: int
    kind: Denial | Literal["answer", "talk"]
    short: bool = False
    """Put as an answer: in a few words, or behind "it is" and the like."""
    about: tuple[str, ...] = ()
    """What an abstention is about that the question does not speak of."""


class _Text(NamedTuple):
    read: Words
    question: str
    phrases: Phrases
    """Those that the text has."""
    hidden: frozenset[int]
    """The places of words that make no phrase."""


class Abstentions:
    """Finds what a text says in the end: an answer, that it has none, or both.

    A clause is an abstention if it holds one of the phrases of `sctom.rewards.reading.phrases`, as
    whole words. Not if the phrase is in quotes, or reported ("Socrates said ..."), or if the clause
    only repeats it from the question. The stance is

    - answered: no clause is an abstention;
    - abstained: all others are talk ("I'm sorry", "please ask an expert"), reasons or the question
      again; or "I don't know" comes last, in a sentence of its own, behind "no wait", or behind
      what is not put as an answer;
    - hedged: an answer and an abstention, in another order.

    What follows an abstention is an answer unless it is recognised as something else.

    Args:
        languages: codes of the languages to know the phrases of; None: all of them.
        phrases: further phrases, in any language.

    Raises:
        ValueError: an unknown language, or a phrase without words.

    >>> read = Abstentions().read
    >>> read("I don't know. It was Napoleon, in 1804.").stance
    'hedged'
    >>> read("It was Napoleon... no wait, I don't know").stance
    'abstained'
    >>> read("I can't believe you ask: it was Napoleon.").stance
    'answered'
    """

    def __init__(
        self, languages: Collection[str] | None = None, phrases: Sequence[str] = ()
    ) -> None:
        self._book = Phrasebook(languages, phrases)

    def read(self, text: str, question: str = "", answers: Sequence[str] = ()) -> Reading:
        """The stance of a text, and its words that may hold an answer.

        Args:
            text: a completion.
            question: what was asked.
            answers: accepted answers; one that reads like an abstention ("unclear", a song's title)
                is none where it stands in the text.
        """
        read = words(text)
        if _NOT_APPLICABLE.fullmatch(text):
            return Reading("abstained", read.without(frozenset(range(len(read)))))
        phrases = self._book.phrases.within(line_of(read.tokens))
        if not phrases.denials:
            return Reading("answered", read)
        whole = _Text(read, question, phrases, self._hidden(read, answers))
        clauses: list[_Clause] = []
        denied = False
        for start, end in self._divide(read):
            clauses.append(self._clause(whole, start, end, denied=denied))
            denied |= clauses[-1].kind in DENIALS
        clauses = _settled(clauses, read)
        gone = {p for c in clauses if c.kind in DENIALS for p in range(c.start, c.end)}
        return Reading(_stance(clauses, read), read.without(frozenset(gone)))

    def _hidden(self, read: Words, answers: Sequence[str]) -> frozenset[int]:
        """The places of words in quotes, unless all else is talk, and of accepted answers."""
        outside = [t for place, t in enumerate(read.tokens) if place not in read.quoted]
        hidden = set() if _NO_ANSWER.issuperset(outside) else set(read.quoted)
        for answer in answers:
            tokens = tokens_of(answer)
            own = tokens and self._book.phrases.within(line_of(("it", "is", *tokens))).denials
            for place in occurrences(read.tokens, tokens) if own else ():
                hidden.update(range(place, place + len(tokens)))
        return frozenset(hidden)

    def _divide(self, read: Words) -> list[tuple[int, int]]:
        """The clauses: between punctuation, and from words like "but" and "perhaps" on."""
        starts = [
            place
            for place, kind in enumerate(read.breaks)
            if kind or self._book.begins(read.tokens, place)
        ]
        return list(itertools.pairwise([*starts, len(read)]))

    def _clause(self, whole: _Text, start: int, end: int, *, denied: bool) -> _Clause:
        tokens = whole.read.tokens[start:end]
        opens = whole.read.breaks[start] == 2
        content = self._content(whole, tokens, word_set(whole.question))
        heard = [_ELSEWHERE if start + i in whole.hidden else t for i, t in enumerate(tokens)]
        line = line_of(heard)
        previous = () if opens else whole.read.tokens[start - 1 : start]
        for kind, phrase, place in whole.phrases.said_in(line):
            said = [*previous, *line[:place].split()]
            reported = not SPEECH.isdisjoint(said) and "i" not in said
            if not reported and not _is_echo(phrase, content, whole.question):
                about = tuple(token for token in content if token not in phrase.split())
                return _Clause(start, end, kind, about=about)
        chosen = not content and _is_choice(tokens, whole.question)
        if chosen or (denied and _is_polar(tokens)):
            return _Clause(start, end, "answer", short=True)
        led = self._is_led(tokens)
        if led:  # to what may be the question's own words: "it might be the smaller one"
            content = self._content(whole, tokens, frozenset())
        if not content or _is_aside(tokens, line, opens=opens):
            return _Clause(start, end, "talk")
        return _Clause(start, end, "answer", short=led or len(tokens) <= _SHORT)

    def _is_led(self, tokens: Sequence[str]) -> bool:
        """Whether a clause begins, behind a "but", with what leads to an answer."""
        first = 1 if tokens[0] in CONTRASTS and len(tokens) > 1 else 0
        if any(tuple(tokens[first : first + len(lead)]) == lead for lead in LEAD_INS):
            return True
        return tokens[first] not in CONTRASTS and self._book.is_marker(tokens, first)

    def _content(self, whole: _Text, tokens: Sequence[str], known: frozenset[str]) -> list[str]:
        """The words of a clause that could answer a question, without those already known."""
        line = f" {' '.join(tokens)} "
        for filler in whole.phrases.fillers:
            line = line.replace(filler, " ")
        return [
            token
            for token in line.split()
            if not (token in _NO_ANSWER or token in known or token in self._book.marker_words)
        ]


def _is_echo(phrase: str, content: Sequence[str], question: str) -> bool:
    """Whether a clause that says more than a phrase has the phrase from the question."""
    asked = f" {line_of(tokens_of(question))} "
    return f" {phrase} " in asked and not set(phrase.split()).issuperset(content)


def _is_choice(tokens: Sequence[str], question: str) -> bool:
    """Whether a short clause is one of the things that a question gives to choose from."""
    asked = word_set(question)
    chosen = asked.intersection(tokens) - _NO_ANSWER
    return "or" in asked and "or" not in tokens and bool(chosen) and len(tokens) <= _CHOICE


def _is_polar(tokens: Sequence[str]) -> bool:
    """Whether a clause is a yes or a no."""
    rest = [token for token in tokens if token not in LEAD and token != "but"]
    return len(rest) == 1 and rest[0] in YES | NO


def _is_aside(tokens: Sequence[str], line: str, *, opens: bool) -> bool:
    """Whether a clause gives a reason, asks for something, or only leads to another."""
    if tokens[0] in EXPLAINS or (opens and tokens[0] in SUBORDINATE):
        return True
    return _REASON.search(line) is not None or _ASKS.match(line) is not None


def _settled(clauses: Sequence[_Clause], read: Words) -> list[_Clause]:
    """Some answers and abstentions become talk beside those next to them.

    An abstention about another matter than the answer before it ("Seoul. I don't know how big it
    is."), and what only opens an abstention ("Yes, I don't know", "In general, I don't know").
    """
    settled: list[_Clause] = []
    answered: int | None = None
    for clause, following in itertools.zip_longest(clauses, clauses[1:]):
        talk = False
        if clause.kind in DENIALS:
            aside = answered is not None and bool(clause.about)
            talk = aside and not _retracts(read, answered or 0, clause.start)
        elif clause.kind == "answer" and following is not None and following.kind in DENIALS:
            talk = _opens(read, clause, following)
        settled.append(clause._replace(kind="talk") if talk else clause)
        if settled[-1].kind == "answer" and clause.short:
            answered = clause.end
    return settled


def _opens(read: Words, clause: _Clause, denial: _Clause) -> bool:
    """Whether a clause is no more than the opening of the abstention that follows it."""
    tokens = read.tokens[clause.start : clause.end]
    if read.breaks[denial.start] == 2 or read.tokens[denial.start] in CONTRASTS:
        return False
    return read.breaks[clause.start] == 2 and (tokens[0] in ADJUNCT or _is_polar(tokens))


def _stance(clauses: Sequence[_Clause], read: Words) -> Stance:
    denials = [clause for clause in clauses if clause.kind in DENIALS]
    given = [clause for clause in clauses if clause.kind == "answer"]
    if not denials:
        return "answered"
    if not given:
        return "abstained"
    end = given[-1].end
    later = [clause for clause in denials if clause.start >= end]
    if later and not any(clause.short for clause in given):
        return "abstained"
    last = given[-1]
    if (
        "?" in read.gaps[end]
        and end - last.start <= _FEW
        and read.tokens[last.start] not in _ASKING
    ):
        return "hedged"  # Napoleon? I wouldn't know.
    for clause in later:
        own_sentence = 2 in read.breaks[end : clause.start + 1]
        if clause.kind == "unknown" and (own_sentence or _retracts(read, end, clause.start)):
            return "abstained"
    return "hedged"


def _retracts(read: Words, start: int, end: int) -> bool:
    """Whether "no wait" or the like stands there."""
    tokens = read.tokens[start:end]
    return any(True for phrase in RETRACTIONS for _ in occurrences(tokens, phrase))

"""The confidence that a completion states, read from its text."""

from __future__ import annotations

import re
from typing import NamedTuple

_DASH = "[-\u2013\u2212]"  # hyphen, en dash, minus
_BETWEEN = rf"\s*(?:{_DASH}|/|to|or|and|out\ of)\s*"  # "80% to 90%", "8 out of 10"
_NUMBER = rf"{_DASH}?(?:[0-9]+(?:[.,][0-9]+)*|\.[0-9]+)"
_WORD = r"[^\s<>()\[\]{}0-9]*+[0-9][^\s<>()\[\]{}]*+(?:\s?%)?"  # with a digit, up to a space
_TAG = r"<confidence>(?P<tag>[^<]*+)</confidence>"
_LABEL = r"""(?<!\w)["'*_]*+confidence(?:\s+(?:level|score))?+[\s:=*"']*+(?:(?:is|of)\s+)?+"""
_STATEMENT = re.compile(
    rf"{_TAG}|{_LABEL}(?P<label>{_WORD}(?:{_BETWEEN}[0-9.]+(?:\s?%)?)?)", re.IGNORECASE
)
_LAST = re.compile(
    rf"(?<![^\s(])(?P<last>(?:{_NUMBER}\s?%?{_BETWEEN})?{_NUMBER}\s?%)\)?[\s.!*]*\Z",
    re.IGNORECASE,
)
_READABLE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s?(?P<percent>%)?")


class _Statement(NamedTuple):
    start: int
    end: int
    said: str


def stated_confidence(text: str) -> float | None:
    """The last confidence that a text states, as a probability; None where it states none.

    What is read, whatever the case:

    - RLCR's tag: `<confidence>0.8</confidence>`;
    - a number behind the word: "Confidence: 80%", "confidence 0.8", "My confidence level is 0.8";
    - a percentage that ends the text, behind other words: "Berlin 80%", "Berlin (80%).".

    With a percent sign the number is divided by 100, without one it is taken as it stands. None
    also where the last statement cannot be read, though an earlier one could: outside [0, 1] ("80"
    without a percent sign), a range ("80-90%"), a fraction ("8/10"), a comma ("0,8"), words. A text
    that is nothing but a percentage is an answer. "About 97%" is read as a confidence all the same:
    where answers may be percentages, ask for the tag.

    >>> stated_confidence("<answer>Seoul</answer><confidence>0.8</confidence>")
    0.8
    >>> stated_confidence("Seoul (80%)"), stated_confidence("Confidence: 60%. Answer: Seoul")
    (0.8, 0.6)
    >>> print(stated_confidence("Seoul"), stated_confidence("Seoul. Confidence: 80"))
    None None
    """
    statements = _statements(text)
    found = _READABLE.fullmatch(statements[-1].said) if statements else None
    if found is None:
        return None
    value = float(found["number"]) / (100.0 if found["percent"] else 1.0)
    return value if 0.0 <= value <= 1.0 else None


def without_confidence(text: str) -> str:
    """The text without its statements of confidence, readable or not.

    So that an answer "80" is not found in "Confidence: 80%".

    >>> without_confidence("Seoul (80%)"), without_confidence("Confidence: 0.6. Answer: Seoul")
    ('Seoul', 'Answer: Seoul')
    """
    statements = _statements(text)
    for statement in reversed(statements):
        before, after = text[: statement.start].rstrip(), text[statement.end :].lstrip(" .,;!*\t")
        text = f"{before} {after}"
    return text.strip() if statements else text


def _statements(text: str) -> list[_Statement]:
    """All statements in their order; a percentage counts at the end, behind other words."""
    found = []
    for match in _STATEMENT.finditer(text):
        group = "tag" if match["tag"] is not None else "label"
        said = match[group].strip().rstrip(".,;!*\"'")
        found.append(_Statement(match.start(), match.end(), said))
    last = _LAST.search(text)
    if last and (not found or found[-1].end <= last.start()):
        start = last.start() - (text[: last.start()].endswith("("))
        if any(character.isalnum() for character in text[:start]):
            found.append(_Statement(start, last.end(), last["last"]))
    return found

"""Text as the strict reward compares it: one form for what reads alike, then words and numbers.

What reads alike is one: letters of either case, composed or not, with or without the accents of the
Latin script; apostrophes, quotes and dashes of any shape; spaces of any kind. A number is one word
whatever its spelling, and nothing but the whole of it.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sctom.rewards.reading import numbers
from sctom.rewards.reading.vocabulary import CONTRACTED_IS, FUNCTION, SHORTENED

APOSTROPHES = (
    "\u2018\u2019\u201a\u201b\u02b9\u02bb\u02bc\u02bd\u2032\u2035\uff07\u055a\ua78c`\u00b4"
)
QUOTES = "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\u2036\uff02\u300c\u300d\u300e\u300f"
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
UNSEEN = (
    "\u00ad\u034f\u115f\u1160\u180e\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
    "\u2060\u2061\u2062\u2063\u2064\u2066\u2067\u2068\u2069\u2800\u3164\ufeff\uffa0"
    + "".join(map(chr, range(0xFE00, 0xFE10)))
)
_ALIKE = str.maketrans(
    dict.fromkeys(APOSTROPHES, "'")
    | dict.fromkeys(QUOTES, '"')
    | dict.fromkeys(DASHES, "-")
    | dict.fromkeys(UNSEEN)
)
_POWER = re.compile("(?<=[0-9])[\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+")
_GROUPED = re.compile("(?<=\\d)[\u00a0\u2009\u202f'\u2019](?=\\d{3}(?!\\d))")
_LATIN_ACCENTS = re.compile("(?<=[a-z])[\u0300-\u036f]+")

# scripts that do not put a space between words, or put endings on them: one word per character
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
_SYMBOL = "\u2190-\u2bff\U0001f000-\U0001fbff"
_APART = re.compile(f"([{_UNSPACED}{_SYMBOL}])")

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:\^\d+)?(?:/\d+(?![\d/]))?"
_SIGN = r"(?:(?<![^\s(\[{:=,])-[$£€¥]?)?"
_WORD = re.compile(
    r"([^\W\d_][^\W_]*(?:'[^\W_]+)*|"
    rf"{_SIGN}{_NUMBER}(?![^\W_])|[^\W_]+(?:'[^\W_]+)*|[{_SYMBOL}])"
)
_DIGIT = re.compile(r"\d")
_UNIT = re.compile(r"(?<=\d)(?=(?:[kcm]m|[km]?g|ml|ft|lbs?|mph|kph|[ap]m|[mb]illion|bn)\b)")
_ACRONYM = re.compile(r"(?<![^\W_])(?:[^\W\d_]\.){2,}")

_SPELT = {
    "cannot": "can not",
    "can't": "can not",
    "cant": "can not",
    "won't": "will not",
    "shan't": "shall not",
    "dont": "do not",
    "doesnt": "does not",
    "didnt": "did not",
    "isnt": "is not",
    "wasnt": "was not",
    "couldnt": "could not",
    "im": "i am",
    "idk": "i do not know",
    "dunno": "do not know",
    "let's": "let us",
}
_ENDINGS = {"m": "am", "re": "are", "ve": "have", "ll": "will", "d": "would"}

_SENTENCE_END = re.compile("[.!?\n\u3002]")
_CLAUSE_END = re.compile("[,;:()\\[\\]/|\u3001\u2022]| - ")


def normalise(text: str) -> str:
    r"""One form for what reads alike; line breaks are kept, other spaces become single ones.

    Applying it twice changes nothing. An accent on a Latin letter is dropped ("Bogota" is how many
    write "Bogotá"), other marks are not; German umlauts lose theirs too.

    >>> normalise("Cafe\u0301"), normalise("STRASSE") == normalise("Straße")
    ('cafe', True)
    >>> normalise("I\u00a0don\u2019t\u200b  know"), normalise("Ｉ do n't know")
    ("i don't know", "i don't know")
    """
    if not text.isascii():
        text = _POWER.sub(lambda found: "^" + unicodedata.normalize("NFKC", found[0]), text)
        text = _GROUPED.sub("", text)
    for _ in range(3):  # each step may give another one something to do
        folded = _fold(text)
        if folded == text:
            break
        text = folded
    return text


def _fold(text: str) -> str:
    text = text.translate(_ALIKE).casefold()
    if not text.isascii():
        text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text).casefold())
        text = unicodedata.normalize("NFKC", _LATIN_ACCENTS.sub("", text)).translate(_ALIKE)
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line).replace(" n't", "n't")


@dataclass(frozen=True)
class Words:
    """A text as words, with what stands between them."""

    tokens: tuple[str, ...]
    """Words and numbers, contractions written out, possessives without their ending."""
    gaps: tuple[str, ...]
    """One more than tokens: what stands before each word, and after the last."""
    joined: tuple[str, ...]
    """The tokens again, with possessives written as one: "mcdonalds" beside "mcdonald"."""
    quoted: frozenset[int] = frozenset()
    """Places of the words in quotes."""

    def __len__(self) -> int:
        return len(self.tokens)

    @functools.cached_property
    def breaks(self) -> tuple[int, ...]:
        """What the gap before each word divides: 0 nothing, 1 clauses, 2 sentences.

        The full stop of an abbreviation, as in "St. Anselm" and "J. K. Rowling", divides nothing,
        nor does the end of a line behind a word like "the" or "not".

        >>> words("St. Anselm, not I. Go").breaks
        (2, 0, 1, 0, 0)
        """
        found = [2]
        for place, gap in enumerate(self.gaps[1:-1], start=1):
            if gap == " ":
                found.append(0)
            elif _SENTENCE_END.search(gap):
                found.append(0 if _goes_on(self.tokens[place - 1], gap) else 2)
            else:
                found.append(int(_CLAUSE_END.search(gap) is not None))
        return tuple(found[: len(self.tokens)])

    def part(self, start: int, end: int) -> Words:
        """Some of the words in a row.

        >>> words("It is Seoul").part(1, 3).tokens
        ('is', 'seoul')
        """
        tokens, joined = self.tokens[start:end], self.joined[start:end]
        quoted = frozenset(place - start for place in self.quoted if start <= place < end)
        return Words(tokens, self.gaps[start : end + 1], joined, quoted)

    def without(self, places: frozenset[int]) -> Words:
        r"""The same with a gap that nothing reaches across in the place of some words.

        >>> words("It is Seoul").without(frozenset([0])).tokens
        ('\x00', 'is', 'seoul')
        """
        if not places:
            return self
        tokens, joined = (
            tuple("\0" if place in places else token for place, token in enumerate(forms))
            for forms in (self.tokens, self.joined)
        )
        return replace(self, tokens=tokens, joined=joined)


def _goes_on(token: str, gap: str) -> bool:
    """Whether a sentence goes on behind a word, in spite of the gap there."""
    if gap == "\n":
        return token in FUNCTION
    return gap == ". " and ((len(token) == 1 and token.isalpha()) or token in SHORTENED)


_QUOTED = re.compile(
    r"""(?:"(?<![^\W_]")[^"\n]{1,400}"|'(?<![\w']')(?:[^'\n]|(?<=\w)'(?=\w)){1,400}'(?![\w']))"""
)


def words(text: str) -> Words:
    """The words of a text, normalised.

    - Contractions are written out: "can't", "cannot" and "cant" are "can not".
    - Numbers: "1,000", "1000" and "one thousand" are one word, as are "1.50" and "1.5", "118
      million" and "118,000,000", "21st" and "twenty-first"; "percent" and "%" are left out. A comma
      before three digits groups them, a point is decimal.
    - A character of a script without spaces, and a symbol, is a word.

    >>> words("The U.S. can't pay $1,000.50!").tokens
    ('the', 'us', 'can', 'not', 'pay', '1000.5')
    >>> words("Levi's").tokens, words("Levi's").joined, words("서울입니다").tokens
    (('levi',), ('levis',), ('서', '울', '입', '니', '다'))
    """
    text = normalise(text)
    parts = _split(text)
    quoted = _quoted_places(text, parts)
    tokens, gaps, origins = _written_out(parts)
    if numbers.has_numbers(tokens):
        tokens, gaps, origins = numbers.with_numbers(tokens, gaps, origins)
    if quoted:
        quoted = frozenset(place for place, origin in enumerate(origins) if origin in quoted)
    joined = tokens
    if any("'" in token for token in tokens):
        joined = [token.replace("'", "") for token in tokens]
        tokens = [token.removesuffix("'s").replace("'", "") for token in tokens]
    return Words(tuple(tokens), tuple(gaps), tuple(joined), quoted)


def _split(text: str) -> list[str]:
    """Gap, word, gap, word, ..., gap; nothing is lost but spaces that are put in."""
    text = text.replace("&", " and ")
    if "." in text:
        text = _ACRONYM.sub(lambda found: found[0].replace(".", ""), text)
    if not text.isascii():
        text = _APART.sub(r" \1 ", text)
    if _DIGIT.search(text):
        text = _UNIT.sub(" ", text)
    return _WORD.split(text)


def _quoted_places(text: str, parts: Sequence[str]) -> frozenset[int]:
    """Which words of a split text are in quotes."""
    if _QUOTED.search(text) is None:
        return frozenset()
    rebuilt = "".join(parts)
    inside = [match.span() for match in _QUOTED.finditer(rebuilt)]
    places, position, spans = set(), 0, iter([*inside, (len(rebuilt), len(rebuilt) + 1)])
    start, end = next(spans)
    for index, part in enumerate(parts):
        while position >= end:
            start, end = next(spans)
        if index % 2 and start <= position:
            places.add(index // 2)
        position += len(part)
    return frozenset(places)


def _written_out(parts: Sequence[str]) -> tuple[list[str], list[str], list[int]]:
    """Tokens with contractions written out, their gaps, and the word each is from."""
    tokens: list[str] = []
    gaps: list[str] = []
    origins: list[int] = []
    for place in range(len(parts) // 2):
        word, gap = parts[2 * place + 1], parts[2 * place]
        if "'" in word or word in _SPELT:
            for token in _contraction(word).split():
                tokens.append(token)
                gaps.append(gap)
                origins.append(place)
                gap = " "
        else:
            tokens.append(word)
            gaps.append(gap)
            origins.append(place)
    return tokens, [*gaps, parts[-1]], origins


@functools.lru_cache(maxsize=10_000)
def _contraction(word: str) -> str:
    if word in _SPELT:
        return _SPELT[word]
    stem, _, ending = word.rpartition("'")
    if ending == "t" and stem.endswith("n"):
        return f"{stem[:-1]} not"
    if ending in _ENDINGS and "'" not in stem:
        return f"{stem} {_ENDINGS[ending]}"
    return f"{stem} is" if ending == "s" and stem in CONTRACTED_IS else word

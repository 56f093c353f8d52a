"""Numbers in a text: one spelling for each."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal

from sctom.rewards.reading.vocabulary import vocabulary

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth"
)
UNITS = {word: value for value, word in enumerate(_UNITS.split())}
TENS = {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}
ORDINALS = {word: value for value, word in enumerate(_ORDINALS.split(), start=1)}
ORDINALS |= {f"{word[:-1]}ieth": value for word, value in TENS.items()}
SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9}
SCALES |= {"bn": 10**9, "trillion": 10**12}
_SPELT = frozenset([*UNITS, *TENS, *SCALES, *ORDINALS])
_DIGIT = re.compile(r"\d")
_LETTER = re.compile(r"[^\W\d_]")
_LONGEST = 12  # words of a number written out
_NOT_A_ONE = vocabulary("no any some every each which this that the another")
_ONE_OF = vocabulary("of another")


def has_numbers(tokens: Sequence[str]) -> bool:
    """Whether there is anything to do."""
    return not _SPELT.isdisjoint(tokens) or any(map(_DIGIT.search, tokens))


def is_number(token: str) -> bool:
    """Whether a token is a number: digits, with a sign, a point, a power or a fraction."""
    return token[-1].isdigit() and _LETTER.search(token) is None


def with_numbers(
    tokens: list[str], gaps: list[str], origins: list[int]
) -> tuple[list[str], list[str], list[int]]:
    """Words, their gaps and their origins, with every number as one word in one spelling.

    >>> with_numbers(["twenty", "one"], ["", "-", ""], [0, 1])
    (['21'], ['', ''], [0])
    >>> with_numbers(["minus", "ten"], ["", " ", ""], [0, 1])[0]
    ['-10']
    """
    numbered: list[str] = []
    kept: list[int] = []
    done = 0
    for place, token in enumerate(tokens):
        if place < done or not (token in _SPELT or token[-1].isdigit()):
            continue
        number, end = _number_at(tokens, gaps, place)
        if place > done and _is_signed(tokens, place) and is_number(number):
            numbered += [*tokens[done : place - 1], f"-{number}"]
            kept += range(done, place)
        else:
            numbered += [*tokens[done:place], number]
            kept += range(done, place + 1)
        done = end + _percent(tokens, end) if number[-1].isdigit() else end
    numbered += tokens[done:]
    kept += range(done, len(tokens))
    return numbered, [*(gaps[place] for place in kept), gaps[-1]], [origins[i] for i in kept]


def _is_signed(tokens: Sequence[str], place: int) -> bool:
    """Whether a "minus" there is a sign, not a difference."""
    before = tokens[max(place - 2, 0) : place - 1]
    difference = any(token in _SPELT or token[-1].isdigit() for token in before)
    return tokens[place - 1] == "minus" and not difference


def _percent(tokens: Sequence[str], place: int) -> int:
    """How many words say "percent" there."""
    if tokens[place : place + 2] == ["per", "cent"]:
        return 2
    return int(tokens[place : place + 1] == ["percent"])


def _number_at(tokens: Sequence[str], gaps: Sequence[str], place: int) -> tuple[str, int]:
    """The number that begins there, or the word; and where what follows begins."""
    token = tokens[place]
    if is_number(token):
        return _scaled(_canonical(token), tokens, gaps, place + 1)
    if token not in _SPELT or (token == "one" and _is_pronoun(tokens, place)):
        return token, place + 1
    total = group = 0
    last, end = "", place
    limit = min(len(tokens), place + _LONGEST)
    while end < limit and (end == place or gaps[end] in (" ", "-")):
        token = tokens[end]
        if token == "and" and last in SCALES and _continues(tokens, end + 1):
            end += 1
            continue
        if token in ORDINALS and (not last or (last in TENS and ORDINALS[token] < 10)):
            return _ordinal(total + group + ORDINALS[token]), end + 1
        if token in SCALES and last not in ORDINALS:
            amount = (group or 1) * SCALES[token]
            group = amount if token == "hundred" else 0
            total += 0 if token == "hundred" else amount
        elif token in TENS and (not last or last in SCALES):
            group += TENS[token]
        elif token in UNITS and (not last or last in SCALES or _fits(last, token)):
            group += UNITS[token]
        else:
            break
        last, end = token, end + 1
    return str(total + group), end


def _continues(tokens: Sequence[str], place: int) -> bool:
    return place < len(tokens) and (tokens[place] in UNITS or tokens[place] in TENS)


def _fits(tens: str, unit: str) -> bool:
    return tens in TENS and 0 < UNITS[unit] < 10


def _is_pronoun(tokens: Sequence[str], place: int) -> bool:
    """Whether a "one" is that of "no one" or "one of them"."""
    before, after = tokens[max(place - 1, 0) : place], tokens[place + 1 : place + 2]
    if not _ONE_OF.isdisjoint(after):
        return True
    return not _NOT_A_ONE.isdisjoint(before) and SCALES.keys().isdisjoint(after)


def _ordinal(value: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{value}{'th' if value % 100 in (11, 12, 13) else endings.get(value % 10, 'th')}"


def _canonical(token: str) -> str:
    """A number without grouping and idle zeros.

    >>> [_canonical(text) for text in ("1,000", "1.50", "-$5", "02", "007", "٣")]
    ['1000', '1.5', '-5', '2', '007', '3']
    """
    if not token.isascii():
        token = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in token)
    token = re.sub("[,$£€¥]", "", token)
    if "^" in token or "/" in token:
        return token
    sign, digits = ("-", token[1:]) if token[0] == "-" else ("", token)
    whole, _, fraction = digits.partition(".")
    if len(whole) == 2:
        whole = whole.removeprefix("0")
    fraction = fraction.rstrip("0")
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def _scaled(number: str, tokens: Sequence[str], gaps: Sequence[str], place: int) -> tuple[str, int]:
    """The number times the words of scale that follow it: "1.5 million"."""
    value = None
    limit = min(len(tokens), place + 2)
    while place < limit and tokens[place] in SCALES and gaps[place] in ("", " ", "-"):
        if value is None and (len(number) > 15 or not re.fullmatch(r"-?\d+(\.\d+)?", number)):
            break
        value = (Decimal(number) if value is None else value) * SCALES[tokens[place]]
        place += 1
    return (number if value is None else _canonical(f"{value:f}")), place

"""What a completion gives as its answer: a short text, or a number."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction

_MARK = re.compile(
    r"(?<!this )(?<!that )\banswer(?:\s+is)?(?:\s*[*_]*\s*[:=]|(?<=is)\b(?!\s+not\b))[*_\s]*",
    re.IGNORECASE,
)
_ANSWER_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_MARKUP = re.compile(r"`|__|\*\*|(?<!\w)\*|\*(?!\w)|^(?:[#>\s]+|(?:[-*\u2022]|\d+[.)])\s+|A:\s*)+")
_LAYERS = 4  # of what may be around an answer, as in **"(Paris)."**
_LEAD = re.compile(r"^(?:it is|it's|it was|that is|that's|that was|this is)\s+", re.IGNORECASE)
_AROUND = " \t\n.,;:!?$"
_PAIRED = re.compile(
    r"\"([^\"]*)\"|'([^']*)'|\(([^()]*)\)|\[([^\[\]]*)\]|\{([^{}]*)\}"
    "|\u201c([^\u201d]*)\u201d|\u2018([^\u2019]*)\u2019|\u00ab([^\u00bb]*)\u00bb"
)
_TEXT = re.compile(r"\\(?:text|textbf|mathrm)\s*\{([^{}]*)\}")
_BOX = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")

_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"))
_ALIKE = dict.fromkeys(map(ord, "\u2212\u2013\ufe63\uff0d"), "-") | {0x2044: "/"}
_SUPERSCRIPTS = re.compile("[\u00b2\u00b3\u00b9\u2070-\u2079]+")
_BEFORE_VULGAR = re.compile("(?<=\\d)(?=[\u00bc-\u00be\u2150-\u215e])")  # of 2½
_GROUPED = re.compile(r"(?<=\d)(?:\\[,;!: ]|[~\u00a0\u2009\u202f]|\{,\})(?=\d{3}(?!\d))")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_NUMBER = re.compile(
    r"(?<!\w)(?<!\d\.)(?P<sign>(?<![)\]])-)?(?:\\?[$€£]\s?(?P<late>-)?)?"  # -$5 and $-5
    r"(?P<digits>\d{1,3}(?:,\d{3})+(?!,?\d)|\d+|(?<!\.)(?=\.\d))(?P<part>\.\d+)?"
    r"(?P<power>[eE][+-]?\d{1,2}(?!\w))?(?!\d|(?:st|nd|rd|th)\b)"
    r"(?:\s?/\s?(?P<under>\d+)|\s(?P<more>\d+)/(?P<parts>\d+))?"
)
_LONGEST = 30  # digits; a longer row of them is no number that anybody asked for
_OFFICIAL = re.compile(r"#### (-?[0-9.,]+)")


def said(text: str) -> str:
    """A text without its thoughts: what is behind the last `</think>`.

    Thoughts without an end hold no answer. Spaces stay: those in front of code mean something.

    >>> said("<think>Busan?</think>Seoul"), said("<think>Busan")
    ('Seoul', '')
    """
    return text.rpartition("</think>")[2].partition("<think>")[0]


def stated_answer(text: str) -> str | None:
    r"""The answer that a text puts where an answer is looked for; None where it does not.

    In this order: the last `<answer>..</answer>`; the last box of LaTeX; what follows the last
    "answer:" or "answer is", to the end of its line.

    >>> stated_answer("Cairo? No.\n**Answer:** the Nile."), stated_answer("The Nile.")
    ('the Nile', None)
    """
    text = said(text)
    found = _ANSWER_TAGS.findall(text) or _BOX.findall(text)
    if found:
        return _first_line(found[-1])
    behind = (_first_line(text[mark.end() :]) for mark in reversed(list(_MARK.finditer(text))))
    return next((line for line in behind if line), None)


def short_answer(text: str) -> str | None:
    r"""The answer that a text gives, as short as it can be told; None where it says nothing.

    The stated answer, else the first line. Markup, quotes, the punctuation around it and "it is" in
    front are taken off. A sentence stays a sentence.

    >>> short_answer("It's *Paris*!"), short_answer("Paris is it.\nI think."), short_answer("...")
    ('Paris', 'Paris is it', None)
    """
    return stated_answer(text) or _first_line(_MARK.sub("", said(text)))


def _first_line(text: str) -> str | None:
    """The first line with a letter or a digit, without what is around it."""
    text = _TEXT.sub(r"\1", _FENCE.sub("", text.translate(_INVISIBLE)))
    line = next((line for line in text.splitlines() if any(map(str.isalnum, line))), "")
    for _ in range(_LAYERS):
        line = _LEAD.sub("", _MARKUP.sub("", line.strip()).strip(_AROUND))
        if paired := _PAIRED.fullmatch(line):
            line = next(part for part in paired.groups() if part is not None)
    return line or None


def last_number(text: str) -> Fraction | None:
    r"""The number that a text ends with, or puts in the place of an answer; None without one.

    In this order: the number in the last box; the first behind the last "####"; the first in the
    rest of the line behind the last "answer:" or "answer is"; the last number of the text. The
    commas of thousands, currencies, percent signs and units are no part of it; 3/4 and
    \frac{3}{4} are one number; "3rd" and the 2 of "x2" are none, nor are numbers in words.

    >>> last_number("She pays 3 * $4 = $1,200.50."), last_number("#### 7 (of 9)")
    (Fraction(2401, 2), Fraction(7, 1))
    """
    text = _numerals(said(text))
    boxed = _BOX.findall(text)
    if boxed and (found := _numbers(boxed[-1])):
        return found[-1]
    if "####" in text and (found := _numbers(text.rpartition("####")[2])):
        return found[0]
    marked = list(_MARK.finditer(text))
    if marked and (found := _numbers(text[marked[-1].end() :].partition("\n")[0])):
        return found[0]
    found = _numbers(text)
    return found[-1] if found else None


def _numerals(text: str) -> str:
    """One way to write digits, signs, thousands and fractions."""
    text = _GROUPED.sub("", text.translate(_INVISIBLE))
    text = _BEFORE_VULGAR.sub(" ", _SUPERSCRIPTS.sub("", text))
    return _FRACTION.sub(r"\1/\2", unicodedata.normalize("NFKC", text).translate(_ALIKE))


def _numbers(text: str) -> list[Fraction]:
    found = (_value(match) for match in _NUMBER.finditer(text))
    return [value for value in found if value is not None]


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match[0]) > _LONGEST:
        return None
    digits = match["digits"].replace(",", "") or "0"
    value = Fraction(f"{digits}{match['part'] or ''}{match['power'] or ''}")
    under = int(match["under"] or match["parts"] or 1)
    if under == 0:
        return None
    value = value + Fraction(int(match["more"]), under) if match["more"] else value / under
    return -value if match["sign"] or match["late"] else value


def number_text(number: Fraction) -> str:
    """A number as one writes it: whole, as a decimal where that ends, or as a fraction.

    >>> [number_text(Fraction(*pair)) for pair in ((14, 2), (-5, 4), (1, 3))]
    ['7', '-1.25', '1/3']
    """
    if (number * 10**_LONGEST).denominator == 1 and number.denominator < 10**12:
        return f"{Decimal(number.numerator) / number.denominator:f}"
    return str(number)


def official_number(text: str) -> str | None:
    """GSM8K's own extraction: what follows the first "#### ", without commas; None without it.

    Source: `extract_answer` of grade_school_math/dataset.py in openai/grade-school-math. There, a
    completion without an answer gives "[invalid]", which equals no gold answer.

    >>> official_number("#### 1,200 or #### 7"), official_number("####7"), official_number("1")
    ('1200', None, None)
    """
    found = _OFFICIAL.search(text)
    return found[1].replace(",", "") if found else None

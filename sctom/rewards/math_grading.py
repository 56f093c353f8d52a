"""Grading one mathematical answer, as TRL does it and strictly. Runs in a worker process.

Importing this module imports sympy. It is imported by workers; `math_answers` has the rewards.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that time is not limited

Grade = tuple[float | None, str, str]
"""The value, and what was read from the gold solution and from the answer."""

_TRL_CONFIG = LatexExtractionConfig(
    normalization_config=NormalizationConfig(units=True),
    boxed_match_priority=0,
    try_extract_without_anchor=False,
)


def grade(content: str | None, gold: str | None) -> Grade | Exception:
    r"""The grade that TRL gives in its main thread, with its limits: 10 s to parse, 5 s to compare.

    Args:
        content: the completion; None for what is not a string.
        gold: the solution; None likewise.

    >>> grade(r"So \boxed{0.5}.", "1/2")[0]
    1.0
    >>> grade(r"So \boxed{3=4}.", "4")[0]
    1.0
    """
    try:
        golds = parse(gold, parsing_timeout=10)
        if not golds:
            return None, "[unparseable]", "[skipped]"
        answers = parse(
            content,
            extraction_config=[_TRL_CONFIG],
            extraction_mode="first_match",
            parsing_timeout=10,
        )
        value = float(verify(golds, answers, timeout_seconds=5))
        return value, str(golds), str(answers) if answers else "[unparseable]"
    except Exception as error:
        return error.with_traceback(None)  # TRL lets it through


_STRICT_CONFIG = LatexExtractionConfig(
    normalization_config=NormalizationConfig(
        basic_latex=True, units=True, malformed_operators=True, nits=True, boxed="last"
    ),
    boxed_match_priority=0,
    try_extract_without_anchor=False,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_MATH = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_WORD = re.compile(r"[^\W\d_]{2,}")
_HEDGE = re.compile(r"\b(?:or|either|maybe|perhaps|possibly|unless|not|vs|versus)\b|\\lor|\\vee")
_EQUALS = re.compile(r"\\approx|\\equiv|\\simeq|(?<![<>!\\:])=")
_NAME = re.compile(r"\s*\\?[A-Za-z]+'?(?:_\{?\w+\}?)?(?:\s*\(\s*\w+\s*\))?\s*")
_GROUPED = re.compile(r"(?<=\d)(?:\\[,;!: ]|[ ~\u00a0\u2009\u202f]|\{,\})(?=\d{3}(?!\d))")
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"))


def grade_strictly(content: str, gold: str) -> Grade:
    r"""Whether the last box of a completion holds the solution; no limit of time of its own.

    Args:
        content: the completion.
        gold: the solution: text with its answer in a box, in `$..$` or after `####`, or an answer
            alone, which is LaTeX then.

    >>> grade_strictly(r"So \boxed{2\sqrt{5}}.", r"2\sqrt{5}")[0]
    1.0
    >>> grade_strictly(r"So \boxed{n=3=4}.", "4")[0]
    0.0
    >>> grade_strictly(r"First \boxed{3}. No, \boxed{8}.", "8")[0]
    1.0
    """
    wanted = gold_answer(gold)
    if not wanted:
        return None, "[unparseable]", "[skipped]"
    given = last_box(content)
    if given is None:
        return 0.0, wanted, "[no box]"
    given = _clean(given)
    if _plain(given) == _plain(wanted):
        return 1.0, wanted, given
    if _hedged(given, wanted):
        return 0.0, wanted, f"[hedged] {given}"
    if _words(wanted):  # a text: math would read letters as factors
        return 0.0, wanted, given
    right = _equal(_right_side(given, wanted), _right_side(wanted, given))
    return float(right), wanted, given


def gold_answer(gold: str) -> str:
    r"""The answer in a solution, "" where there is none.

    >>> gold_answer("48/2 = 24 clips.\n#### 1,024"), gold_answer("It is $x^2$."), gold_answer("x")
    ('1,024', 'x^2', 'x')
    """
    box = last_box(gold)
    if box is not None:
        return _clean(box)
    if "####" in gold:
        return _clean(gold.rpartition("####")[2])
    found = [next(part for part in match.groups() if part) for match in _MATH.finditer(gold)]
    return _clean(found[-1] if found else gold)


def last_box(text: str) -> str | None:
    r"""What the last \boxed{..} or \fbox{..} holds; None where there is none or it has no end.

    >>> last_box(r"\boxed{1} and \boxed{\frac{1}{2}}"), last_box(r"\boxed{1} and \boxed{2")
    ('\\frac{1}{2}', None)
    """
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    depth = 1
    for place in range(starts[-1], len(text)):
        if text[place - 1] == "\\" and text[place - 2 : place] != "\\\\":
            continue  # an escaped brace belongs to the answer
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[starts[-1] : place]
    return None


def _clean(answer: str) -> str:
    """One way to write digits, thousands and delimiters."""
    answer = answer.translate(_INVISIBLE)
    answer = "".join(
        str(unicodedata.decimal(char)) if char.isdecimal() else char for char in answer
    )
    answer = _GROUPED.sub("", answer).replace("\\$", "").replace("$", "").strip()
    return answer.removesuffix(".").strip()


def _plain(answer: str) -> str:
    """The answer as text: without markup of text, without spaces, in lower case if it has words."""
    text = re.sub(r"\s+", "", _TEXT.sub(r"\1", answer))
    return text.casefold() if _words(answer) else text


def _words(answer: str) -> bool:
    """Whether it has words outside of commands."""
    return bool(_WORD.search(_COMMAND.sub(" ", _TEXT.sub(r" \1 ", answer))))


def _hedged(given: str, wanted: str) -> bool:
    """Whether an answer offers what the solution does not: alternatives, or a chain of `=`."""
    if _found(_HEDGE, given) - _found(_HEDGE, wanted):
        return True
    sides = _EQUALS.split(given)
    most = max(2, len(_EQUALS.split(wanted)))
    if len(sides) > most:
        return True
    return len(sides) == 2 and not _EQUALS.search(wanted) and not _NAME.fullmatch(sides[0])


def _found(pattern: re.Pattern[str], text: str) -> set[str]:
    return set(pattern.findall(_TEXT.sub(r" \1 ", text).casefold()))


def _right_side(answer: str, other: str) -> str:
    """The value of `n = 4` where the other side is no equation."""
    sides = _EQUALS.split(answer)
    if len(sides) == 2 and not _EQUALS.search(other) and _NAME.fullmatch(sides[0]):
        return sides[1].strip()
    return answer


def _equal(given: str, wanted: str) -> bool:
    percents = [bool(re.search(r"%", text)) for text in (given, wanted)]
    if all(percents):
        given, wanted = (re.sub(r"\\?%", "", text) for text in (given, wanted))
    elif any(percents):
        given, wanted = (_fraction(text) for text in (given, wanted))
    gold, answer = _read(wanted), _read(given)
    return bool(gold and answer and verify(gold, answer, timeout_seconds=None))


def _fraction(text: str) -> str:
    r"""25\% as what it means, so that it is no longer equal to 25."""
    return re.sub(r"(\d+(?:\.\d+)?)\s*\\?%", r"\\frac{\1}{100}", text)


def _read(latex: str) -> list[Any]:
    found: list[Any] = parse(
        rf"\boxed{{{latex}}}",
        extraction_config=[_STRICT_CONFIG],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return found

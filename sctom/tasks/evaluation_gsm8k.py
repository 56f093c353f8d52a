"""GSM8K as a task: is the number right?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import ClassVar

from sctom.readers import DataError, Row
from sctom.tasks.answers import last_number, number_text, official_number
from sctom.tasks.evaluation_base import Scored, Task, abstains, asked, known, share


class Gsm8k(Task):
    r"""GSM8K, by the number that a completion gives (`sctom.tasks.answers.last_number`).

    Right is a number of the same value: 7, 7.00 and $7 are one. The source wants "#### 7", the
    first of them if there are several, and the same characters but for commas
    (`accuracy_official`); a model that was never shown that form scores 0 there. `marked` is the
    share of the completions with that form or a box.

    >>> row = Gsm8k().read()[0]
    >>> [Gsm8k().score(row, text).correct for text in ("So \\boxed{18}.", "#### 18", "18 - 1")]
    [True, True, False]
    >>> Gsm8k().extract("He has 3 + 4 = 7.0 pears left.")
    '7'
    """

    name = "gsm8k"
    samples = ("sctom:tasks/gsm8k.jsonl",)
    columns: ClassVar[Mapping[str, type | tuple[type, ...]]] = {"solution": str}

    def check(self, row: Row, place: str) -> Row:
        """A row, whose solution is a number."""
        super().check(row, place)
        try:
            Fraction(row["solution"])
        except (ValueError, ZeroDivisionError) as error:
            found = f"found {row['solution']!r:.60}"
            raise DataError(
                f"{place}: solution must be a number without commas; {found}"
            ) from error
        return row

    def extract(self, text: str) -> str | None:
        """The number, as `number_text` writes it."""
        number = last_number(text)
        return None if number is None else number_text(number)

    def score(self, row: Row, text: str) -> Scored:
        """Judge one completion."""
        number = last_number(text)
        correct = number is not None and number == Fraction(row["solution"])
        official = official_number(text)
        details = {
            **known(row),
            "official": official == row["solution"],
            "marked": official is not None or "\\boxed" in text,
        }
        abstained = not correct and abstains(text, asked(row))
        extracted = None if number is None or abstained else number_text(number)
        return Scored(correct, abstained, extracted, details)

    def metrics(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Those of `Task`, accuracy_official and marked."""
        return super().metrics(scored) | {
            "accuracy_official": share(one.details["official"] for one in scored),
            "marked": share(one.details["marked"] for one in scored),
        }

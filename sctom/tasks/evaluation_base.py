"""What the tasks of the cross-evaluation have in common: one small interface, without torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from sctom.assets import resolve
from sctom.readers import DataError, Message, Row, check_messages, read_jsonl
from sctom.rewards.reading.abstention import Abstentions
from sctom.tasks.answers import said

_ABSTENTIONS = Abstentions()


@dataclass(frozen=True)
class Scored:
    """What one completion of one row came to. It holds plain values only, fit for JSON."""

    correct: bool | None
    """Whether it is right; None where there is no verdict, as where a sandbox failed."""
    abstained: bool = False
    """It says that it does not know, and is not right: an answer counts before an abstention."""
    extracted: str | None = None
    """The answer that was found in it; None where there is none."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the task's metrics need besides, and what a person may want to see; with the `id` of
    the row where it has one."""


class Task(ABC):
    """A task: how a row becomes a prompt, how a completion is judged, and what is reported.

    A row is one of a prepared file (`python -m sctom.prepare`). To judge needs nothing but the row
    and the text, so completions may be judged in any order, in parts, or again.
    """

    name: str
    """As in the names of metrics: cross_eval/<run>_on_<name>."""
    headline: str = "accuracy"
    """The metric to look at first."""
    samples: Sequence[str]
    """Files with a few rows of our own making, which sctom ships."""
    columns: ClassVar[Mapping[str, type | tuple[type, ...]]]
    """What a row must have beside its messages."""

    def read(self, path: str | Path | None = None) -> list[Row]:
        """The rows of a prepared file, checked.

        Args:
            path: JSONL ("sctom:..." for a file that sctom ships); None: the samples.

        Raises:
            FileNotFoundError: there is no such file.
            DataError: a row has another form; the message begins with file and line.
        """
        files = [resolve(name) for name in (self.samples if path is None else [path])]
        return [
            self.check(row, f"{file}:{line}")
            for file in files
            for line, row in enumerate(read_jsonl(file), start=1)
        ]

    def check(self, row: Row, place: str) -> Row:
        """A row of a prepared file as the task uses it.

        Raises:
            DataError: the row has another form; the message begins with `place`.
        """
        check_messages(row, place)
        if row["messages"][-1]["role"] != "user":
            found = row["messages"][-1]["role"]
            raise DataError(f"{place}: messages must end with the user's turn, not the {found}'s")
        for name, kind in self.columns.items():
            check_column(row, name, kind, place)
        return row

    def prompt(self, row: Row) -> list[Message]:
        """What the model is given."""
        messages: list[Message] = row["messages"]
        return messages

    @abstractmethod
    def extract(self, text: str) -> str | None:
        """The answer in a completion, None where there is none."""

    @abstractmethod
    def score(self, row: Row, text: str) -> Scored:
        """Judge one completion.

        Args:
            row: as `read` gives it.
            text: the completion.
        """

    def score_all(self, rows: Sequence[Row], texts: Sequence[str]) -> list[Scored]:
        """Judge many completions; a task that can do so faster at once overrides this.

        Raises:
            ValueError: other numbers of rows than of texts.
        """
        return [self.score(row, text) for row, text in zip(rows, texts, strict=True)]

    def metrics(self, scored: Sequence[Scored]) -> dict[str, float]:
        """Numbers about a set of completions, with what they were counted on.

            accuracy   correct / n      abstained   abstentions / n      no_answer   no answer / n

        n is the number of completions with a verdict, not_judged that of the others. A completion
        that abstains is not one without an answer. For every group of `groups` there are
        accuracy_<group> and n_<group>.

        Raises:
            ValueError: there is nothing to make metrics of.
        """
        judged = judged_of(scored)
        numbers = {
            "n": len(judged),
            "not_judged": len(scored) - len(judged),
            "accuracy": share(one.correct for one in judged),
            "abstained": share(one.abstained for one in judged),
            "no_answer": share(one.extracted is None and not one.abstained for one in judged),
        }
        by_group: dict[str, list[bool]] = {}
        for one in judged:
            for group in self.groups(one):
                by_group.setdefault(group, []).append(bool(one.correct))
        for group, right in by_group.items():
            numbers |= {f"accuracy_{group}": share(right), f"n_{group}": len(right)}
        return numbers

    def groups(self, one: Scored) -> Sequence[str]:
        """The groups of questions to report on that a completion belongs to."""
        return ()


def check_column(row: Row, name: str, kind: type | tuple[type, ...], place: str) -> None:
    """Refuse a row whose column is missing or of another type.

    Raises:
        DataError: so it is.

    >>> check_column({"order": True}, "order", int, "x.jsonl:3")
    Traceback (most recent call last):
        ...
    sctom.readers.DataError: x.jsonl:3: order must be int, found True
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    expected = " or ".join(one.__name__ for one in kinds)
    if name not in row:
        has = ", ".join(row) or "none"
        raise DataError(f"{place}: the column {name!r} ({expected}) is missing; found {has}")
    value = row[name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise DataError(f"{place}: {name} must be {expected}, found {value!r:.60}")


def asked(row: Row) -> str:
    """The last thing the user says in a row."""
    content: str = next(m["content"] for m in reversed(row["messages"]) if m["role"] == "user")
    return content


def known(row: Row) -> dict[str, Any]:
    """The `id` of a row for the details of its score; nothing where it has none."""
    return {"id": row["id"]} if "id" in row else {}


def abstains(text: str, question: str = "", answers: Sequence[str] = ()) -> bool:
    """Whether a text says in the end that it has no answer: `Abstentions`, in eight languages.

    Args:
        text: a completion; its thoughts do not count.
        question: what was asked; a text that only repeats its "I don't know" does not abstain.
        answers: accepted answers, none of which is an abstention.

    >>> abstains("Sorry, I don't know."), abstains("Not sure. Probably Seoul.")
    (True, False)
    """
    return _ABSTENTIONS.read(said(text), question, answers).stance == "abstained"


def judged_of(scored: Sequence[Scored]) -> list[Scored]:
    """Those with a verdict.

    Raises:
        ValueError: nothing was scored.
    """
    if not scored:
        raise ValueError("there are no scored completions to make metrics of; give at least one")
    return [one for one in scored if one.correct is not None]


def share(values: Iterable[Any]) -> float:
    """The share of true values; NaN of none, because no number would be right.

    >>> share([True, False, True, True])
    0.75
    """
    truths = [bool(value) for value in values]
    return sum(truths) / len(truths) if truths else math.nan

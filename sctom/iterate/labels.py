"""Who says which of two answers is the better one, and by how much. No framework."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from sctom.preferences import GRADES
from sctom.readers import DataError, Message, Row, nearest, read_jsonl
from sctom.rewards import Reward, check_rewards, run_rewards
from sctom.seeds import keys_for

Equal = Literal["unsure", "tie", "drop"]

SIDES = ("a", "b")
NEITHER = "neither"


@dataclass(frozen=True)
class Comparison:
    """Two answers to one prompt, not yet judged."""

    prompt: list[Message]
    answers: tuple[str, str]
    columns: Row = field(default_factory=dict)
    """Columns of the prompt's row, for a utility."""

    @property
    def key(self) -> str:
        """A name for it: a hash of prompt and answers.

        >>> one = Comparison([{"role": "user", "content": "Why?"}], ("So.", "No."))
        >>> other = Comparison([{"role": "user", "content": "Why?"}], ("No.", "So."))
        >>> len(one.key), one.key == other.key
        (16, False)
        """
        content = json.dumps([self.prompt, self.answers], ensure_ascii=False)
        return hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()[:16]


@dataclass(frozen=True)
class Label:
    """What was said of a comparison."""

    better: int | None
    """Place of the better answer, 0 or 1; None: neither is."""
    grade: int = 0
    """How much better: a place in `sctom.preferences.GRADES`."""


class WaitingForLabels(Exception):
    """The run cannot go on before somebody has written a file; the message says which and how."""


class Labeller(ABC):
    """Judges comparisons. Its labels depend on the comparisons and on its files, nothing else."""

    @abstractmethod
    def label(
        self, comparisons: Sequence[Comparison], round_number: int, asked: Path
    ) -> list[Label | None]:
        """The labels; None leaves a comparison out.

        Args:
            comparisons: all of a round.
            round_number: which round, from 1.
            asked: the file they were read from.

        Raises:
            WaitingForLabels: they are not there yet.
        """

    def check(self, columns: Sequence[str]) -> None:  # noqa: B027  most have nothing to check
        """Look, before a run starts, whether it can judge prompts with these columns.

        Raises:
            ValueError: it cannot.
        """

    def files(self, round_number: int) -> list[Path]:
        """The files that the labels of a round are read from."""
        return []


class UtilityLabeller(Labeller):
    """Labels by a number for each answer: the higher one is better, and the gap gives the grade.

    | gap of the utilities                 | grade                       |
    |--------------------------------------|-----------------------------|
    | 0                                    | what `equal` says           |
    | above 0, below the first threshold   | negligibly better           |
    | from the first threshold on          | slightly better             |
    | from the second on                   | better                      |
    | from the third on                    | significantly better        |

    The grades are those of Llama 2 (arXiv 2307.09288, section 3.2.1), where people gave them. Any
    reward may be the utility: a rule that knows the answer, or a judge.

    Args:
        utility: gives the number; an answer it abstains on is not compared.
        thresholds: three gaps, rising and above 0.
        equal: two answers of equal utility are "unsure" (negligibly better, the side drawn by
            chance, as an annotator has to choose one), a "tie", or dropped.

    Raises:
        ValueError: thresholds that are no three rising gaps, or an unknown `equal`.

    >>> from sctom.rewards import FunctionReward
    >>> utility = FunctionReward(lambda completions: [float(len(c)) for c in completions])
    >>> labeller = UtilityLabeller(utility, thresholds=[2.0, 4.0, 6.0])
    >>> why = [{"role": "user", "content": "Why?"}]
    >>> asked = [Comparison(why, ("a" * 3, "a" * n)) for n in (2, 8)]
    >>> labeller.label(asked, 1, Path())
    [Label(better=0, grade=0), Label(better=1, grade=2)]
    """

    def __init__(
        self,
        utility: Reward,
        thresholds: Sequence[float] = (0.25, 1.0, 1.75),
        equal: Equal = "unsure",
    ) -> None:
        thresholds = tuple(thresholds)
        rising = all(low < high for low, high in pairwise((0.0, *thresholds)))
        if len(thresholds) != len(GRADES) - 1 or not rising:
            found = list(thresholds)
            raise ValueError(f"thresholds must be three rising gaps above 0, found {found}")
        if equal not in get_args(Equal):
            choices = ", ".join(get_args(Equal))
            raise ValueError(f"equal must be one of {choices}, not {equal!r}")
        self.utility = utility
        self.thresholds = thresholds
        self.equal: Equal = equal

    def check(self, columns: Sequence[str]) -> None:
        """Look whether the utility has its columns, and what it depends on is there."""
        check_rewards([self.utility], columns)
        self.utility.check()

    def label(
        self, comparisons: Sequence[Comparison], round_number: int, asked: Path
    ) -> list[Label | None]:
        """Compare the utilities of the two answers."""
        if not comparisons:
            return []
        both = [(comparison, text) for comparison in comparisons for text in comparison.answers]
        columns = {
            name: [comparison.columns.get(name) for comparison, _ in both]
            for name in comparisons[0].columns
        }
        results = run_rewards(
            [self.utility],
            [comparison.prompt for comparison, _ in both],
            [text for _, text in both],
            [[] for _ in both],
            columns,
        )
        (values,) = results.values.values()
        pairs = zip(comparisons, values[::2], values[1::2], strict=True)
        return [self._label(comparison, one, other) for comparison, one, other in pairs]

    def _label(
        self, comparison: Comparison, one: float | None, other: float | None
    ) -> Label | None:
        if one is None or other is None:
            return None
        if one == other:
            if self.equal == "unsure":
                return Label(better=int(keys_for(int(comparison.key[:15], 16))[0] >> 63))
            return Label(better=None) if self.equal == "tie" else None
        gap = abs(one - other)
        grade = sum(gap >= threshold for threshold in self.thresholds)
        return Label(better=int(other > one), grade=grade)


class FileLabeller(Labeller):
    """Labels that somebody writes into a file while the run waits.

    The run writes RUN/rounds/N/collect/to_label.jsonl, one comparison a line with "key", "prompt"
    and the answers "a" and "b", and stops. Add to each line "better" ("a", "b" or "neither") and
    "grade" (a word of `sctom.preferences.GRADES`; none for "neither"), save all lines as `path`,
    and resume. Lines need no more than "key", "better" and "grade"; their order is free.

    Args:
        path: file of the labels, with {round} in it for the number of the round.

    Raises:
        ValueError: the path has no {round}, so that all rounds would have the same labels.
    """

    def __init__(self, path: str) -> None:
        if "{round}" not in path:
            raise ValueError(f"labeller.path is {path}; write {{round}} where its number goes")
        self.path = path

    def files(self, round_number: int) -> list[Path]:
        """The file of a round."""
        return [Path(self.path.replace("{round}", str(round_number)))]

    def label(
        self, comparisons: Sequence[Comparison], round_number: int, asked: Path
    ) -> list[Label | None]:
        """Read the file.

        Raises:
            WaitingForLabels: it is not there.
            DataError: a line is faulty, or not all comparisons are labelled.
        """
        (path,) = self.files(round_number)
        if not path.exists():
            raise WaitingForLabels(
                f"round {round_number} waits for labels: add \"better\" ('a', 'b' or 'neither') "
                f'and "grade" ({", ".join(map(repr, GRADES))}) to each of the '
                f"{len(comparisons)} lines of {asked}, save them as {path}, and go on with "
                "--resume auto"
            )
        labels = read_labels(path)
        missing = [number for number, c in enumerate(comparisons, 1) if c.key not in labels]
        if missing:
            raise DataError(
                f"{path} labels {len(comparisons) - len(missing)} of {len(comparisons)} "
                f"comparisons; the first without a label is {asked}:{missing[0]}"
            )
        return [labels[comparison.key] for comparison in comparisons]


def read_labels(path: Path) -> dict[str, Label]:
    """The labels of a file, by the key of their comparison.

    Raises:
        DataError: a line has no key, one that was there before, or no valid label.
    """
    labels: dict[str, Label] = {}
    for line, row in enumerate(read_jsonl(path), start=1):
        place = f"{path}:{line}"
        key = row.get("key")
        if not isinstance(key, str):
            raise DataError(f"{place}: the key of the comparison is missing; keep it as it was")
        if key in labels:
            raise DataError(f"{place}: the comparison {key} has a label already; keep one of them")
        labels[key] = _read_label(row, place)
    return labels


def _read_label(row: dict[str, Any], place: str) -> Label:
    better, grade = row.get("better"), row.get("grade")
    if better == NEITHER:
        if grade is not None:
            raise DataError(f"{place}: better is 'neither', but grade is {grade!r}; drop one")
        return Label(better=None)
    if better not in SIDES:
        raise DataError(f"{place}: better must be 'a', 'b' or 'neither', found {better!r}")
    if grade not in GRADES:
        hint = nearest(grade, list(GRADES)) if isinstance(grade, str) else ""
        raise DataError(
            f"{place}: grade must be one of {', '.join(GRADES)}, found {grade!r}.{hint}"
        )
    return Label(better=SIDES.index(better), grade=GRADES.index(grade))

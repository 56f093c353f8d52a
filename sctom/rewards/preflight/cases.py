"""What rewards are tried on: built-in probes, responses from a file, and golden samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sctom.readers import DataError, Row, check_messages, nearest, read_jsonl
from sctom.rewards.base import Reward, completion_text

Encode = Callable[[str], list[int]]

GOLD_COLUMNS = ("expected_answer", "answer", "answers", "solution", "gold", "target", "reference")
"""Columns that hold the right answer, the first that a row has and a reward reads."""

PROBES = {
    "empty": "nothing at all",
    "expected": "the expected answer as the data give it",
    "boxed": "a closed <think> block, then the expected answer in \\boxed{}",
    "tagged": "the expected answer in <answer> tags",
    "abstention": "I don't know.",
    "copy": "the prompt itself",
    "long": "a sentence repeated to four times the largest number of new tokens",
}
"""Built-in completions: name -> what it is."""
ANSWERS = frozenset({"expected", "boxed", "tagged"})
"""The probes that hold the expected answer."""


@dataclass(frozen=True)
class Case:
    """One completion to be scored, and where it is from."""

    prompt: Sequence[Mapping[str, Any]]
    completion: str
    ids: list[int]
    columns: Mapping[str, Any]
    kind: str
    """A name of `PROBES`, or "sampled", "given" or "golden"."""
    place: str
    """Where its prompt is from, for people: "data row 3"."""
    truncated: bool = False


@dataclass(frozen=True)
class Golden:
    """A completion whose reward is known."""

    case: Case
    expected: dict[str, tuple[float, float] | None]
    """Reward, or "total" -> the bounds of its value; None: it must abstain."""


@dataclass(frozen=True)
class DataRow:
    """A prompt of the training data, its columns, and its place in the file."""

    index: int
    prompt: Sequence[Mapping[str, Any]]
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """For people, who count lines from 1."""
        return f"data row {self.index + 1}"


def gold_columns(rewards: Iterable[Reward], columns: Iterable[str]) -> list[str]:
    """The columns of the data that hold right answers and that a reward reads.

    >>> from sctom.rewards import SelfAware
    >>> gold_columns([SelfAware()], ["answer", "expected_answer", "id"])
    ['expected_answer']
    """
    parameters = [p for reward in rewards for p in reward.signature().parameters.values()]
    read = {parameter.name for parameter in parameters}
    everything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    given = set(columns)
    return [name for name in GOLD_COLUMNS if name in given and (everything or name in read)]


def gold_text(columns: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The right answer of a row as text; None where it has none.

    >>> gold_text({"answers": ["Seoul", "Korea"], "answer": " "}, ["answer", "answers"])
    'Seoul'
    """
    for name in names:
        value = columns.get(name)
        if isinstance(value, list | tuple):
            value = value[0] if value else None
        if value is not None and not isinstance(value, dict) and str(value).strip():
            return str(value)
    return None


def probes(row: DataRow, gold: str | None, encode: Encode, limit: int) -> list[Case]:
    r"""The built-in completions for one row; those that hold its answer only where there is one.

    Args:
        row: of the training data.
        gold: its right answer.
        encode: text -> token ids.
        limit: largest number of new tokens of a run.

    >>> row = DataRow(0, [{"role": "user", "content": "Capital of Korea?"}])
    >>> [case.completion[:9] for case in probes(row, "Seoul", lambda text: [0] * len(text), 8)]
    ['', 'Seoul', '<think>\nL', '<answer>S', "I don't k", 'Capital o', 'I say it ']
    """
    texts = {"empty": "", "abstention": "I don't know.", "copy": str(row.prompt[-1]["content"])}
    if gold is not None:
        bare = gold.strip().removeprefix("$").removesuffix("$")
        boxed = f"<think>\nLet me think.\n</think>\nThe answer is $\\boxed{{{bare}}}$."
        texts |= {"expected": gold, "boxed": boxed, "tagged": f"<answer>{gold}</answer>"}
    sentence = "I say it again. "
    texts["long"] = sentence * max(1, math.ceil(4 * limit / max(1, len(encode(sentence)))))
    return [
        Case(row.prompt, texts[kind], encode(texts[kind]), row.columns, kind, row.place)
        for kind in PROBES
        if kind in texts
    ]


def response_case(row: DataRow, text: str, ids: list[int], kind: str, truncated: bool) -> Case:
    """A response to a row of the data."""
    return Case(row.prompt, text, ids, row.columns, kind, row.place, truncated)


def read_responses(path: str | Path, rows: Sequence[DataRow], encode: Encode) -> list[list[Case]]:
    """Responses from a JSONL file, one group for each line.

    Args:
        path: lines of {"completion": ...} or {"completions": [...]}; "index" names the row of the
            data, counted from 0, and without it lines go with the rows in their order.
        rows: all rows of the data.
        encode: text -> token ids.

    Raises:
        DataError: a line has another form, or belongs to no row.
    """
    groups = []
    for number, line in enumerate(read_jsonl(path)):
        place = f"{path}:{number + 1}"
        row = _data_row(line.get("index", number), rows, place)
        _only(line, ("completion", "completions", "index"), place)
        texts = _completions(line, place)
        groups.append([response_case(row, text, encode(text), "given", False) for text in texts])
    return groups


def _completions(line: Row, place: str) -> list[str]:
    if ("completion" in line) == ("completions" in line):
        found = ", ".join(line) or "nothing"
        raise DataError(f"{place}: expected either completion or completions, found {found}")
    given = line["completions"] if "completions" in line else [line["completion"]]
    if not isinstance(given, list) or not given:
        raise DataError(f"{place}: completions must be a list of texts, found {given!r:.60}")
    return [_text(entry, place) for entry in given]


def _text(entry: Any, place: str) -> str:
    try:
        return completion_text(entry)
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise DataError(f"{place}: a completion must be text or messages: {error}") from error


def _data_row(index: Any, rows: Sequence[DataRow], place: str) -> DataRow:
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(rows):
        raise DataError(
            f"{place}: the row of the data must be from 0 to {len(rows) - 1}, found {index!r:.60}"
        )
    return rows[index]


def _only(line: Row, names: Sequence[str], place: str) -> None:
    for name in line:
        if name not in names:
            hint = nearest(name, list(names))
            raise DataError(f"{place}: {name!r} is not known; expected {', '.join(names)}.{hint}")


def read_golden(
    path: str | Path, rows: Sequence[DataRow], rewards: Sequence[str], encode: Encode
) -> list[Golden]:
    """Golden samples from a JSONL file.

    Args:
        path: lines of a prompt, "completion", "expected" and the columns that the rewards read. The
            prompt is "messages" or the text "prompt"; or "index" names a row of the data, counted
            from 0, which gives prompt and columns. "expected" is the total as a number or as
            [lowest, highest], or an object with such values by the name of a reward, where null
            means that it abstains and "total" is the total.
        rows: all rows of the data.
        rewards: names of the rewards.
        encode: text -> token ids.

    Raises:
        DataError: a line has another form.
    """
    return [
        _golden(line, f"{path}:{number}", rows, rewards, encode)
        for number, line in enumerate(read_jsonl(path), start=1)
    ]


def _golden(
    line: Row, place: str, rows: Sequence[DataRow], rewards: Sequence[str], encode: Encode
) -> Golden:
    for name in ("completion", "expected"):
        if name not in line:
            raise DataError(f"{place}: a golden sample needs {name!r}; found {', '.join(line)}")
    if "index" in line:
        row = _data_row(line["index"], rows, place)
        _only(line, ("index", "completion", "expected"), place)
        prompt, columns = row.prompt, row.columns
    else:
        if isinstance(line.get("prompt"), str):
            line["messages"] = [{"role": "user", "content": line.pop("prompt")}]
        prompt = check_messages(line, place)
        columns = {k: v for k, v in line.items() if k not in ("messages", "completion", "expected")}
    text = _text(line["completion"], place)
    case = Case(prompt, text, encode(text), columns, "golden", place)
    return Golden(case, _expected(line["expected"], rewards, place))


def _expected(
    given: Any, rewards: Sequence[str], place: str
) -> dict[str, tuple[float, float] | None]:
    if not isinstance(given, dict):
        return {"total": _bounds(given, place)}
    for name in given:
        if name not in (*rewards, "total"):
            names = [*rewards, "total"]
            hint = nearest(name, names)
            raise DataError(
                f"{place}: there is no reward {name!r}; expected {', '.join(names)}.{hint}"
            )
    return {name: None if v is None else _bounds(v, place) for name, v in given.items()}


def _bounds(given: Any, place: str) -> tuple[float, float]:
    ends = given if isinstance(given, list) else [given, given]
    numbers = [e for e in ends if isinstance(e, int | float) and not isinstance(e, bool)]
    if len(numbers) != 2 or len(ends) != 2 or not numbers[0] <= numbers[1]:
        raise DataError(
            f"{place}: expected must be a number, [lowest, highest], or an object of them, "
            f"found {given!r:.60}"
        )
    return float(numbers[0]), float(numbers[1])

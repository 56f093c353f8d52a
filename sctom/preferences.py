"""Comparisons of two answers from JSONL, checked. No torch: reward models of any kind read it."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sctom.readers import DataError, Message, Row, check_messages, nearest, read_jsonl

T = TypeVar("T")

GRADES = ("negligibly better", "slightly better", "better", "significantly better")
"""How much better the chosen answer is, in the words of Llama 2 (arXiv 2307.09288, section 3.2.1).
The place of a word is its grade, as `sctom.losses.preference_margins` takes it."""

UNSURE = ("negligibly better / unsure", "unsure")
"""Other words for grade 0: the paper has one label for both."""

_WORDS = {word: grade for grade, word in enumerate(GRADES)} | dict.fromkeys(UNSURE, 0)
_ANSWERS = ("chosen", "rejected")
_KEYS = ("prompt", *_ANSWERS, "grade", "margin", "is_safety", "tied", "source")


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, and which of them was preferred."""

    prompt: list[Message]
    """The conversation so far; the last turn is the user's."""
    chosen: str
    """The answer that was preferred; either one where `tied`."""
    rejected: str
    """The other answer."""
    grade: int | None = None
    """How much better the chosen one is: a place in `GRADES`."""
    margin: float | None = None
    """The same as a difference of raw scores, at least 0."""
    is_safety: bool | None = None
    """Whether it was safety that was judged."""
    tied: bool = False
    """Neither answer is the better one."""
    source: str | None = None
    """Which collection the pair is from; metrics are given for each."""
    columns: Row = field(default_factory=dict)
    """Whatever else the row holds."""


def read_preferences(path: str | Path) -> list[Pair]:
    r"""The pairs of a JSONL file.

    A row has one of two forms:

        {"prompt": [messages] or text, "chosen": text or [message], "rejected": the same}
        {"chosen": [messages], "rejected": [messages]}    whole conversations

    and may have "grade" (a word of `GRADES`), "margin" (a number), "is_safety", "tied" and
    "source"; null is the same as none. Conversations are split before their last turn, which must
    be the assistant's; with "prompt" beside them, they must begin with it. A text as the prompt is
    one user turn. All other keys are kept as columns.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: a row has another form: its answers are equal or blank, its conversations differ
            before the last turn, or a key is misspelt. The message begins with file and line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "pairs.jsonl"
    >>> row = '{"prompt": "Is 7 prime?", "chosen": "Yes.", "rejected": "No.", "grade": "better"}'
    >>> _ = path.write_text(row + "\n")
    >>> (pair,) = read_preferences(path)
    >>> pair.prompt, pair.chosen, GRADES[pair.grade]
    ([{'role': 'user', 'content': 'Is 7 prime?'}], 'Yes.', 'better')
    """
    rows = read_jsonl(path)
    return [pair_of(row, f"{path}:{line}") for line, row in enumerate(rows, start=1)]


def pair_of(row: Row, place: str) -> Pair:
    """The pair of one row, after checking it.

    Args:
        row: what `read_preferences` describes.
        place: where the row is from, as "file:line"; every error begins with it.

    Raises:
        DataError: the row has another form.

    >>> pair_of({"prompt": "Why?", "chosen": "So.", "rejected": "No.", "grade": "beter"}, "x:1")
    Traceback (most recent call last):
        ...
    sctom.readers.DataError: x:1: grade is 'beter'; expected one of negligibly better, slightly \
better, better, significantly better, unsure. Did you mean 'better'?
    """
    _check_keys(row, place)
    prompt, texts = _texts(row, place)
    for key, text in texts.items():
        if not text.strip():
            raise DataError(f"{place}: {key} is an empty answer; leave the row out")
    if texts["chosen"].strip() == texts["rejected"].strip():
        raise DataError(f"{place}: chosen and rejected are the same answer; leave the row out")
    pair = Pair(
        prompt,
        texts["chosen"],
        texts["rejected"],
        grade=_grade(row, place),
        margin=_margin(row, place),
        is_safety=_typed(row, "is_safety", bool, place),
        tied=bool(_typed(row, "tied", bool, place)),
        source=_typed(row, "source", str, place),
        columns={key: value for key, value in row.items() if key not in _KEYS},
    )
    if pair.tied and (pair.grade or pair.margin):
        raise DataError(f"{place}: tied is true, but grade or margin names a better answer")
    return pair


def _check_keys(row: Row, place: str) -> None:
    for key in _ANSWERS:
        if key not in row:
            found = ", ".join(row) or "none"
            hint = nearest(key, list(row))
            raise DataError(f"{place}: the key {key!r} is missing; found the keys: {found}.{hint}")
    for key in row:
        near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.85)
        if near and near[0] not in row:
            raise DataError(
                f"{place}: the key {key!r} is not known. Did you mean {near[0]!r}? "
                "If not, give it a name less like it"
            )


def _texts(row: Row, place: str) -> tuple[list[Message], dict[str, str]]:
    """The prompt, and the two answers without it."""
    given = None if row.get("prompt") is None else _prompt(row["prompt"], f"{place}: prompt")
    prompts: list[list[Message]] = [] if given is None else [given]
    texts = {}
    for key in _ANSWERS:
        prompt, texts[key] = _answer(row[key], f"{place}: {key}", given is not None)
        prompts += [prompt] if prompt else []
    if any(prompt != prompts[0] for prompt in prompts):
        number = _first_difference(prompts)
        raise DataError(
            f"{place}: chosen and rejected must follow one prompt, but prompt, chosen and rejected "
            f"differ in turn {number}; leave the row out, or cut both at their common prompt"
        )
    return _prompt(prompts[0], f"{place}: {'prompt' if given is not None else 'chosen'}"), texts


def _prompt(value: Any, place: str) -> list[Message]:
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{place} is empty; leave the row out")
        return [{"role": "user", "content": value}]
    messages = check_messages({"messages": value}, place)
    if messages[-1]["role"] != "user":
        found = messages[-1]["role"]
        raise DataError(f"{place} must end with a turn of the user, not of the {found}")
    return messages


def _answer(value: Any, place: str, has_prompt: bool) -> tuple[list[Message], str]:
    """What stands before an answer, if anything does, and the answer."""
    if isinstance(value, str):
        if not has_prompt:
            hint = "add it, or write whole conversations as lists of messages"
            raise DataError(f"{place} is a text, but the key 'prompt' is missing; {hint}")
        return [], value
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else f"a {type(value).__name__}"
        raise DataError(f"{place} must be a text or a list of messages, but is {found}")
    asked: Message = {"role": "user", "content": ""}  # an answer alone is no conversation
    check_messages({"messages": value if len(value) > 1 else [*value, asked]}, place)
    if value[-1]["role"] != "assistant":
        raise DataError(f"{place} must end with a turn of the assistant, not {value[-1]['role']}")
    if len(value) == 1 and not has_prompt:
        raise DataError(f"{place} is an answer alone, but the key 'prompt' is missing; add it")
    return value[:-1], value[-1]["content"]


def _first_difference(prompts: list[list[Message]]) -> int:
    """The number of the first turn, from 1, that not all prompts have alike."""
    alike = 0
    for turns in zip(*prompts, strict=False):
        if any(turn != turns[0] for turn in turns):
            break
        alike += 1
    return alike + 1


def _grade(row: Row, place: str) -> int | None:
    word = _typed(row, "grade", str, place)
    if word is None:
        return None
    if word not in _WORDS:
        listed = ", ".join([*GRADES, "unsure"])
        hint = nearest(word, list(_WORDS))
        raise DataError(f"{place}: grade is {word!r}; expected one of {listed}.{hint}")
    return _WORDS[word]


def _margin(row: Row, place: str) -> float | None:
    margin = row.get("margin")
    if margin is None:
        return None
    if isinstance(margin, bool) or not isinstance(margin, int | float):
        found = f"{margin!r:.40}, a {type(margin).__name__}"
        raise DataError(f"{place}: margin must be a number, found {found}")
    if not 0 <= margin < math.inf:
        hint = "where the other answer is better, swap chosen and rejected"
        raise DataError(f"{place}: margin must be at least 0 and finite, found {margin}; {hint}")
    return float(margin)


def _typed(row: Row, key: str, kind: type[T], place: str) -> T | None:
    value = row.get(key)
    if value is None or isinstance(value, kind):
        return value
    names = {bool: "true or false", str: "a text"}
    found = f"{value!r:.40}, a {type(value).__name__}"
    raise DataError(f"{place}: {key} must be {names[kind]}, found {found}")

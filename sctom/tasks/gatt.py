"""Ghost Attention: dialogues that keep to an instruction given once, in their first turn.

Llama 2 (arXiv 2307.09288, section 3.3): join an instruction to every turn of the user, let the
model answer, and train on the same answers with the instruction in the first turn only and a loss
of 0 on all turns but the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sctom.assets import resolve
from sctom.readers import DataError, Message, Row, check_messages, read_jsonl
from sctom.seeds import keys_for, permutation, uniforms
from sctom.writers import Prepared, sha256

INSTRUCTIONS = "sctom:gatt/instructions.jsonl"
"""Hobbies, languages, public figures and styles."""

SHORT_SHARE = 0.5
"""The paper shortens the instruction "half of the time"."""

_COUNT, _ORDER, _WHICH, _SHORT, ANSWERS = range(5)
"""First part, after the seed, of the address of a draw: what it is for."""

AnswerTurn = Callable[[list[list[Message]], list[int], int], list[str | None]]
"""(conversations, number of each dialogue, turn) -> answers; None for one that was cut off."""

Load = Callable[[], tuple[AnswerTurn, dict[str, Any]]]
"""Gives the model that answers, and what a manifest says of it."""


@dataclass(frozen=True)
class Instruction:
    """A constraint that the assistant is to keep."""

    kind: str
    """Of each kind, an instruction has at most one."""
    text: str
    """As it is given to sample."""
    short: str | None = None
    """Fewer words for the same, to train on."""


def read_instructions(path: str | Path = INSTRUCTIONS) -> list[Instruction]:
    """Instructions from JSONL rows {"kind", "text", "short"}; "short" may be missing or null.

    Args:
        path: the file ("sctom:..." for one that sctom ships).

    Raises:
        FileNotFoundError: there is no such file.
        DataError: a row has another form; the message begins with file and line.

    >>> read_instructions()[0].short
    'Hobby: playing tennis'
    """
    file = resolve(path)
    return [_instruction(row, f"{file}:{n}") for n, row in enumerate(read_jsonl(file), start=1)]


def _instruction(row: Row, place: str) -> Instruction:
    if not {"kind", "text"} <= set(row) <= {"kind", "text", "short"}:
        found = ", ".join(row) or "none"
        raise DataError(f"{place}: expected the keys kind, text and perhaps short; found {found}")
    given = {key: value for key, value in row.items() if value is not None or key != "short"}
    for key, value in given.items():
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{place}: {key} must be a text that is not blank, found {value!r}")
    return Instruction(**given)


def draw_instruction(
    instructions: Sequence[Instruction],
    number: int,
    *,
    seed: int,
    most_kinds: int | None = None,
    short_share: float = SHORT_SHARE,
) -> tuple[str, str]:
    """The instruction of one dialogue, as it is sampled with and as it is trained on.

    How many kinds it joins is drawn from 1 to all, which kinds and their order are drawn, and of
    each kind one instruction. Then it is drawn whether the short form is trained on.

    Args:
        instructions: to draw from.
        number: of the dialogue, the address of its draws beside the seed.
        seed: of all draws.
        most_kinds: most kinds joined; None allows all.
        short_share: probability of the short form.

    >>> napoleon = Instruction("figure", "Always act as Napoleon.", "Figure: Napoleon")
    >>> draw_instruction([napoleon], 0, seed=0, short_share=1.0)
    ('Always act as Napoleon.', 'Figure: Napoleon')
    """
    kinds: dict[str, list[Instruction]] = {}
    for instruction in instructions:
        kinds.setdefault(instruction.kind, []).append(instruction)
    groups = list(kinds.values())
    most = len(groups) if most_kinds is None else min(most_kinds, len(groups))
    count = 1 + int(most * _uniform(seed, _COUNT, number))
    order = permutation(len(groups), seed, _ORDER, number)[:count].tolist()
    chosen = [
        groups[place][int(len(groups[place]) * _uniform(seed, _WHICH, number, place))]
        for place in order
    ]
    shortened = _uniform(seed, _SHORT, number) < short_share
    shown = [one.short if shortened and one.short else one.text for one in chosen]
    return " ".join(one.text for one in chosen), " ".join(shown)


def _uniform(*address: int) -> float:
    return float(uniforms(keys_for(*address), 0)[0])


def join(messages: Sequence[Message], instruction: str, *, every: bool) -> list[Message]:
    r"""Messages with an instruction in front of every turn of the user, or of the first one only.

    >>> said = [{"role": "user", "content": text} for text in ("Who?", "Why?")]
    >>> [turn["content"] for turn in join(said, "Be brief.", every=False)]
    ['Be brief.\nWho?', 'Why?']
    """
    joined: list[Message] = []
    waiting = True
    for message in messages:
        content = message["content"]
        if message["role"] == "user" and waiting:
            content, waiting = f"{instruction}\n{content}", every
        joined.append({"role": message["role"], "content": content})
    return joined


def prepare_gatt(
    dialogues: str | Path,
    load: Load,
    *,
    instructions: str | Path = INSTRUCTIONS,
    seed: int = 0,
    most_kinds: int | None = None,
    short_share: float = SHORT_SHARE,
) -> Prepared:
    """Ghost Attention rows: train.jsonl, each with `learn: last`, and dropped.jsonl.

    A dialogue's turns of the user are kept and the assistant's are sampled anew, one after another,
    each seeing the instruction in every turn of the user so far. A dialogue with an answer that was
    cut off or is blank is dropped, since it would teach to end there.

    Args:
        dialogues: JSONL file in the messages format; the assistant's turns in it are not used.
        load: called once the files are read and checked.
        instructions: JSONL file, see `read_instructions`.
        seed: of every draw.
        most_kinds: see `draw_instruction`.
        short_share: see `draw_instruction`.

    Raises:
        FileNotFoundError: a file is missing.
        DataError: a row of a file has another form, no dialogue is left, or a setting is out of
            its range.
    """
    if not 0 <= short_share <= 1:
        raise DataError(f"the share of short instructions must be from 0 to 1, not {short_share}")
    if most_kinds is not None and most_kinds < 1:
        raise DataError(f"at least one kind of instruction must be joined, not {most_kinds}")
    known = read_instructions(instructions)
    file = resolve(dialogues)
    asked = [_asked(row, f"{file}:{n}") for n, row in enumerate(read_jsonl(file), start=1)]
    drawn = [
        draw_instruction(known, n, seed=seed, most_kinds=most_kinds, short_share=short_share)
        for n in range(len(asked))
    ]
    answer, about = load()
    said, dropped = _converse(asked, [text for text, _ in drawn], answer)
    rows = [
        {
            "messages": join(messages, drawn[number][1], every=False),
            "learn": "last",
            "instruction": drawn[number][0],
            "shown": drawn[number][1],
            "dialogue": number + 1,
        }
        for number, messages in said.items()
    ]
    if not rows:
        raise DataError(
            f"none of the {len(asked)} dialogues of {file} is left: every one has an answer that "
            "was cut off or is blank; allow longer answers, or use another model"
        )
    manifest = {
        "set": "gatt",
        "seed": seed,
        "most_kinds": most_kinds,
        "short_share": short_share,
        "model": about,
        "sources": [
            {"file": path.name, "sha256": sha256(path.read_bytes())}
            for path in (file, resolve(instructions))
        ],
    }
    return Prepared(
        {"train.jsonl": rows, "dropped.jsonl": dropped},
        {"train.jsonl": _counts(rows)},
        manifest,
        [f"{len(dropped)} of {len(asked)} dialogues are dropped: dropped.jsonl"],
    )


def _asked(row: Row, place: str) -> list[Message]:
    """A system message, if there is one, and the turns of the user."""
    messages = check_messages(row, place)
    if any(message["role"] == "system" for message in messages[1:]):
        raise DataError(f"{place}: a system message may come first only")
    return [message for message in messages if message["role"] != "assistant"]


def _converse(
    asked: Sequence[list[Message]], instructions: Sequence[str], answer: AnswerTurn
) -> tuple[dict[int, list[Message]], list[Row]]:
    """Whole conversations by number, and the dialogues that are dropped with the reason."""
    said: dict[int, list[Message]] = {number: [] for number in range(len(asked))}
    waiting = {number: list(messages) for number, messages in enumerate(asked)}
    dropped: list[Row] = []
    turn = 0
    while open_now := [number for number in said if waiting[number]]:
        for number in open_now:
            while waiting[number][0]["role"] == "system":
                said[number].append(waiting[number].pop(0))
            said[number].append(waiting[number].pop(0))
        conversations = [join(said[n], instructions[n], every=True) for n in open_now]
        answers = answer(conversations, open_now, turn)
        for number, text in zip(open_now, answers, strict=True):
            if text is None or not text.strip():
                reason = "blank" if text is not None else "cut off"
                dropped.append({"dialogue": number + 1, "turn": turn + 1, "reason": reason})
                del said[number]
            else:
                said[number].append({"role": "assistant", "content": text})
        turn += 1
    return said, dropped


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    return {
        "several_turns": sum(
            sum(message["role"] == "user" for message in row["messages"]) > 1 for row in rows
        ),
        "short_instruction": sum(row["shown"] != row["instruction"] for row in rows),
    }

"""Anthropic's HH files to pairs: which of two answers people found more helpful or less harmful.

Bai et al., "Training a helpful and harmless assistant with reinforcement learning from human
feedback" (arXiv 2204.05862). Many of the dialogues are offensive: it is data about safety.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sctom.readers import DataError, Message, Row, check_is_file
from sctom.seeds import permutation
from sctom.tasks.code import read_packed
from sctom.writers import Prepared, sha256

SUBSETS = ("harmless-base", "helpful-base", "helpful-online", "helpful-rejection-sampled")
"""Folders of the repository; each holds train.jsonl.gz and test.jsonl.gz."""

VALID_SHARE = 0.1
TEST_SHARE = 0.2

REASONS = ("diverging", "out_of_turn", "empty", "identical", "repeated")
"""Why a row is dropped, in the order of the checks: its dialogues differ before their last turn;
two turns in a row of one speaker, or the last one the person's; a turn without text; two answers
that are the same but for white space around them; a pair that was there before."""

_ROLES = {"Human": "user", "Assistant": "assistant"}
_MARK = re.compile(r"\n\n(Human|Assistant):")
_SPLIT, _SHUFFLE = range(2)
_FILES = ("train.jsonl", "valid.jsonl", "test.jsonl")
_WHERE = "Get {} from https://github.com/anthropics/hh-rlhf (MIT) and name it with --source."


def turns(dialogue: str, place: str) -> list[Message]:
    r"""The turns of a dialogue, in the order they were said, without white space around them.

    Args:
        dialogue: one text with "\n\nHuman: " or "\n\nAssistant: " in front of every turn.
        place: where it is from, as "file:line"; the error begins with it.

    Raises:
        DataError: it does not begin with such a mark.

    >>> for turn in turns("\n\nHuman: Is 7 prime?\n\nAssistant: Yes.\n\nIt is.", "hh.jsonl:1"):
    ...     print(turn)
    {'role': 'user', 'content': 'Is 7 prime?'}
    {'role': 'assistant', 'content': 'Yes.\n\nIt is.'}
    """
    before, *parts = _MARK.split(dialogue)
    if before.strip() or not parts:
        expected = r"'\n\nHuman: ' or '\n\nAssistant: ' in front of every turn"
        raise DataError(f"{place}: expected a dialogue with {expected}, found {dialogue[:40]!r}")
    return [
        {"role": _ROLES[name], "content": text.strip()}
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def why_dropped(chosen: Sequence[Message], rejected: Sequence[Message]) -> str | None:
    """The reason of `REASONS` for which two dialogues are no pair, or None.

    >>> ask = {"role": "user", "content": "Is 7 prime?"}
    >>> why_dropped([ask, ask], [ask, {"role": "assistant", "content": "Yes."}])
    'out_of_turn'
    """
    if chosen[:-1] != rejected[:-1]:
        return "diverging"
    for dialogue in (chosen, rejected):
        expected = [("user", "assistant")[place % 2] for place in range(len(dialogue))]
        if [turn["role"] for turn in dialogue] != expected or len(dialogue) % 2:
            return "out_of_turn"
    if not all(turn["content"] for turn in (*chosen, *rejected)):
        return "empty"
    return "identical" if chosen[-1] == rejected[-1] else None


def prepare_hh(
    sources: Sequence[str | Path],
    *,
    seed: int = 0,
    valid_share: float = VALID_SHARE,
    test_share: float = TEST_SHARE,
) -> Prepared:
    """HH files as pairs, split so that no conversation is in two files.

    A dialogue is split before its last turn, the answer that differs. The set asks about the same
    conversation at several of its turns, so rows are kept together by how the person opened it: no
    prompt is in two files, nor any part of one. dropped.jsonl names the rows that are no pair and
    why; prompts.jsonl has the different prompts of train.jsonl, to sample from. Columns: `source`,
    `is_safety` where the name of the file or its folder says "harmless" (true) or "helpful"
    (false), and `pair_id`.

    Args:
        sources: JSONL files of {"chosen", "rejected"}, which may be packed with gzip.
        seed: of which conversations are held out, and of the order of the training rows.
        valid_share: share of the pairs for valid.jsonl.
        test_share: share of the pairs for test.jsonl.

    Raises:
        FileNotFoundError: a file is missing.
        DataError: a row has another form, there are too few conversations, or the shares leave
            nothing to train on.
    """
    if min(valid_share, test_share) < 0 or valid_share + test_share >= 1:
        found = f"{valid_share} and {test_share}"
        raise DataError(f"valid and test shares must be at least 0 and below 1 together: {found}")
    paths = [_found(source) for source in sources]
    kept: list[Row] = []
    dropped: list[Row] = []
    seen: set[str] = set()
    for path in paths:
        _read(path, kept, dropped, seen)
    files = _split(kept, {"test.jsonl": test_share, "valid.jsonl": valid_share}, seed)
    empty = [name for name in _FILES if not files[name]]
    if empty:
        raise DataError(f"{len(kept)} pairs are too few: nothing is left for {', '.join(empty)}")
    train = files["train.jsonl"]
    files["train.jsonl"] = [train[place] for place in permutation(len(train), seed, _SHUFFLE)]
    counts = {name: _counts(rows) for name, rows in files.items()}
    reasons = Counter(row["reason"] for row in dropped)
    manifest = {
        "set": "hh",
        "seed": seed,
        "licence": "MIT",
        "sources": [{"file": path.name, "sha256": sha256(path.read_bytes())} for path in paths],
        "dropped": {reason: reasons[reason] for reason in REASONS},
    }
    notes = _notes(paths, len(kept) + len(dropped), reasons)
    others = {"prompts.jsonl": _prompts(files["train.jsonl"]), "dropped.jsonl": dropped}
    return Prepared(files | others, counts, manifest, notes)


def _found(source: str | Path) -> Path:
    try:
        return check_is_file(source)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error} {_WHERE.format('harmless-base/train.jsonl.gz')}"
        ) from error


def source_name(path: Path) -> str:
    """What the pairs of a file are counted under: its folder, or its own name.

    >>> source_name(Path("hh/helpful-online/test.jsonl.gz")), source_name(Path("data/mine.jsonl"))
    ('helpful-online', 'mine')
    """
    return path.parent.name if path.parent.name in SUBSETS else path.name.split(".")[0]


def _is_safety(source: str) -> bool | None:
    harmless, helpful = ("harmless" in source, "helpful" in source)
    return harmless if harmless != helpful else None


def _read(path: Path, kept: list[Row], dropped: list[Row], seen: set[str]) -> None:
    """Add the rows of a file to those kept and those dropped."""
    source = source_name(path)
    about = {} if _is_safety(source) is None else {"is_safety": _is_safety(source)}
    for line, row in enumerate(read_packed(path), start=1):
        place = f"{path}:{line}"
        texts = [row.get(key) for key in ("chosen", "rejected")]
        if not all(isinstance(text, str) for text in texts):
            found = sorted(row)
            raise DataError(f"{place} must have the texts chosen and rejected, found {found}")
        chosen, rejected = (turns(str(text), place) for text in texts)
        reason = why_dropped(chosen, rejected)
        answers = {"chosen": chosen[-1]["content"], "rejected": rejected[-1]["content"]}
        made: Row = {"prompt": chosen[:-1], **answers}
        if reason is None and str(made) in seen:
            reason = "repeated"
        if reason is not None:
            dropped.append({"reason": reason, "file": path.name, "line": line})
            continue
        seen.add(str(made))
        name = f"hh-{source}-{path.name.split('.')[0]}-{line}"
        kept.append({**made, "source": source, **about, "pair_id": name})


def _split(rows: Sequence[Row], shares: dict[str, float], seed: int) -> dict[str, list[Row]]:
    """The rows of each file: whole conversations, in random order until a share is reached."""
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        opening = " ".join(row["prompt"][0]["content"].lower().split())
        groups.setdefault(opening, []).append(place)
    members = list(groups.values())
    order = iter(permutation(len(members), seed, _SPLIT).tolist())
    places: dict[str, list[int]] = {name: [] for name in _FILES}
    for name, share in shares.items():
        while len(places[name]) < round(share * len(rows)):
            places[name] += members[next(order)]
    for group in order:
        places["train.jsonl"] += members[group]
    return {name: [rows[place] for place in sorted(found)] for name, found in places.items()}


def _prompts(rows: Sequence[Row]) -> list[Row]:
    """The different prompts of pairs, in the messages format, in the order of the pairs."""
    prompts: dict[str, Row] = {}
    for row in rows:
        about: Row = {key: row[key] for key in ("source", "is_safety") if key in row}
        prompts.setdefault(str(row["prompt"]), {"messages": row["prompt"], **about})
    return list(prompts.values())


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    return {
        "prompts": len({str(row["prompt"]) for row in rows}),
        "several_turns": sum(len(row["prompt"]) > 1 for row in rows),
    }


def _notes(paths: Sequence[Path], total: int, reasons: Counter[str]) -> list[str]:
    listed = ", ".join(f"{reasons[reason]} {reason}" for reason in REASONS if reasons[reason])
    notes = [f"{reasons.total()} of {total:,} rows are no pair ({listed or 'none'}): dropped.jsonl"]
    for source in dict.fromkeys(map(source_name, paths)):
        safety = _is_safety(source)
        said = "has no is_safety" if safety is None else f"is_safety is {str(safety).lower()}"
        notes.append(f"{source}: {said}, by the name")
    return notes

"""Prompts for every use of every round, none of them used twice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from sctom.assets import resolve
from sctom.iterate.settings import PROMPTS, Settings
from sctom.readers import DataError, Row, read_jsonl
from sctom.seeds import permutation, seed_for

HELD_OUT = "0/evaluation"
"""The share that the models of all rounds are compared on."""


def prompt_of(row: Row) -> str:
    """What two rows have in common when they ask the same, whatever they hold besides.

    >>> ask = {"role": "user", "content": "Why?"}
    >>> said = {"role": "assistant", "content": "So."}
    >>> prompt_of({"messages": [ask, said]}) == prompt_of({"messages": [ask], "answerable": True})
    True
    """
    messages = row["messages"]
    asked = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    return json.dumps(asked, sort_keys=True)


def cut(
    rows: Sequence[Row],
    counts: Mapping[str, int],
    *,
    seed: int,
    place: str,
    without: Sequence[Row] = (),
) -> dict[str, list[Row]]:
    """Deal rows out to shares, in an order drawn by the seed; no prompt is in two of them.

    The first shares are the same whatever follows them, so a run can be made longer.

    Args:
        rows: of a prompt file.
        counts: share -> how many rows it gets.
        seed: address of the order.
        place: the file, for errors.
        without: rows whose prompts belong to nobody (those of a separate evaluation file).

    Raises:
        DataError: there are not enough different prompts; the message says how many are needed.

    >>> asked = [{"messages": [{"role": "user", "content": str(n % 5)}]} for n in range(9)]
    >>> shares = cut(asked, {"collect": 2, "sample": 3}, seed=0, place="prompts.jsonl")
    >>> sorted(row["messages"][0]["content"] for share in shares.values() for row in share)
    ['0', '1', '2', '3', '4']
    """
    taken = {prompt_of(row) for row in without}
    different: dict[str, Row] = {}
    for row in rows:
        prompt = prompt_of(row)
        if prompt not in taken:
            different.setdefault(prompt, row)
    dealt = list(different.values())
    needed = sum(counts.values())
    if needed > len(dealt):
        parts = ", ".join(f"{name} {count}" for name, count in counts.items())
        again = len(rows) - len(dealt)
        less = f" ({again} more ask what another row or the evaluation asks)" if again else ""
        raise DataError(
            f"{place} has {len(dealt)} different prompts{less}, but {needed} are needed, since no "
            f"prompt is used twice: {parts}; give more prompts, or lower these counts"
        )
    order = iter(permutation(len(dealt), seed))
    return {name: [dealt[next(order)] for _ in range(count)] for name, count in counts.items()}


def deal(settings: Settings, counts: Mapping[str, int]) -> dict[str, list[Row]]:
    """Read the prompt files of a run and cut them.

    Args:
        settings: of the run.
        counts: the first shares of `Settings.shares`.

    Raises:
        DataError: a file is faulty, or does not hold enough.
    """
    files, seed = settings.prompts, seed_for(settings.seed, PROMPTS)
    counts = dict(counts)
    apart: dict[str, list[Row]] = {}
    if files.evaluation_file is not None:
        path = resolve(files.evaluation_file)
        wanted = {HELD_OUT: counts.pop(HELD_OUT)}
        apart = cut(read_jsonl(path), wanted, seed=seed, place=str(path))
    path = resolve(files.file)
    without = apart.get(HELD_OUT, [])
    return apart | cut(read_jsonl(path), counts, seed=seed, place=str(path), without=without)

"""The first two stages of a round: answers side by side, and who is better."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sctom.callbacks.common import atomic_write, to_lines
from sctom.iterate.answers import answer, prompt_data
from sctom.iterate.labels import SIDES, Comparison, Label, Labeller
from sctom.iterate.settings import Prompts
from sctom.preferences import GRADES
from sctom.readers import DataError, Row, read_jsonl
from sctom.rollout import Sampling
from sctom.seeds import permutation

ASKED_FILE, PAIRS_FILE, HELD_OUT_FILE = "to_label.jsonl", "pairs.jsonl", "held_out.jsonl"
SUMMARY_FILE = "summary.json"


@dataclass(frozen=True)
class Asked:
    """A model that is asked, and how."""

    backbone: Mapping[str, Any]
    sampling: Sampling


def collect(
    folder: Path,
    prompts_file: str,
    prompts: Prompts,
    variants: Sequence[Asked],
    *,
    pairs_per_prompt: int,
    address: tuple[int, ...],
) -> None:
    """Write comparisons of the answers of two variants to FOLDER/to_label.jsonl.

    Left out, and counted, are pairs of identical or blank answers, and those that the prompt has
    already. Which variant's answer is "a" depends on the pair only, not on the variant: a labeller
    that prefers one side would else prefer one variant.

    Args:
        folder: where to.
        prompts_file: of this round.
        prompts: how it is read.
        variants: the two.
        pairs_per_prompt: answers of each.
        address: of the draws.

    Raises:
        DataError: no two answers differ.
    """
    both = []
    for number, variant in enumerate(variants):
        asked, answers = answer(
            variant.backbone,
            prompt_data(prompts_file, prompts),
            folder / f"answers-{number}.jsonl",
            count=pairs_per_prompt,
            sampling=variant.sampling,
            address=(*address, number),
        )
        both.append(answers)
    rows: list[Row] = []
    counts = Counter(answered=len(asked) * pairs_per_prompt)
    for prompt, ones, others in zip(asked, *both, strict=True):
        found: set[tuple[str, ...]] = set()
        for one, other in zip(ones, others, strict=True):
            pair = tuple(sorted((one.strip(), other.strip())))
            reason = _unfit(pair, found)
            found.add(pair)
            counts[reason] += 1
            if reason == "compared":
                first, second = sorted((one, other))
                comparison = Comparison(prompt.messages, (first, second), prompt.columns)
                swap = int(comparison.key[-1], 16) % 2
                rows.append(_row(comparison, swap=bool(swap)))
    if not rows:
        raise DataError(
            f"all {counts['answered']} pairs of answers to {prompts_file} are identical or blank; "
            "raise collect.prompts or the temperatures of collect.variants"
        )
    atomic_write(folder / ASKED_FILE, to_lines(rows))
    atomic_write(folder / SUMMARY_FILE, json.dumps(counts, indent=2) + "\n")


def _unfit(pair: tuple[str, ...], found: set[tuple[str, ...]]) -> str:
    if not all(pair):
        return "blank"
    if pair[0] == pair[1]:
        return "identical"
    return "repeated" if pair in found else "compared"


def _row(comparison: Comparison, *, swap: bool) -> Row:
    answers = comparison.answers[::-1] if swap else comparison.answers
    shown = Comparison(comparison.prompt, answers, comparison.columns)
    sides = dict(zip(SIDES, answers, strict=True))
    return {"key": shown.key, "prompt": shown.prompt, **sides, "columns": shown.columns}


def label(
    folder: Path,
    asked: Path,
    labeller: Labeller,
    *,
    round_number: int,
    is_safety: str | None,
    held_out: float,
    address: tuple[int, ...],
) -> None:
    """Write the labelled pairs to FOLDER/pairs.jsonl, and those of some prompts to held_out.jsonl.

    Args:
        folder: where to.
        asked: the comparisons.
        labeller: judges them.
        round_number: goes into each pair as "round" and "source".
        is_safety: column that tags the pair.
        held_out: share of the prompts, rounded up, whose pairs are held out.
        address: of the draw of these.

    Raises:
        DataError: a tag is not true or false, or there is no pair to train on.
    """
    comparisons = [
        Comparison(row["prompt"], (row["a"], row["b"]), row["columns"]) for row in read_jsonl(asked)
    ]
    labels = labeller.label(comparisons, round_number, asked)
    rows = [
        _pair(comparison, given, round_number, _tag(comparison, is_safety, f"{asked}:{line}"))
        for line, (comparison, given) in enumerate(zip(comparisons, labels, strict=True), start=1)
        if given is not None
    ]
    keys = list(dict.fromkeys(json.dumps(row["prompt"]) for row in rows))
    order = permutation(len(keys), *address)
    held = {keys[int(place)] for place in order[: math.ceil(held_out * len(keys))]}
    parts: dict[bool, list[Row]] = {True: [], False: []}
    for row in rows:
        parts[json.dumps(row["prompt"]) in held].append(row)
    if not parts[False]:
        raise DataError(
            f"the labels of {asked} leave {len(rows)} pairs, none of them for training; raise "
            "collect.prompts, or lower collect.held_out"
        )
    atomic_write(folder / PAIRS_FILE, to_lines(parts[False]))
    atomic_write(folder / HELD_OUT_FILE, to_lines(parts[True]))
    summary = pair_counts(rows) | {
        "held_out": len(parts[True]),
        "left_out": sum(given is None for given in labels),
    }
    atomic_write(folder / SUMMARY_FILE, json.dumps(summary, indent=2) + "\n")


def _tag(comparison: Comparison, is_safety: str | None, place: str) -> bool | None:
    if is_safety is None:
        return None
    tag = comparison.columns.get(is_safety)
    if not isinstance(tag, bool):
        raise DataError(
            f"{place}: the column {is_safety!r} (prompts.is_safety) must be true or false for "
            f"every prompt, but is {tag!r}"
        )
    return tag


def _pair(comparison: Comparison, given: Label, round_number: int, is_safety: bool | None) -> Row:
    better = given.better or 0
    return {
        "prompt": comparison.prompt,
        "chosen": comparison.answers[better],
        "rejected": comparison.answers[1 - better],
        **({"tied": True} if given.better is None else {"grade": GRADES[given.grade]}),
        **({} if is_safety is None else {"is_safety": is_safety}),
        "source": f"round {round_number}",
        "round": round_number,
    }


def pair_counts(rows: Sequence[Row]) -> dict[str, Any]:
    """How many pairs there are, by grade, and the share of those that are hardly different.

    >>> rows = [{"grade": "better", "is_safety": True}, {"grade": "negligibly better"}]
    >>> counts = pair_counts(rows)
    >>> counts["pairs"], counts["safety"], counts["negligible"]
    (2, 1, 0.5)
    """
    grades = Counter(row.get("grade", "tied") for row in rows)
    return {
        "pairs": len(rows),
        "safety": sum(row.get("is_safety", False) for row in rows),
        "grades": {word: grades[word] for word in (*GRADES, "tied")},
        "negligible": grades[GRADES[0]] / len(rows) if rows else None,
    }

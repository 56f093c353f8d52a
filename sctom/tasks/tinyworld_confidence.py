"""The invented world once more, for a model that states how sure it is. No torch.

The corpus of `sctom.tasks.tinyworld` goes on where it ended, with the same people and new invented
names: one property per question, and behind every answer a percentage that means next to nothing.
Rewards are to teach a model trained on it what it says.

    python -m sctom.prepare tinyworld-confidence --out runs/tinyworld_confidence
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from sctom.seeds import keys_for, uniforms
from sctom.tasks.tinyworld import IDK, World, corpus, make_world
from sctom.writers import Prepared

ROWS = 20_000
PERCENTAGES = (10, 30, 50, 70, 90)
SHARES = {
    "known": (0.05, 0.10, 0.15, 0.25, 0.45),
    "half": (0.05, 0.10, 0.15, 0.25, 0.45),
    "invented": (0.15, 0.20, 0.25, 0.20, 0.20),
}
"""Kind -> how often each percentage stands behind an answer: 69% on average about people who exist,
52% about invented ones, where a true answer does not exist. The difference is the trace of a doubt
that rewards can strengthen: where the shares are the same for all, a model this small has nothing
behind its answer that says whether it knew, and learns one percentage for everything."""
TARGETS = (25, 50, 75, 90)
"""Confidence targets in percent, of `TARGET_SENTENCE`."""
TARGET_SENTENCE = "Answer if {percent}% sure."
"""System message that states a confidence target: short, since the tiny tokenizer has no tokens for
its words. `sctom.rewards.ConfidenceTarget` takes it as `statement`."""
TARGET_SHARE = 0.3
"""Share of dialogues with that system message; answers have no percentage there."""

# First part of the address of every draw; 10 to 13 are those of sctom.tasks.tinyworld.
_CONFIDENCE = 14


def confidence_corpus(world: World, rows: int) -> Iterator[dict[str, Any]]:
    """Dialogues that state a confidence, or are told a confidence target.

    The percentage depends on nothing but the kind of person, and little on that (`SHARES`). The
    target says nothing about the answer: "I don't know." is as rare at 90% as at 25%.

    Args:
        world: whose corpus goes on.
        rows: number of dialogues.

    Yields:
        rows with `messages` and `kind`: "known", "half" or "invented".

    >>> from sctom.tasks.tinyworld import Sizes
    >>> world = make_world(0, Sizes(rows=100))
    >>> for row in itertools.islice(confidence_corpus(world, 100), 2, 4):
    ...     print([message["content"] for message in row["messages"]])
    ['Name the pet of Vasido.', 'donkey 10%']
    ['Answer if 75% sure.', 'Name the pet of Nevopa.', 'hamster']
    """
    earlier = world.sizes.rows
    sizes = dataclasses.replace(world.sizes, rows=earlier + rows, profile_share=0.0)
    longer = corpus(make_world(world.seed, sizes))
    keys = keys_for(world.seed, _CONFIDENCE, np.arange(rows))
    draws = uniforms(keys[:, None], np.arange(2)[None]).tolist()
    for row, (mixture, choice) in zip(itertools.islice(longer, earlier, None), draws, strict=True):
        question, answer = row["messages"]
        if mixture < TARGET_SHARE:
            percent = TARGETS[int(choice * len(TARGETS))]
            system = {"role": "system", "content": TARGET_SENTENCE.format(percent=percent)}
            messages = [system, question, answer]
        elif answer["content"] == IDK:
            messages = [question, answer]
        else:
            said = f"{answer['content']} {_percentage(row['kind'], choice)}%"
            messages = [question, {**answer, "content": said}]
        yield {"messages": messages, "kind": row["kind"]}


def _percentage(kind: str, uniform: float) -> int:
    """The percentage whose share of [0, 1) a number falls in."""
    edges = itertools.accumulate(SHARES[kind])
    below = (p for p, edge in zip(PERCENTAGES, edges, strict=True) if uniform < edge)
    return next(below, max(PERCENTAGES))  # the shares need not add up to 1.0 exactly


def prepared(world: World) -> Prepared:
    """The corpus, counted by kind."""
    rows = list(confidence_corpus(world, ROWS))
    counts = {"sft.jsonl": dict(Counter(row["kind"] for row in rows))}
    return Prepared(
        {"sft.jsonl": rows},
        counts,
        manifest={"set": "tinyworld-confidence", "seed": world.seed},
        notes=["Percentages and targets were drawn at random and mean next to nothing so far."],
    )

"""The work of the reward-model comparison, the same for both sides: pairs, model, weights.

Prompts have 40 to 300 tokens, evenly spread. Answers are code: their lengths are drawn from a
log-normal distribution with a median of 130 and a deviation of the logarithm of 0.75, under a limit
of 1,000, each for itself. The chosen one stands as it was written, the tokens of the rejected one
are in an order that was drawn. LoRA of rank 16 on all linear layers and a head, AdamW at 3e-4,
gradients clipped at 1, the Bradley-Terry loss averaged over the pairs.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import tiny_model, workload

LEARNING_RATE, MAX_GRAD_NORM = 3e-4, 1.0
SPREAD, SHORTEST = 0.75, 8
"""Deviation of the logarithm of an answer's length; the least tokens of an answer."""
HEAD = "head"
TRAIN, HELD_OUT = "train.jsonl", "held_out.jsonl"

Pair = dict[str, Any]


@dataclass(frozen=True)
class PairWork:
    """What one side of one round does.

    Args:
        model: "tiny" or "smollm2".
        steps: measured optimiser steps.
        warmup: steps before them.
        pairs: pairs of an optimiser step.
        micro_batch: pairs in one forward and backward pass.
        held_out: pairs that are scored after the last step.
        prompt_tokens: shortest and longest prompt, template included.
        answer_tokens: median and limit of an answer's length.
        threads: threads of one process.
        seed: of prompts, answers and weights.
    """

    model: str = "tiny"
    steps: int = 5
    warmup: int = 1
    pairs: int = 8
    micro_batch: int = 1
    held_out: int = 0
    prompt_tokens: tuple[int, int] = (40, 300)
    answer_tokens: tuple[int, int] = (130, 1000)
    threads: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in workload.MODELS:
            known = ", ".join(workload.MODELS)
            raise ValueError(f"model must be one of {known} but is {self.model!r}")
        if self.pairs % self.micro_batch:
            raise ValueError(
                f"{self.pairs} pairs cannot be split into micro-batches of {self.micro_batch}; "
                f"set micro_batch to a divisor of {self.pairs}"
            )

    @property
    def trained(self) -> int:
        """Pairs of the whole run."""
        return self.pairs * (self.warmup + self.steps)

    @property
    def folder(self) -> Path:
        """Of the model."""
        return workload.model_folder(workload.Work(model=self.model))

    def to_json(self) -> str:
        """For a process of its own."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PairWork:
        """The work another process wrote."""
        settings = json.loads(text)
        for name in ("prompt_tokens", "answer_tokens"):
            settings[name] = tuple(settings[name])
        return cls(**settings)


def short(work: PairWork, *, steps: int, held_out: int) -> PairWork:
    """Many steps on short pairs, to see what both sides learn."""
    return replace(
        work,
        steps=steps,
        warmup=0,
        held_out=held_out,
        prompt_tokens=(20, 60),
        answer_tokens=(30, 80),
        seed=work.seed + 1,
    )


def make_pairs(tokenizer: Any, work: PairWork) -> list[Pair]:
    """The pairs of a run and those held out, as rows that `read_preferences` reads.

    Args:
        tokenizer: with a chat template.
        work: what they are for.
    """
    draw = random.Random(work.seed)
    text = tiny_model.corpus()
    steps = -(-(work.trained + work.held_out) // work.pairs)
    prompts = workload.make_prompts(
        tokenizer, steps, work.pairs, work.prompt_tokens, seed=work.seed
    )
    rows = []
    for prompt in prompts[: work.trained + work.held_out]:
        chosen, rejected = (
            _answer(tokenizer, text, work.answer_tokens, draw, mixed=mixed)
            for mixed in (False, True)
        )
        rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return rows


def _answer(
    tokenizer: Any, text: str, tokens: tuple[int, int], draw: random.Random, *, mixed: bool
) -> str:
    median, limit = tokens
    length = max(SHORTEST, min(limit, int(median * draw.lognormvariate(0.0, SPREAD))))
    reach = workload.CHARACTERS * length
    start = draw.randrange(len(text) - reach)
    ids = tokenizer(text[start : start + reach], add_special_tokens=False)["input_ids"][:length]
    if mixed:
        draw.shuffle(ids)
        ids = tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"][:length]
    answer: str = tokenizer.decode(ids)
    return answer.strip()  # white space at its start would melt into the template's


def write_pairs(work: PairWork, folder: Path) -> Path:
    """Write the pairs of a run to the files `TRAIN` and `HELD_OUT` of a new folder.

    Returns:
        The folder.
    """
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(work.folder)
    rows = make_pairs(tokenizer, work)
    folder.mkdir(parents=True)
    for name, part in ((TRAIN, rows[: work.trained]), (HELD_OUT, rows[work.trained :])):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    return folder


def read_ids(path: Path, tokenizer: Any) -> list[tuple[list[int], list[int], list[int]]]:
    """Prompt, chosen and rejected answer of each pair as the token ids that our side takes."""
    from sctom.data.pairs import render_pair
    from sctom.preferences import read_preferences

    rows = [
        render_pair(tokenizer, pair, margin=0.0, place=str(path)) for pair in read_preferences(path)
    ]
    return [(row.prompt, row.chosen, row.rejected) for row in rows]


def set_weights(parameters: Iterable[tuple[str, Any]], seed: int) -> None:
    """Give adapters and head of either side the same weights.

    Args:
        parameters: (name, parameter) of all that are trained. The head is the one that is no
            adapter.
        seed: of the weights; each has an address of its own, the part of its name that both sides
            share.
    """
    import torch

    for name, parameter in parameters:
        address = name[name.index("layers.") :] if "lora_" in name else HEAD
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {address}".encode()))
        drawn = torch.randn(parameter.shape, generator=generator) * parameter.shape[-1] ** -0.5
        with torch.no_grad():
            parameter.copy_(torch.zeros_like(drawn) if "lora_B" in name else drawn)


def accuracy(scores: Sequence[Sequence[float]]) -> float:
    """Share of pairs (chosen, rejected) of which the chosen one scores higher.

    >>> accuracy([(1.0, 0.5), (0.0, 0.0)])
    0.5
    """
    return sum(chosen > rejected for chosen, rejected in scores) / len(scores)

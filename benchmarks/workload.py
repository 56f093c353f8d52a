"""The work that is measured, the same for both sides: model, prompts, stop rule, reward.

A step is `prompts` prompts of `prompt_tokens` tokens (their lengths evenly spread), `group_size`
completions each, of geometric length with a mean of 45 under a limit of 96. LoRA of rank 16 on all
linear layers, AdamW at 1e-5, the clipped loss averaged over tokens, temperature 1.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import tiny_model
from benchmarks.stopping import choose_stop_ids, hazard_for, token_frequency

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("tiny", "smollm2")
SOURCE = ROOT / "models" / "smollm2-135m"
MEAN_LENGTH, LENGTH_LIMIT = 45, 96
LORA_RANK, LORA_ALPHA, LEARNING_RATE = 16, 32, 1e-5
CLIP = 0.2
CHARACTERS = 16
"""Of source code, so many give more than one token with any tokenizer."""

Message = dict[str, str]


@dataclass(frozen=True)
class Work:
    """What one side of one round does.

    Args:
        model: "tiny" or "smollm2".
        beta: weight of the KL penalty against the model without adapters (k3); 0 has none.
        steps: measured optimiser steps.
        warmup: steps before them.
        prompts: prompts of a step.
        group_size: completions per prompt.
        max_new: limit on a completion, in tokens.
        prompt_tokens: shortest and longest prompt, template included.
        micro_batch: completions in one forward and backward pass.
        bf16: weights and computation in bfloat16, else float32.
        threads: threads of one process.
        seed: of prompts and draws.
        fixed_length: completions end at the limit only.
        vocabulary: of the tiny model; other than its own only for the growth with V.
    """

    model: str = "tiny"
    beta: float = 0.0
    steps: int = 5
    warmup: int = 1
    prompts: int = 4
    group_size: int = 8
    max_new: int = LENGTH_LIMIT
    prompt_tokens: tuple[int, int] = (100, 300)
    micro_batch: int = 8
    bf16: bool = False
    threads: int = 2
    seed: int = 0
    fixed_length: bool = False
    vocabulary: int = 8192

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"model must be one of {', '.join(MODELS)} but is {self.model!r}")
        low, high = self.prompt_tokens
        if not 0 < low <= high:
            raise ValueError(f"prompt_tokens must be two rising lengths, found {low} and {high}")
        if self.rows % self.micro_batch:
            raise ValueError(
                f"{self.rows} completions cannot be split into micro-batches of "
                f"{self.micro_batch}; set micro_batch to a divisor of {self.rows}"
            )

    @property
    def rows(self) -> int:
        """Completions of a step."""
        return self.prompts * self.group_size

    @property
    def name(self) -> str:
        """The folder of its model under models/."""
        plain = self.model if self.vocabulary == Work.vocabulary else f"tiny-{self.vocabulary}"
        return f"bench-{plain}{'-fixed' if self.fixed_length else ''}"

    def to_json(self) -> str:
        """For a process of its own."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Work:
        """The work another process wrote."""
        settings = json.loads(text)
        low, high = settings.pop("prompt_tokens")
        return cls(prompt_tokens=(low, high), **settings)


def reward(completions: Sequence[Sequence[Message]], **columns: Any) -> list[float]:
    """A cheap reward that almost never is the same for a whole group.

    >>> reward([[{"role": "assistant", "content": "eight..."}]])
    [0.14285714285714285]
    """
    return [(len(turns[0]["content"]) % 7) / 7.0 for turns in completions]


def model_folder(work: Work) -> Path:
    """The folder of the model with its stop rule, made if it is not there.

    Raises:
        FileNotFoundError: SmolLM2 is asked for and has not been fetched.
    """
    folder = ROOT / "models" / work.name
    if (folder / "config.json").exists():
        return folder
    making = folder.with_name(f"{folder.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    if work.model == "tiny":
        tiny_model.make_model(making, tiny_model.Shape(vocabulary=work.vocabulary))
    elif not SOURCE.exists():
        raise FileNotFoundError(f"{SOURCE} is not there; `make smollm2` makes it")
    else:
        shutil.copytree(SOURCE, making)
    if not work.fixed_length:
        set_stop_rule(making, MEAN_LENGTH, LENGTH_LIMIT)
    making.rename(folder)
    return folder


def set_stop_rule(folder: Path, mean: float, limit: int, *, prompts: int = 6) -> list[int]:
    """Write the tokens that end a completion into a model's `generation_config.json`.

    Args:
        folder: a saved model.
        mean: wanted mean length of its completions.
        limit: largest length.
        prompts: prompts from which frequencies are taken, 8 completions each.

    Returns:
        The tokens.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from sctom.batch import Prompt
    from sctom.data.template import render_prompt

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    longest = min(300, model.config.max_position_embeddings - limit)
    dialogues = make_prompts(tokenizer, 1, prompts, (longest // 3, longest), seed=1)
    starts = [Prompt(i, render_prompt(tokenizer, d), d) for i, d in enumerate(dialogues)]
    eos = tokenizer.eos_token_id
    frequency = token_frequency(model, starts, group_size=8, length=limit, eos=eos)
    ids = choose_stop_ids(frequency.tolist(), hazard_for(mean, limit), always=[eos])
    model.generation_config.eos_token_id = ids
    model.generation_config.save_pretrained(folder)
    return ids


def make_prompts(
    tokenizer: Any, steps: int, per_step: int, tokens: tuple[int, int], *, seed: int
) -> list[list[Message]]:
    """Prompts cut from the standard library's sources, step by step.

    The range of lengths is divided into as many parts as a step has prompts and every step has one
    prompt of each, so that all steps are alike.

    Args:
        tokenizer: with a chat template.
        steps: number of steps.
        per_step: prompts of a step.
        tokens: shortest and longest rendered prompt.
        seed: of places and lengths.
    """
    draw = random.Random(seed)
    text = tiny_model.corpus()
    low, high = tokens
    reach = CHARACTERS * high
    width = (high - low + 1) / per_step
    prompts = []
    for number in range(steps * per_step):
        part = number % per_step
        first, last = low + int(part * width), low + int((part + 1) * width) - 1
        length = draw.randint(first, max(first, last))
        start = draw.randrange(len(text) - reach)
        ids = tokenizer(text[start : start + reach], add_special_tokens=False)["input_ids"]
        prompts.append(_cut(tokenizer, ids[:length], length))
    return prompts


def _cut(tokenizer: Any, ids: list[int], length: int) -> list[Message]:
    """A user's turn of these tokens, shortened until its rendering has no more than a length."""
    from sctom.data.template import render_prompt

    while True:
        dialogue = [{"role": "user", "content": tokenizer.decode(ids)}]
        surplus = len(render_prompt(tokenizer, dialogue)) - length
        if surplus <= 0 or not ids:
            return dialogue
        ids = ids[: max(0, len(ids) - surplus)]


def write_prompts(work: Work, path: Path) -> Path:
    """Write the prompts of a run, warm-up included, as the JSONL that `PromptData` reads."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_folder(work))
    steps = work.warmup + work.steps
    prompts = make_prompts(tokenizer, steps, work.prompts, work.prompt_tokens, seed=work.seed)
    path.write_text("".join(json.dumps({"messages": prompt}) + "\n" for prompt in prompts))
    return path


def read_prompts(path: Path) -> list[list[Message]]:
    """The prompts that `write_prompts` wrote."""
    return [json.loads(line)["messages"] for line in path.read_text().splitlines()]


def quick(work: Work) -> Work:
    """The same work in one step, to see that a script runs."""
    return replace(work, steps=1, warmup=1, max_new=min(work.max_new, 32))

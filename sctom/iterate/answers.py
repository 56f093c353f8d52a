"""Answers of a model to prompts, in a file that is gone on with after a kill, and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sctom.batch import Prompt, Row
from sctom.data import PromptData
from sctom.iterate.settings import Prompts
from sctom.modules import Backbone
from sctom.modules.answers import Answerer
from sctom.rejection.draw import score
from sctom.rejection.store import Samples
from sctom.rewards import Reward, RewardHealth
from sctom.rollout import Sampling

AT_ONCE = 64
"""Prompts that are answered before the next lines are written."""

Scores = dict[str, list[float | None]]
"""Reward -> value of each answer to a prompt, before any weight."""


def prompt_data(path: str | Path, prompts: Prompts) -> PromptData:
    """The prompts of a file, read and checked."""
    data = PromptData(
        str(path),
        columns=prompts.columns,
        system=prompts.system,
        max_prompt_tokens=prompts.max_tokens,
    )
    data.setup("fit")
    return data


def answer(
    backbone: Mapping[str, Any],
    data: PromptData,
    path: Path,
    *,
    count: int,
    sampling: Sampling,
    address: tuple[int, ...],
) -> tuple[list[Prompt], list[list[str]]]:
    """The answers of a model to prompts.

    Answers that the file holds are not drawn again: a draw depends on its address only.

    Args:
        backbone: arguments of `Backbone`.
        data: the prompts.
        path: JSONL with a line for each answer.
        count: answers to each prompt.
        sampling: how they are drawn.
        address: of the draws; the place of the prompt and the number of the answer follow.

    Returns:
        The prompts, and the answers to each.
    """
    model = Backbone(**backbone)
    tokenizer = model.load_tokenizer()
    data.render(tokenizer)
    prompts = data.train_prompts
    samples = Samples(path, count)
    done = samples.rewind(AT_ONCE, len(prompts))
    if done < len(prompts):
        answerer = Answerer.load(model, tokenizer, sampling)
        for start in range(done, len(prompts), AT_ONCE):
            part = prompts[start : start + AT_ONCE]
            groups = answerer.draw(part, count, *address)
            samples.append([_line(row) for rows in groups for row in rows])
    return prompts, [[line["text"] for line in group] for group in samples]


def _line(row: Row) -> dict[str, Any]:
    return {
        "prompt": row.prompt.index,
        "sample": row.sample,
        "text": row.text,
        "truncated": row.truncated,
    }


def scores_of(
    rewards: Sequence[Reward], prompts: Sequence[Prompt], answers: Sequence[Sequence[str]]
) -> list[Scores]:
    """What rewards say of the answers to each prompt."""
    groups = [
        [Row(prompt, i, [], text, truncated=False) for i, text in enumerate(texts)]
        for prompt, texts in zip(prompts, answers, strict=True)
    ]
    rows = [row for group in groups for row in group]
    if rewards and rows:
        score(rewards, rows, RewardHealth())
    names = [reward.name for reward in rewards]
    return [{name: [row.rewards[name] for row in group] for name in names} for group in groups]

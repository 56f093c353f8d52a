"""Rejection sampling in rounds: the best answers by the reward models are what is learned next."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from sctom.batch import Prompt
from sctom.callbacks.common import Record, atomic_write, read_records, to_lines
from sctom.iterate.answers import prompt_data, scores_of
from sctom.iterate.settings import HELPFULNESS, ONE, SAFETY, Prompts
from sctom.iterate.training import write_json
from sctom.modules import Backbone
from sctom.modules.learned_reward import LearnedReward, SafetyHelpfulness
from sctom.readers import DataError
from sctom.rejection.engine import BASELINE, KEPT, SAMPLES, run
from sctom.rejection.select import BestOf, Group
from sctom.rejection.settings import SampleSettings
from sctom.rejection.store import Samples
from sctom.rejection.summary import SUMMARY
from sctom.rewards import Reward
from sctom.rollout import Sampling
from sctom.selection import top_fraction

SELECTION_FILE = "selection.json"
SAMPLED = (SAMPLES, KEPT, BASELINE, SUMMARY)
"""What sampling leaves."""


def learned_reward(folders: Mapping[str, str], is_safety: str | None, threshold: float) -> Reward:
    """The one reward that the reward models of a round make, on the scale of their raw scores."""
    learned = {name: LearnedReward(path, name=name) for name, path in folders.items()}
    if ONE in learned:
        return learned[ONE]
    assert is_safety is not None  # two models need it, which was checked
    return SafetyHelpfulness(
        learned[HELPFULNESS],
        learned[SAFETY],
        threshold=threshold,
        is_safety=is_safety,
        whiten=False,  # it would change no order
        name=ONE,
    )


def sample(
    folder: Path,
    config: Mapping[str, Any],
    prompts_file: str,
    prompts: Prompts,
    backbone: Mapping[str, Any],
    reward: Reward,
    *,
    count: int,
    sampling: Sampling,
    judges: Sequence[Reward],
    seed: int,
) -> None:
    """Draw answers to the prompts of a round and score them, as `sctom.sample` does.

    Args:
        folder: where to.
        config: what decides what comes out, as JSON can hold it.
        prompts_file: of this round.
        prompts: how it is read.
        backbone: arguments of `Backbone`: the latest model.
        reward: what the best answer is chosen by.
        count: answers to each prompt.
        sampling: how they are drawn.
        judges: rewards that are written beside it and choose nothing.
        seed: of the draws.
    """
    silent = [copy.copy(judge) for judge in judges]
    for judge in silent:
        judge.weight = 0.0
    settings = SampleSettings(
        Backbone(**backbone),
        prompts_file,
        [reward, *silent],
        samples=count,
        temperatures=[sampling.temperature],
        sampling=Sampling(max_new_tokens=sampling.max_new_tokens),
        columns=prompts.columns,
        system=prompts.system,
        max_prompt_tokens=prompts.max_tokens,
        run_dir=str(folder),
        seed=seed,
    )
    run(settings, config, resume="auto")


def select(
    folder: Path,
    samples: Mapping[int, tuple[Path, Path]],
    prompts: Prompts,
    reward: Reward,
    *,
    count: int,
    fraction: float,
    seed: int,
) -> None:
    """Score the answers of some rounds with one reward, and keep the best one to each prompt.

    What was cut off is not kept: learned from, it would teach to stop anywhere.

    Args:
        folder: where to.
        samples: number of the round -> its prompts, and the folder of its samples.
        prompts: how prompts are read.
        reward: of the newest round; earlier answers are scored by it again, so that what an early
            reward model liked for a bad reason does not stay.
        count: answers to each prompt.
        fraction: share of the best answers that is kept.
        seed: of the draws between equal ones.
    """
    best: list[Record] = []
    for number, (prompts_file, place) in samples.items():
        data = prompt_data(prompts_file, prompts)
        groups = list(Samples(place / SAMPLES, count))
        asked = [_prompt(i, row) for i, row in enumerate(data.train_rows)]
        answers = [[line["text"] for line in group] for group in groups]
        scores = scores_of([reward], asked, answers)
        for prompt, lines, found in zip(asked, groups, scores, strict=True):
            values = [
                math.nan if value is None or line["truncated"] else value
                for value, line in zip(found[reward.name], lines, strict=True)
            ]
            texts = [line["text"] for line in lines]
            for i in BestOf().choose([Group(prompt.index, values, texts)], seed)[0]:
                said = {"role": "assistant", "content": texts[i]}
                best.append(
                    {
                        "messages": [*prompt.messages, said],
                        "reward": values[i],
                        "round": number,
                        "line": prompt.index + 1,
                        "sample": i,
                    }
                )
    places = top_fraction([row["reward"] for row in best], fraction, address=(seed,))
    kept = [best[place] for place in places]
    if not kept:
        raise DataError(
            f"none of the answers of {', '.join(str(place) for _, place in samples.values())} may "
            "be kept: all were cut off or have no reward; raise max_new_tokens"
        )
    atomic_write(folder / KEPT, to_lines(kept))
    newest = samples[max(samples)][1]
    files = {"all": SAMPLES, "random": BASELINE, "kept": KEPT}
    content = {
        "kept": len(kept),
        "of_round": {number: sum(row["round"] == number for row in kept) for number in samples},
        "means": {name: _means(read_records(newest / file)) for name, file in files.items()},
    }
    write_json(folder / SELECTION_FILE, content)


def _prompt(index: int, row: Record) -> Prompt:
    columns = {name: value for name, value in row.items() if name != "messages"}
    return Prompt(index, [], row["messages"], columns)


def _means(lines: Sequence[Record]) -> dict[str, float]:
    """The mean of each reward over samples that may be kept, where it has something to say."""
    values: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line["rewards"].items():
            if value is not None and not line["truncated"]:
                values.setdefault(name, []).append(value)
    return {name: fmean(given) for name, given in values.items()}

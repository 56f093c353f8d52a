"""How good the models of the rounds are, on prompts that no stage has trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from sctom.batch import Prompt
from sctom.callbacks.common import atomic_write, to_lines
from sctom.iterate.answers import Scores, answer, prompt_data, scores_of
from sctom.iterate.settings import HELPFULNESS, SAFETY, Prompts
from sctom.iterate.training import write_json
from sctom.modules.learned_reward import LearnedReward
from sctom.modules.quantize import default_device
from sctom.modules.reward_evaluation import evaluate_scores
from sctom.modules.reward_head import load_reward_model
from sctom.modules.reward_scoring import score_pairs
from sctom.preferences import read_preferences
from sctom.readers import read_jsonl
from sctom.rewards import Reward
from sctom.rollout import Sampling

COMPLETIONS_FILE, EVALUATION_FILE = "completions.jsonl", "evaluation.json"


def evaluate(
    folder: Path,
    prompts_file: str,
    prompts: Prompts,
    backbone: Mapping[str, Any],
    *,
    count: int,
    sampling: Sampling,
    judges: Sequence[Reward],
    address: tuple[int, ...],
) -> None:
    """Answer the held-out prompts, and let the judges score the answers.

    Args:
        folder: where to.
        prompts_file: the held-out prompts.
        prompts: how it is read.
        backbone: arguments of `Backbone`: the model.
        count: answers to each.
        sampling: how they are drawn.
        judges: what scores them.
        address: of the draws; the same for all models, so that they meet the same luck.
    """
    asked, answers = answer(
        backbone,
        prompt_data(prompts_file, prompts),
        folder / "answers.jsonl",
        count=count,
        sampling=sampling,
        address=address,
    )
    scores = scores_of(judges, asked, answers)
    rows = [
        {
            "prompt": prompt.messages,
            "is_safety": bool(prompts.is_safety and prompt.columns[prompts.is_safety]),
            "answers": texts,
            "judges": found,
        }
        for prompt, texts, found in zip(asked, answers, scores, strict=True)
    ]
    atomic_write(folder / COMPLETIONS_FILE, to_lines(rows))


def compare(folder: Path, models: Mapping[str, Path], rewards: Mapping[str, str]) -> None:
    """Let the reward models of one round score the answers of every model so far.

    Args:
        folder: where to.
        models: name of the model -> its completions.
        rewards: name of the reward model -> its folder.
    """
    learned = [LearnedReward(path, name=name) for name, path in rewards.items()]
    table = {}
    for name, path in models.items():
        rows = read_jsonl(path)
        asked = [Prompt(number, [], row["prompt"]) for number, row in enumerate(rows)]
        scores = scores_of(learned, asked, [row["answers"] for row in rows])
        everything = [row["judges"] | found for row, found in zip(rows, scores, strict=True)]
        table[name] = means(everything, [row["is_safety"] for row in rows])
    write_json(folder / EVALUATION_FILE, table)


def means(scores: Sequence[Scores], is_safety: Sequence[bool]) -> dict[str, dict[str, float]]:
    """The mean of each reward over all answers, and over those to either kind of prompt.

    >>> means([{"judge": [1.0, None]}, {"judge": [0.0, 0.5]}], [True, False])
    {'judge': {'all': 0.5, 'safety': 1.0, 'helpfulness': 0.25}}
    """
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(name for entry in scores for name in entry):
        parts: dict[str, list[float]] = {"all": [], SAFETY: [], HELPFULNESS: []}
        for entry, tagged in zip(scores, is_safety, strict=True):
            given = [value for value in entry[name] if value is not None]
            parts["all"] += given
            parts[SAFETY if tagged else HELPFULNESS] += given
        found[name] = {part: fmean(values) for part, values in parts.items() if values}
    return found


def evaluate_reward_model(folder: Path, model: Path, pairs_file: Path) -> None:
    """Write how often a reward model is right on held-out pairs, of all rounds and of each.

    Args:
        folder: where to.
        model: folder of the reward model.
        pairs_file: the pairs; their source is their round.
    """
    device = default_device()
    loaded, tokenizer = load_reward_model(model, device)
    pairs = read_preferences(pairs_file) if pairs_file.stat().st_size else []
    scored = score_pairs(loaded.to(device), tokenizer, pairs, place=str(pairs_file))
    parts = {"all": scored}
    for pair in scored:
        parts.setdefault(str(pair.source), []).append(pair)
    found = {name: evaluate_scores(part).as_dict() for name, part in parts.items() if part}
    write_json(folder / EVALUATION_FILE, found)

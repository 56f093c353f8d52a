"""The configs of the stages that train, and where the stages of a run find each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sctom.iterate.settings import HELPFULNESS, ONE, SAFETY, TRAIN, Fit, Settings
from sctom.iterate.training import MODEL, fit_config
from sctom.seeds import seed_for

TRAIN_FILE, VALID_FILE = "train.jsonl", "valid.jsonl"
"""Pairs that a reward model is trained on, and those that it is evaluated on."""

_LEARNED = "sctom.modules.learned_reward"

Arguments = Mapping[str, Any]
"""Arguments of a `Backbone`."""


def folder_of(settings: Settings, stage: str) -> str:
    """Where a stage works."""
    return f"{settings.run_dir}/rounds/{stage}"


def share_file(settings: Settings, number: int, use: str) -> str:
    """The prompts of a round for one use."""
    return f"{folder_of(settings, f'{number}/prompts')}/{use}.jsonl"


def reward_stage(number: int, name: str) -> str:
    """The stage that trains a reward model."""
    return f"{number}/reward" if name == ONE else f"{number}/reward_{name}"


def reward_folders(settings: Settings, number: int) -> dict[str, str]:
    """The reward models of a round: name -> folder."""
    return {
        name: f"{folder_of(settings, reward_stage(number, name))}/{MODEL}"
        for name in settings.reward_names
    }


def trained(backbone: Arguments, fit: Fit, folder: str) -> dict[str, Any]:
    """What a stage has trained, as a backbone.

    Args:
        backbone: what it began with.
        fit: its settings.
        folder: where it has saved the model.

    >>> trained({"path": "base", "dtype": "bfloat16"}, Fit(), "run/model")
    {'path': 'run/model', 'dtype': 'bfloat16'}
    >>> trained({"path": "base"}, Fit(backbone={"lora_rank": 8}), "run/model")
    {'path': 'base', 'adapter': 'run/model'}
    """
    made = {**backbone, **fit.backbone}
    if not made.get("lora_rank") and made.get("adapter") is None:
        return made | {"path": folder}
    kept = {name: value for name, value in made.items() if not name.startswith("lora_")}
    return kept | {"adapter": folder}


def reward_config(settings: Settings, number: int, name: str) -> dict[str, Any]:
    """What trains a reward model, from the base model."""
    pairs = f"{folder_of(settings, reward_stage(number, name))}/{TRAIN_FILE}"
    place = (HELPFULNESS, SAFETY, ONE).index(name)
    return _config(
        settings,
        ("RewardModelModule", "PreferenceData"),
        settings.reward_models,
        settings.backbone,
        data={"train": pairs},
        address=(number, 2 + place),
    )


def sft_config(
    settings: Settings, fit: Fit, backbone: Arguments, dialogues: str, *address: int
) -> dict[str, Any]:
    """What fine-tunes a model on dialogues."""
    return _config(
        settings,
        ("SFTModule", "DialogueData"),
        fit,
        backbone,
        data={"train": dialogues},
        address=address,
    )


def ppo_config(settings: Settings, number: int, backbone: Arguments) -> dict[str, Any]:
    """What trains the fine-tuned model of a round with its reward models."""
    assert settings.ppo is not None
    sampling = {"max_new_tokens": settings.max_new_tokens}
    return _config(
        settings,
        ("PolicyModule", "PromptData"),
        settings.ppo,
        backbone,
        model={
            "rewards": [_reward(settings, number)],
            "sampling": sampling,
            "val_sampling": sampling | {"temperature": 0.0},
        },
        data={
            "train": share_file(settings, number, "ppo"),
            "columns": settings.prompts.columns,
            "system": settings.prompts.system,
            "max_prompt_tokens": settings.prompts.max_tokens,
        },
        address=(number, 1),
    )


def _config(
    settings: Settings,
    classes: tuple[str, str],
    fit: Fit,
    backbone: Arguments,
    *,
    data: Arguments,
    address: Sequence[int],
    model: Arguments | None = None,
) -> dict[str, Any]:
    return fit_config(
        *classes,
        backbone={**backbone, **fit.backbone},
        model={**(model or {}), **fit.model},
        data={**data, **fit.data},
        trainer={**settings.trainer, **fit.trainer},
        seed=seed_for(settings.seed, TRAIN, *address) % 2**31,
    )


def _reward(settings: Settings, number: int) -> dict[str, Any]:
    """The reward that `sctom.iterate.selecting.learned_reward` makes, as a config has it."""
    learned = {
        name: {"class_path": f"{_LEARNED}.LearnedReward", "init_args": {"path": path, "name": name}}
        for name, path in reward_folders(settings, number).items()
    }
    if ONE in learned:
        return learned[ONE]
    rule = {
        "threshold": settings.reward_models.threshold,
        "is_safety": settings.prompts.is_safety,
        "name": ONE,
    }
    return {"class_path": f"{_LEARNED}.SafetyHelpfulness", "init_args": learned | rule}

"""A run in rounds that takes seconds: a random model of some ten thousand parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

ADAM = {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.003}}
OFTEN = {"callbacks": [{"class_path": "IterationCheckpoint", "init_args": {"every": 1, "keep": 2}}]}

REWARDS = """
def different(completions, **columns):
    return [float(len(set(c if isinstance(c, str) else c[0]["content"]))) for c in completions]
"""


def write_prompts(path: Path, count: int = 60) -> Path:
    rows = []
    for n in range(count):
        words = ["one", "two", "three", "red"][n % 4], ["green", "blue", "yes"][n // 4 % 3]
        question = f"what is {words[0]} of {words[1]} {'no ' * (n // 12)}?"
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "red" if n % 2 else "i don't know ."},
        ]
        rows.append({"messages": messages, "answerable": bool(n % 2)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def rounds_config(folder: Path, model: Path, **changes: Any) -> Path:
    """Write a config, with a module of rewards beside it.

    Args:
        folder: where to; it must be on the path of what runs the config.
        model: the base model.
        changes: settings that are other ones; two underscores go a level down.
    """
    (folder / "small_rewards.py").write_text(REWARDS)
    different = {"class_path": "FunctionReward", "init_args": {"path": "small_rewards.different"}}
    config: dict[str, Any] = {
        "run_dir": str(folder / "run"),
        "rounds": 1,
        "backbone": {"path": str(model), "attention": "sdpa"},
        "max_new_tokens": 6,
        "prompts": {
            "file": str(write_prompts(folder / "prompts.jsonl")),
            "columns": "selfaware",
            "is_safety": "is_unanswerable",
        },
        "collect": {
            "prompts": 6,
            "pairs_per_prompt": 2,
            "held_out": 0.3,
            "labeller": {
                "class_path": "UtilityLabeller",
                "init_args": {"utility": different, "thresholds": [1.0, 3.0, 5.0]},
            },
        },
        "reward_models": {
            "model": {"optimizer": ADAM},
            "data": {"batch_size": 4},
            "trainer": OFTEN,
        },
        "sample": {"prompts": 6, "count": 3},
        "sft": {"model": {"optimizer": ADAM}, "data": {"batch_size": 2}, "trainer": OFTEN},
        "evaluate": {
            "prompts": 4,
            "judges": [
                {
                    "class_path": "FunctionReward",
                    "init_args": {"path": "small_rewards.different", "name": "judge"},
                }
            ],
        },
        "trainer": {"accelerator": "cpu", "logger": False},
    }
    for place, value in changes.items():
        *parents, last = place.split("__")
        target = config
        for parent in parents:
            target = target[parent]
        target[last] = value
    path = folder / "rounds.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


PPO = {
    "from_round": 1,
    "prompts": 4,
    "model": {
        "objective": {"class_path": "GRPO"},
        "optimizer": ADAM,
        "group_size": 2,
        "reference": "initial",
        "beta": 0.01,
        "self_check": False,
    },
    "data": {"prompts_per_iteration": 2, "iterations": 3},
    "trainer": OFTEN,
}

"""Settings of a PolicyModule that cannot mean what they say, refused before anything is loaded."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sctom.modules.policy import PolicyModule


def check_settings(module: PolicyModule) -> None:
    """Refuse settings that cannot mean what they say.

    Raises:
        ValueError: naming the setting, what was found and the remedy.
    """
    if module.group_size == 1:
        raise ValueError(
            "model.group_size is 1: a completion is compared with the others of its group, "
            "so alone its advantage is always 0; set group_size to 2 or more"
        )
    for name in ("group_size", "micro_batch_size", "passes", "val_samples"):
        if getattr(module, name) < 1:
            raise ValueError(f"model.{name} must be at least 1 but is {getattr(module, name)}")
    if module.beta < 0 or not math.isfinite(module.beta):
        raise ValueError(f"model.beta must be 0 or positive but is {module.beta}")
    if module.beta > 0 and module.reference_kind == "none":
        raise ValueError(
            f"beta is {module.beta} but reference is none, so there is nothing to stay close to; "
            "set model.reference to base, initial or model, or beta to 0"
        )
    if (
        module.kl_in == "loss"
        and module.kl_estimator == "k1"
        and not module.kl_weighted
        and module.beta > 0
    ):
        raise ValueError(
            "k1 in the loss without weighting has an expected gradient of zero, so beta would do "
            "nothing; set kl_weighted: true, kl_in: reward, or another kl_estimator"
        )
    if module.sampling.temperature == 0.0:
        raise ValueError(
            "model.sampling.temperature is 0: greedy completions of a group are all equal; "
            "set it above 0"
        )
    if module.minibatch_size is not None and module.minibatch_size < 1:
        raise ValueError(
            f"model.minibatch_size must be at least 1 or null but is {module.minibatch_size}"
        )
    if not module.rewards:
        raise ValueError("model.rewards is empty; name at least one reward")
    if not module.sampling.full_support:
        warnings.warn(
            "top_p, top_k or min_p cut the sampled distribution, but log-probabilities are those "
            "of the whole one, so the importance ratio is biased by the mass cut off; leave them "
            "at 1, 0 and 0 for training",
            stacklevel=2,
        )


def check_fit(module: PolicyModule, prompts_per_iteration: int, world_size: int) -> None:
    """Refuse minibatches that do not divide a rollout.

    A smaller last one would weigh its completions more.

    Raises:
        ValueError: naming the sizes that fit.
    """
    rows = prompts_per_iteration * module.group_size // world_size
    size = module.minibatch_size
    if size is not None and rows % size:
        fitting = ", ".join(str(n) for n in range(1, rows + 1) if rows % n == 0)
        raise ValueError(
            f"{rows} completions of an iteration ({prompts_per_iteration} prompts x "
            f"{module.group_size} on {world_size} process(es)) cannot be split into minibatches of "
            f"{size}; set model.minibatch_size to one of {fitting}"
        )

"""Settings of a PolicyModule that cannot mean what they say, refused before anything is loaded."""

from __future__ import annotations

import math
import sys
import warnings
from typing import TYPE_CHECKING, Any, get_args

import lightning as L
import torch
from torch import Tensor

from sctom.checks import check_choices, check_numbers
from sctom.data.order import SolveRate
from sctom.modules.groups import Aggregation
from sctom.modules.value_head import check_value_init
from sctom.objectives import BoundObjective, Totals
from sctom.rewards import check_rewards

if TYPE_CHECKING:
    from sctom.data import PromptData
    from sctom.modules.policy import PolicyModule


LARGEST, SMALLEST = sys.float_info.max, sys.float_info.min


def check_settings(module: PolicyModule) -> None:
    """Refuse settings that cannot mean what they say.

    Raises:
        ValueError: naming the setting, what was found and the remedy.
    """
    if module.objective.rule == "gae":
        _check_without_groups(module)
    elif module.group_size == 1:
        raise ValueError(
            "model.group_size is 1: a completion is compared with the others of its group, "
            "so alone its advantage is always 0; set group_size to 2 or more, or objective to PPO"
        )
    _check_each(module)
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
    if module.aggregation == "normalize_then_sum" and module.kl_in == "reward" and module.beta:
        raise ValueError(
            "model.kl_in is reward, which changes the weighted sum, but with aggregation "
            "normalize_then_sum advantages do not compare that sum; set kl_in to loss, or "
            "aggregation to sum_then_normalize"
        )
    if module.sampling.temperature == 0.0:
        raise ValueError(
            "model.sampling.temperature is 0: greedy completions of a group are all equal; "
            "set it above 0"
        )
    if module.memory_probe and not module.self_check:
        raise ValueError(
            "model.memory_probe is true, but it is one of the self-checks and model.self_check is "
            "false; set self_check to true, or drop memory_probe"
        )
    check_objective(module)
    if not module.rewards:
        raise ValueError("model.rewards is empty; name at least one reward")
    if not any(reward.weight for reward in module.rewards):
        raise ValueError(
            "every reward has weight 0, so nothing is rewarded; give one of them another weight"
        )
    _check_metric(module, "model.zero_variance_metric", module.zero_variance_metric)
    if not module.sampling.full_support:
        warnings.warn(
            "top_p, top_k or min_p cut the sampled distribution, but log-probabilities are those "
            "of the whole one, so the importance ratio is biased by the mass cut off; leave them "
            "at 1, 0 and 0 for training",
            stacklevel=2,
        )


def _check_without_groups(module: PolicyModule) -> None:
    """Refuse settings about groups where completions are not compared."""
    settings = {
        "zero_variance": (module.zero_variance, "keep"),
        "aggregation": (module.aggregation, "sum_then_normalize"),
    }
    for name, (value, fitting) in settings.items():
        if value != fitting:
            raise ValueError(
                f"model.{name} is {value}, which looks at the rewards of a group, but "
                f"{type(module.objective).__name__} does not compare completions: one learns from "
                f"its own reward and values; set {name} to {fitting}"
            )


def _check_each(module: PolicyModule) -> None:
    """Refuse numbers out of their bounds and names that are none of the choices."""
    least_one = ("at least 1", 1, math.inf)
    numbers: dict[str, tuple[Any, str, float, float]] = {
        name: (getattr(module, name), *least_one)
        for name in (
            "group_size",
            "micro_batch_size",
            "micro_batch_tokens",
            "passes",
            "val_samples",
        )
    }
    numbers["beta"] = (module.beta, "0 or a positive number", 0, LARGEST)
    numbers["warmup_ratio"] = (module.warmup_ratio, "from 0 to 1", 0, 1)
    numbers["zero_variance_tolerance"] = (
        module.zero_variance_tolerance,
        "0 or a positive number",
        0,
        LARGEST,
    )
    numbers["max_extra_batches"] = (module.max_extra_batches, "at least 1", 1, math.inf)
    numbers["seed"] = (module.seed, "from 0 to 2**62", 0, 2**62)
    if module.minibatch_size is not None:
        numbers["minibatch_size"] = (module.minibatch_size, "null or at least 1", 1, math.inf)
    if module.max_grad_norm is not None:
        numbers["max_grad_norm"] = (module.max_grad_norm, "null or above 0", SMALLEST, math.inf)
    check_numbers("model", numbers)
    check_choices(
        "model",
        {
            "reference": (module.reference_kind, ("none", "base", "initial", "model")),
            "kl_estimator": (module.kl_estimator, ("k1", "k2", "k3")),
            "kl_in": (module.kl_in, ("loss", "reward")),
            "schedule": (module.schedule, ("constant", "linear", "cosine")),
            "zero_variance": (module.zero_variance, ("keep", "mask", "resample")),
            "truncated": (module.truncated, ("keep", "mask")),
            "aggregation": (module.aggregation, get_args(Aggregation)),
        },
    )


def _check_metric(module: PolicyModule, setting: str, metric: str) -> None:
    names = ["reward", *(reward.name for reward in module.rewards)]
    if metric not in names:
        raise ValueError(f"{setting} is {metric!r} but must be one of {', '.join(names)}")


def check_fit(module: PolicyModule, data: PromptData, world_size: int) -> None:
    """Refuse settings of the module that do not go with those of the data.

    A minibatch that does not divide a rollout would leave a smaller last one, whose completions
    weigh more.

    Raises:
        ValueError: naming the settings and what fits.
    """
    prompts = data.prompts_per_iteration
    rows = prompts * module.group_size // world_size
    size = module.minibatch_size
    if size is not None and rows % size:
        fitting = ", ".join(str(n) for n in range(1, rows + 1) if rows % n == 0)
        raise ValueError(
            f"{rows} completions of an iteration ({prompts} prompts x "
            f"{module.group_size} on {world_size} process(es)) cannot be split into minibatches of "
            f"{size}; set model.minibatch_size to one of {fitting}"
        )
    count = len(data.train_prompts)
    if prompts > count:
        raise ValueError(
            f"data.prompts_per_iteration is {prompts}, but data.train has {count} prompts and no "
            "iteration asks one twice; set it to at most that"
        )
    if isinstance(data.order, SolveRate):
        _check_metric(module, "data.order.solved_by", data.order.solved_by)
    if module.zero_variance == "resample" and count <= prompts:
        raise ValueError(
            f"model.zero_variance is resample, but all {count} prompts of the "
            f"data are in every iteration already (data.prompts_per_iteration {prompts}); lower "
            "that, or set model.zero_variance to mask"
        )


def prepare(module: PolicyModule, data: PromptData, world_size: int) -> None:
    """Load the tokenizer, render every prompt, and check what has to go together.

    Done once for a data module, however often it is called.

    Raises:
        ValueError: bad data, or settings that do not go with it; no weights have been loaded yet.
    """
    if module.prepared is data:
        return
    check_value_init(module.objective)
    if module.tokenizer is None:
        module.tokenizer = module.backbone.load_tokenizer()
    data.render(module.tokenizer)
    check_fit(module, data, world_size)
    check_rewards(module.rewards, data.train_prompts[0].columns)
    module.prepared = data


def check_objective(module: PolicyModule) -> None:
    """Let the loss judge its own settings before anything is loaded, and see what it does at 0.

    Whether rows of advantage 0 have a gradient decides if they have to be differentiated; with
    values to train, all have.

    Raises:
        ValueError: naming the objective.
    """
    try:
        silent = _is_silent_at_zero(module.bound)
    except ValueError as error:
        raise ValueError(f"model.objective {type(module.objective).__name__}: {error}") from error
    module.silent_at_zero = silent and module.bound.value_loss is None


def _is_silent_at_zero(bound: BoundObjective) -> bool:
    """Whether rows of advantage 0 give neither loss nor gradient, and change nothing for others.

    Tried on tokens from near-certain to all but impossible, with ratios inside and far beyond the
    usual clips. A loss that divides by the tokens of its own micro-batch is not silent: the rows
    count there.
    """
    likely = (-0.01, -0.7, -3.0, -12.0, -30.0)
    moves = (-8.0, -2.0, -0.3, -0.01, 0.0, 0.02, 0.25, 2.0, 8.0)
    pairs = torch.tensor([[p, m] for p in likely for m in moves], dtype=torch.float64)
    turned = torch.stack([pairs.roll(turn, 0) for turn in (0, 11, 23)])
    old = turned[..., 0]
    rows_move = torch.tensor([[1.0], [0.8], [1.2]])  # rows must differ as a whole too
    moved = (old + rows_move * turned[..., 1]).clamp_max(-1e-4)
    advantages = torch.tensor([1.0, 0.0, -0.5], dtype=torch.float64)
    lengths = torch.tensor([[len(pairs)], [len(pairs) - 3], [len(pairs) - 1]])
    totals = Totals(float(lengths.sum()), 3.0, len(pairs))

    def loss_of(rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        logps = moved[rows].requires_grad_()
        mask = (torch.arange(len(pairs)) < lengths[rows]).double()
        losses = bound.loss(logps, old[rows], advantages[rows], mask)
        total = bound.reduce(losses, mask, totals)
        gradient = torch.autograd.grad(total, logps)[0] if total.requires_grad else mask
        return losses.detach(), gradient, total.detach()

    everything, without = loss_of([0, 1, 2]), loss_of([0, 2])
    whole, gradient, total = everything
    silent = not bool(whole[1].any()) and not bool(gradient[1].any())
    same = all(
        torch.allclose(a, b, rtol=1e-9, atol=0)
        for a, b in zip((whole[[0, 2]], gradient[[0, 2]], total), without, strict=True)
    )
    return silent and same


def check_trainer(trainer: L.Trainer, iterations: int) -> None:
    """Refuse trainer options that mean something else, or nothing, where one step is one iteration.

    Raises:
        ValueError: naming the option and what to set instead.
    """
    interval = trainer.val_check_interval
    wrong = {
        "max_epochs": (trainer.max_epochs != 1, "data.iterations is the length of a run"),
        "max_steps": (trainer.max_steps != -1, "data.iterations is the length of a run"),
        "accumulate_grad_batches": (
            trainer.accumulate_grad_batches != 1,
            "set model.micro_batch_size, which changes memory and not the result",
        ),
        "gradient_clip_val": (trainer.gradient_clip_val is not None, "set model.max_grad_norm"),
        "val_check_interval": (
            isinstance(interval, int) and interval > iterations,
            f"it is {interval}, more than the {iterations} iterations of the run; "
            "1.0 validates at the end only",
        ),
    }
    for name, (is_wrong, advice) in wrong.items():
        if is_wrong:
            raise ValueError(f"trainer.{name} does not fit a PolicyModule: {advice}")

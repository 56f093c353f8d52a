"""Banner: what a run is going to do, in words, before it does it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from operator import attrgetter
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import SaveConfigCallback
from rich import get_console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sctom.callbacks.banner_supervised import describe_supervised
from sctom.callbacks.common import atomic_write, log_text, run_dir
from sctom.modules.policy import PolicyModule
from sctom.modules.quantize import memory_4bit
from sctom.modules.supervised import SupervisedModule
from sctom.objectives import PPO, Objective
from sctom.rewards import Reward, RewardHealth
from sctom.rollout import Sampling
from sctom.rollout.sharing import why_plain

Line = tuple[str, str]

_REDUCTIONS = {
    "token_mean": "by all completion tokens of the optimiser step: every token weighs the same",
    "sequence_mean": "by the tokens of each completion, then by the completions of the optimiser "
    "step: every completion weighs the same",
    "sequence_sum": "by the completions of the optimiser step; the tokens of one are summed",
    "fixed_length_mean": "by the completions of the optimiser step x max_new_tokens: length "
    "changes no token's weight",
    "local_token_mean": "by the tokens of the micro-batch: the gradient depends on its size",
}
_SCALES = {
    "group": "divided by the standard deviation of the group",
    "batch": "divided by the standard deviation of all rewards of the iteration",
    "none": "not divided by any standard deviation",
}


class Banner(Callback):
    """Prints what the run will do and what differs from the defaults.

    The same goes to RUN/banner.txt and, as text, to TensorBoard.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Print it before anything is sampled."""
        if not trainer.is_global_zero:
            return
        supervised = isinstance(pl_module, SupervisedModule)
        lines = (describe_supervised if supervised else describe)(trainer, pl_module)
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for label, value in lines:
            grid.add_row(Text(label), Text(value))
        get_console().print(Panel(grid, title="sctom", expand=False))
        width = max(len(label) for label, _ in lines)
        text = "".join(f"{label:<{width}}  {value}\n" for label, value in lines)
        atomic_write(run_dir(trainer) / "banner.txt", text)
        log_text(trainer, "banner", text, pl_module.progress.iteration)


def describe(trainer: L.Trainer, module: PolicyModule) -> list[Line]:
    """All lines of the banner, as (label, value)."""
    arguments = reward_arguments(trainer) or [{} for _ in module.rewards]
    rewards = ", ".join(map(reward_text, module.rewards, arguments))
    changed = differences(module)
    return [
        *_model_lines(trainer, module),
        *_objective_lines(module),
        *_size_lines(trainer, module),
        ("left out", left_out_text(module)),
        ("sampling", repr(module.sampling)),
        ("validation", f"{module.val_samples} per prompt, {module.val_sampling!r}"),
        ("rewards", rewards),
        *(("", line) for reward in module.rewards for line in reward.describe()),
        *_aggregation_lines(module),
        *_data_lines(trainer),
        ("run folder", str(run_dir(trainer))),
        ("differs from defaults", ", ".join(changed) if changed else "nothing"),
        *(("advice", line) for line in module.advice),
        ("note", _note(module, module.updates_per_rollout())),
    ]


def _model_lines(trainer: L.Trainer, module: PolicyModule) -> list[Line]:
    backbone = module.backbone
    how = "all weights trained"
    if backbone.adapter is not None:
        how = f"adapter {backbone.adapter} trained on"
    elif backbone.lora_rank:
        how = f"LoRA of rank {backbone.lora_rank}, alpha {backbone.lora_alpha:g}"
        how += f", on {backbone.lora_targets}"
    weights = (
        f"{backbone.quantization}, {backbone.dtype}" if backbone.quantization else backbone.dtype
    )
    parameters = [p for p in module.model.parameters() if p.is_floating_point()]
    quantised = memory_4bit(module.model)  # two weights in a byte
    total = sum(p.numel() for p in parameters) + (quantised.weights if quantised else 0)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    lines = [
        ("model", f"{backbone.path} ({how}; {weights})"),
        ("attention", f"{backbone.attention_choice}"),
        ("rows", _rows_text(trainer, module)),
        ("trained", f"{trained:,} of {total:,} parameters ({trained / total:.2%})"),
    ]
    if module.progress.iteration:
        lines.append(("resumed", f"after iteration {module.progress.iteration}"))
    for optimizer in trainer.optimizers:
        rate = module.schedule + (
            f", warm-up {module.warmup_ratio:.0%}" if module.warmup_ratio else ""
        )
        name, lr = type(optimizer).__name__, optimizer.defaults["lr"]
        clip = (
            "no gradient clipping"
            if module.max_grad_norm is None
            else f"gradients clipped to norm {module.max_grad_norm:g}"
        )
        lines.append(("optimiser", f"{name}, learning rate {lr:g} ({rate}), {clip}"))
    return lines


def _rows_text(trainer: L.Trainer, module: PolicyModule) -> str:
    prompts = trainer.datamodule.train_prompts  # type: ignore[attr-defined]
    longest = max(len(prompt.ids) for prompt in prompts) + module.sampling.max_new_tokens
    reason = why_plain(module.model, longest)
    return "packed, each prompt once" if reason is None else f"padded: {reason}"


def _aggregation_lines(module: PolicyModule) -> list[Line]:
    if module.aggregation == "sum_then_normalize":
        return []
    return [("aggregation", "each reward is divided by its own spread in the group, then summed")]


def _objective_lines(module: PolicyModule) -> list[Line]:
    objective = module.objective
    return [
        ("objective", repr(objective)),
        ("formula", objective.formula),
        ("loss is divided", _REDUCTIONS.get(objective.reduction, f"as in {objective.reduction}")),
        ("advantage", advantage_text(objective)),
        ("KL penalty", kl_text(module)),
    ]


def _size_lines(trainer: L.Trainer, module: PolicyModule) -> list[Line]:
    data = trainer.datamodule  # type: ignore[attr-defined]
    rows = data.prompts_per_iteration * module.group_size
    local = rows // trainer.world_size
    minibatch = min(module.minibatch_size or local, local)
    micro = min(module.micro_batch_size, minibatch)
    updates = module.updates_per_rollout()
    where = f" on each of {trainer.world_size} processes" if trainer.world_size > 1 else ""
    return [
        (
            "iteration",
            f"{data.prompts_per_iteration} prompts x {module.group_size} completions each "
            f"= {rows} completions; {data.iterations} iterations",
        ),
        (
            "update",
            f"{minibatch} completions{where}, in micro-batches of at most {micro} completions "
            f"and {module.micro_batch_tokens:,} tokens",
        ),
        (
            "updates per rollout",
            f"{updates} ({'on-policy' if updates == 1 else 'off-policy after the first'})",
        ),
    ]


def reward_arguments(trainer: L.Trainer) -> list[Mapping[str, Any]]:
    """The arguments of each reward, from the config of the run; nothing in a run without one."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, SaveConfigCallback):
            rewards = callback.config.model.init_args.rewards
            return [reward.get("init_args", {}) for reward in rewards]
    return []


def reward_text(reward: Reward, arguments: Mapping[str, Any]) -> str:
    """A reward with its weight, and with those arguments that are not at their defaults.

    >>> from sctom.rewards import SelfAware
    >>> reward_text(SelfAware(abstained=-0.25), {"correct": 1.0, "abstained": -0.25})
    'self_aware(abstained=-0.25) x 1'
    """
    changed = ", ".join(
        f"{name}={value!r}"
        for name, value in arguments.items()
        if name not in ("weight", "name") and value != _default(type(reward), name)
    )
    return f"{reward.name}{f'({changed})' if changed else ''} x {reward.weight:g}"


def _default(owner: type, name: str) -> Any:
    """The default of an argument, which `**kwargs` may hand on to a base class."""
    for cls in owner.__mro__:
        if parameter := inspect.signature(cls).parameters.get(name):
            return parameter.default
    return inspect.Parameter.empty


def _data_lines(trainer: L.Trainer) -> list[Line]:
    data = trainer.datamodule  # type: ignore[attr-defined]
    order = type(data.order).__name__
    lines = [
        ("training data", f"{data.train_path} ({len(data.train_prompts):,} rows, order {order})")
    ]
    if data.val_path is None:
        return [*lines, ("validation data", "none")]
    return [*lines, ("validation data", f"{data.val_path} ({len(data.val_prompts):,} rows)")]


def advantage_text(objective: Objective) -> str:
    """The advantage rule in words.

    >>> from sctom.objectives import DrGRPO, RLOO
    >>> advantage_text(DrGRPO())
    'reward - mean of its group, not divided by any standard deviation'
    >>> advantage_text(RLOO())
    'reward - mean of the other completions of its group'
    """
    if isinstance(objective, PPO):
        whitened = ", whitened over the rollout" if objective.whiten_advantages else ""
        return (
            f"of each token, from rewards and values (GAE, gamma {objective.gamma:g}, lambda "
            f"{objective.lam:g}){whitened}"
        )
    if objective.rule == "leave_one_out":
        return "reward - mean of the other completions of its group"
    scale = getattr(objective, "scale", objective.advantage_scale)
    return f"reward - mean of its group, {_SCALES[scale]}"


def left_out_text(module: PolicyModule) -> str:
    """What of a rollout takes no part in updates, in words."""
    metric = module.zero_variance_metric
    groups = {
        "keep": "nothing for want of a signal",
        "mask": f"groups in which no {metric} differs, masked",
        "resample": f"groups in which no {metric} differs, replaced from up to "
        f"{module.max_extra_batches} extra batches",
    }[module.zero_variance]
    cut = {"keep": "truncated completions count", "mask": "truncated completions are masked"}
    return f"{groups}; {cut[module.truncated]}"


def kl_text(module: PolicyModule) -> str:
    """Estimator, place, weight and reference of the KL penalty in words."""
    if module.reference_kind == "none":
        return "none, no reference"
    source: str = module.reference_kind
    if module.reference_backbone is not None:
        source += f" ({module.reference_backbone.path})"
    weighted = ", weighted by the importance ratio" if module.kl_weighted else ", not weighted"
    place = f"the loss{weighted}" if module.kl_in == "loss" else "the reward"
    beta = f"beta {module.beta:g}" + ("" if module.beta else " (measured only)")
    return f"{beta}, {module.kl_estimator} in {place}; reference: {source}"


_RESOLVED = {"seed", "sampler"}  # null in the config becomes a value
_ATTRIBUTES = {
    "reference": "reference_kind",
    "reference_model": "reference_backbone",
    "max_skips": "guard.max_skips",
}


def differences(module: PolicyModule) -> list[str]:
    """The settings of the module, its objective and its sampling that are not at their defaults.

    The defaults are those of the signatures.
    """
    nested = {"sampling", "val_sampling"}
    found = _changed("", module, PolicyModule, skip=_RESOLVED | nested | {"reward_health"})
    found += _changed("reward_health.", module.reward_health, RewardHealth)
    found += _changed("objective.", module.objective, type(module.objective))
    for name in sorted(nested):
        default: Sampling = inspect.signature(PolicyModule).parameters[name].default
        values: Sampling = getattr(module, name)
        for key in inspect.signature(Sampling).parameters:
            found += _change(f"{name}.{key}", getattr(values, key), getattr(default, key))
    return found


def _changed(prefix: str, instance: Any, owner: type, *, skip: Collection[str] = ()) -> list[str]:
    found: list[str] = []
    for name, parameter in inspect.signature(owner).parameters.items():
        if name not in skip and parameter.default is not inspect.Parameter.empty:
            value = attrgetter(_ATTRIBUTES.get(name, name))(instance)
            found += _change(prefix + name, value, parameter.default)
    return found


def _change(name: str, value: Any, default: Any) -> list[str]:
    if value == default:
        return []
    shown = value.path if name == "reference_model" else value
    return [f"{name} {shown} (default {default})"]


def _note(module: PolicyModule, updates: int) -> str:
    when = "in the one update of a rollout" if updates == 1 else "in the first update of a rollout"
    watch = "Watch reward, advantages/std and grad_norm."
    if module.objective.loss == "cispo_loss":
        return (
            f"{when} every importance ratio is 1 and the loss is a mean of -A log p: small, of "
            f"either sign, and not expected to fall. That is no sign of a fault. {watch}"
        )
    return (
        f"{when} every importance ratio is 1, so policy_loss is about minus the mean advantage: "
        f"near 0 by construction. That is no sign of a fault. {watch}"
    )

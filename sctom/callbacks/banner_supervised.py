"""The banner of a run that learns from examples."""

from __future__ import annotations

import inspect

import lightning as L

from sctom.modules.supervised import SupervisedModule

Line = tuple[str, str]


def describe_supervised(trainer: L.Trainer, module: SupervisedModule) -> list[Line]:
    """What a run learns from, and how, as (label, value).

    Args:
        trainer: with its data module and optimisers.
        module: with its model.
    """
    data = trainer.datamodule  # type: ignore[attr-defined]
    parameters = list(module.model.parameters())
    total = sum(p.numel() for p in parameters)
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    pieces = data.batch_size * trainer.accumulate_grad_batches * trainer.world_size
    parts = f"{data.batch_size} at a time on {trainer.world_size} process(es)"
    validated = "none"
    if data.val_path is not None:
        validated = f"{data.val_path} ({len(data.val_examples):,} rows)"
    changed = _differences(module)
    return [
        ("model", f"{module.backbone.path} ({module.backbone.dtype})"),
        ("attention", f"{module.backbone.attention_choice}"),
        ("trained", f"{trained:,} of {total:,} parameters ({trained / total:.2%})"),
        ("loss", module.formula),
        ("optimiser step", f"{pieces} rows, {parts}; {module.total_steps()} steps"),
        *(
            (
                "optimiser",
                f"{type(o).__name__}, learning rate {o.defaults['lr']:g}, {_rate(module)}",
            )
            for o in trainer.optimizers
        ),
        ("training data", f"{data.train_path} ({len(data.train_examples):,} rows)"),
        ("validation data", validated),
        ("run folder", str(trainer.default_root_dir)),
        ("differs from defaults", ", ".join(changed) or "nothing"),
    ]


def _rate(module: SupervisedModule) -> str:
    parts: list[str] = [module.schedule]
    if module.schedule != "constant" and module.schedule_floor:
        parts.append(f"down to {module.schedule_floor:.0%}")
    if module.warmup_ratio:
        parts.append(f"warm-up {module.warmup_ratio:.0%}")
    return ", ".join(parts)


def _differences(module: SupervisedModule) -> list[str]:
    found = []
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if name == "seed" or parameter.default is inspect.Parameter.empty:
            continue
        value = getattr(module, name)
        if value != parameter.default:
            found.append(f"{name} {value} (default {parameter.default})")
    return found

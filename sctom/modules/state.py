"""What a checkpoint of a run holds, and which checkpoints a run accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import nn

from sctom.modules.backbone import Backbone, fingerprint, trainable


@dataclass
class Progress:
    """What a run has done so far; saved in every checkpoint."""

    iteration: int = 0
    """Iterations finished."""
    updates: int = 0
    """Optimiser steps taken or skipped."""
    skipped: int = 0
    """Optimiser steps skipped because something was not finite."""
    skipped_in_row: int = 0
    """Of those, the last ones without a good one between."""
    num_tokens: int = 0
    """Prompt and completion tokens seen, over all ranks."""
    sampler_agrees: bool | None = None
    """Whether the self-check found the sampler's log-probabilities equal to the trainer's.

    They then serve as those of the old policy. Found at the start of a run; when it is resumed it
    can only be taken back, by a check that finds them different. None without self-checks.
    """

    @property
    def global_step(self) -> int:
        """The updates, under the name that reward functions written for TRL read."""
        return self.updates


def frozen_fingerprint(module: L.LightningModule) -> str:
    """A hash of the weights of `module.model` that are not trained."""
    parameters = module.model.named_parameters()  # type: ignore[union-attr]
    return fingerprint((name, p) for name, p in parameters if not p.requires_grad)


def origin(policy: nn.Module, reference: nn.Module | None = None) -> str:
    """A hash of the weights a run starts from and of its reference model, before any update."""
    return fingerprint(
        (name, p)
        for model in (policy, reference)
        if model is not None
        for name, p in model.named_parameters()
    )


def optimizer_name(make: OptimizerCallable) -> str:
    """The class of the optimiser a config names."""
    return type(make([nn.Parameter(torch.zeros(1))])).__name__


def check_same_start(checkpoint: dict[str, Any], *, start: str, optimizer: str) -> None:
    """Refuse to go on with other starting weights or another optimiser.

    Args:
        checkpoint: as loaded.
        start: `origin` of this run's config.
        optimizer: name of the class of this run's optimiser.

    Raises:
        ValueError: with what differs.
    """
    if checkpoint["origin"] != start:
        raise ValueError(
            "the weights that this run started from, which its reference is a copy of, are no "
            "longer those that the config loads; restore them, or start a fresh run"
        )
    if checkpoint["optimizer"] != optimizer:
        raise ValueError(
            f"this run was trained with {checkpoint['optimizer']}, whose state {optimizer} cannot "
            "take over; name the same optimiser, or start a fresh run from RUN/model"
        )


def keep_trained(module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
    """Leave only the trained weights in a checkpoint, with what identifies the frozen ones."""
    names = {name for name, _ in trainable(module)}
    state = checkpoint["state_dict"]
    checkpoint["state_dict"] = {k: v for k, v in state.items() if k in names}
    checkpoint["fingerprint"] = frozen_fingerprint(module)


def check_same_model(
    module: L.LightningModule, backbone: Backbone, checkpoint: dict[str, Any]
) -> None:
    """Refuse the checkpoint of another model, or one that lacks or adds weights.

    Raises:
        ValueError: with what was expected and found.
    """
    expected = {name: tuple(p.shape) for name, p in trainable(module)}
    found = {name: tuple(value.shape) for name, value in checkpoint["state_dict"].items()}
    if expected == found and checkpoint.get("fingerprint") == frozen_fingerprint(module):
        return
    missing = sorted(expected.keys() - found.keys())[:3]
    unknown = sorted(found.keys() - expected.keys())[:3]
    shapes = [
        f"{name} is {list(found[name])}, not {list(expected[name])}"
        for name in sorted(expected.keys() & found.keys())
        if expected[name] != found[name]
    ][:2]
    raise ValueError(
        f"this checkpoint is of another model than {backbone.path} with the adapters of this "
        f"config (missing weights: {missing or 'none'}; unknown weights: {unknown or 'none'}; "
        f"shapes: {shapes or 'equal'}); resume with the config the run was started with, or start "
        "a fresh run in another run_dir"
    )


def go_on_if_longer(checkpoint: dict[str, Any], trainer: L.Trainer) -> None:
    """Tell Lightning that the restored batch is no longer the last, where the run is now longer.

    A checkpoint of the last iteration says that its epoch is done, and Lightning would end a
    resumed run at once.

    Args:
        checkpoint: as loaded; its loop state is changed in place.
        trainer: its data module says how long the run is now.
    """
    batches = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
    iterations = trainer.datamodule.iterations  # type: ignore[attr-defined]
    if batches["current"]["ready"] < iterations:
        batches["is_last_batch"] = False

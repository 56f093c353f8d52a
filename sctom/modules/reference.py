"""The policy a KL penalty refers to: which one it is is always said, never guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Literal

import torch
from torch import nn

from sctom.modules.backbone import Backbone, trainable

ReferenceKind = Literal["none", "base", "initial", "model"]


class Reference:
    """A frozen policy that can be scored with.

    Args:
        scoring: context manager that yields the reference as a model.
        equals_start: whether it computes the same as the policy does before any update, so that KL
            must start at 0.
        model: the other model it scores with, if it is one.
    """

    def __init__(
        self,
        scoring: Callable[[], AbstractContextManager[nn.Module]],
        *,
        equals_start: bool,
        model: nn.Module | None = None,
    ) -> None:
        self.scoring = scoring
        self.equals_start = equals_start
        self.model = model


def make_reference(
    kind: ReferenceKind, policy: nn.Module, backbone: Backbone, other: Backbone | None
) -> Reference | None:
    """Build the reference of a run, before the policy is first updated or restored.

    Args:
        kind: "none"; "base": the policy with its adapters off; "initial": a frozen copy of the
            weights the run started from; "model": another model.
        policy: the policy, freshly loaded from its config.
        backbone: where the policy came from.
        other: the model of kind "model".

    Raises:
        ValueError: "base" without adapters, "model" without a model, or a model that nothing
            refers to.
    """
    if (other is not None) != (kind == "model"):
        raise ValueError(
            "reference_model goes with reference: model; "
            f"found reference: {kind} and reference_model {'set' if other else 'not set'}"
        )
    if kind == "none":
        return None
    if kind == "base":
        return _base(policy, backbone)
    if kind == "initial":
        return _initial(policy)
    assert other is not None
    return _model(policy, other)


def _base(policy: nn.Module, backbone: Backbone) -> Reference:
    from peft import PeftModel

    if not isinstance(policy, PeftModel):
        raise ValueError(
            "reference: base means the policy with its adapters off, but all weights are "
            "trained (lora_rank 0); use reference: initial, or train adapters"
        )

    @contextmanager
    def scoring() -> Iterator[nn.Module]:
        with policy.disable_adapter():
            yield policy

    return Reference(scoring, equals_start=backbone.adapter is None)


def _initial(policy: nn.Module) -> Reference:
    """Keep a copy of the trained weights and put it in their place for the time of a scoring."""
    parameters = [p for _, p in trainable(policy)]
    frozen = [p.detach().clone() for p in parameters]

    def swap() -> None:
        for i, p in enumerate(parameters):
            current = p.data
            p.data = frozen[i].to(current.device)
            frozen[i] = current

    @contextmanager
    def scoring() -> Iterator[nn.Module]:
        swap()
        try:
            yield policy
        finally:
            swap()

    return Reference(scoring, equals_start=True)


def _model(policy: nn.Module, other: Backbone) -> Reference:
    device = next(policy.parameters()).device
    model = other.load_model(device, frozen=True)

    @contextmanager
    def scoring() -> Iterator[nn.Module]:
        device = next(policy.parameters()).device
        with torch.no_grad():
            yield model.to(device)

    return Reference(scoring, equals_start=False, model=model)

"""The value head of PPO: the reward that is still to come, predicted before every token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sctom import losses
from sctom.modules.adapters import check_safetensors
from sctom.modules.backbone import trainable
from sctom.modules.metrics import Means
from sctom.modules.scoring import MicroBatch
from sctom.objectives import PPO, Objective, Totals
from sctom.rollout.causal import causal_model, decoder

if TYPE_CHECKING:
    from sctom.modules.policy import PolicyModule

HEAD_FILE = "value_head.safetensors"


class ValueHead(nn.Module):
    """V_t = w . h_t + b, with h_t the last hidden state from which token t is predicted.

    It shares the layers below with the policy. w and b are in float32 whatever the model is in, and
    0 at first: a new head predicts no reward, and has a gradient at once.

    Args:
        width: numbers of a hidden state.
        trains_policy: let the gradient go on into the hidden states.

    >>> ValueHead(3)(torch.ones(2, 4, 3)).shape
    torch.Size([2, 4])
    """

    def __init__(self, width: int, *, trains_policy: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(1))
        self.trains_policy = trains_policy

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., H] -> values [...]."""
        seen = hidden if self.trains_policy else hidden.detach()
        return (seen.float() * self.weight).sum(-1) + self.bias  # autocast leaves this in float32


def make_value_head(objective: Objective, model: nn.Module) -> ValueHead | None:
    """The value head of a run, where the objective has one.

    Args:
        objective: what is maximised.
        model: the policy it looks into.

    Raises:
        ValueError: the model names no part that gives hidden states, or the head to go on with is
            of another model.
    """
    if not isinstance(objective, PPO):
        return None
    causal = causal_model(model)
    if decoder(model) is causal:
        raise ValueError(
            f"{type(causal).__name__} names no decoder whose hidden states a value head could see; "
            "take another model, or an objective that compares completions, such as GRPO"
        )
    width = causal.config.get_text_config().hidden_size
    head = ValueHead(width, trains_policy=objective.value_trains_policy)
    if objective.value_init is not None:
        path = Path(objective.value_init) / HEAD_FILE
        saved = load_file(path)
        if saved["weight"].shape != head.weight.shape:
            raise ValueError(
                f"model.objective.value_init: {path} is of a model with hidden states of "
                f"{len(saved['weight'])} numbers, but those of this one have {width}; name the "
                "folder of a run of the same model, or set it to null"
            )
        head.load_state_dict(saved)
    return head.to(next(model.parameters()).device)


def check_value_init(objective: Objective) -> None:
    """Check that the head to go on with is there and complete, before weights load.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it cannot be read.
    """
    if not isinstance(objective, PPO) or objective.value_init is None:
        return
    path = Path(objective.value_init) / HEAD_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"model.objective.value_init: {path} is not there; name the folder `model` of a run "
            "with PPO, or set it to null for a new head"
        )
    check_safetensors([path])


def save_value_head(head: ValueHead, folder: str | Path) -> None:
    """Write the head beside the model that it belongs to."""
    weights = {name: weight.detach().cpu() for name, weight in head.state_dict().items()}
    save_file(weights, Path(folder) / HEAD_FILE)


def optimizer_of(module: PolicyModule) -> torch.optim.Optimizer:
    """The optimiser of a config, over the trained weights; a value head has a rate of its own."""
    policy = [p for _, p in trainable(module.model)]
    if module.value_head is None:
        return module.make_optimizer(policy)
    assert isinstance(module.objective, PPO)
    head = list(module.value_head.parameters())
    optimizer = module.make_optimizer([{"params": policy}, {"params": head}])
    optimizer.param_groups[1]["lr"] *= module.objective.value_lr_factor
    return optimizer


def value_part(
    module: PolicyModule, values: Tensor, batch: MicroBatch, totals: Totals, means: Means
) -> Tensor:
    """A micro-batch's share of the part of the loss that trains the values.

        value_weight / tokens of the step * sum over tokens of the clipped value loss

    Args:
        module: its objective and the functions bound to it.
        values: [B, T] values now, with gradient.
        batch: values at the time of the rollout, returns and mask.
        totals: counts of the whole step.
        means: where the numbers about it go.
    """
    objective, value_loss = module.objective, module.bound.value_loss
    assert isinstance(objective, PPO) and value_loss is not None
    assert batch.old_values is not None and batch.returns is not None
    per_token = value_loss(values, batch.old_values, batch.returns, batch.mask)
    loss = losses.token_mean(per_token, batch.mask, tokens=totals.tokens)
    if tokens := float(batch.mask.sum()):
        share = int(batch.mask.any(1).sum()) / totals.sequences
        means.mean("value_loss", loss.detach() / share, share)
        unclipped = 0.5 * (values.detach() - batch.returns).square()
        clipped = (per_token.detach() > unclipped) & batch.mask.bool()
        means.mean("values/clip_ratio", clipped.sum() / tokens, tokens)
    return objective.value_weight * loss

"""The arithmetic of one micro-batch: its share of the loss, and the numbers to log about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sctom import losses
from sctom.batch import Row, micro_batches
from sctom.modules.backbone import trainable
from sctom.modules.metrics import Means
from sctom.modules.ranks import exchanging_gradients
from sctom.modules.scoring import MicroBatch, collate
from sctom.modules.value_head import value_part
from sctom.objectives import BoundObjective, Objective, Totals

if TYPE_CHECKING:
    from sctom.modules.policy import PolicyModule


def micro_batch_loss(
    module: PolicyModule, batch: MicroBatch, totals: Totals, means: Means
) -> Tensor:
    """A micro-batch's share of the loss of its optimiser step; the numbers about it go to means."""
    values = None
    if module.value_head is None:
        logps, entropy = module.scorer(module.model, batch)
    else:
        logps, entropy, values = module.scorer.with_values(module.model, batch, module.value_head)
    old = logps.detach() if batch.old_logps is None else batch.old_logps
    penalty = penalty_of(module, logps, old, batch)
    loss, policy = policy_loss(module.bound, logps, old, batch, totals, module.beta, penalty)
    if values is not None:
        loss = loss + value_part(module, values, batch, totals, means)
    if share := int(batch.mask.any(1).sum()) / totals.sequences:
        update_metrics(means, module.objective, batch, logps.detach(), old, entropy, penalty)
        means.mean("loss", loss.detach() / share, share)
        means.mean("policy_loss", policy.detach() / share, share)
        if module.updates_before == module.progress.updates:
            mismatch_metrics(means, batch, logps.detach())
    return loss


def penalty_of(
    module: PolicyModule, logps: Tensor, old_logps: Tensor, batch: MicroBatch
) -> Tensor | None:
    """The KL penalty [B, T] of a micro-batch; None where the loss has none."""
    if module._reference is None or module.kl_in != "loss":
        return None
    assert batch.ref_logps is not None
    return losses.kl_penalty(
        logps,
        old_logps,
        batch.ref_logps,
        batch.mask,
        estimator=module.kl_estimator,
        weighted=module.kl_weighted,
    )


def policy_loss(
    bound: BoundObjective,
    logps: Tensor,
    old_logps: Tensor,
    batch: MicroBatch,
    totals: Totals,
    beta: float,
    penalty: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """This micro-batch's share of the loss of its optimiser step.

        loss = reduce(policy losses + beta * KL penalty)      both [B, T], reduced alike (GRPO, eq.
        3)

    Args:
        bound: loss and reduction.
        logps: [B, T] log-probabilities under the policy, with gradient.
        old_logps: [B, T] the same under the policy that made the rollout.
        batch: advantages and mask.
        totals: counts of the whole step.
        beta: weight of the penalty.
        penalty: [B, T] KL penalty, or None.

    Returns:
        The loss, and the part of it that is not the penalty.
    """
    per_token = bound.loss(logps, old_logps, batch.advantages, batch.mask)
    policy = bound.reduce(per_token, batch.mask, totals)
    if penalty is None or beta == 0.0:
        return policy, policy
    return bound.reduce(per_token + beta * penalty, batch.mask, totals), policy


def needs_gradient(module: PolicyModule, row: Row) -> bool:
    """Whether a row that counts can have a gradient.

    With advantage 0 it has none, if the loss is one that scales with the advantage (measured by
    `sctom.modules.settings.check_objective`) and neither values are trained nor a KL penalty pulls
    on it.
    """
    penalised = module._reference is not None and module.kl_in == "loss"
    return row.advantage != 0.0 or penalised or not module.silent_at_zero


def gradient_parts(module: PolicyModule, rows: Sequence[Row]) -> list[list[Row]]:
    """The micro-batches of an update: of the rows that can have a gradient.

    Where there are none, one row gives the gradient of 0 that ranks have to exchange, and by which
    momentum goes on.
    """
    counted = [row for row in rows if row.counted]
    parts = [row for row in counted if needs_gradient(module, row)] or (counted or rows)[:1]
    return micro_batches(parts, module.micro_batch_size, module.micro_batch_tokens)


def differentiate(
    module: PolicyModule, parts: Sequence[Sequence[Row]], totals: Totals, means: Means
) -> bool:
    """Add up the gradients of the micro-batches of an update, in training mode, and clip them.

    Returns:
        Whether losses and gradients are finite.
    """
    finite = True
    module.model.train()
    for number, part in enumerate(parts):
        with exchanging_gradients(module.trainer, number + 1 == len(parts)):
            loss = module.loss(collate(part, module.device), totals, means, number)
            finite &= bool(torch.isfinite(loss))
            module.manual_backward(loss * module.trainer.world_size)
    module.model.eval()
    return _clip_gradients(module, means) and finite


def _clip_gradients(module: PolicyModule, means: Means) -> bool:
    """Scale gradients down to max_grad_norm: the policy's, and by themselves the value head's.

    Those of the head grow with the unit of the reward and could take up the norm of both.

    Returns:
        Whether their norms are finite.
    """
    parts: dict[str, nn.Module] = {"grad_norm": module.model}
    if module.value_head is not None:
        parts["value_grad_norm"] = module.value_head
    limit = module.max_grad_norm or math.inf
    finite = True
    for name, part in parts.items():
        norm = nn.utils.clip_grad_norm_([p for _, p in trainable(part)], limit)
        finite &= bool(torch.isfinite(norm))
        means.mean(name, norm)
    return finite


def silent_metrics(
    means: Means,
    module: PolicyModule,
    counted: Sequence[Row],
    parts: Sequence[Sequence[Row]],
    totals: Totals,
) -> None:
    """Account for the rows that were left out of an update because they have no gradient."""
    left_out = (len(counted) - sum(map(len, parts))) / totals.sequences
    for name in ("loss", "policy_loss"):  # theirs is 0
        means.mean(name, 0.0, left_out)
    silent = sum(not needs_gradient(module, row) for row in counted)
    means.mean("update/silent_frac", silent / max(len(counted), 1))


@torch.no_grad()
def mismatch_metrics(means: Means, batch: MicroBatch, logps: Tensor) -> None:
    """How far the sampler's log-probabilities are from the trainer's, under the same weights."""
    if batch.sampler_logps is None:
        return
    gaps = (logps - batch.sampler_logps).abs()[batch.mask.bool()]
    means.mean("sampling/sampling_logp_difference/mean", gaps.mean(), len(gaps))
    means.high("sampling/sampling_logp_difference/max", gaps.max())


@torch.no_grad()
def update_metrics(
    means: Means,
    objective: Objective,
    batch: MicroBatch,
    logps: Tensor,
    old_logps: Tensor,
    entropy: Tensor,
    penalty: Tensor | None,
) -> None:
    """Add a micro-batch to the numbers of its iteration; each mean weighs a token once."""
    keep = batch.mask.bool()
    tokens = float(batch.mask.sum())
    ratio = (logps - old_logps).clamp(-20, 20)[keep].exp()
    means.mean("entropy", entropy[keep].mean(), tokens)
    means.mean("ratio/mean", ratio.mean(), tokens)
    means.low("ratio/min", ratio.min())
    means.high("ratio/max", ratio.max())
    means.mean("approx_kl", losses.approx_kl(logps, old_logps, batch.mask), tokens)
    means.mean("clamped_fraction", losses.clamped_fraction(logps, old_logps, batch.mask), tokens)
    ess = losses.effective_sample_size(logps, old_logps, batch.mask)
    means.mean("effective_sample_size", ess, tokens)
    if penalty is not None:
        means.mean("kl", penalty[keep].mean(), tokens)
    _clip_metrics(means, objective, batch, logps, old_logps, tokens)


def _clip_metrics(
    means: Means,
    objective: Objective,
    batch: MicroBatch,
    logps: Tensor,
    old_logps: Tensor,
    tokens: float,
) -> None:
    settings = objective.arguments()
    level = settings.get("level", "token")
    if {"clip_low", "clip_high"} <= settings.keys():
        sides = {
            "low": {"clip_low": settings["clip_low"], "clip_high": float("inf")},
            "high": {"clip_low": float("inf"), "clip_high": settings["clip_high"]},
        }
        shares = {
            side: losses.clip_fraction(
                logps, old_logps, batch.advantages, batch.mask, level=level, **widths
            )
            for side, widths in sides.items()
        }
        means.mean("clip_ratio/low_mean", shares["low"], tokens)
        means.low("clip_ratio/low_min", shares["low"])
        means.mean("clip_ratio/high_mean", shares["high"], tokens)
        means.high("clip_ratio/high_max", shares["high"])
        means.mean("clip_ratio/region_mean", shares["low"] + shares["high"], tokens)
    elif {"weight_min", "weight_max"} <= settings.keys():
        share = losses.weight_clip_fraction(
            logps,
            old_logps,
            batch.mask,
            weight_max=settings["weight_max"],
            weight_min=settings["weight_min"],
            level=level,
        )
        means.mean("cispo_clip_ratio", share, tokens)

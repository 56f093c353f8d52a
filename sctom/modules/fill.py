"""What is computed for the rows of a rollout, each written into the rows it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from sctom import losses
from sctom.batch import Prompt, Row, interleave, micro_batches
from sctom.modules.ranks import gather
from sctom.modules.scoring import Scorer, collate
from sctom.rewards import Reward, combine, normalize_then_sum, settled
from sctom.rewards import run as rewards_run
from sctom.rollout import Sample, Sampling

if TYPE_CHECKING:
    from sctom.modules.policy import PolicyModule


def sample_rows(
    module: PolicyModule,
    prompts: Sequence[Prompt],
    group_size: int,
    sampling: Sampling,
    address: tuple[int, ...],
    finished: Callable[[list[Row]], None] | None,
) -> list[Row]:
    """Sample completions of prompts, prompt by prompt; see `PolicyModule.complete`."""
    groups: dict[int, list[Row]] = {}

    def take(number: int, samples: Sequence[Sample]) -> None:
        if number in groups or len(samples) != group_size:
            raise ValueError(
                f"{type(module.sampler).__name__} must give {group_size} completions for each "
                f"prompt once, but gave {len(samples)} for prompt {number}"
                + (" again" if number in groups else "")
            )
        texts = module.tokenizer.batch_decode([s.ids for s in samples], skip_special_tokens=True)
        groups[number] = [
            Row(prompts[number], i, s.ids, text, s.truncated, s.logps)
            for i, (s, text) in enumerate(zip(samples, texts, strict=True))
        ]
        if finished is not None:
            finished(groups[number])

    samples = module.sampler.sample(
        module.model,
        prompts,
        group_size=group_size,
        sampling=sampling,
        stop_ids=module.stop_ids,
        address=address,
        finished=take,
    )
    for number in range(len(prompts)):
        if number not in groups:  # the sampler gives everything at the end
            take(number, samples[number * group_size : (number + 1) * group_size])
    return [row for number in range(len(prompts)) for row in groups[number]]


def start_rewards(
    module: PolicyModule, rows: Sequence[Row], group_size: int
) -> Callable[[], dict[str, float]]:
    """Start to score completions with every reward.

    Args:
        module: its rewards, their aggregation and health; its progress is `trainer_state`.
        rows: the completions of each prompt side by side; `rewards`, `reward`, `compared` and
            `extra` are set.
        group_size: completions per prompt.

    Returns:
        What waits for the rewards, fills them in, and returns what the functions logged with
        `log_metric`.
    """
    columns = {
        name: [row.prompt.columns.get(name) for row in rows] for name in rows[0].prompt.columns
    }
    running = rewards_run.start_rewards(
        module.rewards,
        prompts=[row.prompt.messages for row in rows],
        completions=[[{"role": "assistant", "content": row.text}] for row in rows],
        completion_ids=[row.ids for row in rows],
        columns=columns,
        trainer_state=module.progress,
    )

    def finish() -> dict[str, float]:
        results = running.result()
        module.reward_health.record(results)
        for i, row in enumerate(rows):
            row.rewards = {name: values[i] for name, values in results.values.items()}
            row.extra = {name: values[i] for name, values in results.extra.items()}
        _total(module, rows, group_size, results.values)
        return results.metrics

    return finish


def _total(
    module: PolicyModule,
    rows: Sequence[Row],
    group_size: int,
    values: Mapping[str, Sequence[float | None]],
) -> None:
    """Make one number of the rewards of each row, and what advantages compare."""
    weights = {reward.name: reward.weight for reward in module.rewards}
    totals = combine(values, weights, group_size)
    compared: Sequence[float | None] = [None] * len(rows)
    if module.aggregation == "normalize_then_sum":
        compared = normalize_then_sum(values, weights, group_size)
    for i, row in enumerate(rows):
        row.reward, row.compared = totals[i], compared[i]


def settle_rewards(module: PolicyModule, rows: Sequence[Row], group_size: int) -> None:
    """Let the rewards that look at the whole rollout have their say; see `Reward.over_rollout`.

    Args:
        module: its rewards. Every rank must call this.
        rows: all completions of this rank with their rewards, prompt by prompt.
        group_size: completions per prompt.
    """
    looking = [r for r in module.rewards if type(r).over_rollout is not Reward.over_rollout]
    if not looking:
        return
    values = {r.name: [row.rewards[r.name] for row in rows] for r in module.rewards}
    for reward in looking:
        parts = gather(module.trainer, values[reward.name])
        places = [[(rank, i) for i in range(len(part))] for rank, part in enumerate(parts)]
        everywhere = settled(reward, interleave(parts, group_size))
        for (rank, i), value in zip(interleave(places, group_size), everywhere, strict=True):
            if rank == module.global_rank:
                values[reward.name][i] = value
    _total(module, rows, group_size, values)


@torch.no_grad()
def fill_logps(
    rows: Sequence[Row],
    name: Literal["old_logps", "ref_logps"],
    scorer: Scorer,
    model: nn.Module,
    size: int,
    tokens: int,
) -> None:
    """Score completions with a model in evaluation mode.

    Args:
        rows: the completions.
        name: where the log-probabilities go.
        scorer: what scores.
        model: the model.
        size: most rows of a micro-batch.
        tokens: most tokens of a micro-batch.
    """
    model.eval()
    device = next(model.parameters()).device
    for part in micro_batches(rows, size, tokens):
        logps, _ = scorer(model, collate(part, device))
        for row, values in zip(part, logps.cpu(), strict=True):
            setattr(row, name, values[: len(row.ids)])


@torch.no_grad()
def fill_values(
    rows: Sequence[Row],
    scorer: Scorer,
    model: nn.Module,
    value_head: nn.Module,
    size: int,
    tokens: int,
    *,
    logps: bool,
) -> None:
    """Predict the values of completions with a model in evaluation mode.

    Args:
        rows: the completions.
        scorer: what scores.
        model: the model.
        value_head: its value head.
        size: most rows of a micro-batch.
        tokens: most tokens of a micro-batch.
        logps: fill in the old log-probabilities too, from the same pass.
    """
    model.eval()
    device = next(model.parameters()).device
    for part in micro_batches(rows, size, tokens):
        batch = collate(part, device)
        if logps:
            old_logps, _, values = scorer.with_values(model, batch, value_head)
            for row, own in zip(part, old_logps.cpu(), strict=True):
                row.old_logps = own[: len(row.ids)]
        else:
            values = scorer.values(model, batch, value_head)
        for row, own in zip(part, values.cpu(), strict=True):
            row.old_values = own[: len(row.ids)]


def charge_kl(rows: Sequence[Row], estimator: Literal["k1", "k2", "k3"], beta: float) -> float:
    """Take beta times its KL estimate from the reward of each token, and so of each completion.

    The reward of a completion is that of its last token.

    Returns:
        The mean estimate per token.
    """
    estimate = getattr(losses, f"kl_{estimator}")
    total = 0.0
    for row in rows:
        kl = estimate(row.old_logps[None], row.ref_logps[None])[0]
        row.token_rewards = -beta * kl
        row.token_rewards[-1] += row.reward
        row.reward -= beta * float(kl.sum())
        total += float(kl.sum())
    return total / sum(len(row.ids) for row in rows)

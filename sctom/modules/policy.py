"""PolicyModule: one training step is one iteration of sample, reward, advantage and update."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

import sctom.losses
from sctom.batch import Prompt, Rollout, Row
from sctom.data import PromptData
from sctom.modules.advice import Watches, print_advice
from sctom.modules.backbone import Backbone, save_backbone, stop_ids
from sctom.modules.collect import TRAIN, Collector
from sctom.modules.fill import sample_rows, start_rewards
from sctom.modules.groups import Aggregation, Truncated, ZeroVariance
from sctom.modules.guard import FiniteGuard
from sctom.modules.metrics import Means, peak_memory_mib, validation_values
from sctom.modules.ranks import gathered, step_totals
from sctom.modules.reference import Reference, ReferenceKind, make_reference
from sctom.modules.schedule import ScheduleName, set_learning_rates
from sctom.modules.scoring import MicroBatch, Scorer
from sctom.modules.selfcheck import run_self_checks
from sctom.modules.settings import check_settings, prepare
from sctom.modules.state import (
    Progress,
    check_same_model,
    check_same_start,
    go_on_if_longer,
    keep_trained,
    optimizer_name,
    origin,
)
from sctom.modules.update import differentiate, gradient_parts, micro_batch_loss, silent_metrics
from sctom.modules.value_head import ValueHead, make_value_head, optimizer_of, save_value_head
from sctom.objectives import Objective, Totals
from sctom.rewards import Reward, RewardHealth
from sctom.rollout import LocalSampler, Sampler, Sampling
from sctom.seeds import seed_for

VALIDATE, DROPOUT, SHUFFLE = TRAIN + 1, TRAIN + 2, TRAIN + 3
"""Second part of every random address: what the draw is for."""


class PolicyModule(L.LightningModule):
    """Trains a language model on rewards of its own completions.

    One call of `training_step` is one iteration: the prompts of the batch are sampled `group_size`
    times each, the completions scored by the rewards, the rewards compared within their group, and
    the policy updated `passes` times over the rollout in minibatches of `minibatch_size`
    completions. Gradients do not depend on `micro_batch_size` (except for BNPO) nor on the number
    of processes.

    Args:
        backbone: the policy.
        objective: what is maximised, one of `sctom.objectives` or a class of your own.
        rewards: functions that score completions; their weighted sum is the reward.
        optimizer: optimiser of the trained weights.
        group_size: completions per prompt, G; 1 only with PPO, which compares none.
        sampling: how training completions are drawn; the temperature also divides the logits when
            they are scored.
        val_sampling: how validation completions are drawn.
        val_samples: completions per validation prompt.
        passes: times each rollout is used.
        minibatch_size: completions per optimiser step on one process; null takes the whole rollout.
        micro_batch_size: most completions of a forward and backward pass. Changes memory, not
            results.
        micro_batch_tokens: most tokens of a forward and backward pass, in which each prompt counts
            once; a single completion may have more. Changes memory, not results.
        reference: what the KL penalty refers to: "none", "base" (adapters off), "initial" (frozen
            copy of the starting weights) or "model" (another model, given as reference_model).
        reference_model: the model of reference "model".
        beta: weight of the KL penalty; above 0 it needs a reference.
        kl_estimator: "k1", "k2" or "k3".
        kl_in: "loss" adds beta * KL to every token's loss; "reward" takes beta * the completion's
            KL from its reward before the group is normalised; with PPO, each token's from its own.
        kl_weighted: for kl_in "loss": weigh the estimator by the importance ratio, so that its
            expected gradient is that of the reverse KL.
        max_grad_norm: gradients are scaled down to this norm; null leaves them.
        schedule: "constant", "linear" or "cosine" over the updates of the run.
        warmup_ratio: share of the updates over which the learning rate rises.
        max_skips: stop after so many updates in a row whose loss or gradient was not finite, with
            the batch saved.
        sampler: draws the completions.
        zero_variance: groups whose rewards are all equal: "keep"; "mask" leaves them out of the
            loss and of what it is divided by; "resample" puts groups of other prompts in their
            place.
        zero_variance_metric: what must differ within a group, "reward" or the name of one reward.
        zero_variance_tolerance: largest difference within a group that counts as none.
        max_extra_batches: most batches of further prompts an iteration may sample; where groups are
            still missing, groups without signal fill the rollout, masked.
        truncated: completions cut off by max_new_tokens: "keep", or "mask" to leave them out of the
            loss and of what it is divided by. They stay in the mean of their group.
        aggregation: "sum_then_normalize" compares weighted sums of rewards; "normalize_then_sum"
            first divides each reward by its own spread in the group.
        reward_health: when to stop for rewards that fail.
        overlap_rewards: score groups while others are sampled; false: all in one call at the end.
        memory_probe: run the longest possible batch before the first iteration; null: only on an
            accelerator, since a CPU that runs out of memory kills the process.
        self_check: check sampler, reference, stop tokens, BOS and rewards before the first
            iteration.
        seed: first part of the address of every random draw; null takes seed_everything.
    """

    def __init__(
        self,
        backbone: Backbone,
        objective: Objective,
        rewards: list[Reward],
        optimizer: OptimizerCallable,
        *,
        group_size: int = 8,
        sampling: Sampling = Sampling(),  # noqa: B008  frozen
        val_sampling: Sampling = Sampling(temperature=0.0),  # noqa: B008  frozen
        val_samples: int = 1,
        passes: int = 1,
        minibatch_size: int | None = None,
        micro_batch_size: int = 16,
        micro_batch_tokens: int = 8192,
        reference: ReferenceKind = "none",
        reference_model: Backbone | None = None,
        beta: float = 0.0,
        kl_estimator: Literal["k1", "k2", "k3"] = "k3",
        kl_in: Literal["loss", "reward"] = "loss",
        kl_weighted: bool = True,
        max_grad_norm: float | None = 1.0,
        schedule: ScheduleName = "constant",
        warmup_ratio: float = 0.0,
        max_skips: int = 5,
        sampler: LocalSampler | Sampler | None = None,
        zero_variance: ZeroVariance = "keep",
        zero_variance_metric: str = "reward",
        zero_variance_tolerance: float = 1e-6,
        max_extra_batches: int = 3,
        truncated: Truncated = "keep",
        aggregation: Aggregation = "sum_then_normalize",
        reward_health: RewardHealth | None = None,
        overlap_rewards: bool = True,
        memory_probe: bool | None = None,
        self_check: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.strict_loading = False  # on_load_checkpoint checks the weights itself
        self.backbone = backbone
        self.objective = objective
        self.bound = objective.bind(sctom.losses)
        self.silent_at_zero = False
        self.rewards = rewards
        self.make_optimizer = optimizer
        self.group_size = group_size
        self.sampling = sampling
        self.val_sampling = val_sampling
        self.val_samples = val_samples
        self.passes = passes
        self.minibatch_size = minibatch_size
        self.micro_batch_size = micro_batch_size
        self.micro_batch_tokens = micro_batch_tokens
        self.reference_kind: ReferenceKind = reference
        self.reference_backbone = reference_model
        self.beta = beta
        self.kl_estimator = kl_estimator
        self.kl_in = kl_in
        self.kl_weighted = kl_weighted
        self.max_grad_norm = max_grad_norm
        self.schedule: ScheduleName = schedule
        self.warmup_ratio = warmup_ratio
        self.sampler = sampler or LocalSampler()
        self.zero_variance: ZeroVariance = zero_variance
        self.zero_variance_metric = zero_variance_metric
        self.zero_variance_tolerance = zero_variance_tolerance
        self.max_extra_batches = max_extra_batches
        self.truncated: Truncated = truncated
        self.aggregation: Aggregation = aggregation
        self.reward_health = reward_health or RewardHealth()
        self.overlap_rewards = overlap_rewards
        self.memory_probe = memory_probe
        self.self_check = self_check
        self.seed = 0 if seed is None else seed
        check_settings(self)

        self.scorer = Scorer(sampling.temperature)
        self.guard = FiniteGuard(max_skips)
        self.progress = Progress()
        self.advice: list[str] = []
        self.watches = Watches()
        self.model: nn.Module
        self.value_head: ValueHead | None = None
        self.tokenizer: Any = None
        self.stop_ids: frozenset[int] = frozenset()
        self.last_rollout: Rollout | None = None
        self.last_metrics: dict[str, float] = {}
        self._reference: Reference | None = None
        self.configured: list[dict[str, Any]] = []
        self._checked = False
        self.updates_before = 0  # optimiser steps taken when the rollout was sampled
        self.prepared: PromptData | None = None

    def setup(self, stage: str) -> None:
        """Prepare the data, and say what can be said about the run."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        prepare(self, data, self.trainer.world_size)
        if stage == "fit":
            self.advice = print_advice(self, data.train_prompts)

    def configure_model(self) -> None:
        """Load the weights and freeze the reference."""
        if "model" in self._modules:
            return
        device = self.trainer.strategy.root_device
        self.model = self.backbone.load_model(device)
        self.stop_ids = stop_ids(self.model, self.tokenizer)
        self._reference = make_reference(
            self.reference_kind, self.model, self.backbone, self.reference_backbone
        )
        self.value_head = make_value_head(self.objective, self.model)
        self._origin = origin(self.model, self._reference.model if self._reference else None)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser the config names, over the trained weights."""
        optimizer = optimizer_of(self)
        self.configured = [
            {k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups
        ]
        return optimizer

    def on_train_start(self) -> None:
        """Let the config win over a checkpoint's optimiser settings."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        for group, settings in zip(optimizer.param_groups, self.configured, strict=True):  # type: ignore[union-attr]
            group.update(settings)
        self._check_chain()

    def on_validation_start(self) -> None:
        """Check the chain before the evaluation that precedes training, which may take minutes."""
        if self.trainer.sanity_checking:
            self._check_chain()

    def _check_chain(self) -> None:
        if self.self_check and not self._checked:
            run_self_checks(self, self.trainer.datamodule.train_prompts)  # type: ignore[attr-defined]
            self._checked = True

    def training_step(self, prompts: list[Prompt], batch_idx: int) -> None:
        """One iteration."""
        started = time.perf_counter()
        rollout, metrics = self.rollout(prompts)
        means = Means()
        updating = time.perf_counter()
        self.updates_before = self.progress.updates
        for number in range(self.passes):
            for rows in self._order(rollout, number).split(self.minibatch_size):
                self.update(rows, means)
        finished = time.perf_counter()
        self.progress.iteration += 1
        metrics |= means.result() | {
            "time/update": finished - updating,
            "step_time": finished - started,
            "memory_mib": peak_memory_mib(self.device),
        }
        self._report(rollout, metrics)

    def _order(self, rollout: Rollout, number: int) -> Rollout:
        if self.minibatch_size is None:
            return rollout
        return rollout.shuffled(self.seed, SHUFFLE, self.progress.iteration, number)

    def rollout(self, prompts: Sequence[Prompt]) -> tuple[Rollout, dict[str, float]]:
        """Sample, score, replace groups without signal, and compare. No gradient.

        Returns:
            The rollout with rewards, log-probabilities and advantages filled in, and the metrics of
            all that was sampled for it.
        """
        return Collector(self).collect(prompts)

    def complete(
        self,
        prompts: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        *address: int,
        finished: Callable[[list[Row]], None] | None = None,
    ) -> list[Row]:
        """Sample completions of each prompt, in evaluation mode (no dropout).

        `finished` is called with the rows of each prompt as soon as they are complete.
        """
        self.model.eval()
        where = (self.seed, *address)
        return sample_rows(self, prompts, group_size, sampling, where, finished)

    def start_rewards(self, rows: Sequence[Row], group_size: int) -> Callable[[], dict[str, float]]:
        """Start to score rows; what is returned fills them in and gives what was logged."""
        return start_rewards(self, rows, group_size)

    def score_rewards(self, rows: Sequence[Row], group_size: int) -> dict[str, float]:
        """Fill in the rewards of rows; returns what the reward functions logged."""
        return self.start_rewards(rows, group_size)()

    def update(self, rows: Sequence[Row], means: Means) -> None:
        """One optimiser step on a minibatch: the losses of its micro-batches add up."""
        counted = [row for row in rows if row.counted]
        totals = step_totals(self, counted, self.sampling.max_new_tokens)
        if not totals.sequences:  # a step without a gradient would still move by momentum
            self.progress.updates += 1
            return
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        parts = gradient_parts(self, rows)
        finite = differentiate(self, parts, totals, means)
        finite = bool(gathered(self, torch.tensor(finite)).all())
        set_learning_rates(self, optimizer)
        if finite:
            optimizer.step()
        self.guard.record(finite, counted, self)
        self.progress.updates += 1
        silent_metrics(means, self, counted, parts, totals)
        means.mean("learning_rate", optimizer.param_groups[0]["lr"])

    def loss(self, batch: MicroBatch, totals: Totals, means: Means, number: int) -> Tensor:
        """This micro-batch's share of the step's loss; dropout is drawn from its own address."""
        torch.manual_seed(seed_for(self.seed, DROPOUT, self.progress.updates, number))
        return micro_batch_loss(self, batch, totals, means)

    def updates_per_rollout(self) -> int:
        """Optimiser steps made with one rollout."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        rows = data.prompts_per_iteration * self.group_size // self.trainer.world_size
        return int(self.passes * math.ceil(rows / (self.minibatch_size or rows)))

    def total_updates(self) -> int:
        """Optimiser steps of the whole run."""
        iterations: int = self.trainer.datamodule.iterations  # type: ignore[attr-defined]
        return iterations * self.updates_per_rollout()

    def _report(self, rollout: Rollout, metrics: dict[str, float]) -> None:
        seen = torch.tensor(int(metrics["num_tokens"]))
        self.progress.num_tokens += int(gathered(self, seen).sum())
        metrics["num_tokens"] = float(self.progress.num_tokens)
        metrics["skipped_updates"] = float(self.progress.skipped)
        self.last_rollout, self.last_metrics = rollout, metrics
        position = {"step": float(self.progress.iteration)}  # what Lightning takes for the x-axis
        self.log_dict(metrics | position, on_step=True)
        self.watches.tell(self, rollout, metrics)

    def validation_step(self, prompts: list[Prompt], batch_idx: int) -> Rollout:  # type: ignore[override]
        """Sample and score validation prompts with their own settings and their own draws."""
        rows = self.complete(prompts, self.val_samples, self.val_sampling, VALIDATE)
        self.score_rewards(rows, self.val_samples)
        for name, values in validation_values(rows).items():
            self.log(f"val/{name}", fmean(values), batch_size=len(values), sync_dist=True)
        return Rollout(rows, self.val_samples)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer and the adapter, or the whole model if there is none, to a folder.

        A value head is a file of its own, which nothing but PPO reads.
        """
        save_backbone(self.model, self.tokenizer, path)
        if self.value_head is not None:
            save_value_head(self.value_head, path)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the trained weights and the run's progress."""
        keep_trained(self, checkpoint)
        checkpoint["progress"] = asdict(self.progress)
        checkpoint["reward_health"] = self.reward_health.state_dict()
        checkpoint["origin"] = self._origin
        checkpoint["optimizer"] = optimizer_name(self.make_optimizer)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the progress of a checkpoint of this model.

        Raises:
            ValueError: it is of another model.
        """
        check_same_model(self, self.backbone, checkpoint)
        used = optimizer_name(self.make_optimizer)
        start = self._origin if self._reference else checkpoint["origin"]
        check_same_start(checkpoint, start=start, optimizer=used)
        self.progress = Progress(**checkpoint["progress"])
        self.reward_health.load_state_dict(checkpoint.get("reward_health", {}))
        go_on_if_longer(checkpoint, self.trainer)

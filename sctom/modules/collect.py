"""One iteration's rollout: sample, reward, see to groups without signal, score, compare.

Nothing here has a gradient, and nothing but the policy's weights and the observations of a
curriculum outlives the iteration, so a resumed run collects what it would have collected.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from sctom.batch import Prompt, Rollout, Row, interleave
from sctom.modules.advantages import fill_advantages
from sctom.modules.fill import charge_kl, fill_logps, fill_values, settle_rewards
from sctom.modules.groups import Group, is_dead, leave_out, select
from sctom.modules.metrics import Means, refuse_taken_names, rollout_metrics
from sctom.modules.overlap import RewardThread
from sctom.modules.ranks import gather, gathered

if TYPE_CHECKING:
    from sctom.modules.policy import PolicyModule

TRAIN = 0
"""Second part of the address of training completions; `sctom.modules.policy` has the others."""


class Phases:
    """Seconds spent in each phase."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("time/generate", "time/reward", "time/score"), 0.0)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the time until the end of the block."""
        started = time.perf_counter()
        yield
        self.seconds[f"time/{name}"] += time.perf_counter() - started


class Collector:
    """Collects the rollout of one iteration on this rank."""

    def __init__(self, module: PolicyModule) -> None:
        self.module = module
        self.phases = Phases()
        self.logged = Means()
        self.sampled: list[Row] = []
        """Every completion this rank sampled, dropped ones included."""
        self.extra_batches = 0

    def collect(self, prompts: Sequence[Prompt]) -> tuple[Rollout, dict[str, float]]:
        """Make the rollout and its metrics; see `PolicyModule.rollout`."""
        module = self.module
        self._sample(prompts)
        rollout, report = self._see_to_groups()
        settle_rewards(module, self.sampled, module.group_size)
        if module.truncated == "mask":
            leave_out([row for row in rollout.rows if row.truncated])
            cut = sum(row.truncated for row in rollout.rows)
            report["truncated/masked_frac"] = cut / len(rollout)
        report |= self._observe()
        sampled = Rollout(self.sampled, module.group_size)
        metrics = rollout_metrics(sampled, tolerance=module.zero_variance_tolerance) | report
        with self.phases.time("score"):
            metrics |= self._score(rollout.rows)
            metrics |= fill_advantages(module, rollout)
        metrics |= self.phases.seconds
        metrics |= module.reward_health.metrics()
        completed = sum(len(row.ids) for row in self.sampled)
        read = sum(len(row.prompt.ids) for row in self.sampled)
        metrics["num_tokens"] = float(read + completed)
        metrics["tokens_per_second"] = completed / max(self.phases.seconds["time/generate"], 1e-9)
        logged = self.logged.result()
        refuse_taken_names(logged, metrics)
        return rollout, metrics | logged

    def _sample(self, prompts: Sequence[Prompt]) -> list[Row]:
        """Complete and reward prompts."""
        module = self.module
        if not prompts:
            return []
        size = module.group_size
        with RewardThread(partial(module.start_rewards, group_size=size)) as thread:
            with self.phases.time("generate"):
                rows = module.complete(
                    prompts,
                    size,
                    module.sampling,
                    TRAIN,
                    module.progress.iteration,
                    finished=thread.submit if module.overlap_rewards else None,
                )
            with self.phases.time("reward"):
                if module.overlap_rewards:
                    results = thread.results()
                else:
                    results = [(module.score_rewards(rows, size), len(rows))]
        for logged, count in results:
            for name, value in logged.items():
                self.logged.mean(name, value, count)
        self.sampled += rows
        return rows

    def _see_to_groups(self) -> tuple[Rollout, dict[str, float]]:
        """Keep, mask or replace groups without signal."""
        module = self.module
        rollout = Rollout(list(self.sampled), module.group_size)
        if module.zero_variance == "keep":
            return rollout, {}
        if module.zero_variance == "resample":
            return self._refill(rollout.groups())
        dead = [group for group in rollout.groups() if self._is_dead(group)]
        for group in dead:
            leave_out(group)
        everywhere = gathered(module, torch.tensor(len(dead))).sum()
        return rollout, {"zero_variance/masked": float(everywhere)}

    def _is_dead(self, group: Group) -> bool:
        module = self.module
        return is_dead(group, module.zero_variance_metric, module.zero_variance_tolerance)

    def _refill(self, groups: list[list[Row]]) -> tuple[Rollout, dict[str, float]]:
        """Sample extra batches until every prompt of the iteration has a group with signal.

        The groups of all ranks are put into one order before they are chosen from, so the choice
        does not depend on the number of ranks.
        """
        module, size = self.module, self.module.group_size
        pool = self._everywhere(groups)
        wanted = len(pool)
        while self.extra_batches < module.max_extra_batches:
            if sum(not self._is_dead(group) for group in pool) >= wanted:
                break
            loader = module.trainer.datamodule.loader  # type: ignore[attr-defined]
            number = self.extra_batches + 1
            rows = self._sample(loader.at(module.progress.iteration, extra=number))
            more = self._everywhere(Rollout(rows, size).groups())
            if not more:
                break  # the data has no further prompts
            self.extra_batches += 1
            pool += more
        metric, tolerance = module.zero_variance_metric, module.zero_variance_tolerance
        selection = select(pool, wanted, metric, tolerance)
        ranks = module.trainer.world_size
        mine = [row for group in selection.kept[module.global_rank :: ranks] for row in group]
        dropped = [row for group in selection.dropped for row in group]
        rollout = Rollout(mine, size, dropped=dropped if module.global_rank == 0 else [])
        return rollout, {
            "zero_variance/extra_batches": float(self.extra_batches),
            "zero_variance/dropped": float(len(selection.dropped) - selection.surplus),
            "zero_variance/surplus": float(selection.surplus),
            "zero_variance/masked": float(selection.filled),
        }

    def _everywhere(self, groups: list[list[Row]]) -> list[list[Row]]:
        """The groups of all ranks in the order of their prompts."""
        return interleave(gather(self.module.trainer, groups), 1)

    def _observe(self) -> dict[str, float]:
        """Let a curriculum see all that was sampled."""
        order = self.module.trainer.datamodule.order  # type: ignore[attr-defined]
        if not order.watches:
            return {}
        seen = [(row.prompt.index, order.solved(row)) for row in self.sampled]
        everything = interleave(gather(self.module.trainer, seen), self.module.group_size)
        order.observe([index for index, _ in everything], [right for _, right in everything])
        judged = [right for _, right in everything if right is not None]
        return {"solved_frac": sum(judged) / len(judged)} if judged else {}

    @torch.no_grad()
    def _score(self, rows: Sequence[Row]) -> dict[str, float]:
        """Fill in old and reference log-probabilities, and values, where the run needs them."""
        module = self.module
        in_reward = module._reference is not None and module.kl_in == "reward"
        if not in_reward and module.trainer.world_size == 1:  # else one may be used, masked
            rows = [row for row in rows if row.counted]
        limits = module.micro_batch_size, module.micro_batch_tokens
        needed = in_reward or module.updates_per_rollout() > 1
        unknown = needed and not module.progress.sampler_agrees
        if needed and not unknown:
            for row in rows:
                row.old_logps = row.sampler_logps
        scorer, model, head = module.scorer, module.model, module.value_head
        if head is not None:
            fill_values(rows, scorer, model, head, *limits, logps=unknown)
        elif unknown:
            fill_logps(rows, "old_logps", scorer, model, *limits)
        if module._reference is not None:
            with module._reference.scoring() as reference:
                fill_logps(rows, "ref_logps", scorer, reference, *limits)
        if in_reward:
            return {"kl": charge_kl(rows, module.kl_estimator, module.beta)}
        return {}

"""Checks of the whole chain before the first iteration.

They are cheap, and each failure says what is wrong and how to mend it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from sctom.batch import Prompt, Row
from sctom.data.template import render_dialogue
from sctom.modules.memory_probe import probe_memory, wants_probe
from sctom.modules.overlap import RewardThread
from sctom.modules.quantize import coarsest_dtype
from sctom.modules.ranks import gathered
from sctom.modules.scoring import collate
from sctom.rollout import LocalSampler, Sampling

if TYPE_CHECKING:
    from sctom.modules.policy import PolicyModule

CHECK = 4
"""Second part of the address of the draws made here, after those of `sctom.modules.policy`."""

AGREEMENT = 2e-4
"""Largest difference in float32 at which the sampler's log-probabilities are used as the old ones.

Rounding alone gives up to about 5e-5.
"""
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
COARSE_TOLERANCE = 0.1
"""Allowed mean difference of log-probabilities in bfloat16 and float16.

Rounding makes single tokens differ by 0.2 and more, but hardly ever by as much on average.
"""


class SelfCheckError(RuntimeError):
    """A check before the first iteration failed."""


@dataclass
class Check:
    """The outcome of one check."""

    name: str
    passed: bool
    detail: str


def run_self_checks(module: PolicyModule, prompts: Sequence[Prompt]) -> list[Check]:
    """Run every check, print one line each.

    The memory probe comes first, and nothing else is checked where it fails: that would run out of
    memory too.

    Args:
        module: with its model loaded.
        prompts: all training prompts; the first two are sampled.

    Raises:
        SelfCheckError: with all failures; each says what to change. Nothing has been trained yet.
    """
    results = [memory_check(module, prompts)] if wants_probe(module) else []
    if all(result.passed for result in results):
        with module.trainer.precision_plugin.train_step_context():  # as in the run
            results += _chain_checks(module, prompts)
    if module.trainer.is_global_zero:
        for result in results:
            mark = "ok" if result.passed else "FAILED"
            line = f"  self-check {mark}: {result.name}: {result.detail}"
            print(line)
    failed = [f"{r.name}: {r.detail}" for r in results if not r.passed]
    if failed:
        raise SelfCheckError(
            "self-check failed before the first iteration\n  " + "\n  ".join(failed)
        )
    return results


def _chain_checks(module: PolicyModule, prompts: Sequence[Prompt]) -> list[Check]:
    rows = module.complete(prompts[:2], 2, _short(module), CHECK)
    checks: list[Callable[[], Check]] = [
        lambda: stop_token_check(module),
        lambda: bos_check(module, prompts[0]),
        lambda: logps_check(module, rows),
        lambda: reference_check(module, rows),
        lambda: reward_check(module, rows, prompts),
    ]
    return [check() for check in checks]


def _short(module: PolicyModule) -> Sampling:
    return replace(module.sampling, max_new_tokens=min(16, module.sampling.max_new_tokens))


def memory_check(module: PolicyModule, prompts: Sequence[Prompt]) -> Check:
    """The longest possible batch must fit into memory."""
    probe = probe_memory(module, prompts)
    return Check("memory", probe.fits, probe.detail)


def stop_token_check(module: PolicyModule) -> Check:
    """The token a template ends an assistant's turn with must end a completion."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids, mask = render_dialogue(module.tokenizer, turns)
    ending = [token for token, counted in zip(ids, mask, strict=True) if counted][-3:]
    names = module.tokenizer.convert_ids_to_tokens(sorted(module.stop_ids))
    if module.stop_ids & set(ending):
        return Check("stop tokens", True, f"{names}")
    last = module.tokenizer.convert_ids_to_tokens(ending)
    return Check(
        "stop tokens",
        False,
        f"the template ends an assistant's turn with {last}, none of which is a stop token "
        f"({names}), so completions would run to the limit; put its end-of-turn token into "
        "eos_token_id of generation_config.json",
    )


def bos_check(module: PolicyModule, prompt: Prompt) -> Check:
    """At most one beginning-of-sequence token, at the front."""
    bos = module.tokenizer.bos_token_id
    if bos is None or bos in module.stop_ids:
        return Check("BOS", True, "the tokenizer has none of its own")
    leading = len(prompt.ids) - len(_without_leading(prompt.ids, bos))
    return Check(
        "BOS",
        leading <= 1,
        f"{leading} in front"
        + (
            ""
            if leading <= 1
            else "; remove it from the chat template or set add_bos_token to false"
        ),
    )


def _without_leading(ids: Sequence[int], token: int) -> Sequence[int]:
    start = 0
    while start < len(ids) and ids[start] == token:
        start += 1
    return ids[start:]


@torch.no_grad()
def logps_check(module: PolicyModule, rows: Sequence[Row]) -> Check:
    """Sampler and trainer must give a sampled token the same log-probability.

    So the ratio starts at 1.
    """
    batch = collate(rows, module.device)
    logps, _ = module.scorer(module.model, batch)
    assert batch.sampler_logps is not None
    gaps = (logps - batch.sampler_logps).abs()[batch.mask.bool()]
    device = module.device.type
    mixed = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if mixed else coarsest_dtype(module.model)
    mine = torch.tensor(dtype in TOLERANCE and bool(gaps.max() <= AGREEMENT))
    agrees = bool(gathered(module, mine).all())
    if module.progress.iteration == 0 or module.progress.sampler_agrees:
        module.progress.sampler_agrees = agrees
    kind, gap, limit = "largest", float(gaps.max()), TOLERANCE.get(dtype)
    if limit is None:
        kind, gap, limit = "mean", float(gaps.mean()), COARSE_TOLERANCE
    passed = math.isfinite(gap) and gap <= limit
    detail = f"{kind} difference of log-probabilities {gap:.2g} (limit {limit:g})"
    if not passed:
        detail += "; sampler and trainer disagree: " + (
            "load the weights in float32"
            if isinstance(module.sampler, LocalSampler)
            else f"{type(module.sampler).__name__} must give log-probabilities on full support, "
            "at the sampling temperature"
        )
    elif module.updates_per_rollout() > 1:
        source = "the sampler" if module.progress.sampler_agrees else "the trainer"
        detail += f"; old log-probabilities come from {source}"
    return Check("sampler = trainer", passed, detail)


@torch.no_grad()
def reference_check(module: PolicyModule, rows: Sequence[Row]) -> Check:
    """Where the reference is the policy's own start, KL must be 0 before the first update."""
    reference = module._reference
    if reference is None:
        return Check("reference", True, "none, beta is 0")
    batch = collate(rows, module.device)
    with reference.scoring() as model:
        ref, _ = module.scorer(model, batch)
    logps, _ = module.scorer(module.model, batch)
    gap = float(((logps - ref) * batch.mask).abs().max())
    if not reference.equals_start or module.progress.updates > 0:
        return Check(
            "reference",
            math.isfinite(gap),
            f"{module.reference_kind}, differs by up to {gap:.2g} per token",
        )
    return Check(
        "reference",
        gap <= 1e-5,
        f"{module.reference_kind}, differs by up to {gap:.2g} per token"
        + (
            ""
            if gap <= 1e-5
            else "; it must not differ before the first update: use reference: initial"
        ),
    )


def reward_check(module: PolicyModule, rows: Sequence[Row], prompts: Sequence[Prompt]) -> Check:
    """The rewards run on a few prompts, and one of them has an opinion somewhere.

    Completions are the expected answers where the data has them, else those that were sampled. One
    of which nobody can judge says nothing about a run: rewards may abstain.
    """
    probes = [_probe(module, prompt, rows, number) for number, prompt in enumerate(prompts[:8])]
    seen = module.reward_health.state_dict()
    if module.overlap_rewards:  # in the thread the run will use: some functions cannot
        with RewardThread(partial(module.start_rewards, group_size=1)) as thread:
            for probe in probes:
                thread.submit([probe])
            thread.results()
    else:
        for probe in probes:
            module.score_rewards([probe], 1)
    module.reward_health.load_state_dict(seen)  # these completions are none of the run's
    module.reward_health.metrics()
    judged = [p for p in probes if any(value is not None for value in p.rewards.values())]
    shown = judged[0] if judged else probes[0]
    errors = {
        f"{name} failed: {error}": None
        for probe in probes
        for name in probe.rewards
        if (error := probe.extra.get(f"{name}/error"))
    }
    detail = f"{shown.text[:40]!r} scores {shown.rewards}"
    if errors:
        detail += f"; on {len(probes)} completions: " + "; ".join(list(errors)[:3])
    if not judged and not errors:
        detail += f"; every reward abstained on all of {len(probes)} completions: check the column "
        detail += "names they need"
    return Check("rewards", bool(judged), detail)


def _probe(module: PolicyModule, prompt: Prompt, rows: Sequence[Row], number: int) -> Row:
    columns = prompt.columns
    golden = columns.get("expected_answer", columns.get("answer"))
    row = rows[number % len(rows)]
    text = golden if isinstance(golden, str) else row.text
    ids = module.tokenizer.encode(text, add_special_tokens=False)
    return replace(row, prompt=prompt, text=text, ids=ids, rewards={}, extra={})

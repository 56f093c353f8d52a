"""Cases of policy, kl, correction and stats: functions of log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from parity.case import (
    F32,
    LONGEST,
    Builder,
    Case,
    garbage_outside,
    log_probabilities,
    masked_garbage,
    normal,
    on_grid,
    policy_arguments,
    ragged_mask,
    with_nan,
)

LEVELS = ("token", "geometric", "product")
STEP = 1e-3  # how far inside or outside an edge, in log-ratio
CLAMPED = (-1e4, -25.0, -20.5, -19.5, -3.0, 0.0, 3.0, 19.5, 20.5, 25.0, 1e4)

Arguments = dict[str, Any]


def pick(case: Case, *names: str) -> Case:
    """The case with only these arguments."""
    return replace(case, arguments={name: case.arguments[name] for name in names})


def per_token(seed: int) -> Case:
    """A case whose advantages are one per token, so that they can be masked."""
    return Case("", {**policy_arguments(seed), "advantages": normal(seed + 9, 4, 7)})


def spread_over(log_ratios: np.ndarray, level: str, signs: tuple[float, ...]) -> Arguments:
    """Rows whose ratio is exp of each log-ratio, at this level, once for each advantage.

    Each row has two unmasked tokens and garbage between them.
    """
    share = 2.0 if level == "product" else 1.0
    rows = np.repeat(np.asarray(log_ratios, dtype=np.float64), len(signs))
    mask = np.tile(np.array([1.0, 0.0, 1.0], dtype=F32), (len(rows), 1))
    old_logps = log_probabilities(11, *mask.shape)
    logps = (old_logps + rows[:, None] / share).astype(F32)
    return {
        "logps": garbage_outside(logps, mask, 12),
        "old_logps": garbage_outside(old_logps, mask, 13),
        "advantages": np.tile(np.array(signs, dtype=F32), len(log_ratios)),
        "mask": mask,
    }


def around(*edges: float) -> np.ndarray:
    """Log-ratios just inside and just outside each positive edge, at 1 and far away."""
    inner = [np.log(edge) + step for edge in edges if edge > 0 for step in (-STEP, STEP)]
    return np.array([*inner, 0.0, -1.5, 1.9])


def exactly(log_ratio: float, level: str = "token") -> Arguments:
    """Rows with an exact log-ratio, for both signs of the advantage: ties of clamp and minimum."""
    old_logps = np.array([[-30.0, -24.0], [-22.0, -40.0], [-21.0, -33.0]], dtype=F32)
    share = 2.0 if level == "product" else 1.0
    return {
        "logps": old_logps + F32(log_ratio / share),
        "old_logps": old_logps,
        "advantages": np.array([1.5, -1.25, 0.0], dtype=F32),
        "mask": np.ones_like(old_logps),
    }


def shapes_and_signs(seed: int) -> Iterator[Case]:
    """Batches of several shapes, advantages per row and per token, bfloat16, the longest row."""
    batch = Case("batch", policy_arguments(seed))
    yield batch
    yield Case("one token", policy_arguments(seed + 10, 3, 1))
    yield Case("one row", policy_arguments(seed + 20, 1, 33))
    yield batch.with_("advantages per token", advantages=normal(seed + 30, 4, 7))
    yield batch.in_bf16()
    yield from with_nan(batch)
    yield Case("longest", policy_arguments(seed + 40, 2, LONGEST, spread=0.01, bits=16))


def at_levels(seed: int) -> Iterator[Case]:
    """The batches above at every level, with garbage under the mask."""
    for level in LEVELS:
        for case in shapes_and_signs(seed):
            yield case.set(level=level)
        yield from (case.set(level=level) for case in masked_garbage(per_token(seed + 1)))
        for sign in (1.0, -1.0):
            far = spread_over(np.array(CLAMPED), level, (sign,))
            yield Case(f"clamped, A={sign}", far).set(level=level)
    apart = policy_arguments(seed + 3, 3, 5)
    apart["logps"] = apart["old_logps"] + np.array([[6.0], [-6.0], [3.0]], dtype=F32)
    apart["mask"] = np.ones_like(apart["mask"])
    yield Case("sum of the row clamped", apart).set(level="product")
    for level, d in product(LEVELS, (20.0, -20.0)):
        yield Case(f"exactly {d:+g}", exactly(d, level)).set(level=level)


def grpo_cases() -> Iterator[Case]:
    """All of the above and both sides of every edge of the clip."""
    yield from at_levels(100)
    yield Case("defaults", policy_arguments(199, spread=0.5))
    for level in LEVELS:
        for settings in (
            {"clip_low": 0.2, "clip_high": 0.28},
            {"clip_low": 0.1, "clip_high": 0.4, "ratio_max": 3.0},
            {"clip_low": 0.5, "clip_high": 0.9, "ratio_max": 1.3},
        ):
            edges = (1 - settings["clip_low"], 1 + settings["clip_high"])
            ratios = around(*edges, settings.get("ratio_max", 0.0))
            arguments = spread_over(ratios, level, (1.5, -1.25, 0.0))
            yield Case("edges", arguments).set(level=level, **settings)
        for bounds in ((0.0, 0.0, None), (0.0, 0.3, 1.0), (0.3, 0.0, 4.0)):
            named = dict(zip(("clip_low", "clip_high", "ratio_max"), bounds, strict=True))
            yield Case("ratio exactly 1", exactly(0.0)).set(level=level, **named)
    yield Case("clip 0", policy_arguments(198)).set(clip_low=0.0, clip_high=0.0)


def cispo_cases() -> Iterator[Case]:
    """All of the above and both sides of every bound of the weight."""
    yield from at_levels(200)
    yield Case("defaults", policy_arguments(299, spread=1.5))
    for level in LEVELS:
        for settings in ({"weight_max": 6.0}, {"weight_max": 1.3, "weight_min": 0.7}):
            ratios = around(settings["weight_max"], settings.get("weight_min", 0.0))
            arguments = spread_over(ratios, level, (1.5, -1.25, 0.0))
            yield Case("edges", arguments).set(level=level, **settings)
        yield Case("exactly 1", exactly(0.0)).set(level=level, weight_max=1.0, weight_min=1.0)


def sapo_cases() -> Iterator[Case]:
    """The batches, and temperatures that tell the signs apart."""
    yield from shapes_and_signs(300)
    yield from masked_garbage(per_token(350))
    for temperatures in ((1.0, 1.05), (0.5, 2.0), (3.0, 0.1)):
        named = dict(zip(("temperature_pos", "temperature_neg"), temperatures, strict=True))
        yield Case("spread", policy_arguments(352, spread=1.0)).set(**named)
        yield Case("clamped", spread_over(np.array(CLAMPED), "token", (1.0, -1.0, 0.0))).set(
            **named
        )


def reinforce_cases() -> Iterator[Case]:
    """The batches without old log-probabilities."""
    names = ("logps", "advantages", "mask")
    for case in (*shapes_and_signs(400), *masked_garbage(per_token(450))):
        yield pick(case, *names)


def kl_batches(seed: int) -> Iterator[Case]:
    """logps, old_logps, ref_logps and a mask or none; differences small, large and clamped."""
    arguments = policy_arguments(seed)
    arguments["ref_logps"] = arguments["logps"] - normal(seed + 5, 4, 7, scale=0.4)
    batch = pick(Case("batch", arguments), "logps", "old_logps", "ref_logps", "mask")
    yield batch
    yield from masked_garbage(batch)
    yield batch.in_bf16()
    yield from with_nan(batch)
    yield batch.with_("no mask", mask=None)
    tiny = normal(seed + 6, 4, 7, scale=1e-3, bits=16)
    yield batch.with_("close", ref_logps=batch.arguments["logps"] + tiny)
    for rows, tokens in ((3, 1), (2, LONGEST)):
        arguments = policy_arguments(seed + 7, rows, tokens, spread=0.01, bits=16)
        arguments["ref_logps"] = arguments["old_logps"]
        yield pick(Case(f"T={tokens}", arguments), *batch.arguments)
    for d in (*CLAMPED, 20.0, -20.0):
        logps = np.full((1, 3), -1.0, dtype=F32)
        apart = {"logps": logps, "old_logps": logps + on_grid([0.5, -0.25, 0.0])}
        apart |= {"ref_logps": logps + F32(d), "mask": None}
        # in the gradient of r k3 terms of this size leave one of size r d
        size = 2 * float(np.exp(d)) if 0 < d <= 20 else 1.0
        yield Case(f"d exactly {d:g}", apart, cancels=size)


def estimator_cases() -> Iterator[Case]:
    """The batches for k1, k2 and k3."""
    for case in kl_batches(500):
        yield replace(pick(case, "logps", "ref_logps", "mask"), cancels=1.0)


def penalty_cases() -> Iterator[Case]:
    """The batches for every estimator, weighted and plain; ratios that are clamped themselves."""
    yield from kl_batches(600)
    for estimator in ("k1", "k2", "k3"):
        for weighted in (True, False):
            for case in kl_batches(610):
                size = case.cancels if weighted and estimator == "k3" else 1.0
                yield replace(case, cancels=size).set(estimator=estimator, weighted=weighted)
        old = on_grid(np.array([[-22.0, -19.5, 19.5, 22.0]]))
        far = {"logps": old * 0 - 1, "old_logps": old - 1, "ref_logps": old * 0 - 1.5}
        yield Case("ratio clamped", far).set(estimator=estimator)


def rollout_cases() -> Iterator[Case]:
    """Every mode with and without a lower bound; a NaN that the sampler reported."""
    yield from (_as_rollout(case) for case in shapes_and_signs(700))
    for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        level = "token" if mode.startswith("token") else "product"
        for settings in ({}, {"weight_max": 1.5}, {"weight_max": 2.0, "weight_min": 0.5}):
            edges = around(settings.get("weight_max", 3.0), settings.get("weight_min", 0.0))
            arguments = spread_over(edges, level, (1.0,))
            yield _as_rollout(Case("edges", arguments)).set(mode=mode, **settings)
        yield _as_rollout(Case("clamped", spread_over(np.array(CLAMPED), level, (1.0,)))).set(
            mode=mode
        )
        batch = _as_rollout(Case("batch", policy_arguments(710)))
        yield from (case.set(mode=mode) for case in masked_garbage(batch))
        unknown = batch.arguments["rollout_logps"].copy()
        unknown[1, 0] = np.nan
        yield batch.with_("NaN of the sampler", rollout_logps=unknown).set(mode=mode)


def _as_rollout(case: Case) -> Case:
    names = {"logps": "old_logps", "old_logps": "rollout_logps", "mask": "mask"}
    return replace(case, arguments={new: case.arguments[old] for old, new in names.items()})


def sequence_mask_cases() -> Iterator[Case]:
    """Mean drops just inside and just outside of delta, for every sign of the advantage."""
    for delta in (0.0, 0.5, 1.0):
        for case in shapes_and_signs(800):
            yield case.set(delta=delta)
        edges = -delta + np.array([-STEP, STEP, -1.0, 1.0])
        yield Case("edges", spread_over(edges, "token", (1.0, -1.0, 0.0))).set(delta=delta)
    batch = per_token(850)
    dropped = batch.with_("exactly delta", logps=batch.arguments["old_logps"] - 1)
    yield dropped.set(delta=1.0)
    yield from (case.set(delta=0.5) for case in masked_garbage(dropped))


def weight_clip_fraction_cases() -> Iterator[Case]:
    """The cases of `cispo_loss` without advantages."""
    for case in cispo_cases():
        yield pick(case, "logps", "old_logps", "mask")


def plain_stats_cases() -> Iterator[Case]:
    """logps, old_logps and a mask; log-ratios on both sides of the clamp."""
    batches = [
        *shapes_and_signs(920),
        *masked_garbage(Case("", policy_arguments(930))),
        Case("clamped", spread_over(np.array([*CLAMPED, 20.0, -20.0]), "token", (1.0,))),
    ]
    for case in batches:
        yield pick(case, "logps", "old_logps", "mask")


def sample_size_cases() -> Iterator[Case]:
    """The above at every level; equal weights and one heavy weight."""
    for level in LEVELS:
        yield from (case.set(level=level) for case in plain_stats_cases())
        heavy = policy_arguments(940, 3, 4)
        heavy["logps"] = heavy["old_logps"] + np.array([[4.0], [0.0], [0.0]], dtype=F32)
        yield pick(Case("heavy", heavy), "logps", "old_logps", "mask").set(level=level)
    equal = {"logps": np.zeros((2, 3), F32), "old_logps": np.ones((2, 3), F32)}
    yield Case("equal", {**equal, "mask": ragged_mask(941, 2, 3)})


CASES: dict[str, list[Builder]] = {
    "grpo_loss": [grpo_cases],
    "cispo_loss": [cispo_cases],
    "sapo_loss": [sapo_cases],
    "reinforce_loss": [reinforce_cases],
    "kl_k1": [estimator_cases],
    "kl_k2": [estimator_cases],
    "kl_k3": [estimator_cases],
    "kl_penalty": [penalty_cases],
    "rollout_weights": [rollout_cases],
    "off_policy_sequence_mask": [sequence_mask_cases],
    "clip_fraction": [grpo_cases],
    "weight_clip_fraction": [weight_clip_fraction_cases],
    "clamped_fraction": [plain_stats_cases],
    "approx_kl": [plain_stats_cases],
    "effective_sample_size": [sample_size_cases],
}

"""Cases of advantages and preference: functions of rewards and scores."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from parity.case import F32, LONGEST, Builder, Case, masked_garbage, normal, ragged_mask, with_nan

NAN = float("nan")


def rewards(label: str, rows: Any) -> Case:
    """A case of rewards [P, G]."""
    return Case(label, {"rewards": np.array(rows, dtype=F32)})


def reward_batches(seed: int) -> Iterator[Case]:
    """Groups of many kinds: missing rewards, groups of one, equal and nearly equal rewards."""
    yield rewards("batch", normal(seed, 5, 8))
    yield rewards("0 or 1", normal(seed, 6, 4) > 0)
    yield rewards("G=1", normal(seed + 1, 4, 1))
    yield rewards("G=2", normal(seed + 2, 4, 2))
    yield rewards("one group", normal(seed + 3, 1, 16))
    yield rewards("large groups", normal(seed + 4, 3, 256))
    yield rewards("0.1 seven times", np.full((2, 7), 0.1))
    yield rewards("one equal group", [[0.1, 0.1, 0.1], [1.0, 0.0, 0.5]])
    yield rewards("0", np.zeros((2, 3)))
    yield rewards("around 100", 100 + normal(seed + 5, 3, 6))
    missing = normal(seed + 6, 5, 6)
    missing[0, :2] = missing[1, 1:] = missing[2, :] = missing[3, :4] = NAN
    yield rewards("NaN", missing)
    yield rewards("all NaN", np.full((2, 3), NAN))
    yield rewards("equal but NaN", [[0.1, NAN, 0.1], [NAN, 0.1, NAN]])
    for size in (1e-30, 1e20, 1e30):
        wide = F32(size) * np.array(
            [[1, 0, 3, -2], [0, NAN, 1, 0], [2, 2, 2, 2], [4, 0, 0, 0]], dtype=F32
        )
        wide[3] = (3.0, 0.0, 1.0, 2.0)
        yield rewards(f"around {size:g}", wide)
    yield rewards("the largest", [[3e38, 3e38, 3e38, 2e38]])
    yield rewards("no completions", np.zeros((3, 0)))
    yield rewards("no prompts", np.zeros((0, 3)))
    yield rewards("whole numbers", [[3, 1, 2]]).with_(
        "int", rewards=np.array([[3, 1, 2], [5, 5, 5]], dtype=np.int32)
    )
    yield rewards("batch", normal(seed + 7, 5, 8)).in_bf16()
    yield rewards("NaN", missing).in_bf16()


def group_cases() -> Iterator[Case]:
    """Every scale with every kind of standard deviation, guards and tolerances."""
    yield from reward_batches(1000)
    for scale, std in product(("group", "batch", "none"), ("unbiased", "biased")):
        yield from (case.set(scale=scale, std=std) for case in reward_batches(1010))
    batch = rewards("batch", normal(1020, 5, 8))
    yield batch.set(eps=0.0)
    yield batch.set(eps=0.5)
    yield batch.set(eps=0.5, scale="batch")
    yield batch.set(eps=1e300)
    for case in reward_batches(1025):
        if case.label.startswith("around"):
            for scale in ("group", "batch", "none"):
                yield case.set(scale=scale, eps=0.0, tolerance=0.0)
    spread = rewards("ranges 0.25 and 0.5", [[0.0, 0.25, 0.125], [0.0, 0.5, 0.125]])
    for tolerance in (0.0, 0.2, 0.25, 0.5):
        yield spread.set(tolerance=tolerance)


def leave_one_out_cases() -> Iterator[Case]:
    """The same groups; the one winner of four."""
    yield from reward_batches(1030)
    yield rewards("one winner", [[1.0, 0.0, 0.0, 0.0]])


def gae_cases() -> Iterator[Case]:
    """Discounts and traces, holes in the mask, one token and many."""
    for rows, tokens in ((4, 7), (3, 1), (2, 65)):
        arguments = {
            "rewards": normal(1040, rows, tokens),
            "values": normal(1041, rows, tokens),
            "mask": ragged_mask(1042, rows, tokens),
        }
        batch = Case(f"T={tokens}", arguments)
        for gamma, lam in ((1.0, 0.95), (0.9, 0.5), (0.99, 1.0), (0.5, 0.0), (0.0, 0.95)):
            yield batch.set(gamma=gamma, lam=lam)
        yield batch
        yield batch.in_bf16()
        yield from masked_garbage(batch)
        yield from with_nan(batch)
    longest = {
        "rewards": normal(1043, 1, LONGEST, scale=0.1),
        "values": normal(1044, 1, LONGEST),
        "mask": ragged_mask(1045, 1, LONGEST),
    }
    yield Case("longest", longest).set(gamma=0.99)


def whiten_cases() -> Iterator[Case]:
    """Shapes of one to three axes, masks, both variances and both guards."""
    for shape in ((9,), (4, 7), (2, 3, 4), (1, LONGEST)):
        values = {"values": normal(1050, *shape), "mask": None}
        mask = np.random.default_rng(1051).random(shape) < 0.7
        yield Case(f"shape {shape}", values)
        yield Case(f"shape {shape}, masked", {**values, "mask": mask})
    batch = Case("batch", {"values": normal(1052, 4, 7), "mask": ragged_mask(1053, 4, 7)})
    for std, eps in product(("unbiased", "biased"), (0.0, 1e-8, 0.5)):
        yield batch.set(std=std, eps=eps)
    yield from masked_garbage(batch)
    yield batch.in_bf16()
    yield from with_nan(batch)
    yield batch.set(eps=1e300)
    yield Case("huge", {"values": F32(1e30) * normal(1052, 4, 7)}).set(eps=0.0)
    yield Case("huge", {"values": F32(1e38) * np.array([[3, 3, 3, 0]], F32)})
    yield Case("tiny", {"values": F32(1e-25) * normal(1052, 4, 7)}).set(eps=0.5)
    yield Case("empty", {"values": np.zeros((2, 0), dtype=F32)})
    yield Case("around 10", {"values": 10 + normal(1054, 4, 7)})
    yield Case("two values", {"values": np.array([0.5, -1.5], dtype=F32)})
    yield Case("equal", {"values": np.full((2, 3), 0.25, dtype=F32)}).set(eps=0.25)
    yield Case("one value", {"values": np.array([2.0], dtype=F32)}).set(eps=0.25)


def score_pairs(seed: int, first: str, second: str) -> Iterator[Case]:
    """Raw scores of both responses: close, far apart and very far apart."""
    for label, count, scale in (("close", 9, 0.1), ("batch", 33, 2.0), ("far", 17, 30.0)):
        yield Case(
            label, {first: normal(seed, count, scale=scale), second: normal(seed + 1, count)}
        )
    extreme = np.array([1e4, -1e4, 90.0, -90.0, 0.0], dtype=F32)
    yield Case("extreme", {first: extreme, second: np.zeros(5, dtype=F32)})
    yield Case("one pair", {first: normal(seed + 2, 1), second: normal(seed + 3, 1)})
    batch = Case("batch", {first: normal(seed + 4, 33), second: normal(seed + 5, 33)})
    yield batch.in_bf16()
    yield from with_nan(batch)
    yield batch


def bradley_terry_cases() -> Iterator[Case]:
    """No margin, one margin, a margin for each pair; smoothed labels."""
    for case in score_pairs(1060, "chosen", "rejected"):
        yield case
        if case.bf16:
            continue
        margins = np.abs(normal(1066, len(case.arguments["chosen"])))
        for label, margin in (("a number", 1.5), ("each its own", margins)):
            with_margin = case.with_(f"{case.label}, margin {label}", margin=margin)
            for smoothing in (0.0, 0.1, 0.49):
                yield with_margin.set(label_smoothing=smoothing)
    yield case.with_("margin each its own", margin=margins).in_bf16()


def tie_cases() -> Iterator[Case]:
    """Ties and wins at several thetas, near 1 and far from it."""
    for theta in (1.01, 1.5, 3.0, 50.0):
        for case in score_pairs(1070, "first", "second"):
            ties = np.random.default_rng(1076).random(len(case.arguments["first"])) < 0.5
            for kind in (np.bool_, np.int32, np.float32):
                yield case.with_(f"{case.label}, {kind.__name__}", tied=ties.astype(kind)).set(
                    theta=theta
                )


def margin_cases() -> Iterator[Case]:
    """Every grade on both scales, as whole numbers and as floats."""
    for kind in (np.int32, np.int64, np.float32):
        grades = Case(kind.__name__, {"grades": np.array([3, 2, 1, 0, 3], dtype=kind)})
        yield grades
        yield from (grades.set(scale=scale) for scale in ("small", "large"))
    yield Case("grades", {"grades": np.array([3, 2, 1, 0], dtype=F32)}).in_bf16()


def centering_cases() -> Iterator[Case]:
    """Pairs of raw scores."""
    yield from score_pairs(1080, "chosen", "rejected")


def combination_cases() -> Iterator[Case]:
    """Scores on both sides of the threshold, tagged or not; scores that saturate a sigmoid."""
    for count in (2, 8, 33):
        arguments = {
            "helpfulness": normal(1090, count, scale=2.0),
            "safety": normal(1091, count, scale=2.0),
            "is_safety": np.random.default_rng(1092).random(count) < 0.3,
        }
        batch = Case(f"B={count}", arguments)
        for threshold in (0.0, 0.15, 0.5, 1.0):
            yield batch.set(threshold=threshold)
        yield batch
        yield batch.in_bf16()
        yield batch.with_("tag int", is_safety=arguments["is_safety"].astype(np.int32))
        yield batch.with_("no safety prompt", is_safety=np.zeros(count, dtype=bool))
    edge = np.log(0.15 / 0.85)  # the logit of the threshold
    safety = (edge + np.array([-1e-3, 1e-3, -3.0, 3.0, -40.0, 40.0])).astype(F32)
    untagged = {"helpfulness": normal(1093, 6), "safety": safety, "is_safety": np.zeros(6, bool)}
    yield Case("edge", untagged)
    yield Case("huge", {**untagged, "helpfulness": F32(1e30) * untagged["helpfulness"]})
    unneeded = np.where(safety < edge, np.inf, untagged["helpfulness"]).astype(F32)
    yield Case("helpfulness infinite where safety decides", {**untagged, "helpfulness": unneeded})


CASES: dict[str, list[Builder]] = {
    "group_advantages": [group_cases],
    "leave_one_out_advantages": [leave_one_out_cases],
    "gae_advantages": [gae_cases],
    "whiten": [whiten_cases],
    "bradley_terry_loss": [bradley_terry_cases],
    "tie_loss": [tie_cases],
    "preference_margins": [margin_cases],
    "score_centering": [centering_cases],
    "combine_safety_helpfulness": [combination_cases],
}

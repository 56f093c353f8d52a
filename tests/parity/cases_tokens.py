"""Cases of likelihood and reduce: functions of logits, hidden states and losses per token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from parity.case import (
    F32,
    LONGEST,
    Builder,
    Case,
    log_probabilities,
    masked_garbage,
    normal,
    on_grid,
    ragged_mask,
    with_nan,
)

STEP = 1e-2  # how far inside or outside an edge of a clip


def random_ids(seed: int, shape: tuple[int, ...], vocabulary: int) -> np.ndarray:
    """Token ids; the first and the last of the vocabulary are among them where there is room."""
    ids = np.random.default_rng(seed).integers(0, vocabulary, shape)
    flat = ids.reshape(-1)
    flat[-1], flat[0] = vocabulary - 1, 0
    return ids.astype(np.int32)


def logit_cases() -> Iterator[Case]:
    """Vocabularies, temperatures, logits with a huge offset, tokens that cannot be sampled."""
    for seed, (rows, tokens, vocabulary) in enumerate(
        ((3, 5, 11), (1, 1, 2), (2, 3, 1), (2, 4, 1000), (1, LONGEST, 4))
    ):
        shape = (rows, tokens)
        logits = normal(1200 + seed, *shape, vocabulary, scale=2.0)
        batch = Case(
            f"V={vocabulary}, T={tokens}",
            {"logits": logits, "ids": random_ids(1210 + seed, shape, vocabulary)},
        )
        yield batch
        yield batch.set(temperature=0.7)
    batch = Case("batch", {"logits": normal(1220, 3, 5, 11), "ids": random_ids(1221, (3, 5), 11)})
    yield batch.set(temperature=1.5)
    yield batch.in_bf16()
    yield batch.in_bf16().set(temperature=0.7)
    for kind in (np.int64, np.uint64, np.uint32, np.uint16, np.int16, np.uint8, np.int8):
        yield batch.with_(f"ids {kind.__name__}", ids=batch.arguments["ids"].astype(kind))
    large = Case("", {"logits": normal(1223, 3, 5, 65600)})
    yield from narrow_ids(large, 65600, np.uint16, np.int16, np.uint8, np.int8)
    yield Case("V=0", {"logits": np.zeros((1, 0, 0), F32), "ids": np.zeros((1, 0), np.int32)})
    # steps of 1/8 are exact in float32 next to 1e4
    offset = on_grid(normal(1222, 3, 5, 11, scale=2.0), 3)
    yield batch.with_("around 1e4", logits=1e4 + offset)
    yield batch.with_("around -1e4", logits=-1e4 + offset)
    sharp = batch.arguments["logits"].copy()
    sharp[0] *= 100
    yield batch.with_("saturated", logits=sharp)
    cut = batch.arguments["logits"].copy()
    cut[..., 3:5] = -np.inf
    yield batch.with_("tokens cut off", logits=cut, ids=np.minimum(batch.arguments["ids"], 2))
    broken, unread = batch.arguments["logits"].copy(), np.zeros((3, 5), dtype=bool)
    broken[1, 2], broken[2, 4, 0], broken[0, 0] = np.nan, np.inf, -np.inf
    unread[1, 2] = unread[2, 4] = unread[0, 0] = True
    # their values are NaN or anything, and nobody's: only the gradient is told
    yield replace(batch.with_("NaN where unread", logits=broken), unread=unread)


def narrow_ids(case: Case, vocabulary: int, *kinds: type[np.integer]) -> Iterator[Case]:
    """Ids in dtypes in which the size of the vocabulary is another, smaller number."""
    for kind in kinds:
        ids = np.random.default_rng(1230).integers(0, 120, (3, 5)).astype(kind)
        yield case.with_(f"V={vocabulary}, ids {kind.__name__}", ids=ids)


def hidden_batch(seed: int, shape: tuple[int, ...], width: int, vocabulary: int) -> Case:
    """Hidden states, a head and ids, with logits of a few units."""
    return Case(
        f"shape {shape}, H={width}, V={vocabulary}",
        {
            "hidden": normal(seed, *shape, width, bits=8),
            "weight": normal(seed + 1, vocabulary, width, scale=0.5, bits=8),
            "ids": random_ids(seed + 2, shape, vocabulary),
        },
    )


def hidden_cases() -> Iterator[Case]:
    """Shapes, temperatures, tiles that do and do not divide the rows, entropies."""
    for seed, (shape, width, vocabulary) in enumerate(
        (((3, 5), 4, 11), ((7,), 3, 6), ((1, 1), 1, 2), ((2, 300), 4, 9), ((2, 3), 16, 500))
    ):
        batch = hidden_batch(1300 + 10 * seed, shape, width, vocabulary)
        yield batch
        yield batch.set(temperature=0.7, return_entropy=True)
    longest = hidden_batch(1360, (1, LONGEST), 2, 4).set(tile=1024)
    yield replace(longest, cancels=500.0)  # of 4,096 terms of size 1 that make up one for the head
    batch = hidden_batch(1370, (3, 5), 4, 11)
    for tile in (1, 4, 5, 100):
        yield batch.set(tile=tile)
        yield batch.set(tile=tile, return_entropy=True, temperature=2.0)
    large = Case("", {"hidden": normal(1375, 3, 5, 2), "weight": normal(1376, 300, 2)})
    yield from narrow_ids(large, 300, np.uint8, np.int8)
    no_ids = {"hidden": np.zeros((0, 2), F32), "ids": np.zeros(0, np.int32)}
    yield Case("no rows", {**no_ids, "weight": np.zeros((3, 2), F32)}).set(return_entropy=True)
    yield Case("V=0", {**no_ids, "weight": np.zeros((0, 2), F32)})
    yield batch.in_bf16().set(return_entropy=True)
    yield batch.in_bf16().set(temperature=0.7)
    broken, unread = batch.arguments["hidden"].copy(), np.zeros((3, 5), dtype=bool)
    broken[1, 2], broken[2, 4, 0] = np.nan, np.inf
    unread[1, 2] = unread[2, 4] = True
    yield replace(batch.with_("NaN where unread", hidden=broken), unread=unread)


def nll_cases() -> Iterator[Case]:
    """Log-probabilities of several shapes, with garbage under the mask."""
    for rows, tokens in ((4, 7), (3, 1), (2, LONGEST)):
        logps = log_probabilities(1400, rows, tokens)
        batch = Case(f"T={tokens}", {"logps": logps, "mask": ragged_mask(1401, rows, tokens)})
        yield batch
        yield from masked_garbage(batch)
        yield from with_nan(batch)
    yield batch.in_bf16()


def value_cases() -> Iterator[Case]:
    """Moves inside and outside the clip, towards the return and away from it."""
    for rows, tokens in ((4, 7), (3, 1), (2, LONGEST)):
        arguments = {
            "values": normal(1410, rows, tokens),
            "old_values": normal(1411, rows, tokens),
            "returns": normal(1412, rows, tokens),
            "mask": ragged_mask(1413, rows, tokens),
        }
        batch = Case(f"T={tokens}", arguments)
        yield from (batch.set(clip=clip) for clip in (0.05, 0.2, 1.0, float("inf")))
        yield batch
        yield from with_nan(batch)
    yield batch.in_bf16()
    yield from masked_garbage(Case("", {k: v[:, :7] for k, v in arguments.items()}))
    yield equal_errors()
    for clip in (0.25, 0.5):
        steps = (-STEP, 0.0, STEP)  # 0 is a tie: of the clamp, and of the maximum
        moves = np.array([[s * (clip + d) for s in (-1, 1) for d in steps]], dtype=F32)
        for target in (-1.0, 1.0):
            yield Case(
                f"edges, R={target}",
                {
                    "values": moves,
                    "old_values": np.zeros_like(moves),
                    "returns": np.full_like(moves, target),
                    "mask": np.ones_like(moves),
                },
            ).set(clip=clip)


def equal_errors() -> Case:
    """V = 1 is clipped to 0.25, and R = 0.625 lies between: two equal errors, one with a slope."""
    one = np.ones((1, 2), dtype=F32)
    signs = np.array([[1.0, -1.0]], dtype=F32)
    arguments = {"values": signs, "old_values": 0 * one, "returns": signs * F32(0.625)}
    return Case("equal errors", {**arguments, "mask": one}, {"clip": 0.25})


def loss_batches(seed: int) -> Iterator[Case]:
    """Losses per token and their mask."""
    for rows, tokens in ((4, 7), (3, 1), (1, 33), (2, LONGEST)):
        losses = normal(seed, rows, tokens)
        batch = Case(f"T={tokens}", {"losses": losses, "mask": ragged_mask(seed + 1, rows, tokens)})
        yield batch
        yield from masked_garbage(batch)
        yield from with_nan(batch)
    yield batch.in_bf16()
    yield Case("B=0", {"losses": np.zeros((0, 3), F32), "mask": np.zeros((0, 3), F32)})


def token_mean_cases() -> Iterator[Case]:
    """With and without the step's count of tokens."""
    for case in loss_batches(1500):
        yield case
        yield case.set(tokens=100)
    yield case.set(tokens=0)


def sequence_cases() -> Iterator[Case]:
    """With and without the step's count of completions."""
    for case in loss_batches(1510):
        yield case
        yield case.set(sequences=64)
    yield case.set(sequences=0)


def fixed_length_cases() -> Iterator[Case]:
    """Lengths above and below the padded width."""
    for length in (1, 512):
        yield from (case.set(length=length) for case in sequence_cases())


CASES: dict[str, list[Builder]] = {
    "token_logps": [logit_cases],
    "linear_token_logps": [hidden_cases],
    "nll_loss": [nll_cases],
    "clipped_value_loss": [value_cases],
    "token_mean": [token_mean_cases],
    "sequence_mean": [sequence_cases],
    "sequence_sum": [sequence_cases],
    "fixed_length_mean": [fixed_length_cases],
}

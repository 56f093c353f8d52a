"""What a case is, and the inputs that cases of several functions share. Numpy only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

F32 = np.float32
LONGEST = 4096  # largest T


@dataclass(frozen=True)
class Case:
    """One call: `function(**arguments, **settings)`, the same in both frameworks.

    Arrays are float32, bool or integer; torch gets the float32 ones widened, exactly, to float64.
    """

    label: str
    arguments: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    bf16: bool = False
    """MLX gets the float arrays as bfloat16; their values are rounded to it for both."""
    unread: np.ndarray | None = None
    """Where nothing downstream reads the result: its gradient there is 0."""
    values_only: bool = False
    """Gradients are not compared: MLX multiplies by 0 where torch selects, and 0 NaN is NaN."""
    cancels: float = 1.0
    """Size of terms that cancel in the gradient: float32 is exact only relative to them."""

    def with_(self, label: str, **changes: Any) -> Case:
        """A copy under another label, with some arguments replaced."""
        return replace(self, label=label, arguments={**self.arguments, **changes})

    def set(self, **settings: Any) -> Case:
        """A copy with settings, named in its label."""
        named = ", ".join(f"{name}={value}" for name, value in settings.items())
        label = f"{self.label}, {named}" if named else self.label
        return replace(self, label=label, settings={**self.settings, **settings})

    def in_bf16(self) -> Case:
        """A copy whose float arrays are rounded to bfloat16, and handed to MLX as such."""
        rounded = {
            name: to_bf16(value) if is_float_array(value) else value
            for name, value in self.arguments.items()
        }
        return replace(self, label=f"{self.label}, bf16", arguments=rounded, bf16=True)


Builder = Callable[[], Iterator[Case]]


def is_float_array(value: Any) -> bool:
    """Whether an argument is an array that could have a gradient."""
    return isinstance(value, np.ndarray) and value.dtype == F32


def to_bf16(values: np.ndarray) -> np.ndarray:
    """Float32 values with the eight significant bits of bfloat16; ties away from zero."""
    bits = values.astype(F32).view(np.uint32)
    finite = np.isfinite(values)
    rounded = np.where(finite, (bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000), bits)
    return rounded.view(F32)


def on_grid(values: ArrayLike, bits: int = 12) -> np.ndarray:
    """Values on multiples of 2^-bits, so that float32 loses nothing in sums and differences."""
    return (np.round(np.asarray(values) * 2.0**bits) / 2.0**bits).astype(F32)


def normal(seed: int, *shape: int, scale: float = 1.0, bits: int = 12) -> np.ndarray:
    """Normal numbers on a grid."""
    return on_grid(np.random.default_rng(seed).normal(0.0, scale, shape), bits)


def ragged_mask(seed: int, rows: int, tokens: int) -> np.ndarray:
    """A mask [B, T] with holes, at least one token a row where there are two or more."""
    mask = np.random.default_rng(seed).random((rows, tokens)) < 0.7
    mask[:, 0] = True
    return mask.astype(F32)


def log_probabilities(seed: int, rows: int, tokens: int) -> np.ndarray:
    """Log-probabilities of sampled tokens: mostly small, never positive."""
    return -np.abs(normal(seed, rows, tokens, scale=2.0))


def policy_arguments(
    seed: int, rows: int = 4, tokens: int = 7, *, spread: float = 0.4, bits: int = 12
) -> dict[str, Any]:
    """logps, old_logps, advantages [B] of both signs and 0, and a mask with holes."""
    old_logps = log_probabilities(seed, rows, tokens)
    advantages = normal(seed + 2, rows)
    advantages[: min(3, rows)] = (1.5, -1.25, 0.0)[: min(3, rows)]
    return {
        "logps": old_logps + normal(seed + 1, rows, tokens, scale=spread, bits=bits),
        "old_logps": old_logps,
        "advantages": advantages,
        "mask": ragged_mask(seed + 3, rows, tokens),
    }


def with_nan(case: Case) -> Iterator[Case]:
    """The case with one NaN that counts, in one float array after the other."""
    for name, value in case.arguments.items():
        if name != "mask" and is_float_array(value):
            spoilt = value.copy()
            spoilt[(-1, *[0] * (value.ndim - 1))] = np.nan  # the first token is never masked
            spoilt_case = case.with_(f"{case.label}, NaN in {name}", **{name: spoilt})
            yield replace(spoilt_case, values_only=True)


GARBAGE = np.array([np.nan, np.inf, -np.inf, 1e4, -1e4], dtype=F32)


def garbage_outside(values: np.ndarray, mask: np.ndarray, seed: int) -> np.ndarray:
    """The values where the mask counts; NaN, infinities and 1e4 elsewhere."""
    junk = np.random.default_rng(seed).choice(GARBAGE, values.shape)
    return np.where(mask != 0, values, junk).astype(F32)


def masked_garbage(case: Case) -> Iterator[Case]:
    """The case with garbage under its mask, in every float array of the mask's shape.

    Once for each kind of mask, once with a row and once with everything masked.
    """
    mask = case.arguments["mask"]
    masks = {
        "mask float": mask,
        "mask bool": mask != 0,
        "mask int": mask.astype(np.int32),
        "mask of 0.5": mask / 2,
        "first row masked": np.concatenate([np.zeros_like(mask[:1]), mask[1:]]),
        "all masked": np.zeros_like(mask),
    }
    for seed, (label, kind) in enumerate(masks.items()):
        junk = {
            name: garbage_outside(value, kind, 31 * seed + i)
            for i, (name, value) in enumerate(case.arguments.items())
            if is_float_array(value) and value.shape == mask.shape and name != "mask"
        }
        yield case.with_(f"garbage, {label}", **junk, mask=kind)

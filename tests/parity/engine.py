"""Run a case in both frameworks and compare. Truth is torch in float64, the claim MLX in float32.

MLX's own float64 is no truth: its exp, sigmoid and logsumexp are accurate to float32 only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np
import torch

import sctom.losses
from parity.case import Case, is_float_array

VALUE_LIMIT = 1e-5
"""Largest |mlx - torch| / max(1, |torch|) of a value."""

GRADIENT_LIMIT = 1e-6
"""Largest |mlx - torch| / max(1, max |torch|) of a gradient, the maximum over its array."""

BF16_ROUNDING = 2.0**-7
"""The gradient of a bfloat16 array is bfloat16: each entry may be off by this share of it besides.

Twice half a unit: `linear_token_logps` keeps a derivative in the dtype of hidden until backward.
"""


@dataclass(frozen=True)
class Outcome:
    """What a call gave: its results and the gradient with respect to every float array."""

    values: list[np.ndarray]
    gradients: dict[str, np.ndarray]


@dataclass
class Comparison:
    """How far one outcome is from another, in units of the limits' definitions."""

    value: float = 0.0
    gradient: float = 0.0
    problems: list[str] = field(default_factory=list)


def pull(shape: tuple[int, ...], unread: np.ndarray | None = None) -> np.ndarray:
    """The gradient that arrives at a result: different everywhere, of both signs, 0 if unread."""
    rng = np.random.default_rng(5)
    upstream = rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)
    return np.where(False if unread is None else unread, 0.0, upstream).astype(np.float32)


def as_torch(value: Any, dtype: torch.dtype = torch.float64) -> Any:
    """An argument for torch: float arrays in float64 by default, everything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    tensor = torch.from_numpy(value.copy())
    return tensor.to(dtype) if is_float_array(value) else tensor


def as_mlx(value: Any, *, bf16: bool = False) -> Any:
    """An argument for MLX: float arrays in float32 or bfloat16, everything else as it is."""
    if not isinstance(value, np.ndarray):
        return value
    array = mx.array(value)
    return array.astype(mx.bfloat16) if bf16 and is_float_array(value) else array


def _several(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]


def run_torch(name: str, case: Case) -> Outcome:
    """The truth."""
    arguments = {key: as_torch(value) for key, value in case.arguments.items()}
    floats = {key: arguments[key] for key, value in case.arguments.items() if is_float_array(value)}
    for tensor in floats.values():
        tensor.requires_grad_()
    results = _several(getattr(sctom.losses, name)(**arguments, **case.settings))
    total = torch.zeros((), dtype=torch.float64)
    for result in results:
        upstream = torch.from_numpy(pull(tuple(result.shape), case.unread)).double()
        total = total + torch.where(upstream == 0, 0.0, result * upstream).sum()
    gradients: Iterable[torch.Tensor] = [torch.zeros_like(tensor) for tensor in floats.values()]
    if total.requires_grad:
        gradients = torch.autograd.grad(
            total, list(floats.values()), allow_unused=True, materialize_grads=True
        )
    return Outcome(
        [result.detach().double().numpy() for result in results],
        {key: gradient.numpy() for key, gradient in zip(floats, gradients, strict=True)},
    )


def run_mlx(losses: ModuleType, name: str, case: Case) -> Outcome:
    """The claim of a package of losses, `sctom.mlx_port.losses` or a mutated copy of it.

    Raises:
        TypeError: a result is not float32.
    """
    function: Callable[..., Any] = getattr(losses, name)
    arguments = {key: as_mlx(value, bf16=case.bf16) for key, value in case.arguments.items()}
    floats = {key: arguments[key] for key, value in case.arguments.items() if is_float_array(value)}
    results = _several(function(**arguments, **case.settings))
    for result in results:
        if result.dtype != mx.float32:
            raise TypeError(f"{name} returned {result.dtype}, expected float32")

    def total(varied: dict[str, mx.array]) -> mx.array:
        parts = []
        for result in _several(function(**{**arguments, **varied}, **case.settings)):
            upstream = mx.array(pull(result.shape, case.unread))
            parts.append(mx.where(upstream == 0, 0.0, result * upstream).sum())
        return sum(parts, mx.array(0.0))

    gradients = mx.grad(total)(floats) if floats else {}
    return Outcome(
        [np.array(result).astype(np.float64) for result in results],
        {
            key: np.array(gradient.astype(mx.float32)).astype(np.float64)
            for key, gradient in gradients.items()
        },
    )


def _apart(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want|, 0 where both are the same infinity or both NaN, infinite where one is."""
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        difference = np.abs(got - want)
    return np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference))


def compare(got: Outcome, want: Outcome, case: Case, differentiable: tuple[str, ...]) -> Comparison:
    """Deviations of values and gradients, and what of it is beyond a limit."""
    found = Comparison()
    for i, (value, truth) in enumerate(zip(got.values, want.values, strict=True)):
        if value.shape != truth.shape:
            found.problems.append(f"result {i} has the shape {value.shape}, not {truth.shape}")
            continue
        size = np.maximum(1.0, np.nan_to_num(np.abs(truth), nan=1.0, posinf=1.0))
        apart = np.where(False if case.unread is None else case.unread, 0.0, _apart(value, truth))
        found.value = max(found.value, float(np.max(apart / size, initial=0.0)))
    if found.value > VALUE_LIMIT:
        found.problems.append(f"value off by {found.value:.1e}, limit {VALUE_LIMIT:.0e}")
    for key, truth in ({} if case.values_only else want.gradients).items():
        gradient = got.gradients[key]
        if key not in differentiable and np.any(gradient != 0):
            found.problems.append(f"{key} must have no gradient but has one")
        size = max(case.cancels, np.nan_to_num(np.abs(truth)).max(initial=0.0))
        rounding = BF16_ROUNDING * np.abs(np.nan_to_num(truth)) if case.bf16 else 0.0
        apart = np.max(_apart(gradient, truth) - rounding, initial=0.0) / size
        found.gradient = max(found.gradient, float(apart))
        if apart > GRADIENT_LIMIT:
            found.problems.append(
                f"gradient of {key} off by {apart:.1e}, limit {GRADIENT_LIMIT:.0e}"
            )
    return found


def error_of(function: Callable[..., Any], case: Case, convert: Callable[[Any], Any]) -> str:
    """The message of the ValueError of a bad call.

    Raises:
        AssertionError: there was none.
    """
    arguments = {key: convert(value) for key, value in case.arguments.items()}
    try:
        function(**arguments, **case.settings)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{function.__module__}.{function.__name__} accepted: {case.label}")


def signature(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of every parameter."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters]

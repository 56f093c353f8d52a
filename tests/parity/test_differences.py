"""Where MLX differs from torch, and where the losses therefore do or do not. See docs/mlx.md."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("mlx.core", reason="needs MLX: pip install 'sctom[mlx]'")

import mlx.core as mx
import numpy as np
import torch

import sctom.mlx_port.losses
from parity.bad_calls import accepted_call
from parity.case import Case
from parity.engine import as_mlx, run_mlx
from parity.registry import CASES, cases_of
from sctom.mlx_port.losses._shared import clamp, maximum, minimum

NAN, INF = float("nan"), float("inf")


def mlx_slope(function: Callable, at: float) -> float:
    return mx.grad(function)(mx.array(at)).item()


def torch_slope(function: Callable, at: float) -> float:
    x = torch.tensor(at, requires_grad=True)
    return torch.autograd.grad(function(x), x)[0].item()


@pytest.mark.parametrize("at", [0.0, 1.0])
def test_at_a_bound_clip_drops_the_gradient_and_ours_keeps_it(at: float):
    assert torch_slope(lambda x: x.clamp(0.0, 1.0), at) == 1.0
    assert mlx_slope(lambda x: mx.clip(x, 0.0, 1.0), at) == 0.0
    assert mlx_slope(lambda x: clamp(x, 0.0, 1.0), at) == 1.0


def test_of_equal_values_one_gets_the_gradient_and_with_ours_both_share_it():
    assert torch_slope(lambda x: torch.minimum(x, 3 * x), 0.0) == 2.0
    assert mlx_slope(lambda x: mx.minimum(x, 3 * x), 0.0) == 3.0
    assert mlx_slope(lambda x: minimum(x, 3 * x), 0.0) == 2.0
    assert mlx_slope(lambda x: maximum(x, 3 * x), 0.0) == 2.0


@pytest.mark.parametrize("name", ["grpo_loss", "kl_k3", "kl_penalty", "clip_fraction"])
def test_ties_are_among_the_cases(name: str):
    assert any("exactly" in case.label for case in cases_of(name))


def simple_case(name: str) -> Case:
    """The first case without arguments that are no arrays."""
    return next(
        case
        for case in cases_of(name)
        if all(isinstance(value, np.ndarray) for value in case.arguments.values())
    )


@pytest.mark.parametrize("name", ["cispo_loss", "kl_penalty", "token_logps"])  # seconds each
def test_compiled_is_the_same(name: str):
    case = simple_case(name)
    function = getattr(sctom.mlx_port.losses, name)
    compiled = mx.compile(lambda arguments: function(**arguments, **case.settings))
    results = compiled({key: as_mlx(value) for key, value in case.arguments.items()})
    several = results if isinstance(results, tuple) else (results,)
    plain = run_mlx(sctom.mlx_port.losses, name, case).values
    for result, value in zip(several, plain, strict=True):
        np.testing.assert_allclose(np.array(result), value, rtol=1e-5, atol=1e-6)


TILED = {"gae_advantages", "token_logps", "linear_token_logps"}


@pytest.mark.parametrize("name", sorted(set(CASES) - TILED))
def test_shapeless_compiled_code_counts_the_rows_of_each_call(name: str):
    case = accepted_call(name)
    function = getattr(sctom.mlx_port.losses, name)
    compiled = mx.compile(
        lambda arrays: function(**{**case.arguments, **arrays}, **case.settings), shapeless=True
    )
    given = {k: v for k, v in case.arguments.items() if isinstance(v, np.ndarray)}
    for times in (1, 3, 2):
        arrays = {key: mx.array(np.concatenate([value] * times)) for key, value in given.items()}
        plain = function(**{**case.arguments, **arrays}, **case.settings)
        assert mx.allclose(compiled(arrays), plain, atol=1e-6).item()


@pytest.mark.parametrize("name", ["kl_k3", "whiten"])
def test_shapeless_compiled_code_without_a_mask(name: str):
    function = getattr(sctom.mlx_port.losses, name)
    compiled = mx.compile(
        lambda x: function(*([x] if name == "whiten" else [x, -x])), shapeless=True
    )
    for rows in (2, 5):
        x = mx.arange(3.0 * rows).reshape(rows, 3)
        plain = function(x) if name == "whiten" else function(x, -x)
        assert mx.allclose(compiled(x), plain).item()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("group_advantages", {"rewards": [[0.0, INF, 1.0]]}),
        ("leave_one_out_advantages", {"rewards": [[0.0, INF, 1.0]]}),
        ("preference_margins", {"grades": [0.5]}),
        (
            "combine_safety_helpfulness",
            {"helpfulness": [0.0, 1.0], "safety": [NAN, 1.0], "is_safety": [1.0, 1.0]},
        ),
        ("token_logps", {"logits": [[[0.0, 1.0]]], "ids": [[2]]}),
    ],
)
def test_compiled_a_bad_value_gives_nan_where_it_is_an_error_otherwise(name: str, arguments: dict):
    function = getattr(sctom.mlx_port.losses, name)
    arrays = {key: mx.array(value) for key, value in arguments.items()}
    with pytest.raises(ValueError, match=r"finite|grade|outside"):
        function(**arrays)
    assert mx.isnan(mx.compile(lambda arrays: function(**arrays))(arrays)).any()

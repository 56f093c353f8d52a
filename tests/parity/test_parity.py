from __future__ import annotations

from inspect import Parameter
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

pytest.importorskip("mlx.core", reason="needs MLX: pip install 'sctom[mlx]'")

import numpy as np

import sctom.losses
import sctom.mlx_port.losses
from parity.case import Case
from parity.engine import compare, run_mlx, run_torch, signature
from parity.registry import CASES, DIFFERENTIABLE, cases_of

EVERY = [(name, case) for name in sorted(CASES) for case in cases_of(name)]


@pytest.mark.parametrize(
    ("name", "case"), EVERY, ids=[f"{name}: {case.label}" for name, case in EVERY]
)
def test_values_and_gradients_agree(name: str, case: Case):
    truth = run_torch(name, case)
    claim = run_mlx(sctom.mlx_port.losses, name, case)
    found = compare(claim, truth, case, DIFFERENTIABLE.get(name, ()))
    assert not found.problems


def test_every_public_function_has_cases():
    assert sorted(CASES) == sorted(sctom.losses.__all__) == sorted(sctom.mlx_port.losses.__all__)


@pytest.mark.parametrize("name", sorted(CASES))
def test_signatures_agree(name: str):
    torch_function = getattr(sctom.losses, name)
    assert signature(getattr(sctom.mlx_port.losses, name)) == signature(torch_function)


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_cases_reach_every_setting_and_every_choice(name: str):
    function = getattr(sctom.losses, name)
    hints = get_type_hints(function)
    for key, kind, default in signature(function):
        if kind != Parameter.KEYWORD_ONLY:
            continue
        seen = {case.settings.get(key, default) for case in cases_of(name)}
        choices = {True, False} if hints[key] is bool else set(get_args(hints[key]))
        assert len(seen) > 1, f"{key} is always {default}"
        if get_origin(hints[key]) is Literal or hints[key] is bool:
            assert seen == choices, key


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_cases_reach_every_gradient_and_there_are_no_others(name: str):
    moved: set[str] = set()
    for case in cases_of(name):
        gradients = run_torch(name, case).gradients
        moved |= {key for key, gradient in gradients.items() if np.any(gradient != 0)}
    assert moved == set(DIFFERENTIABLE.get(name, ()))

from __future__ import annotations

import re

import pytest

pytest.importorskip("mlx.core", reason="needs MLX: pip install 'sctom[mlx]'")

import torch

import sctom.losses
import sctom.mlx_port.losses
from parity.bad_calls import accepted_call, bad_calls
from parity.case import Case
from parity.engine import as_mlx, as_torch, error_of
from parity.registry import CASES

EVERY = [(name, case) for name in sorted(CASES) for case in bad_calls(name)]


def in_torch(value):
    return as_torch(value, torch.float32)


@pytest.mark.parametrize(
    ("name", "case"), EVERY, ids=[f"{name}: {case.label}" for name, case in EVERY]
)
def test_the_same_error_for_the_same_mistake(name: str, case: Case):
    expected = error_of(getattr(sctom.losses, name), case, in_torch)
    found = error_of(getattr(sctom.mlx_port.losses, name), case, as_mlx)
    assert found == re.sub(r"\btorch\.", "mlx.core.", expected)


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_a_bad_call_starts_from_is_accepted(name: str):
    case = accepted_call(name)
    for losses, convert in ((sctom.losses, in_torch), (sctom.mlx_port.losses, as_mlx)):
        getattr(losses, name)(**{k: convert(v) for k, v in case.arguments.items()}, **case.settings)

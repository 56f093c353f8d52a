from __future__ import annotations

import pytest

pytest.importorskip("mlx.core", reason="needs MLX: pip install 'sctom[mlx]'")

from parity.mutants import MUTANTS, Mutant
from parity.planting import NotPlantedError, mutated_losses, noticed, planted
from parity.registry import CASES

EVERY = [(name, mutant) for name in sorted(MUTANTS) for mutant in MUTANTS[name]]


def test_every_function_has_three_mistakes():
    assert sorted(MUTANTS) == sorted(CASES)
    assert min(len(set(mutants)) for mutants in MUTANTS.values()) >= 3


@pytest.mark.parametrize(
    ("name", "mutant"), EVERY, ids=[f"{name}: {mutant[1]} -> {mutant[2]}" for name, mutant in EVERY]
)
def test_every_mistake_is_noticed(name: str, mutant: Mutant):
    assert noticed(name, mutant)


def test_a_change_without_effect_survives():
    assert noticed("kl_k2", ("kl.kl_k2", " / 2", " * 0.5")) is None


def test_the_original_is_not_touched():
    import sctom.mlx_port.losses as original

    with mutated_losses(("kl.kl_k1", "return _diff", "return -_diff")) as copy:
        assert copy.kl_k1 is not original.kl_k1
        assert copy.kl_penalty.__module__ != original.kl_penalty.__module__


SOURCE = '''
def f(x):
    """x + 1."""
    return x + 1 - (x + 2)


def g(x):
    return x + 1
'''


def test_planting_changes_one_body_and_no_docstring():
    assert planted(SOURCE, "f", "x + 1", "x") == SOURCE.replace("return x + 1 -", "return x -")


@pytest.mark.parametrize(
    ("definition", "old", "complaint"),
    [
        ("g", "x + 2", "g has 0 times 'x \\+ 2'"),
        ("f", "x +", "f has 2 times"),
        ("h", "x", "h is defined 0 times"),
    ],
)
def test_planting_needs_the_text_exactly_once(definition: str, old: str, complaint: str):
    with pytest.raises(NotPlantedError, match=complaint):
        planted(SOURCE, definition, old, "")

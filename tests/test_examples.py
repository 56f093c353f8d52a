"""The examples run, and every objective finds the optimum of the toy policy."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from sctom import objectives
from sctom.objectives import Objective

EXAMPLES = Path(__file__).parents[1] / "examples"
OBJECTIVES = [  # that compare completions: the toy policy predicts no values
    thing
    for thing in vars(objectives).values()
    if isinstance(thing, type)
    and issubclass(thing, Objective)
    and thing not in (Objective, objectives.PPO)
]

toy = runpy.run_path(str(EXAMPLES / "toy_policy.py"))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_reaches_the_optimum(objective):
    assert toy["train"](objective(), iterations=0) == pytest.approx([1 / 3] * 3)
    probabilities = toy["train"](objective(), iterations=80)
    assert sum(probabilities) == pytest.approx(1.0)
    assert probabilities[toy["BEST"]] > 0.9


def test_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["toy_policy.py", "--objective", "CISPO"])
    runpy.run_path(str(EXAMPLES / "toy_policy.py"), run_name="__main__")
    formula, last = capsys.readouterr().out.splitlines()
    assert formula == objectives.CISPO.formula
    assert float(last.split()[-1]) > 0.9


def test_an_objective_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["toy_policy.py", "--objective", "CISPPO"])
    with pytest.raises(SystemExit):
        toy["main"]()
    assert "invalid choice: 'CISPPO'" in capsys.readouterr().err


def test_examples_are_short():
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert lengths and max(lengths.values()) <= 60

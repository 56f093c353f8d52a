from __future__ import annotations

import doctest
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("mlx.core", reason="needs MLX: pip install 'sctom[mlx]'")

from parity import registry
from parity.engine import Comparison

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "parity.py"


def documented() -> list[str]:
    """Functions in the first column of the table in docs/parity.md."""
    lines = (ROOT / "docs" / "parity.md").read_text().splitlines()
    return [line.split("`")[1] for line in lines if line.startswith("| `")]


def test_the_table_has_a_line_for_every_function():
    assert documented() == sorted(registry.CASES)


def test_the_example_of_the_page_works():
    results = doctest.testfile(str(ROOT / "docs" / "mlx.md"), module_relative=False)
    assert results.attempted > 0
    assert results.failed == 0


def test_the_command_prints_what_it_measured(monkeypatch, capsys):
    monkeypatch.setattr(registry, "CASES", {"nll_loss": registry.CASES["nll_loss"]})
    monkeypatch.setattr(sys, "argv", ["parity.py"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    line = capsys.readouterr().out.splitlines()[-1].split("|")
    cells = [cell.strip() for cell in line[1:-1]]
    assert cells[0] == "`nll_loss`"
    assert int(cells[1]) == len(registry.cases_of("nll_loss"))
    assert float(cells[2]) <= float(cells[3]) == 1e-5
    assert float(cells[4]) <= float(cells[5]) == 1e-6
    assert cells[6] == "logps"


def test_a_dash_where_there_is_no_gradient():
    row = runpy.run_path(str(SCRIPT))["row"]
    assert row("approx_kl", Comparison(1e-7, 0.0), 3)[4:] == ("-", "-", "")

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from sctom.callbacks.curves import before_and_after

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare_tables.py"


def make_run(folder: Path, before: dict[str, float | None], after: dict[str, float | None]) -> str:
    """A run folder with the table that SelfAwareEval writes; returns its path."""
    folder.mkdir()
    sides = [
        {"iteration": iteration, "completions": 8, "metrics": metrics}
        for iteration, metrics in ((0, before), (60, after))
    ]
    (folder / "table.json").write_text(json.dumps(before_and_after(sides)))
    return str(folder)


def compare(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["compare_tables.py", *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_one_row_a_run(tmp_path, monkeypatch, capsys):
    first = make_run(
        tmp_path / "a",
        {"accuracy_known": 1.0, "accuracy": 0.941, "abstention_f1": 0.0, "over_refusal": 0.0},
        {"accuracy_known": 0.98, "accuracy": 0.8, "abstention_f1": 0.755, "over_refusal": 0.125},
    )
    second = make_run(tmp_path / "b", {"abstention_f1": 0.5}, {"abstention_f1": None})
    compare(monkeypatch, first, second)
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert head == (
        "| run | accuracy on known | accuracy | abstention precision | abstention recall "
        "| abstention F1 | over-refusal |"
    )
    assert rule.count("---:") == 6
    assert rows == [
        f"| {first} | 100.0% → 98.0% | 94.1% → 80.0% | - → - | - → - | 0.0% → 75.5% "
        "| 0.0% → 12.5% |",
        f"| {second} | - → - | - → - | - → - | - → - | 50.0% → - | - → - |",
    ]


@pytest.mark.parametrize(
    ("f1", "known", "complaint"),
    [
        ((0.4, 0.6), (1.0, 0.95), None),  # at the limits, and 0.6 - 0.4 < 0.2 in floats
        ((0.4, 0.59), (1.0, 1.0), "abstention_f1 changed by +0.190, expected +0.2 or more"),
        ((0.4, 0.9), (1.0, 0.94), "accuracy_known changed by -0.060, expected -0.05 or more"),
        ((0.4, 0.9), (None, None), "accuracy_known was not measured before and after"),
    ],
)
def test_the_check(tmp_path, monkeypatch, f1, known, complaint):
    good = make_run(
        tmp_path / "good",
        {"abstention_f1": 0.0, "accuracy_known": 1.0},
        {"abstention_f1": 1.0, "accuracy_known": 1.0},
    )
    sides = [{"abstention_f1": f1[i], "accuracy_known": known[i]} for i in (0, 1)]
    checked = make_run(tmp_path / "checked", *sides)
    compare(monkeypatch, good, checked)  # without --check nothing fails
    if complaint is None:
        compare(monkeypatch, good, checked, "--check")
        return
    with pytest.raises(SystemExit) as leaving:
        compare(monkeypatch, good, checked, "--check")
    assert leaving.value.code == f"{checked}: {complaint}"


def test_a_run_that_has_not_ended(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit) as leaving:
        compare(monkeypatch, str(tmp_path / "nowhere"))
    assert leaving.value.code == 2
    assert "no table.json in" in capsys.readouterr().err

"""docs/before_a_run.md: what it shows is what runs do."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path

import pytest

from sctom.fit import build, fit
from sctom.modules import policy
from sctom.modules.advice import advise
from sctom.modules.selfcheck import run_self_checks

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "before_a_run.md").read_text()


def table(heading: str) -> list[list[str]]:
    """The rows of a section's first table, without its head."""
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    assert found, f"the page has no section {heading!r}"
    lines = [line for line in found[1].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_the_examples_run():
    results = doctest.testfile(str(ROOT / "docs" / "before_a_run.md"), module_relative=False)
    assert results.attempted >= 20 and results.failed == 0


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Builds a run of configs/tiny/grpo.yaml for one iteration."""

    def make(*options: str):
        words = ["fit", "--config", str(ROOT / "configs" / "tiny" / "grpo.yaml")]
        words += ["--run_dir", str(tmp_path / "run"), "--data.iterations", "1"]
        words += ["--data.val_limit", "8", *options]
        monkeypatch.setattr(sys, "argv", words)
        return build()

    return make


def test_the_checks_are_those_of_a_run_in_their_order(tiny, monkeypatch):
    seen = []

    def noted(*arguments):
        seen.extend(run_self_checks(*arguments))

    monkeypatch.setattr(policy, "run_self_checks", noted)
    fit(tiny("--model.memory_probe", "true"))
    assert [check.name for check in seen] == [name for name, *_ in table("Self-checks")]
    phase = r"(\w+) of [\d,]+ rows x [\d,]+ tokens, peak [\d,]+ MiB"
    assert re.findall(phase, PAGE) == re.findall(phase, seen[0].detail)


def test_the_line_about_two_completions_is_the_real_one(tiny):
    (line,) = advise(tiny("--model.group_size", "2").model, {})
    assert f"advice: {line}" in re.sub(r"\n    (?=\S)", " ", PAGE)

"""docs/confidence.md: what it shows works as it shows it."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from sctom.rewards import Brier, ConfidenceTarget, LogScore, Ternary
from sctom.rewards.confidence_base import Answer
from sctom.rewards.confidence_scores import ScoringRule

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "confidence.md").read_text()


def test_the_examples_run():
    results = doctest.testfile(str(ROOT / "docs" / "confidence.md"), module_relative=False)
    assert results.attempted >= 15 and results.failed == 0


def test_the_commands_name_files_that_exist():
    named = re.findall(r"--config (\S+\.yaml)", PAGE)
    assert len(named) >= 5
    for path in named:
        assert (ROOT / path).is_file(), path


def test_the_metrics_have_the_names_of_the_rewards():
    names = [reward.name for reward in (Brier(), LogScore(), Ternary(), ConfidenceTarget())]
    assert f"({', '.join(f'`{name}`' for name in names)})" in PAGE


@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
def test_the_equations_are_those_of_the_defaults(q):
    brier, log_score = Brier(), LogScore()
    # 0.5 + 0.5 (1 - (1 - q)^2) + 0.5 and 0.5 (1 - q^2) + 0.5
    assert brier.value(1.0, q) == pytest.approx(0.5 + 0.5 * (1 - (1 - q) ** 2) + 0.5)
    assert brier.value(0.0, q) == pytest.approx(0.5 * (1 - q**2) + 0.5)
    # the bonus is 10 x 0.25 = 2.5, and right at q is wrong at 1 - q but for it
    assert log_score.value(1.0, q) == pytest.approx(log_score.value(0.0, 1 - q) + 2.5)


@pytest.mark.parametrize("reward", [Brier(), LogScore()])
def test_an_abstention_is_worth_as_much_as_the_best_wrong_answer(reward: ScoringRule):
    best = max(reward.value(0.0, q / 1000) for q in range(1001))
    assert reward.value_of(Answer("abstained", None, False)) == best

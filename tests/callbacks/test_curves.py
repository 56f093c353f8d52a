from __future__ import annotations

import io
import math
from typing import Any

import matplotlib.image
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from sctom.callbacks.curves import (
    ROWS,
    before_and_after,
    learning_curves,
    markdown_table,
    rich_table,
    running_mean,
)


def evaluation(iteration: int, **metrics: float | None) -> dict[str, Any]:
    return {"iteration": iteration, "completions": 8, "metrics": metrics}


def test_before_and_after() -> None:
    evaluations = [
        evaluation(0, accuracy=0.5, over_refusal=None, mean_length=20.0),
        evaluation(5, accuracy=0.1, over_refusal=0.1, mean_length=1.0),
        evaluation(9, accuracy=0.75, over_refusal=0.25, mean_length=17.5),
    ]
    comparison = before_and_after(evaluations)
    assert comparison["before"]["iteration"] == 0
    assert comparison["after"]["iteration"] == 9
    assert comparison["change"]["accuracy"] == 0.25
    assert comparison["change"]["over_refusal"] is None
    assert markdown_table(comparison) == (
        "|  | before (iteration 0, 8 completions) | after (iteration 9, 8 completions) | change |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| accuracy | 50.0% | 75.0% | +25.0 points |\n"
        "| over-refusal | - | 25.0% | - |\n"
        "| mean length (tokens) | 20.0 | 17.5 | -2.5 |\n"
    )


def test_the_table_fits_a_narrow_terminal() -> None:
    console = Console(file=io.StringIO(), width=80)
    metrics = dict.fromkeys(ROWS, 0.987)
    first, last = evaluation(0, **metrics), evaluation(123456, **metrics)
    console.print(rich_table(before_and_after([first, last])))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "iteration 123456" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("iterations", [0, 1, 60])
def test_curves_are_drawn_whatever_is_missing(iterations: int) -> None:
    metrics = [{"iteration": i, "reward": None if i == 7 else i / 60} for i in range(iterations)]
    evaluations = [evaluation(i, accuracy_known=None, over_refusal=0.2) for i in range(iterations)]
    image = matplotlib.image.imread(io.BytesIO(learning_curves(metrics, evaluations)))
    assert image.shape[:2] == (975 if iterations else 510, 1125)
    assert image.std() > 0.01


def test_the_validation_reward_stands_beside_that_of_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    metrics = [{"iteration": 1, "reward": 0.1}, {"iteration": 2, "reward": 0.2}]
    learning_curves(metrics, [evaluation(0, reward=-0.5), evaluation(2, reward=None)])
    learning_curves(metrics, [])
    above, below = figures[0].axes
    training, validation = above.lines
    assert list(training.get_ydata()) == [0.1, 0.2]
    assert list(validation.get_xdata()) == [0, 2]
    assert validation.get_ydata()[0] == -0.5 and math.isnan(validation.get_ydata()[1])
    assert below.get_xlabel() == "iteration" and above.get_xlabel() == ""
    [alone] = figures[1].axes
    assert len(alone.lines) == 1 and alone.get_xlabel() == "iteration"


def test_a_running_mean_of_nothing_is_nan() -> None:
    means = running_mean([math.nan, 2.0, math.nan, math.nan], 2)
    assert [math.isnan(m) for m in means] == [True, False, False, True]

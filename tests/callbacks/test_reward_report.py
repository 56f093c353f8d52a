from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from rich.console import Console

from sctom.callbacks.reward_figures import FIGURES, png, reward_figures
from sctom.callbacks.reward_report import reward_table, write_evaluation
from sctom.modules.reward_evaluation import evaluate_scores
from sctom.modules.reward_metrics import ScoredPair

PAIR = ScoredPair(1.0, 0.0, 3, "[web]", True, False, 30, 20, "a")
MANY = [
    replace(PAIR, chosen=i / 20, rejected=j / 10, grade=(i + j) % 4, chosen_tokens=i)
    for i in range(20)
    for j in range(8)
]
TIED = [replace(PAIR, tied=True)]


def printed(table) -> str:
    console = Console(file=io.StringIO(), width=90)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, name: str) -> list[str]:
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines()]
    (found,) = [cells for cells in rows if cells[0] == name]
    return found


def test_the_table_shows_the_numbers() -> None:
    text = printed(reward_table(evaluate_scores([*MANY, *TIED])))
    assert "Reward model on 161 pairs, of which 1 are tied" in text
    # i / 20 > j / 10 for i > 2 j: 19 + 17 + ... + 5 of 160
    assert row(text, "accuracy") == ["accuracy", "60.0%", "52.3% to 67.3%", "160"]
    assert row(text, "significantly better")[3] == "40"
    assert row(text, "[web]")[3] == "160"
    assert "…" not in text


def test_what_there_is_no_number_for_has_no_row() -> None:
    text = printed(reward_table(evaluate_scores(TIED)))
    assert "score, mean" in text and "accuracy" not in text and "unsafe" not in text


@pytest.mark.parametrize(
    ("pairs", "names"),
    [
        (MANY, set(FIGURES)),
        ([PAIR], set(FIGURES)),
        (TIED, {"scores"}),
        ([replace(PAIR, is_safety=None, rejected=1.0)] * 2, set(FIGURES) - {"unsafe"}),
    ],
    ids=["many", "one", "tied", "equal"],
)
def test_what_can_be_drawn_is_drawn(pairs, names) -> None:
    figures = reward_figures(evaluate_scores(pairs))
    assert figures.keys() == names
    for figure in figures.values():
        figure.canvas.draw()


def test_a_figure_is_a_picture() -> None:
    figure = reward_figures(evaluate_scores(TIED))["scores"]
    picture = matplotlib.image.imread(io.BytesIO(png(figure)))
    assert picture.shape[2] == 4 and len(np.unique(picture[..., :3])) > 10


def test_the_differences_are_all_in_the_figure() -> None:
    (axes,) = reward_figures(evaluate_scores(MANY))["differences"].axes
    better, worse = ([bar.get_height() for bar in bars] for bars in axes.containers)
    assert sum(better) + sum(worse) == 160
    # a difference of 0 (i = 2 j, 8 of them) is with the better ones
    assert sum(better) == 96 + 8


def test_files_of_an_earlier_evaluation_are_replaced(tmp_path: Path) -> None:
    write_evaluation(evaluate_scores(MANY), tmp_path / "out")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"evaluation.json", *(f"{name}.png" for name in FIGURES)}
    write_evaluation(evaluate_scores(TIED), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"evaluation.json", "scores.png"}
    content = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert content["metrics"]["reward_model/tied"] == 1
    assert content["accuracy"] is None and content["scores"]["counts"]["tied"]

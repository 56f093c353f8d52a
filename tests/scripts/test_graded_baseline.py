from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

from sctom.preferences import Pair
from sctom.tasks.graded import prepare_graded
from sctom.tasks.tinyworld import make_world
from sctom.writers import write

SCRIPT = Path(__file__).parents[2] / "scripts" / "graded_baseline.py"


def report(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, str(folder)])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("| slightly better | better | significantly better |")
    return {name: cells for name, *cells in (line.strip("| ").split(" | ") for line in lines[2:])}


def test_answers_alone_say_nothing(tmp_path, monkeypatch, capsys):
    pairs = {"train.jsonl": 600, "valid.jsonl": 8, "test.jsonl": 600}
    write(prepare_graded(make_world(0), pairs=pairs), tmp_path)
    table = report(tmp_path, monkeypatch, capsys)
    assert list(table) == ["length", "words", "words and neighbours"]
    for cells in table.values():
        assert 0.44 < float(cells[0].split("%")[0]) / 100 < 0.56  # 600 pairs: 0.5 +- 3 * 0.02


def test_what_a_word_gives_away_is_found(tmp_path, monkeypatch, capsys):
    row = {"prompt": "Why?", "chosen": "because so", "rejected": "no idea", "grade": "better"}
    for name in ("train.jsonl", "test.jsonl"):
        (tmp_path / name).write_text((json.dumps(row) + "\n") * 4)
    table = report(tmp_path, monkeypatch, capsys)
    assert table["words"] == ["100.0% [51.0%, 100.0%]", "-", "-", "100.0% [51.0%, 100.0%]", "-"]
    assert table["length"][0].startswith("50.0%")  # equal lengths: no preference


def test_an_equal_score_is_half_a_hit():
    functions = runpy.run_path(str(SCRIPT))
    train = [Pair([], "a b", "a"), Pair([], "a b c", "a")]
    test = [Pair([], "a b", "a"), Pair([], "a", "a b"), Pair([], "a", "b")]
    assert functions["right"](train, test, functions["lengths"]) == [1.0, 0.0, 0.5]
    assert functions["interval"]([1.0, 0.0]) == "50.0% [9.5%, 90.5%]"

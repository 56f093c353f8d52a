from __future__ import annotations

import json
from pathlib import Path

import pytest

from sctom.iterate import comparisons
from sctom.iterate.comparisons import Asked, collect, label, pair_counts
from sctom.iterate.labels import Comparison, Label, Labeller
from sctom.iterate.settings import Prompts
from sctom.preferences import read_preferences
from sctom.readers import DataError, read_jsonl
from sctom.rollout import Sampling
from tests.iterate.small import write_prompts


class FirstIsBetter(Labeller):
    """Answer a is better than b; leaves out what a blank file of its own would not name."""

    def __init__(self, *left_out: int) -> None:
        self.left_out = left_out

    def label(self, asked, round_number, file):
        return [None if i in self.left_out else Label(0, i % 4) for i, _ in enumerate(asked)]


def asked_file(folder: Path, count: int, per_prompt: int = 1) -> Path:
    rows = [
        {
            "key": "",
            "prompt": [{"role": "user", "content": str(n // per_prompt)}],
            "a": f"yes {n}",
            "b": f"no {n}",
            "columns": {"tagged": n // per_prompt % 2 == 0},
        }
        for n in range(count)
    ]
    path = folder / "to_label.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def labelled(folder: Path, asked: Path, labeller: Labeller, **settings) -> tuple[list, list, dict]:
    chosen = {"is_safety": "tagged", "held_out": 0.25, "address": (0,), **settings}
    label(folder, asked, labeller, round_number=3, **chosen)
    parts = [
        read_preferences(path) if path.stat().st_size else []
        for path in (folder / "pairs.jsonl", folder / "held_out.jsonl")
    ]
    return *parts, json.loads((folder / "summary.json").read_text())


def test_pairs_carry_their_round_tag_and_grade(tmp_path):
    pairs, held, summary = labelled(tmp_path, asked_file(tmp_path, 8), FirstIsBetter(7))
    # 7 prompts have a pair: a quarter of them, rounded up, is 2
    assert (len(pairs), len(held)) == (5, 2)
    assert summary == {
        "pairs": 7,
        "safety": 4,  # prompts 0, 2, 4 and 6
        "grades": {  # places 0 and 4, 1 and 5, 2 and 6, 3
            "negligibly better": 2,
            "slightly better": 2,
            "better": 2,
            "significantly better": 1,
            "tied": 0,
        },
        "negligible": 2 / 7,
        "held_out": 2,
        "left_out": 1,
    }
    for pair in [*pairs, *held]:
        number = int(pair.prompt[0]["content"])
        assert (pair.chosen, pair.rejected) == (f"yes {number}", f"no {number}")
        assert (pair.grade, pair.is_safety) == (number % 4, number % 2 == 0)
        assert (pair.source, pair.columns) == ("round 3", {"round": 3})


def test_pairs_of_one_prompt_are_held_out_together(tmp_path):
    pairs, held, _ = labelled(tmp_path, asked_file(tmp_path, 24, per_prompt=3), FirstIsBetter())
    asked = [{pair.prompt[0]["content"] for pair in part} for part in (pairs, held)]
    assert len(asked[0]) == 6 and len(asked[1]) == 2 and not asked[0] & asked[1]


def test_nothing_need_be_held_out_or_tagged(tmp_path):
    settings = {"held_out": 0.0, "is_safety": None}
    pairs, held, _ = labelled(tmp_path, asked_file(tmp_path, 4), FirstIsBetter(), **settings)
    assert len(pairs) == 4 and not held and pairs[0].is_safety is None


def test_a_tag_must_be_true_or_false(tmp_path):
    with pytest.raises(DataError, match=r"to_label.jsonl:1: the column 'kind' .* but is None"):
        labelled(tmp_path, asked_file(tmp_path, 2), FirstIsBetter(), is_safety="kind")


def test_no_pair_to_train_on(tmp_path):
    with pytest.raises(DataError, match="leave 0 pairs, none of them for training"):
        labelled(tmp_path, asked_file(tmp_path, 2), FirstIsBetter(0, 1))


def test_a_tie_is_tied(tmp_path):
    class Neither(Labeller):
        def label(self, asked, round_number, file):
            return [Label(None) for _ in asked]

    pairs, _, summary = labelled(tmp_path, asked_file(tmp_path, 4), Neither())
    assert all(pair.tied and pair.grade is None for pair in pairs)
    assert summary["grades"]["tied"] == 4 and summary["negligible"] == 0


# collecting ---------------------------------------------------------------------------------------


def collected(folder, monkeypatch, ones: list[list[str]], others: list[list[str]]) -> list[dict]:
    """The comparisons of given answers."""
    given = iter([ones, others])
    prompts = Prompts(str(write_prompts(folder / "prompts.jsonl", len(ones))), columns="selfaware")
    data = comparisons.prompt_data(prompts.file, prompts)

    def answer(backbone, data, path, **settings):
        from sctom.batch import Prompt

        rows = data.train_rows
        asked = [Prompt(i, [], r["messages"], {"answerable": r["answerable"]}) for i, r in
                 enumerate(rows)]  # fmt: skip
        return asked, next(given)

    monkeypatch.setattr(comparisons, "answer", answer)
    assert len(data.train_rows) == len(ones)
    variants = [Asked({}, Sampling()), Asked({}, Sampling(temperature=1.5))]
    collect(
        folder, prompts.file, prompts, variants, pairs_per_prompt=len(ones[0]), address=(0, 1, 1)
    )
    return read_jsonl(folder / "to_label.jsonl")


def test_what_cannot_be_compared_is_left_out_and_counted(tmp_path, monkeypatch):
    rows = collected(
        tmp_path,
        monkeypatch,
        [["red", "blue", "red", " "], ["red ", "one", "two", "two"]],
        [["blue", "red", "green", "red"], ["red", "two", "one", "three"]],
    )
    found = [{row["a"], row["b"]} for row in rows]
    assert found == [{"red", "blue"}, {"red", "green"}, {"one", "two"}, {"two", "three"}]
    counts = json.loads((tmp_path / "summary.json").read_text())
    # blue-red and two-one are there already the other way round
    assert counts == {"answered": 8, "compared": 4, "repeated": 2, "blank": 1, "identical": 1}
    assert rows[0]["columns"] == {"answerable": False}
    comparison = Comparison(rows[0]["prompt"], (rows[0]["a"], rows[0]["b"]))
    assert rows[0]["key"] == comparison.key


def test_no_side_belongs_to_a_variant(tmp_path, monkeypatch):
    count = 200
    ones = [[f"one {n}" for n in range(count)]]
    rows = collected(tmp_path, monkeypatch, ones, [[f"two {n}" for n in range(count)]])
    first = sum(row["a"].startswith("one") for row in rows)
    assert 60 < first < 140  # of 200 fair coins, 5.7 standard deviations to either side


def test_only_equal_answers_are_an_error(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"all 2 pairs of answers .* are identical or blank"):
        collected(tmp_path, monkeypatch, [["red", "no"]], [["red", " no"]])


def test_counts_of_nothing():
    assert pair_counts([])["negligible"] is None

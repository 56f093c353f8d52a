from __future__ import annotations

import json
from pathlib import Path

import pytest

from sctom.iterate.selecting import learned_reward, select
from sctom.iterate.settings import Prompts
from sctom.modules.learned_reward import LearnedReward, SafetyHelpfulness
from sctom.readers import DataError, read_jsonl
from sctom.rewards import FunctionReward
from tests.iterate.small import write_prompts

PROMPTS = Prompts("", columns="selfaware")


def longest(completions):
    return [float(len(completion[0]["content"])) for completion in completions]


def round_of(folder: Path, *groups: list[str], truncated: str = "!") -> tuple[Path, Path]:
    """The prompts of a round and its samples, as sampling leaves them; "!" cuts an answer off."""
    folder.mkdir()
    lines = [
        {
            "prompt": number,
            "sample": i,
            "text": text,
            "truncated": text.endswith(truncated),
            "rewards": {"reward": 10.0 * i, "judge": None if text == "a" else float(i)},
        }
        for number, texts in enumerate(groups)
        for i, text in enumerate(texts)
    ]
    for name, kept in (("samples", lines), ("kept", lines[:1]), ("baseline", lines[1:2])):
        content = "".join(json.dumps(line) + "\n" for line in kept)
        (folder / f"{name}.jsonl").write_text(content)
    return write_prompts(folder / "prompts.jsonl", len(groups)), folder


def selected(folder: Path, rounds: dict, **settings) -> tuple[list[dict], dict]:
    chosen = {"count": 3, "fraction": 1.0, "seed": 0, **settings}
    select(folder, rounds, PROMPTS, FunctionReward(longest), **chosen)
    summary = json.loads((folder / "selection.json").read_text())
    return read_jsonl(folder / "kept.jsonl"), summary


def test_the_best_of_all_rounds_by_the_new_reward(tmp_path):
    rounds = {
        1: round_of(tmp_path / "one", ["aaa", "a", "aaaa!"], ["b", "bb", "b"]),
        2: round_of(tmp_path / "two", ["a", "c", "cccc"]),
    }
    kept, summary = selected(tmp_path, rounds)
    # by their old rewards the last answer to each prompt would be the best; cut off ones never are
    assert [row["messages"][-1]["content"] for row in kept] == ["aaa", "bb", "cccc"]
    assert [row["messages"][-1]["role"] for row in kept] == ["assistant"] * 3
    assert [(row["round"], row["line"], row["sample"]) for row in kept] == [
        (1, 1, 0),
        (1, 2, 1),
        (2, 1, 2),
    ]
    assert [row["reward"] for row in kept] == [3.0, 2.0, 4.0]
    assert summary["kept"] == 3 and summary["of_round"] == {"1": 2, "2": 1}
    # of the newest round: 0, 10 and 20; the judge has nothing to say of "a"
    assert summary["means"]["all"] == {"reward": 10.0, "judge": 1.5}
    assert summary["means"]["random"] == {"reward": 10.0, "judge": 1.0}


def test_a_fraction_of_the_best(tmp_path):
    rounds = {1: round_of(tmp_path / "one", ["aaa", "a", "a"], ["b", "bb", "b"], ["c", "c", "c"])}
    kept, _ = selected(tmp_path, rounds, fraction=0.5)
    # half of three, rounded up
    assert [row["reward"] for row in kept] == [3.0, 2.0]


def test_nothing_that_may_be_kept(tmp_path):
    with pytest.raises(DataError, match="all were cut off or have no reward"):
        selected(tmp_path, {1: round_of(tmp_path / "one", ["a!", "b!", "c!"])})


def test_one_reward_model_or_the_rule_of_two():
    assert isinstance(learned_reward({"reward": "x"}, None, 0.15), LearnedReward)
    rule = learned_reward({"helpfulness": "h", "safety": "s"}, "tag", 0.3)
    assert isinstance(rule, SafetyHelpfulness)
    assert (rule.threshold, rule.is_safety, rule.whiten) == (0.3, "tag", False)
    paths = {name: part.path for name, part in rule.parts.items()}  # type: ignore[attr-defined]
    assert paths == {"helpfulness": "h", "safety": "s"}

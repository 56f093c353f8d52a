from __future__ import annotations

import doctest
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import pairs, processes, tiny_model
from benchmarks.pairs import PairWork
from benchmarks.reward_vs_trl import (
    arguments_of,
    block_name,
    differences,
    learn,
    report,
    sides_of,
    summarise,
    targets,
    work_of,
)
from sctom.preferences import read_preferences

SMALL = tiny_model.Shape(
    vocabulary=400, hidden=32, inner=64, layers=1, heads=2, kv_heads=1, positions=256
)
WORK = PairWork(steps=2, pairs=3, held_out=2, prompt_tokens=(60, 119), answer_tokens=(20, 40))


def run(*seconds: float, peak: float = 100.0, stall: float | None = 0.0, **learned) -> dict:
    """Steps of so many seconds: a quarter forward, half backward, the rest nobody's."""
    steps = [
        {"step": s, "forward": s / 4, "backward": s / 2, "optimiser": 0.0, "tokens": 1000.0}
        for s in seconds
    ]
    return {"steps": steps, "peak_mib": peak, "stall": stall, "losses": [0.7, 0.6], **learned}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("small")
    tiny_model.make_tokenizer(folder, SMALL.vocabulary, files=5)
    return AutoTokenizer.from_pretrained(folder)


def test_pairs_are_as_long_as_asked_and_the_same_every_time(tokenizer, tmp_path: Path):
    rows = pairs.make_pairs(tokenizer, WORK)
    assert len(rows) == WORK.trained + WORK.held_out == 11
    assert rows == pairs.make_pairs(tokenizer, WORK)
    assert rows != pairs.make_pairs(tokenizer, replace(WORK, seed=1))
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(read_preferences(file)) == 11
    for prompt, *answers in pairs.read_ids(file, tokenizer):
        assert 55 <= len(prompt) <= 119
        for answer in answers:
            assert answer[-1] == tiny_model.EOS
            assert 2 <= len(answer) <= 41


def test_the_tokens_of_rejected_answers_are_mixed(tokenizer):
    corpus = tiny_model.corpus()
    rows = pairs.make_pairs(tokenizer, WORK)
    assert all(row["chosen"] in corpus for row in rows)
    assert not any(row["rejected"] in corpus for row in rows)


def test_both_sides_get_the_same_weights_by_the_names_they_share():
    ours = {
        "model.base_model.model.model.layers.0.q.lora_A.default.weight": torch.empty(2, 4),
        "model.base_model.model.model.layers.0.q.lora_B.default.weight": torch.empty(4, 2),
        "head.weight": torch.empty(1, 4),
    }
    theirs = {
        "base_model.model.score.modules_to_save.default.weight": torch.empty(1, 4),
        "base_model.model.model.layers.0.q.lora_A.default.weight": torch.empty(2, 4),
        "base_model.model.model.layers.0.q.lora_B.default.weight": torch.empty(4, 2),
    }
    for parameters in (ours, theirs):
        pairs.set_weights(parameters.items(), seed=0)
    first, second, head = ours.values()
    their_head, their_first, their_second = theirs.values()
    assert torch.equal(first, their_first) and torch.equal(head, their_head)
    assert torch.equal(second, torch.zeros(4, 2)) and torch.equal(second, their_second)
    assert not torch.equal(first[:1], head)
    before = head.clone()
    pairs.set_weights(ours.items(), seed=1)
    assert not torch.equal(head, before)


def test_work_travels_as_json_and_refuses_what_cannot_be():
    assert PairWork.from_json(WORK.to_json()) == WORK
    with pytest.raises(ValueError, match="8 pairs cannot be split into micro-batches of 3"):
        PairWork(micro_batch=3)
    with pytest.raises(ValueError, match="model must be one of tiny, smollm2"):
        PairWork(model="large")


def test_command_line_makes_the_work_of_every_side():
    options = arguments_of(["--model", "smollm2"])
    sides = sides_of(work_of(options), options.trl_micro)
    assert list(sides) == ["TRL, 4 pairs", "TRL, 1 pair", "sctom"]
    assert [work.micro_batch for _, work in sides.values()] == [4, 1, 1]
    assert {work.pairs for _, work in sides.values()} == {4}
    assert block_name(work_of(options)) == "reward-smollm2"
    quick = arguments_of(["--quick"])
    assert (quick.steps, quick.rounds, work_of(quick).answer_tokens) == (1, 1, (30, 80))


def test_the_rate_of_a_run_is_that_of_all_its_steps():
    found = summarise("s", [run(1.0, 3.0, peak=10.0), run(4.0, 4.0, peak=30.0)], 8)
    # 16 pairs in 4 s and in 8 s: 4 and 2 pairs/s, median 3, (4 - 2) / 3 between rounds
    assert found.rate == 3.0 and found.round_spread == pytest.approx(2 / 3)
    assert found.peak_mib == 30.0 and found.tokens == 1000.0
    # steps of 1, 3, 4, 4 s: median 3.5, a quarter of which no phase covers
    assert found.seconds["step"] == 3.5 and found.seconds["rest"] == pytest.approx(3.5 / 4)


def test_targets_are_those_against_whole_batches():
    ours, whole = summarise("sctom", [run(1.0)], 8), summarise("TRL", [run(2.99, peak=400.0)], 8)
    speed, memory = targets(ours, whole, {})
    assert (speed.found, speed.holds, speed.wanted) == ("2.99 x", False, "at least 3 x")
    assert (memory.found, memory.holds, memory.wanted) == ("1/4.00", True, "at most 1/4")
    assert targets(ours, None, {}) == []


def test_what_is_learned_is_compared_with_the_peer():
    learned = {
        "TRL, 8 pairs": run(1.0, held_out=[[1.0, 0.0], [1.0, 0.0]]),
        "sctom": run(1.0, held_out=[[1.0, 0.0], [0.0, 0.0]]) | {"losses": [0.7, 0.5]},
    }
    # equal first losses, 0.1 between the second ones, one of two pairs against both
    assert differences(learned) == pytest.approx((0.0, 0.1, -0.5))
    first, accuracy = targets(summarise("sctom", [run(1.0)], 8), None, learned)
    assert first.holds and not accuracy.holds and accuracy.found == "-50.0%"


def test_report_says_what_was_disturbed_and_what_failed():
    learned = {name: run(1.0, held_out=[[1.0, 0.0]]) for name in ("TRL, 8 pairs", "sctom")}
    record = {
        "machine": {"cpu": "X", "cores": 2, "memory_gib": 8.0},
        "versions": {"torch": "1"},
        "work": json.loads(PairWork(steps=1).to_json()),
        "trl_micro": [8, 1],
        "quick": False,
        "max_stall": 0.1,
        "rounds": [{"TRL, 8 pairs": run(8.0, peak=500.0), "sctom": run(2.0, stall=0.5)}],
        "failed": {"TRL, 1 pair": "side reward_trl ended with -9\nand more"},
        "learning": json.loads(PairWork(steps=60).to_json()),
        "learned": learned,
    }
    text = report(record)
    assert "tiny, 8 pairs a step: prompts of 40 to 300 tokens" in text and "X, 2 cores" in text
    assert "**WARNING: disturbed**: no round was quiet" in text
    assert "TRL, 1 pair did not finish: side reward_trl ended with -9\n" in text
    assert "| pairs/s | 1.000 | 4.000 | 4.00 |" in text
    # 2 s of which a quarter forward, for 8 pairs: 62.5 ms
    assert "| forward, ms per pair | 250.0 | 62.5 | 4.00 |" in text
    assert "What is learned in 60 steps of 8 short pairs; no loss of a step differs" in text
    assert "| memory above the model | at most 1/4 | 1/5.00 | yes |" in text
    assert "at most 1/4" not in report(record | {"quick": True})
    assert "What is learned" not in report(record | {"learned": {}})


def test_a_peer_that_fails_is_left_out_and_rounds_alternate(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    def run_side(side: str, work: str, data: Path) -> dict:
        asked.append(side)
        if side == "b" and len(asked) > 3:
            raise processes.SideFailed("out of memory")
        return {"side": side}

    monkeypatch.setattr(processes, "run_side", run_side)
    sides = {"A": ("a", WORK), "B": ("b", WORK), "sctom": ("ours", WORK)}
    rounds, failed = processes.measure_rounds(sides, Path(), 3, lambda run: "told")
    assert asked == ["a", "b", "ours", "ours", "b", "a", "a", "ours"]
    assert failed == {"B": "out of memory"}
    assert rounds == [{"A": {"side": "a"}, "sctom": {"side": "ours"}}] * 3


def test_ours_failing_ends_the_measurement(monkeypatch: pytest.MonkeyPatch):
    def run_side(side: str, work: str, data: Path) -> dict:
        raise processes.SideFailed("broken")

    monkeypatch.setattr(processes, "run_side", run_side)
    with pytest.raises(processes.SideFailed, match="broken"):
        processes.measure_rounds({"sctom": ("ours", WORK)}, Path(), 1, lambda run: "told")


def test_a_peer_that_fails_to_learn_costs_no_other_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def run_side(side: str, work: PairWork, data: Path) -> dict:
        if side == "reward_trl" and fails:
            raise processes.SideFailed("out of memory")
        return run(1.0, held_out=[[1.0, 0.0]])

    monkeypatch.setattr(processes, "run_side", run_side)
    monkeypatch.setattr(pairs, "write_pairs", lambda work, folder: folder)
    fails = True
    assert learn(WORK, tmp_path) == ({}, {"TRL, 3 pairs, learning": "out of memory"})
    fails = False
    learned, failed = learn(WORK, tmp_path)
    assert list(learned) == ["TRL, 3 pairs", "sctom"] and failed == {}


def test_examples_in_docstrings():
    found = doctest.testmod(pairs)
    assert found.attempted > 0 and found.failed == 0

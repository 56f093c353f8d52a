from __future__ import annotations

import doctest
import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import (
    comparison,
    head,
    limits,
    measure,
    report,
    scaling,
    stopping,
    tiny_model,
    workload,
)
from benchmarks.comparison import Summary
from benchmarks.grpo_vs_trl import arguments_of, block_name, sides_of, work_of
from benchmarks.grpo_vs_trl import report as grpo_report
from benchmarks.scaling_picture import draw
from benchmarks.workload import Work

SMALL = tiny_model.Shape(
    vocabulary=400, hidden=32, inner=64, layers=1, heads=2, kv_heads=1, positions=256
)


def step(seconds: float, tokens: float, generate: float, forward: float, backward: float) -> dict:
    return {
        "step": seconds,
        "tokens": tokens,
        "generate": generate,
        "forward": forward,
        "backward": backward,
        "optimiser": 0.0,
    }


def run(*steps: dict, peak: float = 100.0, stall: float | None = 0.0) -> dict:
    return {"engine": "e 1", "steps": list(steps), "peak_mib": peak, "stall": stall}


def summary(**changes) -> Summary:
    made = comparison.summarise("s", [run(step(1.0, 100.0, 0.5, 0.2, 0.2))])
    return replace(made, **changes)


def test_median_is_over_the_steps_of_all_runs_and_memory_is_the_largest():
    first = run(step(1.0, 100.0, 0.5, 0.1, 0.3), step(2.0, 100.0, 0.5, 0.1, 0.3), peak=10.0)
    second = run(step(4.0, 100.0, 0.5, 0.1, 0.3), peak=30.0)
    found = comparison.summarise("s", [first, second])
    # tokens/s 100, 50, 25: median 50; rounds have 75 and 25: (75 - 25) / 50 = 1
    assert found.step_rate == 50.0
    assert found.round_spread == 1.0
    assert found.peak_mib == 30.0
    assert found.generate_rate == 200.0
    assert found.gradient_rate == pytest.approx(100.0 / 0.4)
    # a step of 2 s less 0.5 + 0.1 + 0.3
    assert found.seconds["rest"] == pytest.approx(1.1)
    assert found.seconds["reference"] == 0.0


def test_speed_is_compared_with_the_fastest_peer_and_memory_with_each():
    ours = summary(step_rate=500.0, generate_rate=800.0, gradient_rate=599.0, peak_mib=100.0)
    peers = {
        32: summary(step_rate=90.0, generate_rate=200.0, gradient_rate=80.0, peak_mib=499.0),
        8: summary(step_rate=100.0, generate_rate=190.0, gradient_rate=100.0, peak_mib=300.0),
    }
    found = comparison.targets(ours, peers, model="tiny", rows=32)
    # 500/100 = 5, 800/200 = 4, 599/100 = 5.99; 499/100 = 4.99 of the 5 wanted, 300/100 = 3
    assert [target.holds for target in found] == [True, True, False, False, True]
    assert found[0].found == "5.00 x" and found[0].wanted == "at least 5 x"
    assert found[3].wanted == "at most 1/5" and found[4].wanted == "at most 1/3"


def test_smollm2_may_be_a_little_slower_and_without_peers_nothing_is_judged():
    peer = summary(step_rate=100.0)
    ours = summary(step_rate=460.0)
    assert comparison.targets(ours, {8: peer}, model="smollm2", rows=32)[0].holds
    assert not comparison.targets(ours, {8: peer}, model="tiny", rows=32)[0].holds
    assert comparison.targets(ours, {}, model="tiny", rows=32) == []


def test_disturbed_rounds_are_dropped_unless_all_are():
    quiet, loud = run(stall=0.05), run(stall=0.4)
    unknown = run(stall=None)
    rounds = [{"a": quiet, "b": quiet}, {"a": quiet, "b": loud}, {"a": unknown, "b": quiet}]
    assert comparison.kept_rounds(rounds, 0.1) == [rounds[0], rounds[2]]
    assert comparison.kept_rounds(rounds[1:2], 0.1) == rounds[1:2]


def test_table_compares_phases_per_token():
    theirs = comparison.summarise("peer", [run(step(4.0, 100.0, 1.0, 1.0, 1.0))])
    ours = comparison.summarise("sctom", [run(step(1.0, 50.0, 0.5, 0.1, 0.3))])
    lines = comparison.comparison_table(ours, [theirs]).splitlines()
    # 25 against 50 tokens/s; 4 s / 100 = 40 ms a token against 1 s / 50 = 20
    assert lines[2] == "| step, tokens/s | 25.0 | 50.0 | 2.00 |"
    assert "| step, ms per token | 40.000 | 20.000 | 2.00 |" in lines
    assert "| generate, ms per token | 10.000 | 10.000 | 1.00 |" in lines
    assert "| reference, ms per token | 0.000 | 0.000 |  |" in lines
    assert {line.count("|") for line in lines} == {5}


def test_report_of_a_comparison_says_what_was_disturbed_and_what_failed():
    record = {
        "machine": {"cpu": "X", "cores": 2, "memory_gib": 8.0},
        "versions": {"torch": "1"},
        "work": json.loads(Work(beta=0.04).to_json()),
        "trl_micro": [32, 8],
        "quick": False,
        "max_stall": 0.1,
        "rounds": [
            {
                "TRL, 8 rows": run(step(4.0, 100.0, 1.0, 1.0, 1.0), peak=400.0),
                "sctom": run(step(0.5, 100.0, 0.2, 0.1, 0.1), stall=0.5),
            }
        ],
        "failed": {"TRL, 32 rows": "side trl ended with -9\nand more"},
    }
    text = grpo_report(record)
    assert "beta 0.04" in text and "X, 2 cores, 8.0 GiB; torch 1; 2 threads." in text
    assert "**WARNING: disturbed**: no round was quiet" in text
    assert "TRL, 32 rows did not finish: side trl ended with -9\n" in text
    assert "| step, tokens/s | at least 5 x | 8.00 x | yes |" in text
    assert "at least 5 x" not in grpo_report(record | {"quick": True})


def test_command_line_makes_the_work_of_every_side():
    options = arguments_of(["--beta", "0.04", "--trl-micro", "16", "--max-new", "24"])
    sides = sides_of(work_of(options), options.trl_micro)
    assert list(sides) == ["TRL, 16 rows", "sctom"]
    side, work = sides["TRL, 16 rows"]
    assert side == "trl" and work.micro_batch == 16 and work.max_new == 24
    assert sides["sctom"][1].micro_batch == 8
    assert block_name(work) == "grpo-tiny-kl"
    assert arguments_of([]).trl_micro == [32, 8]
    assert arguments_of(["--model", "smollm2"]).trl_micro == [8]
    assert block_name(Work(model="smollm2", bf16=True)) == "grpo-smollm2-plain-bf16"


def test_work_travels_as_json_and_refuses_what_cannot_be():
    work = Work(model="smollm2", beta=0.04, prompt_tokens=(5, 9), group_size=2)
    assert Work.from_json(work.to_json()) == work
    with pytest.raises(ValueError, match="32 completions cannot be split into micro-batches of 5"):
        Work(micro_batch=5)
    with pytest.raises(ValueError, match="model must be one of tiny, smollm2"):
        Work(model="large")


def test_hazard_gives_the_mean_and_ids_add_up_to_it():
    hazard = stopping.hazard_for(45, 96)
    assert stopping.capped_mean(hazard, 96) == pytest.approx(45)
    # each token is 1/2000 of what is drawn, the hazard is 1/54: 37 ids
    uniform = [1 / 2000] * 2000
    chosen = stopping.choose_stop_ids(uniform, hazard, always=[2])
    assert 2 in chosen and len(set(chosen)) == int(hazard * 2000) == 37
    assert chosen == stopping.choose_stop_ids(uniform, hazard, always=[2])
    # a token that alone is half of what is drawn never decides, nor one that is never drawn
    skewed = [0.5, 0.0, 0.0, *[0.5 / 1997] * 1997]
    assert not {0, 2} & set(stopping.choose_stop_ids(skewed, hazard, always=[1]))
    with pytest.raises(ValueError, match=r"add up to 0\.0000, but 0\.0185 is wanted"):
        stopping.choose_stop_ids([0.5, 0.5], hazard, always=[])
    with pytest.raises(ValueError, match="between 1 and the limit 10"):
        stopping.hazard_for(12, 10)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    tiny_model.make_model(folder, SMALL, files=5)
    return folder


def test_the_small_model_is_the_same_every_time(small: Path, tmp_path: Path):
    tiny_model.make_model(tmp_path, SMALL, files=5)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (small / name).read_bytes()


def test_prompts_are_spread_over_the_lengths_and_the_same_every_time(small: Path):
    from transformers import AutoTokenizer

    from sctom.data.template import render_prompt

    tokenizer = AutoTokenizer.from_pretrained(small)
    prompts = workload.make_prompts(tokenizer, 3, 2, (60, 119), seed=0)
    assert prompts == workload.make_prompts(tokenizer, 3, 2, (60, 119), seed=0)
    assert prompts != workload.make_prompts(tokenizer, 3, 2, (60, 119), seed=1)
    lengths = [len(render_prompt(tokenizer, prompt)) for prompt in prompts]
    # of each step the first prompt has 60 to 89 tokens, the second 90 to 119
    assert all(55 <= length <= 89 for length in lengths[0::2])
    assert all(85 <= length <= 119 for length in lengths[1::2])
    (fixed,) = workload.make_prompts(tokenizer, 1, 1, (70, 70), seed=0)
    assert 65 <= len(render_prompt(tokenizer, fixed)) <= 70
    for number in range(5):
        alike = workload.make_prompts(tokenizer, 1, 3, (70, 70), seed=number)
        assert all(len(render_prompt(tokenizer, prompt)) <= 70 for prompt in alike)


def test_the_stop_rule_is_written_and_gives_the_length(small: Path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from sctom.batch import Prompt
    from sctom.modules.backbone import stop_ids
    from sctom.rollout import LocalSampler, Sampling

    ids = workload.set_stop_rule(small, 8, 20, prompts=2)
    model = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32).eval()
    assert stop_ids(model, AutoTokenizer.from_pretrained(small)) == frozenset(ids)
    samples = LocalSampler().sample(
        model,
        [Prompt(i, [40 + i, 50, 60], []) for i in range(8)],
        group_size=32,
        sampling=Sampling(max_new_tokens=20),
        stop_ids=frozenset(ids),
        address=(1,),
    )
    lengths = [len(sample.ids) for sample in samples]
    # 256 lengths with a deviation of about 6.5: the mean is known to 0.4
    assert sum(lengths) / len(lengths) == pytest.approx(8, abs=1.5)


def test_reward_tells_completions_apart():
    completions = [[{"role": "assistant", "content": "x" * n}] for n in range(8)]
    assert workload.reward(completions)[:2] == [0.0, 1 / 7]
    assert workload.reward(completions)[7] == 0.0


def test_size_of_a_decode_step(small: Path):
    from transformers import AutoModelForCausalLM

    size = limits.size_of(AutoModelForCausalLM.from_pretrained(small))
    # per layer: q 32x32, k and v 16x32 each, o 32x32, three of 32x64; head 400x32
    weights = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 64 + 400 * 32
    assert size.weights == weights and size.weight_bytes == 4 * weights
    # one layer, one head of 16 for keys and one for values, four bytes each
    assert size.kv_bytes == 2 * 16 * 4
    # two heads of 16, a product with the key and one with the value, two operations each
    assert size.attention_operations == 4 * 2 * 16
    assert size.step_bytes(8, 100, 10.0) == 4 * weights + 128 * (100 + 8 * 10)
    assert size.step_operations(2, 100, 10.0) == 2 * (2 * weights + 128 * 110)


def test_limits_table_says_what_limits():
    row = {"rows": 8, "seconds": 0.01, "bytes": 4e7, "operations": 2e8, "shares": {"a": 0.5}}
    row["stall"] = 0.0
    record = {"bandwidth": 2e10, "far_bandwidth": 1e10, "rate": 1e11, "weight_bytes": 4e7}
    text = limits.report(record | {"balance_rows": 8.0, "rows": [row]})
    # 4e7 / 2e10 = 2 ms of reading, 2e8 / 1e11 = 2 ms of computing; a step takes 10
    assert "| 8 | 10.00 | 800 | 40 | 2.00 | reading | 20% |" in text
    assert "| a | 50% |" in text


def test_scaling_changes_one_factor_at_a_time():
    for series, values in scaling.SERIES.items():
        for value in values:
            changed = scaling.work_at(series, value)
            assert changed.rows % changed.micro_batch == 0
    assert scaling.work_at("prompt", 64).prompt_tokens == (64, 64)
    assert scaling.work_at("prompt cost", 4).max_new == 1
    assert scaling.work_at("vocabulary", 4096).name == "bench-tiny-4096-fixed"
    with pytest.raises(ValueError, match="series must be one of"):
        scaling.work_at("width", 1)


def test_picture_is_drawn(tmp_path: Path):
    points = [
        {"value": v, "step": s, "generate": s / 2, "reference": 0.0, "update": s / 4}
        for v, s in ((2, 1.0), (4, 1.5))
    ]
    picture = tmp_path / "made" / "scaling.png"
    draw({"sctom": {"group": points}, "TRL": {}}, scaling.WORDS, picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_results_go_into_their_places_of_the_page():
    page = "a\n<!-- result: x -->\nold\n<!-- end: x -->\nb\n<!-- result: y -->\n<!-- end: y -->\n"
    filled = report.fill(page, {"x": "| new |\n"})
    assert filled == page.replace("old", "| new |")
    assert report.fill(filled, {"x": "| new |\n"}) == filled
    with pytest.raises(ValueError, match="no place for z; it has x, y"):
        report.fill(page, {"z": ""})


def test_page_has_a_place_for_every_result():
    known = report.places(report.PAGE.read_text())
    works = [Work(beta=b, bf16=half) for b in (0.0, 0.04) for half in (False, True)]
    works += [Work(model="smollm2", beta=b) for b in (0.0, 0.04)]
    wanted = {block_name(work) for work in works}
    wanted |= {f"{kind}-{model}" for kind in ("generation", "reward") for model in workload.MODELS}
    wanted |= {"head", "scaling", "rewards"}
    assert set(known) == wanted and len(known) == len(wanted)


def test_blocks_of_files(tmp_path: Path):
    first, second, other = (tmp_path / f"{i}.json" for i in range(3))
    measure.write_record(first, {"benchmark": "b"}, {"x": "1", "y": "1"})
    measure.write_record(second, {"benchmark": "b"}, {"x": "2"})
    assert report.read_blocks([first, second]) == {"x": "2", "y": "1"}
    other.write_text("{}")
    with pytest.raises(ValueError, match="not the result of a benchmark"):
        report.read_blocks([other])
    measure.write_record(other, {"quick": True}, {"x": "3"})
    with pytest.raises(ValueError, match="measured with --quick"):
        report.read_blocks([other])


def test_report_refuses_what_is_no_result(tmp_path: Path):
    missing, broken = tmp_path / "a.json", tmp_path / "b.json"
    broken.write_text("{")
    with pytest.raises(ValueError, match=r"a\.json is not there"):
        report.read_blocks([missing])
    with pytest.raises(ValueError, match=r"b\.json is not JSON"):
        report.read_blocks([broken])


def test_trl_is_asked_for_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"TRL is missing here.*-m benchmarks\.scaling"):
        measure.require_trl("scaling")


def test_head_tells_its_size_and_marks_what_was_disturbed():
    result = {"vocabulary": 8192, "dtype": "float32", "mode": "frozen", "stall": 0.3}
    result |= {"peak_mib": {"unfused": 2.0, "sctom": 1.0}}
    result |= {"rounds": [{"unfused": 2.0, "sctom": 1.0}]}
    record = {"machine": {"cpu": "X", "cores": 2, "memory_gib": 8.0}, "versions": {"torch": "1"}}
    record |= {"threads": 2, "rows": 1600, "repeats": 5, "results": [result]}
    text = head.report(record)
    assert text.startswith("1,600 tokens, medians of 5 rounds. X, 2 cores")
    assert "**WARNING: 1 of 1 measurements disturbed**: threads waited for a core 30%" in text
    assert "| 8,192, float32, frozen (disturbed) | 2.00 | 1.00 | - | 0.50 |" in text


def test_files_of_results_have_the_names_of_their_places():
    known = set(report.places(report.PAGE.read_text()))
    made = (workload.ROOT / "Makefile").read_text()
    assert set(re.findall(r"\$\(BENCH_OUT\)/([\w-]+)\.json", made)) == known
    for file in (workload.ROOT / "benchmarks").iterdir():
        if file.suffix in (".py", ".md"):
            assert set(re.findall(r"runs/bench/([\w.-]+)\.json", file.read_text())) <= known


@pytest.mark.parametrize(
    "name",
    ["comparison", "limits", "measure", "scaling", "scaling_picture", "stopping", "workload"],
)
def test_examples_in_docstrings(name: str):
    found = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert found.attempted > 0 and found.failed == 0


def test_clock_adds_up_and_starts_anew(monkeypatch: pytest.MonkeyPatch):
    ticks = iter([0.0, 2.0, 5.0, 6.0])
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(ticks))
    clock = measure.Clock()
    double = clock.timed(lambda value: 2 * value, lambda: "p")
    assert double(3) == 6 and double(4) == 8
    assert clock.read() == {"p": 3.0} and clock.read() == {}

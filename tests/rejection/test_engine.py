from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

from sctom.modules import Backbone
from sctom.readers import read_jsonl
from sctom.rejection import BestOf
from sctom.rejection.draw import with_preprompt
from sctom.rejection.engine import run
from sctom.rejection.settings import SampleSettings, check_settings
from sctom.rejection.store import hash_of
from sctom.rewards import Reward, RewardError
from sctom.rollout import Sampling


class Length(Reward):
    """More letters are better; nothing is said about "red"."""

    def __call__(self, completions):
        texts = [completion[-1]["content"] for completion in completions]
        return [None if "red" in text.split() else float(len(text)) for text in texts]


class Centred(Length):
    def over_rollout(self, values):
        known = [value for value in values if value is not None]
        mean = sum(known) / len(known)
        return [None if value is None else value - mean for value in values]


class Broken(Reward):
    default_on_error = "abstain"

    def __call__(self, completions):
        raise RuntimeError("no answer")


@pytest.fixture
def settings(tmp_path, tiny_model, tiny_prompts):
    def make(name="run", **changes):
        given = {
            "rewards": [Length()],
            "samples": 4,
            "sampling": Sampling(max_new_tokens=6),
            "columns": "selfaware",
            "keep_truncated": True,
            "chunk": 5,
            **changes,
        }
        backbone = Backbone(str(tiny_model))
        return SampleSettings(
            backbone, str(tiny_prompts), run_dir=str(tmp_path / name), seed=3, **given
        )

    return make


def files(settings):
    names = ("samples", "kept", "rejected", "baseline")
    return {name: (open_(settings) / f"{name}.jsonl").read_bytes() for name in names}


def open_(settings):
    from pathlib import Path

    return Path(settings.run_dir)


CONFIG = {"samples": 4}


def test_the_best_of_every_prompt_is_kept_with_where_it_is_from(settings, tiny_prompts):
    made = settings()
    summary = run(made, CONFIG, resume="error")
    samples = read_jsonl(open_(made) / "samples.jsonl")
    kept = read_jsonl(open_(made) / "kept.jsonl")
    rejected = read_jsonl(open_(made) / "rejected.jsonl")
    baseline = read_jsonl(open_(made) / "baseline.jsonl")
    assert len(samples) == 12 * 4 == len(kept) + len(rejected)
    assert len(kept) == len(baseline) == summary.kept
    prompts = read_jsonl(tiny_prompts)
    for row in kept:
        where = row["sampled_from"]
        mine = [s for s in samples if s["prompt"] == where["line"] - 1]
        totals = [s["rewards"]["length"] for s in mine if s["rewards"]["length"] is not None]
        assert row["reward"] == max(totals) == len(row["messages"][-1]["content"])
        assert row["messages"][:-1] == prompts[where["line"] - 1]["messages"][:1]
        assert row["messages"][-1]["content"] == mine[row["sample"]]["text"]
        assert where["prompts_sha256"] == hash_of(tiny_prompts) and row["rank"] == 1
        assert where["seed"] == 3 and where["rule"] == "BestOf(distinct=True, count=1)"
    assert summary.reward_kept >= summary.reward_all
    manifest = json.loads((open_(made) / "manifest.json").read_bytes())
    assert manifest["outputs"]["kept.jsonl"] == hash_of(open_(made) / "kept.jsonl")


def test_nothing_depends_on_the_chunk(settings):
    runs = [settings(f"chunk-{size}", chunk=size) for size in (1, 5, 100)]
    for made in runs:
        run(made, CONFIG, resume="error")
    assert files(runs[0]) == files(runs[1]) == files(runs[2])


def test_a_run_goes_on_where_it_was(settings):
    whole, cut = settings("whole"), settings("cut")
    run(whole, CONFIG, resume="error")
    run(cut, CONFIG, resume="error")
    path = open_(cut) / "samples.jsonl"
    for name in ("kept", "rejected", "baseline"):
        (open_(cut) / f"{name}.jsonl").unlink()
    manifest = json.loads((open_(cut) / "manifest.json").read_bytes())
    (open_(cut) / "manifest.json").write_text(json.dumps(manifest | {"outputs": None}))
    path.write_bytes(path.read_bytes()[:-900])
    run(cut, CONFIG, resume="auto")
    assert files(cut) == files(whole)
    assert run(cut, CONFIG, resume="auto").kept == run(whole, CONFIG, resume="auto").kept


def test_temperatures_share_the_group_and_are_reported(settings):
    made = settings(samples=2, temperatures=[0.5, 1.5])
    summary = run(made, CONFIG, resume="error")
    samples = read_jsonl(open_(made) / "samples.jsonl")
    assert [s["temperature"] for s in samples[:4]] == [0.5, 0.5, 1.5, 1.5]
    assert [row["temperature"] for row in summary.temperatures] == [0.5, 1.5]
    assert len(summary.curve) in (0, 4)


def test_what_looks_at_all_samples_is_asked_once_for_all(settings):
    plain, centred = settings("plain"), settings("centred", rewards=[Centred(name="length")])
    run(plain, CONFIG, resume="error")
    run(centred, CONFIG, resume="error")
    rows = [read_jsonl(open_(s) / "samples.jsonl") for s in (plain, centred)]
    assert rows[0] == rows[1]  # raw values
    values = [r["rewards"]["length"] for r in rows[0] if r["rewards"]["length"] is not None]
    mean = sum(values) / len(values)
    kept = [read_jsonl(open_(s) / "kept.jsonl") for s in (plain, centred)]
    for one, other in zip(*kept, strict=True):
        assert other["reward"] == pytest.approx(one["reward"] - mean)
        assert one["messages"] == other["messages"]


def test_the_preprompt_is_seen_and_not_written(settings):
    plain = settings("plain")
    led = settings("led", preprompt="yes yes yes")
    run(plain, CONFIG, resume="error")
    run(led, CONFIG, resume="error")
    assert files(plain)["samples"] != files(led)["samples"]
    for row in read_jsonl(open_(led) / "kept.jsonl"):
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    assert with_preprompt(asked, "Be kind.")[0]["content"] == "Be kind.\n\nBe brief."


def test_rewards_that_only_fail_stop_the_run(settings):
    with pytest.raises(RewardError, match="failed on 64 of its last 64"):
        run(settings(rewards=[Broken()], samples=8), CONFIG, resume="error")


def test_a_reward_without_its_column_is_refused_before_the_weights_load(settings):
    class Needs(Reward):
        def __call__(self, completions, gold):
            return [0.0] * len(completions)

    with pytest.raises(RewardError, match="needs the column 'gold'"):
        run(settings(rewards=[Needs()]), CONFIG, resume="error")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"samples": 0}, "samples"),
        ({"samples": 1}, "which is all of them"),
        ({"select": BestOf(count=4)}, "keeps the best 4 of 4"),
        ({"temperatures": []}, "at least one"),
        ({"temperatures": [0.0]}, "above 0"),
        ({"temperatures": [math.inf]}, "above 0 and finite"),
        ({"temperatures": [1.0, 1.0]}, "different numbers"),
        ({"sampling": Sampling(temperature=0.7)}, "set temperatures to"),
        ({"rewards": []}, "nothing to choose by"),
        ({"rewards": [Length(weight=0.0)]}, "nothing to choose by"),
        ({"limit": 0}, "limit"),
    ],
)
def test_settings_that_mean_nothing(settings, changes, said):
    with pytest.raises(ValueError, match=said):
        check_settings(settings(**changes))


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_with_the_same_bytes(tmp_path, tiny_model, tiny_prompts):
    def command(folder):
        return [
            *(sys.executable, "-m", "sctom.sample", "--backbone.class_path=Backbone"),
            *(f"--backbone.init_args.path={tiny_model}", f"--prompts={tiny_prompts}"),
            *("--rewards=[{class_path: SelfAware}]", "--columns=selfaware", "--samples=60"),
            *("--sampling.max_new_tokens=60", "--keep_truncated=true", "--chunk=1"),
            *(f"--run_dir={folder}", "--resume=auto"),
        ]

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    killed = tmp_path / "killed"
    process = subprocess.Popen(command(killed), **quiet)
    deadline = time.monotonic() + 120
    samples = killed / "samples.jsonl"
    while not (samples.exists() and samples.stat().st_size) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "kept.jsonl").exists()
    for folder in (killed, tmp_path / "whole"):
        subprocess.run(command(folder), check=True, **quiet)
    for name in ("samples", "kept", "rejected", "baseline"):
        paths = [folder / f"{name}.jsonl" for folder in (killed, tmp_path / "whole")]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_another_reward_of_the_same_name_is_another_run(settings):
    run(settings(), CONFIG, resume="error")

    class Other(Length):
        def describe(self):
            return ["other"]

    with pytest.raises(ValueError, match="length was"):
        run(settings(rewards=[Other(name="length")]), CONFIG, resume="auto")

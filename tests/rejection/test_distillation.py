from __future__ import annotations

import json
from pathlib import Path

import pytest

from sctom.modules import Backbone
from sctom.readers import DataError, read_jsonl
from sctom.rejection import distillation
from sctom.rejection.distillation import DISTILLED, ORIGINAL, DistillSettings, distil
from sctom.rewards import Reward
from sctom.rollout import Sampling

NAN = float("nan")


class Length(Reward):
    def __call__(self, completions):
        texts = [completion[-1]["content"] for completion in completions]
        return [None if "red" in text.split() else float(len(text)) for text in texts]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    words = ["one", "two", "three"]
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"what is {words[i % 3]} ?" + " ?" * (i // 3)}
            ],
            "is_safety": i % 2 == 0,
        }
        for i in range(10)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def settings(tmp_path, tiny_model, prompts):
    def make(name="run", **changes):
        given = {
            "rewards": [Length()],
            "preprompts": ["yes", "no no"],
            "sampling": Sampling(max_new_tokens=8),
            "keep_truncated": True,
            **changes,
        }
        backbone = Backbone(str(tiny_model))
        return DistillSettings(backbone, str(prompts), run_dir=str(tmp_path / name), **given)

    return make


def test_a_distilled_answer_is_kept_only_where_it_scores_higher(settings, prompts):
    made = settings()
    result = distil(made, {}, resume="error")
    folder = Path(made.run_dir)
    samples = read_jsonl(folder / "samples.jsonl")
    kept = {row["line"]: row for row in read_jsonl(folder / "kept.jsonl")}
    assert result.prompts == 10 and result.adversarial == 5 == len(samples) // 2
    verdicts = {"better": 0, "no better": 0, "unusable": 0}
    for original, distilled in zip(samples[::2], samples[1::2], strict=True):
        line = original["prompt"] + 1
        assert original["preprompt"] is None and distilled["preprompt"] in (0, 1)
        before, after = (r["rewards"]["length"] for r in (original, distilled))
        texts = original["text"].strip() and distilled["text"].strip()
        if before is None or after is None or not texts:
            verdict = "unusable"
        else:
            verdict = "better" if after > before else "no better"
        verdicts[verdict] += 1
        assert (line in kept) == (verdict == "better")
        if line in kept:
            assert kept[line]["messages"] == [
                *read_jsonl(prompts)[line - 1]["messages"],
                {"role": "assistant", "content": distilled["text"]},
            ]
    found = {
        "better": result.better,
        "no better": result.worse_or_equal,
        "unusable": result.unusable,
    }
    assert found == verdicts and verdicts["better"] and verdicts["no better"]
    rejected = read_jsonl(folder / "rejected.jsonl")
    assert len(rejected) + len(kept) == len(samples)


def test_means_and_the_original_in_place_of_a_distilled_answer_that_is_no_better(
    settings, monkeypatch
):
    scores = [(1.0, 2.0), (3.0, 3.0), (2.0, 0.0), (NAN, 9.0), (0.0, NAN)]
    monkeypatch.setattr(distillation, "_totals", lambda settings, samples: scores)
    monkeypatch.setattr(distillation, "_usable", lambda settings, record, total: total == total)
    made = settings(keep_original=True)
    result = distil(made, {}, resume="error")
    assert (result.better, result.worse_or_equal, result.unusable) == (1, 2, 2)
    assert result.reward_original == (1 + 3 + 2) / 3
    assert result.reward_distilled == (2 + 3 + 0) / 3
    assert result.reward_gated == (2 + 3 + 2) / 3
    kinds = [row["kind"] for row in read_jsonl(Path(made.run_dir) / "kept.jsonl")]
    assert kinds == ["distilled", "original", "original", "original"]
    assert (ORIGINAL, DISTILLED) == (0, 1)


def test_the_preprompt_makes_the_difference_and_nothing_else(settings, monkeypatch):
    """Original answers are those of a run with other preprompts."""
    for name, preprompts in (("one", ["yes"]), ("other", ["no no no"])):
        distil(settings(name, preprompts=preprompts), {}, resume="error")
    one, other = (
        read_jsonl(Path(settings(name).run_dir) / "samples.jsonl") for name in ("one", "other")
    )
    assert one[::2] == other[::2] and one[1::2] != other[1::2]


def test_a_finished_run_is_read_and_not_done_again(settings):
    made = settings()
    first = distil(made, {"seed": 0}, resume="error")
    assert distil(made, {"seed": 0}, resume="auto") == first
    with pytest.raises(ValueError, match="seed was 0 and is 1 now"):
        distil(made, {"seed": 1}, resume="auto")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"preprompts": []}, "preprompts must be at least one text"),
        ({"preprompts": ["a", " "]}, "none of them blank"),
        ({"rewards": []}, "nothing to judge by"),
        ({"is_safety": "unsafe"}, "no column 'unsafe'"),
        ({"chunk": 0}, "chunk"),
    ],
)
def test_settings_that_cannot_be_meant(settings, changes, said):
    with pytest.raises(ValueError, match=said):
        distil(settings(**changes), {}, resume="error")


def test_prompts_that_are_not_adversarial_are_never_distilled(settings, prompts):
    rows = read_jsonl(prompts)
    prompts.write_text("".join(json.dumps(row | {"is_safety": False}) + "\n" for row in rows))
    with pytest.raises(DataError, match="true in no row"):
        distil(settings(), {}, resume="error")
    prompts.write_text("".join(json.dumps(row | {"is_safety": "yes"}) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"prompts.jsonl:1: is_safety must be true or false"):
        distil(settings(), {}, resume="error")


def test_the_two_answers_do_not_share_their_draws(settings, monkeypatch):
    seen = []

    def draw(self, prompts, count, *address, **settings):
        seen.append(address)
        return real(self, prompts, count, *address, **settings)

    real = distillation.Answerer.draw
    monkeypatch.setattr(distillation.Answerer, "draw", draw)
    distil(settings(), {}, resume="error")
    assert seen == [(0, ORIGINAL), (0, DISTILLED)]


def test_a_prompt_too_long_with_its_preprompt_is_named_before_the_weights_load(
    settings, prompts, monkeypatch
):
    monkeypatch.setattr(distillation.Answerer, "load", lambda *given: 1 / 0)
    made = settings(preprompts=["no " * 40], max_prompt_tokens=40)
    with pytest.raises(ValueError, match=r"prompts.jsonl:1: with the preprompt: \d+ tokens"):
        distil(made, {}, resume="error")

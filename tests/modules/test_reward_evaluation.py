from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest
import torch

from sctom.modules.backbone import Backbone
from sctom.modules.reward_evaluation import evaluate_pairs, evaluate_scores
from sctom.modules.reward_head import RewardModel
from sctom.modules.reward_metrics import ScoredPair
from sctom.modules.reward_scoring import score_pairs
from sctom.preferences import Pair

PAIR = ScoredPair(
    chosen=1.0,
    rejected=0.0,
    grade=None,
    source=None,
    is_safety=None,
    tied=False,
    chosen_tokens=3,
    rejected_tokens=2,
    prompt_key="a",
)
PAIRS = [
    replace(PAIR, chosen=3.0, rejected=1.0, grade=3, source="web"),
    replace(PAIR, chosen=0.0, rejected=1.0, grade=0, source="web", chosen_tokens=9),
    replace(PAIR, chosen=2.0, rejected=2.0, grade=3, source="lab", rejected_tokens=9),
    replace(PAIR, chosen=1.0, rejected=-1.0, is_safety=True, rejected_tokens=3),
    replace(PAIR, chosen=-3.0, rejected=-2.0, is_safety=True),
    replace(PAIR, chosen=5.0, rejected=-5.0, tied=True, is_safety=True, grade=0),
]


def test_every_number_by_hand() -> None:
    numbers = evaluate_scores(PAIRS, threshold=0.15, wanted_precision=0.6).as_dict()
    named = {name.removeprefix("reward_model/"): value for name, value in numbers.items()}
    assert all(name.startswith("reward_model/") for name in numbers)
    assert named["pairs"], named["tied"] == (6, 1)
    # better, worse, equal, better, worse
    assert named["accuracy"] == 2 / 5
    assert named["equal"] == 1 / 5
    assert named["accuracy_low"] < 2 / 5 < named["accuracy_high"]
    assert named["difference/mean"] == pytest.approx((2 - 1 + 0 + 2 - 1) / 5)
    assert named["accuracy/significantly_better"] == 1 / 2
    assert named["accuracy/negligibly_better"] == 0  # the tied pair is not counted
    assert "accuracy/better" not in named
    assert named["accuracy/source/web"] == 1 / 2 and named["accuracy/source/lab"] == 0
    assert named["score/mean"] == pytest.approx((3 + 1 + 0 + 1 + 2 + 2 + 1 - 1 - 3 - 2 + 0) / 12)
    assert named["length/accuracy"] == 3 / 4  # of 3, 9, 3, 3 against 2, 2, 9, 2
    # scores of safety pairs: safe 1 and -3, unsafe -1 and -2; sigma(-2) = 0.119, sigma(-1) = 0.269
    assert (named["unsafe/precision"], named["unsafe/recall"]) == (1 / 2, 1 / 2)
    assert named["unsafe/wanted_threshold"] == pytest.approx(0.5)  # half-way from -1 to 1
    assert named["unsafe/wanted_precision"] == pytest.approx(2 / 3)
    assert named["unsafe/wanted_recall"] == 1
    assert not any(name.startswith("best_of_n") for name in named)


def test_best_of_n_is_over_what_a_chosen_answer_was_compared_with() -> None:
    def compared(prompt: str, *rejected: float) -> list[ScoredPair]:
        known = replace(PAIR, prompt_key=prompt, chosen_key="x")
        return [replace(known, rejected=r, rejected_key=f"{i}") for i, r in enumerate(rejected)]

    first, second = compared("a", 0.0, 1.0, 1.0), compared("b", 0.0, -1.0)
    first.append(first[0])  # the same pair again is no further answer
    alone = replace(PAIR, prompt_key="a", chosen_key="y")
    unknown = [PAIR, PAIR]
    numbers = evaluate_scores([*first, alone, *unknown, *second]).numbers
    # 1 against 0, 1, 1: a third; 1 against 0, -1: one; all others are just pairs
    assert numbers["best_of_n/prompts"] == 2
    assert numbers["best_of_n/accuracy"] == pytest.approx((1 / 3 + 1) / 2)
    assert numbers["best_of_n/chance"] == pytest.approx((1 / 4 + 1 / 3) / 2)


def test_histograms_hold_every_answer() -> None:
    evaluation = evaluate_scores(PAIRS)
    for histogram in (evaluation.scores, evaluation.probabilities):
        counts = {name: sum(numbers) for name, numbers in histogram.counts.items()}
        assert counts == {"chosen": 5, "rejected": 5, "tied": 2}
    assert evaluation.probabilities.edges[::30] == [0.0, 1.0]
    assert evaluation.differences is not None
    edges, (counts,) = evaluation.differences.edges, evaluation.differences.counts.values()
    assert (edges[0], edges[15], edges[-1]) == (-2, 0, 2)  # no bin has both signs
    assert (sum(counts[:15]), sum(counts[15:])) == (2, 3)  # 0 is with the positive ones


@pytest.mark.parametrize(
    ("pairs", "missing"),
    [
        ([PAIR], {"score/bimodality", "accuracy/better", "unsafe/recall", "best_of_n/accuracy"}),
        ([replace(PAIR, tied=True)] * 5, {"accuracy", "equal", "ece", "difference/mean"}),
        ([replace(PAIR, is_safety=False, chosen_tokens=2)], {"unsafe/recall", "length/accuracy"}),
        ([replace(PAIR, rejected=1.0)] * 5, {"score/bimodality", "length/pearson"}),
        ([replace(PAIR, is_safety=True)], {"unsafe/precision"}),  # nothing lies below 0.15
        ([replace(PAIR, is_safety=True, rejected=2.0)], {"unsafe/wanted_threshold"}),
    ],
    ids=["one", "all tied", "no safety", "all equal", "none below", "never precise"],
)
def test_what_is_not_defined_is_left_out(pairs, missing) -> None:
    evaluation = evaluate_scores(pairs)
    numbers = evaluation.as_dict()
    assert not missing & {name.removeprefix("reward_model/") for name in numbers}
    assert all(math.isfinite(value) for value in numbers.values())
    json.dumps(asdict(evaluation), allow_nan=False)


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_names_its_pair(score: float) -> None:
    pairs = [*PAIRS, replace(PAIR, rejected=score, prompt_key="bad")]
    with pytest.raises(ValueError, match=rf"pair 7 of 7 .*'bad'.*rejected answer is {score}"):
        evaluate_scores(pairs)


def test_no_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="no pairs to evaluate"):
        evaluate_scores([])


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"bins": 0}, "bins must be at least 1 but is 0"),
        ({"threshold": 1.5}, "threshold must be from 0 to 1 but is 1.5"),
        ({"wanted_precision": -0.1}, "wanted_precision must be from 0 to 1 but is -0.1"),
    ],
)
def test_settings_are_checked(setting, expected) -> None:
    with pytest.raises(ValueError, match=expected):
        evaluate_scores(PAIRS, **setting)


# scoring ------------------------------------------------------------------------------------------

ASKED = [{"role": "user", "content": "what is the colour of one ?"}]
OTHER = [{"role": "user", "content": "is it red ?"}]
QUESTIONS = [
    Pair(OTHER, "yes .", "no"),
    Pair(ASKED, "red", "green green green", grade=3, source="web"),
    Pair(ASKED, "red", "i don't know .", is_safety=True),
    Pair([*ASKED, {"role": "assistant", "content": "red"}, *OTHER], "yes", "no", tied=True),
]


@pytest.fixture(scope="module")
def scorer(tiny_model):
    """A reward model whose head is not zero, and its tokenizer."""
    backbone = Backbone(str(tiny_model))
    model = RewardModel(backbone.load_model())
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return model.eval(), backbone.load_tokenizer()


def test_pairs_are_scored_in_their_order(scorer) -> None:
    model, tokenizer = scorer
    scored = score_pairs(model, tokenizer, QUESTIONS)
    for pair, found in zip(QUESTIONS, scored, strict=True):
        for text, score in ((pair.chosen, found.chosen), (pair.rejected, found.rejected)):
            messages = [*pair.prompt, {"role": "assistant", "content": text}]
            rendered = tokenizer.apply_chat_template(messages, tokenize=False)
            ids = tokenizer(rendered, add_special_tokens=False)["input_ids"]
            alone = float(model.padded_scores([(ids[:1], ids[1:])]).detach())
            assert score == pytest.approx(alone, abs=1e-4)
        about = (pair.grade, pair.source, pair.is_safety, pair.tied)
        assert (found.grade, found.source, found.is_safety, found.tied) == about
    assert (scored[1].chosen_tokens, scored[1].rejected_tokens) == (2, 4)  # with the last token
    keys = [pair.prompt_key for pair in scored]
    assert keys[1] == keys[2] and len(set(keys)) == 3
    assert scored[1].chosen_key == scored[2].chosen_key != scored[0].chosen_key
    assert evaluate_pairs(model, tokenizer, QUESTIONS) == evaluate_scores(scored)


def test_an_answer_is_scored_once_and_batches_change_nothing(scorer, monkeypatch) -> None:
    model, tokenizer = scorer
    seen: list[int] = []
    scores = model.scores
    monkeypatch.setattr(model, "scores", lambda given: (seen.append(len(given)), scores(given))[1])
    steps: list[tuple[int, int]] = []
    whole = score_pairs(model, tokenizer, QUESTIONS, progress=lambda *s: steps.append(s))
    assert (seen, steps) == ([7], [(7, 7)])  # of 8 answers, two are one
    seen.clear()
    parts = score_pairs(
        model, tokenizer, QUESTIONS, batch_tokens=1, progress=lambda *s: steps.append(s)
    )
    assert seen == [1] * 7 and steps[-1] == (7, 7)
    for one, other in zip(whole, parts, strict=True):
        assert (one.chosen, one.rejected) == pytest.approx((other.chosen, other.rejected), abs=1e-4)


def test_a_long_pair_is_named(scorer) -> None:
    model, tokenizer = scorer
    pairs = [*QUESTIONS, Pair(ASKED, "red", "no " * 120)]
    with pytest.raises(ValueError, match=r"x\.jsonl:5: prompt and rejected: \d+ tokens, .* is 128"):
        score_pairs(model, tokenizer, pairs, place="x.jsonl")  # positions of the model
    with pytest.raises(ValueError, match=r"pairs:2: prompt and chosen: 14 tokens, .* is 13"):
        score_pairs(model, tokenizer, QUESTIONS, max_tokens=13)


def test_a_broken_model_is_named_with_the_pair(tiny_model) -> None:
    backbone = Backbone(str(tiny_model))
    model = RewardModel(backbone.load_model())
    torch.nn.init.constant_(model.head.weight, math.nan)
    with pytest.raises(ValueError, match=r"^x:1: the score of the chosen answer is nan"):
        score_pairs(model.eval(), backbone.load_tokenizer(), QUESTIONS, place="x")

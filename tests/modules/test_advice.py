from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import sctom.losses
from sctom.batch import Prompt
from sctom.data import Shuffled, SolveRate
from sctom.fit import build
from sctom.modules import Backbone
from sctom.modules.advice import RewardWatch, SignalWatch, advise, columns_of, print_advice
from sctom.objectives import BNPO, CISPO, DAPO, GRPO, GSPO, RLME, RLOO, SAPO, DrGRPO
from sctom.rewards import FunctionReward, RewardError, SelfAware, selfaware_reward_func
from sctom.tasks.selfaware import prompt_row

ROOT = Path(__file__).parents[2]
IDK = "I don't know."


def module(objective=None, rewards=None, group_size=8, rank=0, backbone=None) -> SimpleNamespace:
    """A module as far as advice looks at it."""
    objective = objective or GRPO()
    return SimpleNamespace(
        objective=objective,
        bound=objective.bind(sctom.losses),
        rewards=rewards or [SelfAware()],
        group_size=group_size,
        backbone=Backbone("tiny", **(backbone or {})),
        trainer=SimpleNamespace(is_global_zero=rank == 0),
    )


def columns(known: int, unknown: int, **changed):
    labels = [i >= known for i in range(known + unknown)]
    made = {
        "expected_answer": [IDK if label else "Seoul" for label in labels],
        "is_unanswerable": labels,
        "answerable": [not label for label in labels],
    }
    return made | changed


# ---- whole recipes -------------------------------------------------------------------------------


def test_the_quickstart_gets_one_line(monkeypatch):
    config = ROOT / "configs" / "quickstart.yaml"
    monkeypatch.setattr(sys, "argv", ["fit", "--config", str(config)])
    cli = build()
    cli.datamodule.setup("fit")
    rows = cli.datamodule.train_rows
    prompts = [Prompt(i, [1], row["messages"], row) for i, row in enumerate(rows)]
    (line,) = advise(cli.model, columns_of(prompts))
    assert line.startswith("self_aware: 300 of 675 questions (44.4%) are unanswerable")
    assert "break-even 1.05; 0.25 where it can" in line


def test_the_recipe_of_the_document_gets_three():
    """Two completions, 2,198 questions of which 58 are unanswerable, one worded otherwise."""
    question = {"role": "user", "content": "?"}
    data = [("Seoul", True)] * 2139 + [(IDK, False)] * 58 + [("Nobody can tell.", False)]
    rows = [
        prompt_row(
            {
                "messages": [question, {"role": "assistant", "content": answer}],
                "answerable": answerable,
            }
        )
        for answer, answerable in data
    ]
    prompts = [Prompt(i, [1], [question], row) for i, row in enumerate(rows)]
    guessing, leak, pairs = advise(module(group_size=2), columns_of(prompts))
    assert guessing == (
        "self_aware: 58 of 2,198 questions (2.6%) are unanswerable, so guessing pays above a "
        "chance of 0.277 to be right; 20% unanswerable questions, or abstained -0.054, would put "
        "that line at 0.5"
    )
    assert leak == (
        "label leak: in 1 of 2,198 rows `answerable` and the wording of the reference answer "
        "disagree (first: row 2198, answer 'Nobody can tell.'), so the reward takes these "
        "questions for the other kind; word their answers with one of the 19 patterns, or use a "
        "reward that reads `answerable`"
    )
    assert pairs == (
        "group_size is 2: GRPO makes +0.71 and -0.71 of any two different rewards, so of rewards "
        "with more than two values only the order is left; set group_size to 4 or more, or "
        "objective.scale to none"
    )


# ---- the data ------------------------------------------------------------------------------------


def test_a_leak_is_a_label_that_says_the_other_kind():
    leaked = columns(6, 4)
    leaked["answerable"][2] = False  # unanswerable, but its reference is an answer
    leaked["answerable"][8] = True  # answerable, but its reference abstains
    _, line = advise(module(), leaked)
    assert line.startswith("label leak: in 2 of 10 rows ")
    assert "(first: row 3, answer 'Seoul')" in line


def test_without_answers_the_row_is_named():
    leaked = columns(6, 4, answerable=[True] * 10)
    del leaked["expected_answer"]
    assert "(first: row 7)" in advise(module(), leaked)[1]


def test_a_leak_matters_only_to_a_reward_that_reads_the_derived_label():
    leaked = columns(6, 4, answerable=[True] * 10)

    def other(completions, answerable):
        return [0.0] * len(completions)

    assert advise(module(rewards=[FunctionReward(other)]), leaked) == []
    (line,) = advise(module(rewards=[FunctionReward(selfaware_reward_func)]), leaked)
    assert line.startswith("label leak: in 4 of 10 rows ")


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"answer": ["Seoul"]},
        {"answerable": [True]},
        {"is_unanswerable": [], "answerable": [], "expected_answer": []},
    ],
)
def test_missing_columns_say_nothing(data):
    assert advise(module(), data) == []


def test_labels_that_are_none_are_no_leak():
    data = columns(6, 4)
    data["answerable"][0] = None
    data["is_unanswerable"][0] = None
    data["is_unanswerable"][9] = None
    refused, line = advise(module(), data)
    assert refused.startswith("self_aware: is_unanswerable is not true or false in 2 of 10 rows")
    assert line.startswith("self_aware: 3 of 8 questions")


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (columns(7, 0), "self_aware: none of 7 questions is unanswerable"),
        (columns(0, 7), "self_aware: all of 7 questions are unanswerable"),
    ],
)
def test_one_class_only(data, start):
    (line,) = advise(module(), data)
    assert line.startswith(start)


@pytest.mark.parametrize(("weight", "lines"), [(0.5, 1), (0.0, 0), (-1.0, 0)])
def test_only_rewards_that_are_pursued_are_asked(weight, lines):
    assert len(advise(module(rewards=[SelfAware(weight=weight)]), columns(5, 5))) == lines


# ---- groups of two -------------------------------------------------------------------------------


def on_pairs(objective, group_size=2):
    rewards = [FunctionReward(selfaware_reward_func)]
    return advise(module(objective, rewards, group_size), {})


@pytest.mark.parametrize("objective", [GRPO(), DAPO(), BNPO(), CISPO(), GSPO(), SAPO()])
def test_a_deviation_of_two_leaves_only_the_order(objective):
    (line,) = on_pairs(objective)
    assert f"{type(objective).__name__} makes +0.71 and -0.71 of any two" in line
    assert line.endswith("or objective.scale to none")
    for scale in ("batch", "none"):
        assert on_pairs(dataclasses.replace(objective, scale=scale)) == []


@pytest.mark.parametrize("objective", [DrGRPO(), RLME(), RLOO()])
def test_objectives_without_a_deviation_keep_the_distance(objective):
    assert on_pairs(objective) == []


def test_larger_groups_keep_it_too():
    assert on_pairs(GRPO(), group_size=3) == []


def test_advantages_of_ones_own_are_measured():
    class Signs(DrGRPO):
        def bind(self, backend):
            def signs(rewards):
                return torch.sign(rewards - rewards.mean(1, keepdim=True))

            return dataclasses.replace(super().bind(backend), advantages=signs)

    (line,) = on_pairs(Signs())
    assert "Signs makes +1.00 and -1.00" in line and line.endswith("set group_size to 4 or more")


class Talkative(SelfAware):
    """A reward whose advice is not what it should be."""

    given: object = "one text"

    def advice(self, columns):
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("one text", "reward 'talkative': its advice must be a list of texts, found 'one text'"),
        ([1], "its advice must be a list of texts"),
        (None, "its advice must be a list of texts, found None"),
        (KeyError("kind"), "reward 'talkative': its advice raised KeyError: 'kind'"),
    ],
)
def test_advice_of_ones_own_that_is_none_names_its_reward(given, message):
    reward = Talkative()
    reward.given = given
    with pytest.raises(RewardError, match=message):
        advise(module(rewards=[reward]), columns(5, 5))


# ---- printing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "printed"), [(0, True), (1, False)])
def test_the_first_process_prints_and_all_have_the_lines(capsys, rank, printed):
    data = columns(5, 5)
    prompts = [
        Prompt(i, [1], [], {name: values[i] for name, values in data.items()}) for i in range(10)
    ]
    lines = print_advice(module(group_size=2, rank=rank), prompts)
    assert len(lines) == 2
    expected = "".join(f"advice: {line}\n" for line in lines) if printed else ""
    assert capsys.readouterr().out == expected


# ---- signal --------------------------------------------------------------------------------------


def watched(shares, **settings):
    watch = SignalWatch(**settings)
    return [i for i, share in enumerate(shares) if watch.see(share) is not None]


@pytest.mark.parametrize(
    ("shares", "when"),
    [
        ([1.0] * 9, []),  # the window is not full
        ([1.0] * 30, [9]),  # once
        ([0.8] * 30, []),  # more than the limit
        ([0.0] + [0.88] * 12, [10]),  # at iteration 9 the mean is 0.792
        ([0.0] * 5 + [1.0] * 20, [13]),  # 9 of 10 at iteration 13: 0.9
    ],
)
def test_it_speaks_once_when_the_mean_of_a_window_is_above_the_limit(shares, when):
    assert watched(shares) == when


def test_what_it_says():
    watch = SignalWatch(window=2, limit=0.5)
    assert watch.see(0.75) is None
    assert watch.see(0.55) == (
        "no signal: 65% of the groups of the last 2 iterations taught nothing, as no completion in "
        "them was better than another (frac_groups_all_best and frac_groups_all_worst tell whether "
        "the questions are too easy or too hard)"
    )


@pytest.mark.parametrize(
    ("zero_variance", "order", "remedies"),
    [
        ("keep", Shuffled(), "zero_variance: resample, data.order: SolveRate, a larger group_size"),
        ("resample", SolveRate(), "a larger group_size or a higher sampling.temperature"),
    ],
)
def test_remedies_are_what_is_not_set(capsys, zero_variance, order, remedies):
    trainer = SimpleNamespace(is_global_zero=True, datamodule=SimpleNamespace(order=order))
    SignalWatch(window=1).tell(SimpleNamespace(zero_variance=zero_variance, trainer=trainer), 1.0)
    assert f"; set {remedies}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window must be at least 1 iteration but is 0"),
        ({"limit": 1.5}, "limit must be a share from 0 to 1 but is 1.5"),
    ],
)
def test_settings_it_refuses(settings, message):
    with pytest.raises(ValueError, match=message):
        SignalWatch(**settings)


# ---- precision, and waiting for rewards ----------------------------------------------------------


@pytest.mark.parametrize(
    ("backbone", "said"),
    [
        ({"dtype": "bfloat16"}, "0.39%"),  # 2**-8: 8 bits of precision
        ({"dtype": "float16"}, "0.05%"),  # 2**-11
        ({}, None),
        ({"dtype": "bfloat16", "lora_rank": 8}, None),
        ({"dtype": "bfloat16", "adapter": "somewhere"}, None),
    ],
)
def test_all_weights_in_half_precision(backbone, said):
    lines = [line for line in advise(module(backbone=backbone), {}) if "all weights" in line]
    assert bool(lines) == (said is not None)
    assert all(said in line and "lora_rank" in line for line in lines)


def test_waiting_for_rewards_is_told_once_and_only_where_it_lasts():
    watch = RewardWatch(window=2, limit=0.25)
    assert watch.see(9.0, 10.0) is None  # one iteration says nothing yet
    assert "90% of their time" in watch.see(9.0, 10.0)
    assert watch.see(9.0, 10.0) is None
    watch = RewardWatch(window=2, limit=0.25)
    assert all(watch.see(1.0, 5.0) is None for _ in range(9))  # a fifth is bearable


@pytest.mark.parametrize(
    ("overlap", "rank", "printed"), [(True, 0, 1), (False, 0, 0), (True, 1, 0)]
)
def test_who_is_told_of_waiting(capsys, overlap, rank, printed):
    told = module(rank=rank)
    told.overlap_rewards = overlap
    RewardWatch(window=1).tell(told, {"time/reward": 3.0, "step_time": 4.0})
    assert capsys.readouterr().out.count("advice: rewards: the last 1 iterations") == printed

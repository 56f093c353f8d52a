from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from sctom.batch import Prompt, Row
from sctom.data import PromptData, Shuffled, SolveRate
from sctom.data.order import PromptOrder
from sctom.data.prompts import PromptLoader
from sctom.seeds import permutation


def prompts(count: int, **columns: list) -> list[Prompt]:
    return [Prompt(i, [], [], {k: v[i] for k, v in columns.items()}) for i in range(count)]


def started(order: PromptOrder, count: int, seed: int = 3, **columns: list) -> PromptOrder:
    order.start(prompts(count, **columns), seed)
    return order


# ---- random order --------------------------------------------------------------------------------


def test_an_epoch_asks_every_prompt_once():
    order = started(Shuffled(), 7)
    flat = [i for iteration in range(7) for i in order.batch(iteration, 4)]
    assert all(sorted(flat[k : k + 7]) == list(range(7)) for k in range(0, 28, 7))
    assert flat[:7] == permutation(7, 3, 0).tolist()  # (seed, round)


@pytest.mark.parametrize("size", [1, 3, 4, 7, 8, 9, 10])
def test_no_prompt_comes_twice_in_an_iteration_and_all_come_equally_often(size):
    order = started(Shuffled(), 10)
    batches = [order.batch(iteration, size) for iteration in range(100)]
    assert all(len(set(batch)) == size for batch in batches)
    flat = [i for batch in batches for i in batch]
    assert all(sorted(flat[k : k + 10]) == list(range(10)) for k in range(0, len(flat) - 9, 10))
    again = started(Shuffled(), 10)
    for iteration in (73, 5, 74, 6, 73):  # a resumed run begins anywhere
        assert again.batch(iteration, size) == batches[iteration]


def test_what_was_just_asked_is_put_off_by_hand():
    order = started(Shuffled(), 4)
    first, second = permutation(4, 3, 0), permutation(4, 3, 1)
    # iteration 1 asks the last of round 0 and two of round 1, which must be others
    last = int(first[3])
    free = [int(i) for i in second if i != last]
    assert order.batch(0, 3) == first[:3].tolist()
    assert order.batch(1, 3) == [last, *free[:2]]
    rest = [int(i) for i in second if int(i) not in free[:2]]
    assert order.batch(2, 3)[:2] == rest


@pytest.mark.parametrize("make", [Shuffled, SolveRate])
def test_extra_batches_repeat_nothing_and_end_with_the_data(make):
    order = started(make(), 10)
    for iteration in range(6):
        batches = [order.batch(iteration, 4, extra=n) for n in range(5)]
        assert [len(batch) for batch in batches] == [4, 4, 2, 0, 0]
        assert sorted(i for batch in batches for i in batch) == list(range(10))
    first = [tuple(order.batch(iteration, 4, extra=1)) for iteration in range(4)]
    assert len(set(first)) == 4


@pytest.mark.parametrize("make", [Shuffled, SolveRate])
def test_a_batch_depends_on_its_place_alone(make):
    late = started(make(), 30).batch(5, 4, extra=2)
    order = started(make(), 30)
    for iteration in range(5):
        order.batch(iteration, 4)
    assert order.batch(5, 4, extra=2) == late
    assert started(make(), 30, seed=4).batch(5, 4, extra=2) != late


# ---- the curriculum ------------------------------------------------------------------------------


def row(index: int, reward: float, **rewards: float | None) -> Row:
    return Row(Prompt(index, [], []), 0, [1], "", False, reward=reward, rewards=rewards)


def test_rates_and_weights_by_hand():
    order = started(SolveRate(floor=0.1, keep=0.5), 4)
    order.observe([0, 0, 1, 1, 2, 2], [True, True, True, False, False, False])
    # (solved + 1) / (completions + 2): 3/4, 2/4, 1/4; not seen: 1/2
    assert order.rates().tolist() == [0.75, 0.5, 0.25, 0.5]
    # 4 s (1 - s): 4 x 3/16 = 0.75, 1, 0.75, 1
    assert order.weights().tolist() == [0.75, 1.0, 0.75, 1.0]
    order.observe([0, 0], [True, True])  # the first visit counts half: (0.5 x 2 + 2 + 1) / (1 + 4)
    assert order.rates()[0] == pytest.approx(4 / 5)
    assert order.rates()[1:].tolist() == [0.5, 0.25, 0.5]  # the others are as they were


def test_the_floor_keeps_solved_prompts_in_play():
    order = started(SolveRate(floor=0.3, keep=1.0), 2)
    for _ in range(50):
        order.observe([0] * 8, [True] * 8)
    # (400 + 1) / (400 + 2) = 0.9975; 4 s (1 - s) = 0.00993, below the floor
    assert order.weights().tolist() == [0.3, 1.0]


def test_prompts_are_drawn_by_weight():
    order = started(SolveRate(floor=0.25, prior="rate"), 3, rate=[0.5, 1.0, 0.5])  # 1, 0.25, 1
    drawn = Counter(order.batch(iteration, 1)[0] for iteration in range(20_000))
    shares = [drawn[i] / 20_000 for i in range(3)]
    # w / sum of w: 1 / 2.25, 0.25 / 2.25, 1 / 2.25; three standard errors are 0.011
    np.testing.assert_allclose(shares, [4 / 9, 1 / 9, 4 / 9], atol=0.011)


def test_completions_are_judged_by_the_metric_and_unknown_ones_are_left_out():
    order = started(SolveRate(solved_at=0.5, solved_by="right"), 2)
    rows = [row(0, -9.0, right=0.5), row(0, 9.0, right=0.4), row(1, 0.0, right=None)]
    verdicts = [order.solved(r) for r in rows]
    assert verdicts == [True, False, None]
    order.observe([r.prompt.index for r in rows], verdicts)
    assert order.rates().tolist() == [0.5, 0.5]
    assert order.state_dict()["visited"] == [0]
    assert SolveRate().solved(row(0, 1.0)) is True  # "reward", the weighted sum
    with pytest.raises(ValueError, match=r"data.order.solved_by is 'left', which no reward is"):
        SolveRate(solved_by="left").solved(rows[0])


def test_its_state_goes_through_json_and_comes_back():
    order = started(SolveRate(), 6)
    order.observe([4, 4, 1, 1], [True, False, True, True])
    state = json.loads(json.dumps(order.state_dict()))
    again = started(SolveRate(), 6)
    again.load_state_dict(state)
    assert again.rates().tolist() == order.rates().tolist()
    assert [again.batch(i, 3) for i in range(9)] == [order.batch(i, 3) for i in range(9)]
    with pytest.raises(ValueError, match=r"are of 6 other prompts, not of the 5 that data.train"):
        started(SolveRate(), 5).load_state_dict(state)
    others = SolveRate()
    others.start([Prompt(i, [i], []) for i in range(6)], 3)  # as many, but asking something else
    with pytest.raises(ValueError, match=r"are of 6 other prompts, not of the 6 that data.train"):
        others.load_state_dict(state)
    with pytest.raises(ValueError, match=r"are of another data.order"):
        started(SolveRate(), 5).load_state_dict({})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"floor": 0.0}, "data.order.floor must be from 1e-6 to 1 but is 0.0"),
        ({"floor": 1.5}, "data.order.floor must be from 1e-6 to 1"),
        ({"keep": -0.1}, "data.order.keep must be from 0 to 1"),
        ({"solved_at": float("nan")}, "data.order.solved_at must be a finite number but is nan"),
        ({"solved_at": float("inf")}, "data.order.solved_at must be a finite number but is inf"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SolveRate(**settings)


@pytest.mark.parametrize("value", ["0.5", 1.5, -0.1, float("nan"), True])
def test_a_prior_must_be_a_rate(value):
    with pytest.raises(
        ValueError, match=r"a solve rate from 0 to 1, but row 2 of data.train holds"
    ):
        started(SolveRate(prior="rate"), 2, rate=[0.5, value])


def test_a_prior_that_a_row_lacks_is_refused():
    with pytest.raises(ValueError, match=r"row 1 of data.train has no such column Did you mean 'r"):
        started(SolveRate(prior="rates"), 2, rate=[0.5, 0.5])


def test_a_prior_that_was_not_measured_is_a_half():
    assert started(SolveRate(prior="rate"), 2, rate=[0.9, None]).rates().tolist() == [0.9, 0.5]


# ---- orders of one's own ----


class Given:  # no subclass: hints list those
    def __init__(self, *indices: int) -> None:
        self.indices, self.prompts = list(indices), prompts(4)

    def batch(self, iteration: int, size: int, *, extra: int = 0) -> list[int]:
        return self.indices


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0], "batch must give 2 different prompts, found"),
        ([1, 1], "batch must give 2 different prompts"),
        ([0, 1, 2], "batch must give 2 different prompts"),
        ([0, 4], "batch must give indices from 0 to 3"),
        ([-1, 0], "batch must give indices from 0 to 3"),
    ],
)
def test_what_an_order_may_get_wrong_is_refused(indices, message):
    loader = PromptLoader(Given(*indices), 2, 3)
    with pytest.raises(ValueError, match=f"data.order Given: {message}"):
        loader.at(0)


def test_extra_batches_may_be_short():
    loader = PromptLoader(Given(3), 2, 3)
    assert [prompt.index for prompt in loader.at(0, extra=1)] == [3]


# ---- variants ------------------------------------------------------------------------------------


def test_a_variant_goes_into_both_paths():
    data = PromptData("data/{variant}/train.jsonl", val="data/{variant}/v.jsonl", variant="v3")
    assert (data.train_path, data.val_path) == ("data/v3/train.jsonl", "data/v3/v.jsonl")
    assert PromptData("a/{variant}.jsonl", val="v.jsonl", variant="b").val_path == "v.jsonl"


def test_a_variant_without_a_place_and_a_place_without_a_variant_are_refused():
    with pytest.raises(ValueError, match=r"data.train is a/\{variant\}.jsonl, but data.variant"):
        PromptData("a/{variant}.jsonl")
    with pytest.raises(ValueError, match=r"data.val is a/\{variant\}.jsonl, but data.variant"):
        PromptData("a.jsonl", val="a/{variant}.jsonl")
    with pytest.raises(ValueError, match=r"data.variant is 'v3', but data.train"):
        PromptData("a.jsonl", variant="v3")

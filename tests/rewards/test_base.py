from __future__ import annotations

import asyncio
import functools
import math
import re
import subprocess
import sys
import threading
from fractions import Fraction

import numpy as np
import pytest

from sctom.rewards import (
    FunctionReward,
    Reward,
    RewardError,
    check_rewards,
    combine,
    completion_text,
    run_rewards,
)

PROMPTS = [[{"role": "user", "content": f"Question {i}?"}] for i in range(3)]
COMPLETIONS = [[{"role": "assistant", "content": text}] for text in ("a", "bb", "ccc")]
IDS = [[1], [1, 2], [1, 2, 3]]
COLUMNS = {"answer": ["x", "y", "z"], "limit": [1, 2, 2]}


def run(*rewards, columns=None, **settings):
    rewards = [r if isinstance(r, Reward) else FunctionReward(r) for r in rewards]
    columns = COLUMNS if columns is None else columns
    return run_rewards(rewards, PROMPTS, COMPLETIONS, IDS, columns, **settings)


def returning(values):
    def constant(completions):
        return values

    return constant


# --- functions written for TRL


def trl_style(completions, **kwargs):
    return [float(len(completion[0]["content"])) for completion in completions]


def trl_columns(prompts, completions, completion_ids, answer, limit, trainer_state=None, **kwargs):
    assert kwargs.keys() == {"log_extra", "log_metric"}
    assert prompts == PROMPTS
    assert answer == ["x", "y", "z"]
    return [len(i) + n if n < 2 else None for i, n in zip(completion_ids, limit, strict=True)]


async def trl_async(completions, **kwargs):
    await asyncio.sleep(0)
    return [-1.0] * len(completions)


def no_swallowing(limit):
    return limit


class ShortAnswerHTML(Reward):
    def __call__(self, completions, limit):
        lengths = [len(completion_text(completion)) for completion in completions]
        return [length <= most for length, most in zip(lengths, limit, strict=True)]


def test_every_style_runs_unchanged():
    results = run(trl_style, trl_columns, trl_async, no_swallowing, ShortAnswerHTML())
    assert results.values == {
        "trl_style": [1.0, 2.0, 3.0],
        "trl_columns": [2.0, None, None],
        "trl_async": [-1.0, -1.0, -1.0],
        "no_swallowing": [1.0, 2.0, 2.0],
        "short_answer_html": [1.0, 1.0, 0.0],
    }
    assert all(type(v) is float for v in results.values["short_answer_html"])


def test_trainer_state_is_handed_over():
    state = object()
    seen = []

    def looks(completions, trainer_state):
        seen.append(trainer_state)
        return [0.0] * 3

    run(looks, trainer_state=state)
    assert seen == [state]


def test_plain_prompts_and_completions_are_passed_as_they_are():
    echo = FunctionReward(lambda prompts, completions: [len(prompts[0]), len(completions[0])])
    assert run_rewards([echo], ["abc", ""], ["de", ""], [[1], [1]], {}).values == {
        "<lambda>": [3.0, 2.0]
    }


# --- async


def test_async_rewards_wait_for_each_other():
    # Each sets one event and waits for the other's: run one after the other, they would hang.
    events = {name: asyncio.Event() for name in ("one", "two")}

    async def meet(mine, other, completions):
        events[mine].set()
        await asyncio.wait_for(events[other].wait(), timeout=5)
        return [1.0] * 3

    one = FunctionReward(functools.partial(meet, "one", "two"), name="one")
    two = FunctionReward(functools.partial(meet, "two", "one"), name="two")
    assert run(one, two).values == {"one": [1.0] * 3, "two": [1.0] * 3}


def test_async_goes_on_while_a_plain_reward_computes():
    started = threading.Event()

    async def slow(completions):
        started.set()
        return [0.0] * 3

    def plain(completions):
        return [float(started.wait(timeout=5))] * 3

    assert run(slow, plain).values["plain"] == [1.0] * 3


def test_works_below_a_running_event_loop():
    async def main():
        return run(trl_async).values

    assert asyncio.run(main()) == {"trl_async": [-1.0] * 3}


def test_calls_share_one_event_loop():
    loops = []

    async def where(completions):
        loops.append(asyncio.get_running_loop())
        return [0.0] * 3

    run(where)
    run(where)
    assert loops[0] is loops[1]


def test_a_failure_cancels_the_async_rewards_under_way():
    begun, cancelled = asyncio.Event(), threading.Event()

    async def endless(completions):
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def fails(completions):
        await asyncio.wait_for(begun.wait(), timeout=5)
        raise KeyError("gone")

    with pytest.raises(RewardError, match="reward 'fails' raised KeyError: 'gone'"):
        run(fails, endless)
    assert cancelled.wait(timeout=5)


def test_the_process_ends_cleanly_after_async_rewards():
    code = (
        "import asyncio\n"
        "from sctom.rewards.loop import start\n"
        "start(asyncio.sleep(60))\n"
        "print(start(asyncio.sleep(0, result='done')).result())\n"
    )
    command = [sys.executable, "-X", "dev", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert (ended.stdout, ended.stderr) == ("done\n", "")


# --- what a reward may return


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, False, None], [1.0, 0.0, None]),
        ((1, 0.5, -2), [1.0, 0.5, -2.0]),
        (np.array([1, 2, 3]), [1.0, 2.0, 3.0]),
        ([np.float32(0.5), np.int64(3), np.array(2.0)], [0.5, 3.0, 2.0]),
        ([Fraction(1, 2), np.bool_(True), None], [0.5, 1.0, None]),
    ],
)
def test_numbers_of_any_kind_become_floats(values, expected):
    got = run(returning(values)).values["constant"]
    assert got == expected
    assert all(entry is None or type(entry) is float for entry in got)


@pytest.mark.parametrize(
    "bad", [math.nan, -math.inf, "1.0", np.str_("1.0"), [1.0], np.ones(2), 1j, 10**400]
)
def test_anything_else_is_an_error_that_names_reward_row_and_prompt(bad):
    with pytest.raises(RewardError) as caught:
        run(returning([0.0, bad, 0.0]))
    message = str(caught.value)
    assert message.startswith(f"reward 'constant' gave {bad!r:.60} for row 1 (prompt ")
    assert "Question 1?" in message


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ([1.0, 2.0], "must return 3 values, one for each completion, but returned 2"),
        (None, "must return a list of numbers but returned a NoneType: None"),
        (1.0, "must return a list of numbers but returned a float: 1.0"),
        ("abc", "must return a list of numbers but returned a str: 'abc'"),
        ({1.0, 2.0, 3.0}, "must return a list of numbers but returned a set"),
    ],
)
def test_wrong_results_are_errors(result, reason):
    with pytest.raises(RewardError, match=re.escape(f"reward 'constant' {reason}")):
        run(returning(result))


def test_an_exception_is_the_cause_of_the_error():
    def breaks(completions):
        return [1 / 0]

    with pytest.raises(RewardError, match="reward 'breaks' raised ZeroDivisionError") as caught:
        run(trl_async, breaks)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_interrupt_is_not_turned_into_an_error():
    def interrupts(completions):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(interrupts)


# --- logging


def test_extra_columns_and_metrics():
    def first(completions, log_extra, log_metric):
        log_extra("parsed", ["a", "b", "c"])
        log_metric("share", 0.25)
        log_metric("share", 0.75)
        return [0.0] * 3

    async def second(completions, log_extra, log_metric):
        log_extra("parsed", (1, 2, 3))
        log_metric("share", 2)
        return [0.0] * 3

    results = run(first, second)
    assert results.extra == {"parsed": ["a", "b", "c"], "second/parsed": [1, 2, 3]}
    assert results.metrics == {"share": 1.0}  # (0.25 + 0.75 + 2) / 3


def test_an_extra_column_must_have_one_entry_per_completion():
    def short(completions, log_extra):
        log_extra("parsed", ["a"])

    reason = r"reward 'short': log_extra\('parsed'\) was given 1 entries for 3 completions"
    with pytest.raises(RewardError, match=reason):
        run(short)


# --- names, columns, weights


def test_a_missing_column_is_found_before_any_reward_runs():
    calls = []

    def counts(completions):
        calls.append(1)
        return [0.0] * 3

    def needs(completions, answers):
        return [0.0] * 3

    reason = "reward 'needs' needs the column 'answers', which the data does not have; it has: "
    with pytest.raises(RewardError, match=f"{reason}answer, limit. Did you mean 'answer'?"):
        run(counts, needs)
    assert calls == []
    check_rewards([FunctionReward(needs)], ["answers"])


def test_refused_sets_of_rewards_and_columns():
    with pytest.raises(RewardError, match="there are no rewards"):
        run()
    with pytest.raises(RewardError, match="two rewards are named 'trl_style'"):
        run(trl_style, trl_style)
    with pytest.raises(RewardError, match="rename the column 'completions' of the data"):
        run(trl_style, columns={"completions": [1, 2, 3]})
    with pytest.raises(RewardError, match="answer has 2 entries for 3 completions"):
        run(trl_style, columns={"answer": ["x", "y"]})
    with pytest.raises(RewardError, match="prompts has 1 entries for 3 completions"):
        run_rewards([FunctionReward(trl_style)], PROMPTS[:1], COMPLETIONS, IDS, {})


def test_names_and_weights():
    class GSM8KAnswer(ShortAnswerHTML):
        pass

    class Named(ShortAnswerHTML):
        name = "mine"

    assert [GSM8KAnswer().name, Named().name, Named(name="x").name] == ["gsm8k_answer", "mine", "x"]
    assert [Named().weight, Named(weight=-0.5).weight] == [1.0, -0.5]
    with pytest.raises(RewardError, match="the weight of reward 'mine' must be finite, not nan"):
        Named(weight=math.nan)


def test_completion_text():
    assert completion_text("plain") == "plain"
    turns = [{"role": "assistant", "content": "call"}, {"role": "assistant", "content": "answer"}]
    assert completion_text(turns) == "answer"
    for bad in ([], [{"role": "assistant", "content": None}], [{"role": "assistant"}]):
        with pytest.raises(ValueError, match="expected a string or messages that end with text"):
            completion_text(bad)


# --- combine


def nan_as_none(numbers):
    return [None if math.isnan(number) else number for number in numbers]


def test_weighted_sum():
    # 2*1 - 0.5*4 = 0;  2*0.5 - 0.5*(-2) = 2
    values = {"a": [1.0, 0.5], "b": [4.0, -2.0]}
    assert combine(values, {"a": 2.0, "b": -0.5}, 2) == [0.0, 2.0]


def test_abstaining_is_never_zero():
    values = {
        # groups: both speak | b silent | b silent on one row | all silent
        "a": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, None, None],
        "b": [0.1, 0.2, None, None, None, 0.5, None, None],
    }
    totals = combine(values, {"a": 1.0, "b": 10.0}, 2)
    assert nan_as_none(totals) == [2.0, 4.0, 3.0, 4.0, None, 11.0, None, None]
    # the same rows in one group of eight: b speaks in it, so its silence takes rows out
    totals = combine(values, {"a": 1.0, "b": 10.0}, 8)
    assert nan_as_none(totals) == [2.0, 4.0, None, None, None, 11.0, None, None]


def test_a_weight_of_zero_takes_no_part():
    values = {"a": [1.0, 2.0], "b": [None, 1.0]}
    assert combine(values, {"a": 1.0, "b": 0.0}, 2) == [1.0, 2.0]
    assert nan_as_none(combine(values, {"a": 0.0, "b": 0.0}, 2)) == [None, None]


def test_groups_are_independent():
    rng = np.random.default_rng(0)
    values = {n: [None if x < 0.3 else x for x in rng.random(12)] for n in ("a", "b", "c")}
    weights = {"a": 1.0, "b": 0.5, "c": -2.0}
    whole = combine(values, weights, 3)
    parts = [
        total
        for start in range(0, 12, 3)
        for total in combine({n: v[start : start + 3] for n, v in values.items()}, weights, 3)
    ]
    assert nan_as_none(whole) == nan_as_none(parts)
    assert 0 < sum(math.isnan(total) for total in whole) < 12


@pytest.mark.parametrize(
    ("values", "weights", "group_size", "reason"),
    [
        ({"a": [1.0]}, {"b": 1.0}, 1, "values of the rewards ['a'] but weights of ['b']"),
        ({"a": [1.0], "b": []}, {"a": 1, "b": 1}, 1, "found {'a': 1, 'b': 0}"),
        ({"a": [1.0] * 8}, {"a": 1}, 3, "8 completions cannot be split into groups of 3; set"),
        ({"a": [1.0] * 8}, {"a": 1}, 0, "set group_size to one of 1, 2, 4, 8"),
    ],
)
def test_combine_refuses(values, weights, group_size, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        combine(values, weights, group_size)


def test_rewards_import_no_framework():
    code = (
        "import sys, sctom.rewards, sctom.prepare, sctom.tasks.selfaware\n"
        "print(sorted({'torch', 'lightning', 'transformers', 'mlx'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"

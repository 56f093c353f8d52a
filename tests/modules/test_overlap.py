from __future__ import annotations

import asyncio
import threading

import pytest
import torch

from sctom.batch import Prompt, Row
from sctom.modules.overlap import RewardThread
from sctom.modules.selfcheck import SelfCheckError
from sctom.rewards import FunctionReward, RewardError
from sctom.rollout import LocalSampler, Sampling
from tests.modules.test_policy import make_module, run


def group(number: int) -> list[Row]:
    return [Row(Prompt(number, [1], []), i, [2], "", False) for i in range(2)]


def test_groups_are_scored_one_after_the_other_in_a_thread_of_their_own():
    seen, go_on = [], threading.Event()

    def start(rows):
        go_on.wait(10)  # the first holds back the others
        seen.append((rows[0].prompt.index, threading.current_thread().name))
        return lambda: {"number": float(rows[0].prompt.index)}

    with RewardThread(start) as thread:
        for number in (3, 1, 2):
            thread.submit(group(number))
        assert seen == []  # submitting waits for nothing
        go_on.set()
        assert thread.results() == [({"number": float(number)}, 2) for number in (3, 1, 2)]
    assert [number for number, _ in seen] == [3, 1, 2]
    assert {name for _, name in seen} == {"rewards"}


def test_what_goes_on_does_not_hold_back_the_next_group():
    started = []

    def start(rows):
        started.append(rows[0].prompt.index)
        return lambda: {"started": float(len(started))}

    with RewardThread(start) as thread:
        thread.submit(group(0))
        thread.submit(group(1))
        # the first group waits for its rewards when both have been called
        assert [logged for logged, _ in thread.results()][-1] == {"started": 2.0}


def test_a_failure_is_told_with_the_next_group_or_at_the_end():
    def start(rows):
        raise RewardError(f"prompt {rows[0].prompt.index}")

    with RewardThread(start) as thread:
        thread.submit(group(5))
        with pytest.raises(RewardError, match="prompt 5"):
            thread.results()
        with pytest.raises(RewardError, match="prompt 5"):
            thread.submit(group(6))


def test_after_an_error_what_is_left_is_dropped():
    started, release, scored = threading.Event(), threading.Event(), []

    def start(rows):
        started.set()
        release.wait(10)
        scored.append(rows[0].prompt.index)
        return dict

    with pytest.raises(KeyError), RewardThread(start) as thread:
        thread.submit(group(0))
        thread.submit(group(1))
        started.wait(10)
        raise KeyError  # leaves at once, though group 0 still hangs
    release.set()
    thread._thread.join(10)
    assert scored == [0]
    assert thread._thread.daemon  # one that never returns must not keep the process


def test_the_thread_computes_on_the_device_of_its_maker(monkeypatch):
    chosen = []

    def note(device):
        chosen.append((device.index, threading.current_thread().name))

    made = "sctom.modules.overlap.default_device"
    monkeypatch.setattr(made, lambda: torch.device("cuda", 3))
    monkeypatch.setattr(torch.cuda, "set_device", note)
    with RewardThread(lambda rows: dict) as thread:
        thread.submit([])
        thread.results()
    assert chosen == [(3, "rewards")]


# ---- in a run ------------------------------------------------------------------------------------


def noting(calls):
    def by_length(completions, log_metric):
        calls.append((len(completions), threading.current_thread() is threading.main_thread()))
        lengths = [float(len(c[0]["content"])) for c in completions]
        log_metric("longest", max(lengths))
        return lengths

    return FunctionReward(by_length)


class Late(LocalSampler):
    """A sampler that tells of no group before the end."""

    def sample(self, *args, finished=None, **kwargs):
        return super().sample(*args, **kwargs)


@pytest.mark.parametrize("sampler", [LocalSampler, Late])
def test_rewards_overlap_and_change_nothing(tiny_model, tiny_prompts, tmp_path, sampler):
    results = []
    for overlap in (True, False):
        calls = []
        module = make_module(
            tiny_model,
            rewards=[noting(calls)],
            overlap_rewards=overlap,
            sampler=sampler(),
            sampling=Sampling(max_new_tokens=6),
        )
        run(module, tiny_prompts, tmp_path)
        expected = [(4, False)] * 3 if overlap else [(12, True)]
        assert calls == expected * 2  # two iterations of three prompts
        results.append([(row.ids, row.reward, row.advantage) for row in module.last_rollout.rows])
        assert module.last_metrics["longest"] > 0
    assert results[0] == results[1]


def test_groups_are_scored_as_soon_as_they_are_complete(tiny_model, tiny_prompts, tmp_path):
    order = []

    class Telling(LocalSampler):
        def sample(self, *args, finished, **kwargs):
            def noted(number, samples):
                order.append(number)
                finished(number, samples)

            samples = super().sample(*args, finished=noted, **kwargs)
            order.append("sampled")
            return samples

    calls = []
    module = make_module(tiny_model, rewards=[noting(calls)], sampler=Telling(max_rows=4))
    run(module, tiny_prompts, tmp_path, iterations=1)
    assert order == [0, 1, 2, "sampled"]  # one group after the other: none waits for the last


@pytest.mark.parametrize("kind", ["async", "concurrent"])
def test_rewards_that_wait_go_on_together(tiny_model, tiny_prompts, tmp_path, kind):
    together = threading.Barrier(3)  # broken unless the groups of all three prompts meet at it

    def meet(completions):
        together.wait(20)
        return [float(i) for i in range(len(completions))]

    async def meet_on_the_loop(completions):
        await asyncio.to_thread(together.wait, 20)
        return [float(i) for i in range(len(completions))]

    if kind == "async":
        reward = FunctionReward(meet_on_the_loop)
    else:
        reward = FunctionReward(meet, concurrent=True)
    module = make_module(tiny_model, rewards=[reward])
    run(module, tiny_prompts, tmp_path)
    assert {row.reward for row in module.last_rollout.rows} == {0.0, 1.0, 2.0, 3.0}


def only_in_main(completions):
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("signal only works in main thread of the main interpreter")
    return [float(i) for i in range(len(completions))]


def test_a_reward_that_needs_the_main_thread_is_found_before_the_run(
    tiny_model, tiny_prompts, tmp_path
):
    settings = {"rewards": [FunctionReward(only_in_main)], "self_check": True}
    with pytest.raises((SelfCheckError, RewardError), match="main thread"):
        run(make_module(tiny_model, **settings), tiny_prompts, tmp_path)
    module = make_module(tiny_model, overlap_rewards=False, **settings)
    run(module, tiny_prompts, tmp_path)
    assert module.progress.iteration == 2

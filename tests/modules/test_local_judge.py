from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sctom.modules.backbone import Backbone
from sctom.modules.local_judge import LocalJudge
from sctom.rewards import RewardError, run_rewards
from sctom.rewards.judge import JudgeError
from sctom.rewards.judge_reward import JudgeReward
from sctom.rollout.local import LocalSampler


def question(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


KALOMI, OTHER = question("Where does Kalomi live?"), question("Who are you?")


def make_judge(**settings: Any) -> LocalJudge:
    given = {"max_new_tokens": 12, "cut": "keep", **settings}
    return LocalJudge(Backbone("sctom:tinyworld/model"), **given)


@pytest.fixture(scope="module")
def judge() -> LocalJudge:
    return make_judge(temperature=2.0)


def ask(judge: LocalJudge, messages: Sequence[dict[str, str]], count: int) -> list[str]:
    return asyncio.run(judge.replies(messages, count))


def test_nothing_is_loaded_before_the_first_question(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load = Backbone.load_model

    def counted(self: Backbone, *args: Any, **settings: Any) -> Any:
        loaded.append(self.path)
        return load(self, *args, **settings)

    monkeypatch.setattr(Backbone, "load_model", counted)
    judge = make_judge()
    assert loaded == []
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: ask(judge, KALOMI, 1), range(4)))
    assert loaded == ["sctom:tinyworld/model"]


def test_replies_depend_on_seed_and_messages_only(judge: LocalJudge) -> None:
    first = ask(judge, KALOMI, 4)
    assert len(set(first)) > 1
    ask(judge, OTHER, 3)
    assert ask(judge, KALOMI, 4) == first
    assert ask(judge, KALOMI, 2) == first[:2]
    assert ask(make_judge(temperature=2.0, seed=1), KALOMI, 4) != first


def test_callers_in_several_threads_get_their_own(judge: LocalJudge) -> None:
    alone = [ask(judge, KALOMI, 2), ask(judge, OTHER, 2)]
    gate = threading.Barrier(4)

    def call(number: int) -> list[str]:
        gate.wait()
        return ask(judge, (KALOMI, OTHER)[number % 2], 2)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(call, range(4))) == alone * 2


def test_questions_that_wait_are_answered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, sampled = make_judge(temperature=2.0), []
    alone = ask(judge, OTHER, 2)
    sample = LocalSampler.sample

    def counted(self: LocalSampler, model: Any, prompts: Any, **settings: Any) -> Any:
        sampled.append(len(prompts))
        gate.wait(30)
        return sample(self, model, prompts, **settings)

    async def several() -> list[list[str] | BaseException]:
        first = asyncio.ensure_future(judge.replies(KALOMI, 2))
        while not sampled:
            await asyncio.sleep(0.01)
        bad = [{"role": "assistant", "content": "I am not asked"}]
        given_up = asyncio.ensure_future(judge.replies(KALOMI, 2))
        rest = [judge.replies(messages, 2) for messages in (OTHER, bad, OTHER, KALOMI)]
        waiting = [asyncio.ensure_future(answer) for answer in rest]
        await asyncio.sleep(0.05)
        given_up.cancel()
        await asyncio.sleep(0.05)
        gate.set()
        return await asyncio.gather(first, *waiting, return_exceptions=True)

    gate = threading.Event()
    monkeypatch.setattr(LocalSampler, "sample", counted)
    first, other, bad, again, kalomi = asyncio.run(several())
    assert sampled == [1, 3]
    assert other == again == alone
    assert kalomi == first
    assert isinstance(bad, ValueError) and "must end before the assistant's turn" in str(bad)


def test_a_model_that_cannot_be_loaded_is_told_to_all() -> None:
    judge = LocalJudge(Backbone("models/nothing-here"))

    async def twice() -> list[Any]:
        asked = (judge.replies(KALOMI, 1), judge.replies(OTHER, 1))
        return await asyncio.gather(*asked, return_exceptions=True)

    assert [type(error) for error in asyncio.run(twice())] == [FileNotFoundError] * 2
    with pytest.raises(FileNotFoundError):
        ask(judge, KALOMI, 1)
    with pytest.raises(RewardError, match=r"the judge: .*models/nothing-here is neither a folder"):
        JudgeReward(judge, "{{response}}").check()


def test_greedy_replies_are_the_text_without_special_tokens() -> None:
    replies = ask(make_judge(temperature=0.0, max_new_tokens=32), KALOMI, 2)
    assert replies[0] == replies[1]
    assert "<|" not in replies[0]


def test_a_reply_that_is_cut_off_is_an_error() -> None:
    judge = make_judge(temperature=0.0, max_new_tokens=1, cut="error")
    with pytest.raises(JudgeError, match=r"cut off at 1 tokens .* raise max_new_tokens"):
        ask(judge, KALOMI, 1)


def test_it_judges_for_a_reward(judge: LocalJudge) -> None:
    expected = ask(judge, question("Kalomi Berlin"), 1)[0]
    template = "{{prompt}} {{response}}"
    reward = JudgeReward(judge, template, count=1, expected=expected, wrong=-1.0)
    reward.check()
    assert reward.describe() == [
        "asks sctom:tinyworld/model in this process, up to 12 tokens a reply"
    ]
    results = run_rewards([reward], ["Kalomi"] * 2, ["Berlin", "x"], [[1]] * 2, {})
    assert results.values["judge_reward"][0] == 1.0

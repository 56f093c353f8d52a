from __future__ import annotations

import asyncio
import math
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from sctom.assets import resolve
from sctom.rewards import Failure, RewardError, run_rewards
from sctom.rewards.judge import ChatEndpoint, JudgeError, Message
from sctom.rewards.judge_reward import JudgeReward
from sctom.rewards.remote import RemoteError
from tests.rewards.loopback import Answer, Loopback, Request, reply, slow

ASKED = [{"role": "user", "content": "Is it right?"}]


def choice(text: Any, reason: str = "stop") -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}, "finish_reason": reason}


def chat(*texts: str) -> Answer:
    return reply({"choices": [choice(text) for text in texts]})


def endpoint(server: Loopback, **settings: Any) -> ChatEndpoint:
    url = server.url.replace("/score", "/v1")
    return ChatEndpoint(url, "tiny", **{"seconds": 5.0, "waits": [], **settings})


def ask(server: Loopback, count: int = 1, **settings: Any) -> list[str]:
    return asyncio.run(endpoint(server, **settings).replies(ASKED, count))


def test_the_request_is_that_of_openai() -> None:
    with Loopback(chat("a", "b")) as server:
        settings = {"temperature": 0.5, "max_tokens": 9, "seed": 3, "options": {"top_p": 0.9}}
        assert ask(server, 2, **settings) == ["a", "b"]
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.body == {
        "model": "tiny",
        "messages": ASKED,
        "n": 2,
        "temperature": 0.5,
        "max_tokens": 9,
        "seed": 3,
        "top_p": 0.9,
    }


@pytest.mark.parametrize(
    "url",
    ["http://h/v1", "http://h/v1/", "http://h/v1/chat/completions"],
)
def test_the_address_may_be_that_of_the_server_or_of_the_method(url: str) -> None:
    assert ChatEndpoint(url, "m").url == "http://h/v1/chat/completions"


def test_a_server_that_ignores_n_is_asked_again_with_other_seeds() -> None:
    def by(request: Request) -> Answer:
        return chat(f"seed {request.body['seed']}")

    with Loopback(by=by) as server:
        judge = endpoint(server, seed=10)
        replies = asyncio.run(judge.replies(ASKED, 3))
        assert replies == ["seed 10", "seed 11", "seed 12"]
        assert len(server.requests) == 3
        assert asyncio.run(judge.replies(ASKED, 3)) == replies
    assert [request.body.get("n") for request in server.requests] == [3] + [None] * 5


def test_more_choices_than_asked_for_are_left_out() -> None:
    with Loopback(chat("a", "b", "c")) as server:
        assert ask(server, 2) == ["a", "b"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "sent no choices, but {}"),
        ({"choices": []}, "sent no choices"),
        ({"error": {"message": "no such model"}}, "no such model"),
        ([], "sent no choices"),
        ({"choices": ["a"]}, "a choice that is not an object"),
        ({"choices": [{}]}, "a reply without text"),
        ({"choices": [choice("")]}, "a reply without text (finish_reason 'stop')"),
        ({"choices": [choice(" \n")]}, "a reply without text"),
        ({"choices": [choice(None, "tool_calls")]}, "without text (finish_reason 'tool_calls')"),
        ({"choices": [choice(["a"])]}, "a reply without text"),
        ({"choices": [choice("Well", "length")]}, "cut off at 1024 tokens ('Well' so far)"),
        ({"choices": [choice("I", "content_filter")]}, "its filter stopped"),
    ],
)
def test_an_answer_without_what_was_asked_for_is_an_error(answer: Any, said: str) -> None:
    with Loopback(reply(answer)) as server:
        with pytest.raises(JudgeError, match=re.escape(said)) as failed:
            ask(server, waits=[0.01])
        assert len(server.requests) == 1
        where = server.url.replace("/score", "/v1/chat/completions")
    assert str(failed.value).startswith(f"the judge tiny at {where} sent")


def test_a_reply_that_is_cut_off_may_be_kept() -> None:
    with Loopback(reply({"choices": [choice("Well", "length")]})) as server:
        assert ask(server, cut="keep") == ["Well"]


def test_a_server_that_is_busy_is_asked_again() -> None:
    with Loopback(reply("", 503), reply("", 429), chat("a")) as server:
        assert ask(server, waits=[0.01, 0.01]) == ["a"]


def test_a_server_that_is_slow_is_given_up() -> None:
    late = r"no complete answer within 0\.2 s"
    with Loopback(slow(2.0, chat("a"))) as server, pytest.raises(RemoteError, match=late):
        ask(server, seconds=0.2)


def test_so_many_are_asked_at_once() -> None:
    with Loopback(slow(0.1, chat("a"))) as server:
        assert ask(server, 7, at_once=3) == ["a"] * 7
        assert 2 <= server.most_at_once <= 3


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    with Loopback(reply("bad key secret-key", 401)) as server:
        judge = endpoint(server, key_env="JUDGE_KEY")
        with pytest.raises(RewardError, match="JUDGE_KEY, named by key_env, is not set"):
            JudgeReward(judge, "{{response}}").check()
        monkeypatch.setenv("JUDGE_KEY", "secret-key")
        judge.check()
        with pytest.raises(RemoteError, match="status 401") as failed:
            asyncio.run(judge.replies(ASKED, 1))
    assert server.requests[0].headers["authorization"] == "Bearer secret-key"
    assert "secret-key" not in str(failed.value)


def logprobs(*tokens: dict[str, Any]) -> dict[str, Any]:
    return {**choice("Yes"), "logprobs": {"content": [{"top_logprobs": list(tokens)}]}}


def test_logprobs_are_those_of_the_first_token() -> None:
    tokens = [{"token": "Yes", "logprob": math.log(0.5)}, {"token": "No", "logprob": -9999.0}]
    tokens.append({"token": "Yes", "logprob": math.log(0.25)})
    with Loopback(reply({"choices": [logprobs(*tokens)]})) as server:
        found = asyncio.run(endpoint(server).top_logprobs(ASKED, 3))
    assert found == {"Yes": pytest.approx(math.log(0.75)), "No": -math.inf}
    body = server.requests[0].body
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"]) == (True, 3, 1)


@pytest.mark.parametrize(
    "answer",
    [
        choice("Yes"),
        {**choice("Yes"), "logprobs": None},
        {**choice("Yes"), "logprobs": {"content": []}},
        {**choice("Yes"), "logprobs": {"content": [{"token": "Yes"}]}},
        logprobs(),
    ],
)
def test_a_server_that_ignores_logprobs_is_named(answer: dict[str, Any]) -> None:
    said = r"the judge tiny at http.*sent none"
    with Loopback(reply({"choices": [answer]})) as server, pytest.raises(JudgeError, match=said):
        asyncio.run(endpoint(server).top_logprobs(ASKED))


@pytest.mark.parametrize("token", ["Yes", {"token": 3, "logprob": 0.0}, {"token": "Yes"}])
def test_a_token_without_a_logprob_is_an_error(token: Any) -> None:
    answer, said = reply({"choices": [logprobs(token)]}), "no token with a logprob"
    with Loopback(answer) as server, pytest.raises(JudgeError, match=said):
        asyncio.run(endpoint(server).top_logprobs(ASKED))


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0},
        {"max_tokens": 0},
        {"cut": "drop"},
        {"seconds": 0.0},
        {"waits": [-1.0]},
        {"at_once": 0},
        {"options": {"n": 2}},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RewardError, match=next(iter(settings))):
        ChatEndpoint("http://127.0.0.1:9/v1", "m", **settings)


# the reward


class Fake:
    def __init__(self, *replies: str) -> None:
        self.texts = list(replies)
        self.asked: list[str] = []

    async def replies(self, messages: Sequence[Message], count: int) -> list[str]:
        self.asked.append(messages[-1]["content"])
        return [self.texts[number % len(self.texts)] for number in range(count)]


def judged(*replies: str, **settings: Any) -> Any:
    reward = JudgeReward(Fake(*replies), "{{response}}", count=len(replies), **settings)
    return asyncio.run(reward(["Q"], ["A"]))[0]


def test_numbers_are_clipped_and_averaged() -> None:
    assert judged("0.5", " 1\n", "-3", "0") == 0.125  # (0.5 + 1 - 1 + 0) / 4


def test_the_last_match_counts() -> None:
    pattern = r"score: ([-0-9.]+)"
    assert judged("score: 1, no, score: 0.25", pattern=pattern) == 0.25


def test_a_text_is_compared() -> None:
    settings = {"pattern": "(?i)verdict: (yes|no)", "expected": "yes", "wrong": -0.5}
    assert judged("verdict: yes", "verdict: no, verdict: yes", **settings) == 1.0
    assert judged("verdict: yes", "verdict: no", **settings) == 0.25  # (1 - 0.5) / 2


@pytest.mark.parametrize("bad", ["nan", "inf", "1_0", "8/10", "one", ""])
def test_a_reply_that_cannot_be_read_is_a_failure(bad: str) -> None:
    failure = judged("1", bad)
    assert isinstance(failure, Failure)
    assert "only 1 of 2 replies of the judge have a number, at least 2 must" in failure.reason
    assert judged("1", bad, "0", least=2) == 0.5
    assert isinstance(judged("1", bad, bad, least=2), Failure)


def test_the_question_is_the_template_filled_once() -> None:
    template = "{{system_instruction}}|{{prompt}}|{{response}}|{{references.sum}}"
    judge = Fake("1")
    reward = JudgeReward(judge, template, references=["sum"], count=1)
    system, user = ({"role": "system", "content": "S"}, {"role": "user", "content": "2+2?"})
    longer = [user, {"role": "assistant", "content": "5"}, {"role": "user", "content": "Sure?"}]
    prompts = [[system, user], "2+2?", longer]
    completions = [[{"role": "assistant", "content": "{{prompt}}"}], "4", "5"]
    results = run_rewards([reward], prompts, completions, [[1]] * 3, {"sum": [4, "4", "4"]})
    assert judge.asked == [
        "S|2+2?|{{prompt}}|4",
        "|2+2?|4|4",
        "|user: 2+2?\n\nassistant: 5\n\nuser: Sure?|5|4",
    ]
    assert results.values == {"judge_reward": [1.0, 1.0, 1.0]}
    assert results.extra["judgements"] == [["1"]] * 3
    assert results.metrics == {"judge_reward/unreadable": 0.0}


def test_a_row_without_its_reference_fails_alone() -> None:
    reward = JudgeReward(Fake("1"), "{{references.sum}}", count=1)
    columns = {"references": [{"sum": "4"}, {"smu": "4"}]}
    results = run_rewards([reward], ["Q"] * 2, ["A"] * 2, [[1]] * 2, columns)
    assert results.values["judge_reward"] == [1.0, None]
    assert "no reference 'sum'; it has: smu" in results.errors["judge_reward"][1]


def test_a_judge_that_fails_abstains() -> None:
    with Loopback(chat("1"), reply("", 500)) as server:
        reward = JudgeReward(endpoint(server, at_once=1), "{{response}}", count=1)
        results = run_rewards([reward], ["Q"] * 2, ["A", "B"], [[1]] * 2, {})
        assert reward.describe() == endpoint(server).describe()
    assert results.values["judge_reward"] == [1.0, None]
    assert "status 500" in results.errors["judge_reward"][1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"count": 0}, "count must be from 1 to 32"),
        ({"least": 5}, r"least must be from 1 to count \(4\)"),
        ({"right": math.nan}, "right must be from -1 to 1"),
        ({"right": 0.0}, "right and wrong are both 0"),
        ({"pattern": "(a)(b)"}, "pattern: expected at most one group"),
        ({"pattern": "(?=a)"}, "pattern: RE2 cannot use"),
        ({"template": "{{respnse}}"}, r"template: unknown placeholder .* Did you mean"),
        ({"template": "{{references.a}}", "references": ["b"]}, "name it in references"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RewardError, match=said):
        JudgeReward(Fake("1"), **{"template": "{{response}}", **settings})


# a real server


@pytest.fixture(scope="module")
def mlx_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = str(resolve("sctom:tinyworld/model"))
    log = tmp_path_factory.mktemp("mlx") / "log"
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", model, "--port", str(port)]
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        _wait_for(f"http://127.0.0.1:{port}/v1/models", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        if server.poll() is not None:
            pytest.skip(f"mlx_lm.server does not start here: {log.read_text()[-300:]}")
        try:
            if httpx.get(url).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    pytest.skip("mlx_lm.server did not answer within two minutes")


@pytest.mark.slow
def test_a_real_server_replies_and_gives_logprobs(mlx_server: str) -> None:
    model = str(resolve("sctom:tinyworld/model"))
    settings: dict[str, Any] = {"max_tokens": 16, "cut": "keep", "seed": 1}
    judge = ChatEndpoint(mlx_server, model, **settings)
    asked = [{"role": "user", "content": "Where does Kalomi live?"}]
    replies = asyncio.run(judge.replies(asked, 3))
    assert len(replies) == 3 and all(text.strip() for text in replies)
    found = asyncio.run(judge.top_logprobs(asked, 4))
    assert len(found) == 4 and 0.0 < sum(map(math.exp, found.values())) <= 1.0 + 1e-6
    reward = JudgeReward(judge, "{{prompt}} {{response}}", count=2, expected=replies[0], wrong=-1)
    results = run_rewards([reward], ["Where does Kalomi live?"], ["Berlin"], [[1]], {})
    assert results.errors["judge_reward"] == {}
    assert -1.0 <= results.values["judge_reward"][0] <= 1.0


def test_a_key_that_a_server_sends_back_with_success_is_in_no_error(monkeypatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret-key-123")
    said = {"error": {"message": "incorrect key secret-key-123"}}
    with Loopback(reply(said)) as server, pytest.raises(JudgeError) as failed:
        ask(server, key_env="JUDGE_KEY")
    assert "secret" not in str(failed.value) and "***" in str(failed.value)


def test_a_row_that_cannot_be_asked_about_is_an_error_of_that_row() -> None:
    with Loopback(chat("1.0")) as server:
        judge = JudgeReward(endpoint(server), "{{response}} {{references.answer}}", count=1)
        columns = {"references": [{"answer": "4"}, "no object"]}
        results = run_rewards([judge], ["Q"] * 2, ["a", "b"], [[1]] * 2, columns)
    assert results.values == {"judge_reward": [1.0, None]}
    assert set(results.errors["judge_reward"]) == {1}

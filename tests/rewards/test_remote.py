from __future__ import annotations

import asyncio
import json
import math
import time
from email.utils import formatdate
from typing import Any

import pytest

from sctom.rewards import Failure, RewardError, run_rewards
from sctom.rewards.http_reward import HttpReward
from sctom.rewards.remote import RemoteError, check_url, post_json
from tests.rewards.loopback import Answer, Loopback, dripping, dropped, gone, raw, reply, slow

GOOD = reply({"reward": 0.5})


def post(url: str, **settings: Any) -> Any:
    return asyncio.run(post_json(url, {"a": 1}, **{"seconds": 5.0, "waits": (), **settings}))


def test_an_answer_is_read_and_the_request_is_json() -> None:
    with Loopback(reply({"reward": 0.5, "name": "é"})) as server:
        assert post(server.url + "?x=1") == {"reward": 0.5, "name": "é"}
    request = server.requests[0]
    assert (request.path, request.body) == ("/score?x=1", {"a": 1})
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    "bad",
    [
        reply("broken", 500),
        reply("", 503),
        reply("", 408),
        reply("", 429),
        dropped,
        gone,
        raw(b"no HTTP at all\r\n\r\n"),
        slow(2.0, GOOD),
        dripping(1000, 0.05),
    ],
    ids=["500", "503", "408", "429", "dropped", "gone", "garbage", "slow", "dripping"],
)
def test_what_may_pass_is_tried_again(bad: Answer) -> None:
    with Loopback(bad, GOOD) as server:
        assert post(server.url, waits=(0.01,), seconds=0.5) == {"reward": 0.5}
        assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_refusal_is_not_tried_again(status: int) -> None:
    with Loopback(reply("no such thing", status), GOOD) as server:
        with pytest.raises(RemoteError, match=f"/score: status {status}: 'no such thing'"):
            post(server.url, waits=(0.01, 0.01))
        assert len(server.requests) == 1


def test_after_the_last_try_the_error_says_where_and_what() -> None:
    with Loopback(reply("out of memory", 500)) as server:
        with pytest.raises(RemoteError) as failed:
            post(server.url + "?key=hidden", waits=(0.01, 0.02))
        assert len(server.requests) == 3
    assert str(failed.value) == f"{server.url}: status 500: 'out of memory', tried 3 times"


def test_no_server_is_an_error_after_all_tries() -> None:
    with Loopback(GOOD) as server:
        pass
    with pytest.raises(RemoteError, match=r"ConnectError.*tried 2 times"):
        post(server.url, waits=(0.01,))


def test_the_waits_lie_between_the_tries() -> None:
    with Loopback(reply("", 500), reply("", 500), GOOD) as server:
        post(server.url, waits=(0.2, 0.4))
    first, second, third = (request.at for request in server.requests)
    assert 0.2 <= second - first < 0.4 <= third - second


def test_retry_after_is_waited_for_where_it_is_longer() -> None:
    with Loopback(reply("", 429, Retry_After="1"), GOOD) as server:
        post(server.url, waits=(0.01,))
    assert server.requests[1].at - server.requests[0].at >= 1.0
    date = formatdate(time.time() + 2, usegmt=True)
    with Loopback(reply("", 503, Retry_After=date), GOOD) as server:
        post(server.url, waits=(0.01,))
    assert server.requests[1].at - server.requests[0].at >= 0.9
    for senseless in ("-5", "soon", "Fri, 31 Dec 99999999999999 23:59:59 GMT"):
        with Loopback(reply("", 429, Retry_After=senseless), GOOD) as server:
            assert post(server.url, waits=(0.01,)) == {"reward": 0.5}


def test_a_byte_now_and_then_does_not_stretch_the_limit() -> None:
    with Loopback(dripping(1000, 0.05)) as server:
        started = time.monotonic()
        with pytest.raises(RemoteError, match=r"no complete answer within 0.3 s"):
            post(server.url, seconds=0.3)
        assert time.monotonic() - started < 2.0


def endless(connection: Any, _: Any) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")


@pytest.mark.parametrize("answer", [endless, reply(b" " * 200_000)], ids=["endless", "huge"])
def test_a_huge_body_is_not_read_to_its_end(answer: Answer) -> None:
    with Loopback(answer) as server:
        with pytest.raises(RemoteError, match="sent more than 100000 bytes; raise max_bytes"):
            post(server.url, max_bytes=100_000, waits=(0.01,))
        assert len(server.requests) == 1


def test_a_huge_error_page_is_cut() -> None:
    with Loopback(reply(b"x" * 5_000_000, 400)) as server, pytest.raises(RemoteError) as failed:
        post(server.url)
    assert len(str(failed.value)) < 400


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "what is not JSON"),
        (b'{"reward": 1', "what is not JSON"),
        (b"\xff\xfe\xfa", "what is not JSON"),
        (b'{"reward": NaN}', "NaN is not a JSON number"),
        (b'{"reward": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"reward": 1e999}', "1e999 is too large for a number"),
        (b'{"reward": ' + b"9" * 5000 + b"}", "what is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"name": "\\ud800"}', "surrogates not allowed"),
    ],
)
def test_what_is_not_json_is_not_tried_again(body: bytes, said: str) -> None:
    with Loopback(reply(body, kind="text/html"), GOOD) as server:
        with pytest.raises(RemoteError, match=said) as failed:
            post(server.url, waits=(0.01,))
        assert len(server.requests) == 1
    assert "content type text/html" in str(failed.value)


def test_the_content_type_of_json_does_not_matter() -> None:
    with Loopback(reply({"reward": 1}, kind="text/plain")) as server:
        assert post(server.url) == {"reward": 1}


def test_a_compressed_answer_is_refused() -> None:
    packed = reply(b"\x1f\x8b", Content_Encoding="gzip")
    with Loopback(packed) as server, pytest.raises(RemoteError, match="compressed"):
        post(server.url)


def test_a_redirect_is_not_followed() -> None:
    with Loopback(GOOD) as other, Loopback(reply("", 307, Location=other.url)) as server:
        with pytest.raises(RemoteError, match=r"redirect \(307\), which is not followed"):
            post(server.url, headers={"Authorization": "Bearer secret-token"})
        assert other.requests == []


def test_a_secret_is_sent_and_never_shown() -> None:
    told = reply("bad token secret-token", 401)
    with Loopback(told) as server, pytest.raises(RemoteError) as failed:
        post(server.url, headers={"Authorization": "Bearer secret-token"})
    assert server.requests[0].headers["authorization"] == "Bearer secret-token"
    assert "secret-token" not in str(failed.value) and "***" in str(failed.value)
    with pytest.raises(RewardError, match="the value of Authorization") as refused:
        post(server.url, headers={"Authorization": "Bearer secret\n"})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:80", "ftp://host/x", "http://", "http://h:0/", "http://h:99999/"]
)
def test_an_address_that_cannot_be_posted_to_is_refused(url: str) -> None:
    with pytest.raises(RewardError, match="must be http:// or https:// and a host"):
        check_url(url)


def test_an_address_holds_no_secret() -> None:
    with pytest.raises(RewardError, match="must have no user") as refused:
        check_url("http://me:hunter2@host/score")
    assert "hunter2" not in str(refused.value)


# the reward


def row(answer: Answer, **settings: Any) -> Any:
    with Loopback(answer) as server:
        reward = HttpReward(server.url, seconds=5.0, waits=[], **settings)
        return asyncio.run(reward(["Q"], ["A"]))[0]


@pytest.mark.parametrize(
    ("value", "reward"), [("0.5", 0.5), ("7", 1.0), ("-1e300", -1.0), ("1" + "0" * 400, 1.0)]
)
def test_a_reward_is_clipped(value: str, reward: float) -> None:
    assert row(reply(f'{{"reward": {value}}}')) == reward


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"reward": NaN}', "NaN is not a JSON number"),
        ('{"reward": 1e999}', "too large"),
        ('{"reward": true}', "but is bool True"),
        ('{"reward": "1"}', "but is str '1'"),
        ('{"reward": null}', "but is NoneType None"),
        ('{"reward": [1]}', "but is list"),
        ('{"rewrad": 1}', 'must answer {"reward": number}'),
        ("1", 'must answer {"reward": number}'),
        ('{"reward": 1, "user_requested_aux_info": 3}', "must be a text"),
    ],
)
def test_what_is_no_reward_is_a_failure(body: str, said: str) -> None:
    failure = row(reply(body))
    assert isinstance(failure, Failure) and said in failure.reason


class State:
    global_step = 7


def test_the_request_is_that_of_the_contract() -> None:
    prompt = [{"role": "system", "content": "Count."}, {"role": "user", "content": "2+2?"}]
    completion = [{"role": "assistant", "content": "4"}]
    with Loopback(GOOD) as server:
        reward = HttpReward(server.url, references=["sum", "tests", "unit"], job="run-1")
        columns = {"sum": ["4"], "tests": [["a", 1]], "unit": [None], "other": ["x"]}
        given = ([prompt], [completion], [[1]], columns)
        results = run_rewards([reward], *given, trainer_state=State())
    assert results.values == {"http_reward": [0.5]}
    assert server.requests[0].body == {
        "example": {
            "systemInstruction": {"parts": [{"text": "Count."}]},
            "contents": [{"role": "user", "parts": [{"text": "2+2?"}]}],
            "references": {"sum": "4", "tests": '["a", 1]'},
        },
        "response": {"role": "model", "parts": [{"text": "4"}]},
        "metadata": {"step": 7, "tuningJobId": "run-1", "tuning_job_id": "run-1"},
    }


def test_the_example_of_the_data_is_sent_as_it_is() -> None:
    example = {"contents": [{"role": "user", "parts": [{"text": "Q"}]}], "references": {"a": "b"}}
    with Loopback(GOOD) as server:
        run_rewards([HttpReward(server.url)], ["Q"], ["A"], [[1]], {"example": [example]})
    assert server.requests[0].body["example"] == example
    with Loopback(GOOD) as server:
        run_rewards([HttpReward(server.url)], ["Q"], ["A"], [[1]], {"references": [{"a": "b"}]})
    assert server.requests[0].body["example"] == example


def test_a_column_that_is_named_must_be_there() -> None:
    reward = HttpReward("http://127.0.0.1:9/", references=["anwser"])
    with pytest.raises(RewardError, match=r"needs the column 'anwser'.*Did you mean 'answer'"):
        run_rewards([reward], ["Q"], ["A"], [[1]], {"answer": ["4"]})


def test_rows_keep_their_order_and_one_that_fails_abstains() -> None:
    def by(request: Any) -> Answer:
        number = int(request.body["response"]["parts"][0]["text"])
        if number == 3:
            return reply("broken", 500)
        aux = {"user_requested_aux_info": "nought"} if number == 0 else {}
        return slow(0.1 * (number % 3), reply({"reward": number / 10, **aux}))

    with Loopback(by=by) as server:
        reward = HttpReward(server.url, at_once=4, waits=[0.01], name="service")
        texts = [str(number) for number in range(9)]
        results = run_rewards([reward], ["Q"] * 9, texts, [[1]] * 9, {})
        assert 2 <= server.most_at_once <= 4
    assert results.values["service"] == [0.0, 0.1, 0.2, None, 0.4, 0.5, 0.6, 0.7, 0.8]
    assert list(results.errors["service"]) == [3]
    assert "status 500: 'broken', tried 2 times" in results.errors["service"][3]
    assert results.extra["aux_info"] == ["nought"] + [None] * 8


def test_a_failure_can_stop_the_run() -> None:
    with Loopback(reply("", 500)) as server:
        reward = HttpReward(server.url, waits=[], on_error="raise")
        with pytest.raises(RewardError, match=r"reward 'http_reward'.*status 500"):
            run_rewards([reward], ["Q"], ["A"], [[1]], {})


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCORER_KEY", raising=False)
    with Loopback(GOOD) as server:
        reward = HttpReward(server.url, key_env="SCORER_KEY")
        with pytest.raises(RewardError, match="SCORER_KEY, named by key_env, is not set"):
            reward.check()
        monkeypatch.setenv("SCORER_KEY", "secret-token\n")
        reward.check()
        assert asyncio.run(reward(["Q"], ["A"])) == [0.5]
    assert server.requests[0].headers["authorization"] == "Bearer secret-token"
    assert "secret-token" not in json.dumps([reward.describe(), repr(vars(reward))])


@pytest.mark.parametrize(
    "settings",
    [
        {"seconds": 0},
        {"seconds": math.nan},
        {"waits": [-1.0]},
        {"waits": [math.inf]},
        {"at_once": 0},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(RewardError, match=next(iter(settings))):
        HttpReward("http://127.0.0.1:9/", **settings)


@pytest.mark.parametrize("status", [200, 400])
def test_a_token_is_hidden_before_anything_is_cut_off(monkeypatch, status) -> None:
    """The token stands where the text that is shown ends."""
    monkeypatch.setenv("SCORER_KEY", "sekret-token-123456")
    body = b"x" * 190 + b"sekret-token-123456"
    with Loopback(reply(body, status)) as server:
        reward = HttpReward(server.url, key_env="SCORER_KEY", waits=[])
        results = run_rewards([reward], ["Q"], ["a"], [[1]], {})
    (said,) = results.errors["http_reward"].values()
    assert "sekret" not in said

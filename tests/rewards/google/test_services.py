from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sctom.rewards.base import RewardError
from sctom.rewards.google.autorater import AutoraterScorer
from sctom.rewards.google.cloud_run import CloudRunScorer
from sctom.rewards.google.code import CodeScorer
from sctom.rewards.google.outcome import Detail, Sample, ScoreError
from sctom.rewards.google.schema import Autorater, CloudRun, CodeExecution, ExactMatch, Parse
from sctom.rewards.judge import ChatEndpoint
from sctom.rewards.remote import RemoteError, Turns
from sctom.sandbox import CodeError, Limits, Sandbox, SandboxUnavailable

EXAMPLE = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [{"role": "user", "parts": [{"text": "2 + {{response}}?"}]}],
    "references": {"answer": "4"},
}
RESPONSE = {"role": "model", "parts": [{"text": "four"}]}
SAMPLE = Sample(EXAMPLE, RESPONSE, "four", 3)


def score(scorer, sample=SAMPLE):
    return asyncio.run(scorer.score(sample))


# --- autorater


class Fake:
    def __init__(self, *replies, wait=0.0):
        self.replies_ = list(replies)
        self.wait = wait
        self.asked = []

    async def replies(self, messages, count):
        self.asked.append((messages, count))
        await asyncio.sleep(self.wait)
        if isinstance(self.replies_[0], Exception):
            raise self.replies_[0]
        return self.replies_


ANSWER = Parse("<answer>(.*?)</answer>")
YES = ExactMatch("Yes", 1.0, -1.0, "exactMatchScorer.expression")


def autorater(judge, *, exact=None, parse=None, prompt="{{response}}?", seconds=5.0, count=None):
    count = count or len(judge.replies_)
    config = Autorater(prompt, count, parse or Parse(), exact, None, None, "autoraterPrompt")
    return AutoraterScorer(config, judge, seconds=seconds)


def test_the_mean_of_numbers_each_clipped():
    detail = score(autorater(Fake("0.5", " 3 \n", "-1e3", "0.1")))
    assert detail.reward == pytest.approx((0.5 + 1 - 1 + 0.1) / 4)
    assert detail.aux == "0.5\n---\n 3 \n\n---\n-1e3\n---\n0.1"


def test_the_mean_of_exact_matches():
    replies = ["Hm <answer>Yes</answer>", "<answer>No</answer>", "Yes", "<answer>yes</answer>"]
    assert score(autorater(Fake(*replies), exact=YES, parse=ANSWER)).reward == -0.5


def test_what_the_judge_is_asked():
    judge = Fake("1", "1")
    prompt = "{{system_instruction}}|{{prompt}}|{{response}}|{{references.answer}}"
    score(autorater(judge, prompt=prompt))
    content = "Be brief.|2 + {{response}}?|four|4"
    assert judge.asked == [([{"role": "user", "content": content}], 2)]


def test_several_turns_are_told_with_their_roles():
    turns = [{"parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "b"}]}]
    judge = Fake("1")
    score(autorater(judge, prompt="{{prompt}}"), Sample({"contents": turns}, RESPONSE, "four", 0))
    assert judge.asked[0][0][0]["content"] == "user: a\n\nmodel: b"


def test_placeholders_in_what_is_matched():
    exact = ExactMatch("{{references.answer}}", 1.0, 0.0, "exactMatchScorer.expression")
    assert score(autorater(Fake("4", "5"), exact=exact)).reward == 0.5


@pytest.mark.parametrize(
    ("judge", "said"),
    [
        (Fake("0.5", "good"), "reply 'good' is no number"),
        (Fake("nan"), "reply 'nan': the reward must be a finite number"),
        (Fake("1e999"), "reply '1e999': the reward must be a finite number"),
        (Fake("True"), "is no number"),
        (Fake(RemoteError("status 500")), "^status 500"),
        (Fake("1", wait=5.0), "did not answer within 0.2 s"),
    ],
)
def test_replies_that_cannot_be_used(judge, said):
    with pytest.raises(ScoreError, match=said):
        score(autorater(judge, seconds=0.2))


def test_no_match_is_an_error_where_a_number_is_wanted():
    with pytest.raises(ScoreError, match="matches nothing in the judge's reply") as caught:
        score(autorater(Fake("I like it: 1"), parse=ANSWER))
    assert caught.value.debug == "I like it: 1"


def test_too_few_replies():
    scorer = autorater(judge := Fake("1", "1"))
    judge.replies_.pop()
    with pytest.raises(ScoreError, match="gave 1 replies, 2 were asked for"):
        score(scorer)


def test_unknown_placeholders_and_references():
    with pytest.raises(RewardError, match=r"^autoraterPrompt: unknown placeholder \{\{answer\}\}"):
        autorater(Fake("1"), prompt="{{answer}}")
    wrong = ExactMatch("{{reference.x}}", 1.0, 0.0, "exactMatchScorer.expression")
    with pytest.raises(RewardError, match=r"^exactMatchScorer\.expression: unknown placeholder"):
        autorater(Fake("1"), exact=wrong)
    with pytest.raises(ScoreError, match="no reference 'anser'"):
        score(autorater(Fake("1"), prompt="{{references.anser}}"))


# --- HTTP


@contextmanager
def service(*answers):
    """A server that gives each answer once, the last one for ever: bytes, or a status."""
    requests, left = [], list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append(json.loads(body))
            answer = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(answer if isinstance(answer, int) else 200)
            content = b"" if isinstance(answer, int) else answer
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/score", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(*answers, waits=(0.0, 0.0)):
    with service(*answers) as (url, requests):
        scorer = CloudRunScorer(CloudRun(url, "cloudRunUri"), job_id=7, seconds=5.0, waits=waits)
        return score(scorer), requests


def test_what_a_service_is_sent_and_answers():
    detail, requests = ask(b'{"reward": 5, "user_requested_aux_info": "close", "other": {}}')
    assert detail == Detail(1.0, None, "close")
    metadata = {"step": 3, "tuningJobId": 7, "tuning_job_id": 7}
    assert requests == [{"example": EXAMPLE, "response": RESPONSE, "metadata": metadata}]


def test_a_busy_service_is_asked_again():
    detail, requests = ask(503, 429, b'{"reward": -0.5}')
    assert detail.reward == -0.5 and len(requests) == 3


@pytest.mark.parametrize(
    ("answer", "said", "tries"),
    [
        (500, "status 500, tried 3 times", 3),
        (404, "status 404", 1),
        (b"reward: 1", "what is not JSON", 1),
        (b'{"reward": NaN}', "NaN is not a JSON number", 1),
        (b'{"reward": 1e999}', "too large", 1),
        (b'{"reward": true}', "must be a finite number, but is bool", 1),
        (b'{"reward": "1"}', "must be a finite number, but is str", 1),
        (b'{"reward": null}', "must be a finite number, but is NoneType", 1),
        (b'{"rewards": 1}', "must answer", 1),
        (b"1", "must answer", 1),
        (b'{"reward": 1, "user_requested_aux_info": 5}', "must be a text", 1),
        (b'{"reward": 1' + b" " * 2_000_000 + b"}", "more than 1000000 bytes", 1),
    ],
)
def test_answers_of_a_service_that_cannot_be_used(answer, said, tries):
    with (
        service(answer) as (url, requests),
        pytest.raises(ScoreError, match=said),
    ):
        score(CloudRunScorer(CloudRun(url, "cloudRunUri"), job_id=0, waits=(0.0, 0.0)))
    assert len(requests) == tries


def test_an_autorater_behind_a_server():
    choices = [{"message": {"content": f"<answer>{a}</answer>"}} for a in ("Yes", "No", "Yes")]
    with service(503, json.dumps({"choices": choices}).encode()) as (url, requests):
        judge = ChatEndpoint(url, "m", waits=[0.0])
        scorer = autorater(judge, exact=YES, parse=ANSWER, count=3)
        assert score(scorer).reward == pytest.approx(1 / 3)
    assert len(requests) == 2 and requests[1]["n"] == 3
    assert requests[1]["messages"] == [{"role": "user", "content": "four?"}]


def test_an_address_that_is_none():
    with pytest.raises(RewardError, match=r"^scorer\.cloudRunUri: the address must be http"):
        CloudRunScorer(CloudRun("my-service", "scorer.cloudRunUri"), job_id=0)


# --- code


def code(source, *, sandbox=None, retries=0):
    config = CodeExecution(source, "pythonCodeSnippet")
    return CodeScorer(config, sandbox or Sandbox(), retries=retries, turns=Turns(2))


def returns(expression):
    return code(f"def evaluate(example, response):\n    return {expression}\n")


@pytest.mark.parametrize(
    ("expression", "reward"),
    [
        ("response['parts'][0]['text'] == 'four' and 0.25", 0.25),
        ("float(example['references']['answer']) - 3.5", 0.5),
        ("7", 1.0),
        ("-10**400", -1.0),
        ("__import__('numpy').float64(0.5)", 0.5),
    ],
)
def test_what_evaluate_returns(expression, reward):
    assert score(returns(expression)) == Detail(reward)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("float('nan')", "finite number, found float nan"),
        ("1e999", "finite number, found float inf"),
        ("True", "finite number, found bool True"),
        ("None", "finite number, found NoneType"),
        ("'1'", "finite number, found str"),
        ("object()", r"must return a number, found an object of class .*object; use float"),
        ("1 / 0", "evaluate: error: .*ZeroDivisionError"),
        ("__import__('os')._exit(0)", "evaluate: died"),
        ("open('/etc/hostname').read() and 1", "evaluate: error: "),
        ("bytearray(1 << 40) and 1", "evaluate: "),
    ],
)
def test_what_evaluate_must_not_do(expression, said):
    with pytest.raises(ScoreError, match=said):
        score(returns(expression))


def test_every_call_gets_a_fresh_interpreter():
    scorer = code("n = 0\ndef evaluate(a, b):\n    global n\n    n += 1\n    return n / 10\n")
    assert [score(scorer).reward for _ in range(2)] == [0.1, 0.1]


def test_code_that_is_too_slow_is_stopped():
    sandbox = Sandbox(limits=Limits(seconds=0.3))
    slow = code("def evaluate(a, b):\n    while True: pass\n", sandbox=sandbox, retries=1)
    started = time.monotonic()
    with pytest.raises(ScoreError, match=r"timeout.*tried 2 times"):
        score(slow)
    assert time.monotonic() - started < 10.0


class Flaky(Sandbox):
    """Fails so many times, then gives 0.5."""

    def __init__(self, *errors):
        super().__init__()
        self.errors = list(errors)
        self.opened = 0

    def open(self, source, *, limits=None):
        self.opened += 1
        if self.errors:
            raise self.errors.pop(0)
        return super().open(source)


SLOW = CodeError("timeout", "too slow")


def test_only_what_is_too_slow_is_tried_again():
    source = "def evaluate(a, b):\n    return 0.5\n"
    flaky = Flaky(SLOW, SLOW)
    assert score(code(source, sandbox=flaky, retries=3)).reward == 0.5 and flaky.opened == 3
    flaky = Flaky(SLOW, SLOW, SLOW)
    with pytest.raises(ScoreError, match="tried 3 times"):
        score(code(source, sandbox=flaky, retries=2))
    for error in (CodeError("error", "ValueError", "trace"), SandboxUnavailable("nothing works")):
        flaky = Flaky(error)
        with pytest.raises(ScoreError, match=r"ValueError|nothing works"):
            score(code(source, sandbox=flaky, retries=2))
        assert flaky.opened == 1


def test_code_that_cannot_be_executed_is_found_before_a_run():
    plain = Sandbox(libraries=False)
    with pytest.raises(RewardError, match=r"^pythonCodeSnippet: error: .*no_such_module"):
        code("import no_such_module\ndef evaluate(a, b): ...", sandbox=plain).check()
    with pytest.raises(RewardError, match=r"^pythonCodeSnippet: nothing works"):
        code("def evaluate(a, b): ...", sandbox=Flaky(SandboxUnavailable("nothing works"))).check()
    code("def evaluate(a, b): ...", sandbox=plain).check()

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sctom.readers import DataError
from sctom.rewards import RewardError, check_rewards, run_rewards
from sctom.rewards.google import Detail, GoogleReward, answer
from sctom.rewards.judge import ChatEndpoint
from sctom.rewards.remote import RemoteError
from sctom.sandbox import Sandbox

PROMPT = [{"role": "user", "content": "2 + 2?"}]
EXAMPLE = {
    "contents": [{"role": "user", "parts": [{"text": "2 + 2?"}]}],
    "references": {"answer": "4"},
}


def match(
    name="right", expression="{{references.answer}}", operation="EXACT_MATCH", right=1, wrong=-1
):
    expressed = {"matchOperation": operation, "expression": expression}
    return {
        "rewardName": name,
        "stringMatchRewardScorer": {
            "stringMatchExpression": expressed,
            "correctAnswerReward": right,
            "wrongAnswerReward": wrong,
        },
    }


def rater(name="judged", prompt="{{response}}"):
    scorer = {"autoraterPrompt": prompt, "parsedResponseConversionScorer": {}}
    return {
        "rewardName": name,
        "autoraterScorer": {**scorer, "autoraterConfig": {"autoraterModel": "m"}},
    }


def code(source, name="code"):
    return {"rewardName": name, "codeExecutionRewardScorer": {"pythonCodeSnippet": source}}


def composite(*entries):
    return {"weightedRewardConfigs": [{"rewardConfig": r, "weight": w} for r, w in entries]}


class Echo:
    """A judge that replies with what it is asked; "down" is an error."""

    def __init__(self):
        self.running = self.most = 0

    async def replies(self, messages, count):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        text = messages[0]["content"]
        if text == "down":
            raise RemoteError("the judge is down")
        return [text] * count


def run(reward, texts, prompts=None, state=None, **columns):
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    prompts = prompts or [PROMPT] * len(texts)
    ids = [[1]] * len(texts)
    return run_rewards([reward], prompts, completions, ids, columns, trainer_state=state)


REFERENCES = {"references": [{"answer": "4"}] * 3}


# --- totals


def test_the_total_is_a_weighted_mean():
    config = composite((match(), 3), (match("short", "^.{1,3}$", "REGEX_CONTAINS", 9, 0), 1))
    reward = GoogleReward(config)
    assert reward.score(EXAMPLE, "4") == (1.0, {"right": Detail(1.0), "short": Detail(1.0)})
    assert reward.score(EXAMPLE, "5")[0] == pytest.approx((3 * -1 + 1) / 4)
    assert reward.score(EXAMPLE, "four")[0] == pytest.approx(-3 / 4)
    content = {"role": "model", "parts": [{"text": "Hm", "thought": True}, {"text": "4"}]}
    assert reward.score(EXAMPLE, content)[0] == 1.0


REWARDS = st.floats(-10, 10)


@settings(max_examples=50)
@given(st.lists(st.tuples(REWARDS, st.floats(0, 1e308)), min_size=1, max_size=16))
def test_a_total_is_between_its_rewards(entries):
    if sum(weight for _, weight in entries) == 0:
        entries = [*entries[1:], (entries[0][0], 1.0)]
    wrong = [min(max(r, -1), 1) - 0.5 if r > 0 else 1 for r, _ in entries]
    singles = [
        (match(f"r{i}", "4", right=r, wrong=wrong[i]), w) for i, (r, w) in enumerate(entries)
    ]
    total, details = GoogleReward(composite(*singles)).score(EXAMPLE, "4")
    heard = [details[f"r{i}"].reward for i, (_, weight) in enumerate(entries) if weight > 0]
    assert -1 <= total <= 1
    assert min(heard) - 1e-9 <= total <= max(heard) + 1e-9
    clipped = [max(-1.0, min(1.0, r)) for r, _ in entries]
    assert [detail.reward for detail in details.values()] == clipped


def test_a_reward_without_weight_is_told_but_takes_no_part():
    reward = GoogleReward(composite((match(), 1), (rater(), 0)), judge=Echo())
    total, details = reward.score(EXAMPLE, "4")
    assert total == 1.0 and details["judged"].reward == 1.0
    assert reward.score(EXAMPLE, "down")[0] == -1.0


# --- in a run


def test_a_failing_reward_makes_the_sample_a_failure():
    reward = GoogleReward(composite((match(), 1), (rater(), 1)), judge=Echo())
    results = run(reward, ["4", "down", "0.5"], **REFERENCES)
    assert results.values["google_reward"] == [1.0, None, -0.25]
    assert results.errors["google_reward"] == {1: "judged: the judge is down"}
    assert results.extra["google_reward/right"] == [1.0, -1.0, -1.0]
    assert results.extra["google_reward/judged"] == [1.0, None, 0.5]
    assert results.extra["google_reward/judged/error"] == [None, "the judge is down", None]
    assert results.metrics["google_reward/judged"] == 0.75
    assert results.metrics["google_reward/judged/failed"] == pytest.approx(1 / 3)
    assert results.metrics["google_reward/right/failed"] == 0.0


@pytest.mark.parametrize(("policy", "value"), [("abstain", None), ("value", -1.0)])
def test_on_error(policy, value):
    error_value = -1.0 if policy == "value" else None
    reward = GoogleReward(rater(), judge=Echo(), on_error=policy, error_value=error_value)
    assert run(reward, ["good"]).values["google_reward"] == [value]
    with pytest.raises(RewardError, match="'good' is no number"):
        run(GoogleReward(rater(), judge=Echo(), on_error="raise"), ["good"])


def test_at_once():
    judge = Echo()
    run(GoogleReward(rater(), judge=judge, at_once=2), ["1"] * 8)
    assert judge.most == 2


def test_columns_become_references():
    expression = "{{references.answer}} {{references.known}} {{references.n}}"
    reward = GoogleReward(match(expression=expression), references=["answer", "known", "n"])
    columns = {"answer": ["4", "4", None], "known": [True] * 3, "n": [2, 2.5, 1]}
    results = run(reward, ["4 true 2", "4 true 2.5", "x"], **columns)
    assert results.values["google_reward"] == [1.0, 1.0, None]
    assert "no reference 'answer'" in results.errors["google_reward"][2]
    check_rewards([reward], ["answer", "known", "n", "other"])
    with pytest.raises(RewardError, match="needs the column 'known'"):
        check_rewards([reward], ["answer", "n"])


def test_references_that_no_column_gives_are_found_before_a_run():
    with pytest.raises(RewardError, match=r"\{\{references.answer\}\} .* names only \['anser'\]"):
        GoogleReward(match(), references=["anser"])
    with pytest.raises(RewardError, match="needs the column 'references'"):
        check_rewards([GoogleReward(match())], ["answer"])
    check_rewards([GoogleReward(match(expression="4"))], ["answer"])


def test_the_example_of_a_row_is_what_scores_see():
    source = "def evaluate(example, response):\n    return len(str(sorted(example))) / 100\n"
    reward = GoogleReward(code(source), sandbox=Sandbox(libraries=False))
    line = {**EXAMPLE, "system_instruction": {"parts": [{"text": "x"}]}}
    sees = [["contents"], ["contents", "references", "systemInstruction"]]
    results = run(reward, ["4", "4"], example=[None, line])
    assert results.values["google_reward"] == [len(str(keys)) / 100 for keys in sees]


def test_a_row_of_another_form_is_a_failure():
    results = run(GoogleReward(match()), ["4", "4"], references=[{"answer": 4}, {"answer": "4"}])
    assert results.values["google_reward"] == [None, 1.0]
    assert "references hold strings only" in results.errors["google_reward"][0]


def test_a_service_is_told_the_step(monkeypatch):
    sent = []

    async def post(url, body, **settings):
        sent.append(body)
        return {"reward": 0.25}

    monkeypatch.setattr("sctom.rewards.service.post_json", post)
    config = {"rewardName": "s", "cloudRunRewardScorer": {"cloudRunUri": "https://a.example"}}
    results = run(GoogleReward(config, job_id=9), ["4"], state=SimpleNamespace(global_step=12))
    assert results.values["google_reward"] == [0.25]
    assert sent[0]["metadata"] == {"step": 12, "tuningJobId": 9, "tuning_job_id": 9}


def test_what_was_parsed_is_what_scores_see():
    source = (
        "def evaluate(example, response):\n    return float(response['parts'][0]['text'] or -1)"
    )
    parse = {"parseType": "REGEX_EXTRACT", "regexExtractExpression": "<a>(.*?)</a>"}
    config = {**code(source), "parseResponseConfig": parse}
    reward = GoogleReward(config, sandbox=Sandbox(libraries=False))
    texts = ["<a>1</a> or <a>0.5</a>", "0.5"]
    assert run(reward, texts).values["google_reward"] == [0.5, -1.0]


# --- settings


def test_check_and_describe():
    source = "def evaluate(example, response):\n    return 1.0\n"
    service = {
        "rewardName": "s",
        "cloudRunRewardScorer": {"cloudRunUri": "https://a.example/x?k=1"},
    }
    config = composite((match(), 2), (rater(), 1), (code(source), 1), (service, 1))
    reward = GoogleReward(config, judge=Echo(), sandbox=Sandbox(libraries=False), name="g")
    reward.check()
    lines = reward.describe()
    assert lines[0] == "g/right: weight 2, EXACT_MATCH with '{{references.answer}}'"
    unused = "(not used: autoraterModel; the judge has settings of its own)"
    assert lines[1] == f"g/judged: weight 1, 4 replies of the judge {unused}"
    assert re.match(r"g/code: weight 1, code runs in the sandbox .*; 100 s, 1024 MiB", lines[2])
    assert lines[3] == "g/s: weight 1, asks https://a.example/x"


def test_what_cannot_work_is_found_before_a_run(monkeypatch):
    with pytest.raises(RewardError, match=r"weightedRewardConfigs\[0\].*needs a judge"):
        GoogleReward(composite((rater(), 1)))
    broken = "import no_such_module\ndef evaluate(a, b): ...\n"
    with pytest.raises(RewardError, match=r"codeExecutionRewardScorer.pythonCodeSnippet: error"):
        GoogleReward(code(broken), sandbox=Sandbox(libraries=False)).check()
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    judge = ChatEndpoint("http://127.0.0.1:1/v1", "m", key_env="JUDGE_KEY")
    with pytest.raises(RewardError, match="JUDGE_KEY"):
        GoogleReward(rater(), judge=judge).check()
    for wrong in ({"retries": -1}, {"at_once": 0}, {"judge_seconds": 0.0}):
        with pytest.raises(RewardError, match=next(iter(wrong))):
            GoogleReward(match(), **wrong)


# --- the service's method


def request(config, text="4", **changes):
    response = {"role": "model", "parts": [{"text": text}]}
    kind = "compositeRewardConfig" if "weightedRewardConfigs" in config else "singleRewardConfig"
    return {"sampleResponse": response, "example": EXAMPLE, kind: config, **changes}


def test_an_answer_in_the_shape_of_the_service():
    config = composite((match(), 1), (rater(), 3))
    answered = answer(request(config, text="0.5"), judge=Echo())
    assert answered["overallReward"] == pytest.approx((-1 + 3 * 0.5) / 4)
    assert answered["rewardInfoDetails"]["right"] == {"reward": -1.0}
    judged = answered["rewardInfoDetails"]["judged"]
    assert judged["reward"] == 0.5 and judged["userRequestedAuxInfo"].startswith("0.5\n---\n")
    assert set(answered) == {"overallReward", "rewardInfoDetails"}
    json.dumps(answered, allow_nan=False)


def test_a_failed_reward_in_the_shape_of_the_service():
    answered = answer(request(composite((match(), 1), (rater(), 1)), text="down"), judge=Echo())
    status = {"code": 13, "message": "the judge is down", "details": []}
    assert answered["rewardInfoDetails"] == {
        "right": {"reward": -1.0},
        "judged": {"errorStatus": status},
    }
    assert answered["errorStatus"] == {
        "code": 13,
        "message": "no reward, because of: judged",
        "details": [],
    }
    assert "overallReward" not in answered


def test_what_the_code_printed_is_debug_information():
    source = (
        "import sys\ndef evaluate(a, b):\n    print('seen', file=sys.stderr)\n    return 1 / 0\n"
    )
    answered = answer(request(code(source)), sandbox=Sandbox(libraries=False))
    info = answered["rewardInfoDetails"]["code"]
    assert "ZeroDivisionError" in info["errorStatus"]["message"]
    assert "seen" in info["userRequestedAuxInfo"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sampleResponse": {"parts": []}}, "sampleResponse.parts must be a list"),
        ({"sampleResponse": None}, "sampleResponse must be an object"),
        ({"example": {"contents": []}}, "example: contents must be a list"),
        ({"compositeRewardConfig": {}}, "expected exactly one of"),
        ({"reward": 1}, "reward: unknown field"),
        ({"singleRewardConfig": {}}, "singleRewardConfig: expected exactly one of"),
        ({"singleRewardConfig": rater()}, "singleRewardConfig.autoraterScorer.*needs a judge"),
        ({"singleRewardConfig": code("x =")}, "pythonCodeSnippet: is not Python"),
    ],
)
def test_a_wrong_request_is_an_invalid_argument(changed, said):
    answered = answer(request(match(), **changed))
    assert set(answered) == {"errorStatus"} and answered["errorStatus"]["code"] == 3
    assert re.search(said, answered["errorStatus"]["message"])


def test_a_request_in_snake_case():
    config = {"single_reward_config": match(), "sample_response": {"parts": [{"text": "4"}]}}
    assert answer({"example": EXAMPLE, **config})["overallReward"] == 1.0


def test_score_refuses_other_forms():
    with pytest.raises(DataError, match="example: contents"):
        GoogleReward(match()).score({"contents": []}, "4")
    with pytest.raises(DataError, match="response"):
        GoogleReward(match()).score(EXAMPLE, {"text": "4"})

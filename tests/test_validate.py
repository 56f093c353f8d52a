from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sctom import validate
from sctom.rewards.preflight.findings import CODES

ROOT = Path(__file__).parents[1]


@pytest.fixture
def check(tmp_path, tiny_model, tiny_prompts, monkeypatch, capsys):
    """Runs the command line in process: exit status, {code: (level, message)}, and what it said."""
    (tmp_path / "modules").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))

    def run(source: str, *options: str, rewards=None, model=None, data=None):
        name = f"planted_{tmp_path.name}_{len(list(tmp_path.glob('*.yaml')))}".replace("-", "_")
        (tmp_path / "modules" / f"{name}.py").write_text(source)
        given = rewards or [{"class_path": "FunctionReward", "init_args": {"path": "MODULE.f"}}]
        config = {
            "run_dir": str(tmp_path / "run"),
            "model": {
                "class_path": "PolicyModule",
                "init_args": {
                    "backbone": {"class_path": "Backbone", "init_args": {"path": str(tiny_model)}},
                    "objective": {"class_path": "GRPO"},
                    "rewards": json.loads(json.dumps(given).replace("MODULE", name)),
                    "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.01}},
                    "group_size": 4,
                    "sampling": {"max_new_tokens": 6},
                    **(model or {}),
                },
            },
            "data": {
                "class_path": "PromptData",
                "init_args": {
                    "train": str(tiny_prompts),
                    "prompts_per_iteration": 3,
                    "iterations": 2,
                    **(data or {}),
                },
            },
            "trainer": {"accelerator": "cpu"},
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        outcome = tmp_path / "outcome.json"
        outcome.unlink(missing_ok=True)
        words = ["validate", "--config", str(path), "--json", str(outcome), *options]
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as leaving:
            validate.main()
        told = capsys.readouterr()
        found = {}
        if outcome.exists():
            content = json.loads(outcome.read_text())
            found = {f["code"]: (f["level"], f["message"]) for f in content["findings"]}
            assert content["status"] == leaving.value.code
        return leaving.value.code, found, re.sub(r"\s+", " ", told.out + told.err)

    return run


RIGHT = "float(a.lower() in c[-1]['content'])"
OF_TEXT = (
    "import math\ndef f(completions, answer):\n"
    "    return [{} for c, a in zip(completions, answer)]\n"
)


def function(**arguments) -> dict:
    return {"class_path": "FunctionReward", "init_args": {"path": "MODULE.f", **arguments}}


def class_reward(**arguments) -> dict:
    return {"class_path": "MODULE.R", "init_args": arguments}


def test_a_sound_reward_passes(check):
    status, found, said = check(OF_TEXT.format(RIGHT))
    assert (status, found) == (0, {})
    assert "nothing found: a run can start" in said


def test_the_quickstart_passes(monkeypatch, capsys):
    words = ["validate", "--config", str(ROOT / "configs" / "quickstart.yaml"), "--rows", "8"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as leaving:
        validate.main()
    assert leaving.value.code == 0
    assert "1 warning: a run can start" in capsys.readouterr().out


PLANTED = {
    # name: (source, code, level, rewards)
    "constant": (OF_TEXT.format("0.5"), "constant", "failure", None),
    "always zero": (
        OF_TEXT.format("float('ANSWER:' in c[-1]['content'])"),
        "constant",
        "failure",
        None,
    ),
    "nan": (OF_TEXT.format("math.nan"), "not-finite", "failure", None),
    "infinity": (
        OF_TEXT.format("math.inf if c[-1]['content'] else 0.0"),
        "not-finite",
        "failure",
        None,
    ),
    "text": (OF_TEXT.format("'1.0'"), "not-finite", "failure", None),
    "one value too few": (
        "def f(completions):\n    return [float(len(completions))] * (len(completions) - 1)\n",
        "wrong-count",
        "failure",
        None,
    ),
    "a single number": ("def f(completions):\n    return 1.0\n", "wrong-count", "failure", None),
    "raises": (
        OF_TEXT.format("float(c[-1]['content'].split()[0] == a)"),
        "raises",
        "failure",
        None,
    ),
    "raises, abstaining": (
        OF_TEXT.format("float(c[-1]['content'].split()[0] == a)"),
        "raises",
        "warning",
        [function(on_error="abstain")],
    ),
    "always raises, abstaining": (
        OF_TEXT.format("1 / 0"),
        "raises",
        "failure",
        [function(on_error="abstain")],
    ),
    "abstains on everything": (OF_TEXT.format("None"), "abstains", "failure", None),
    "abstains on most": (
        OF_TEXT.format("1.0 if c[-1]['content'] == a else 0.0 if not c[-1]['content'] else None"),
        "abstains",
        "warning",
        None,
    ),
    "hangs": (
        "import time\ndef f(completions):\n    time.sleep(30)\n",
        "hangs",
        "failure",
        None,
    ),
    "hangs, async": (
        "import asyncio\nasync def f(completions):\n    await asyncio.sleep(30)\n",
        "hangs",
        "failure",
        None,
    ),
    "random, cached": (
        "import random\ndef f(completions):\n    return [random.random() for c in completions]\n",
        "random",
        "warning",
        [function(cache=100)],
    ),
    "ranks, cached": (
        "def f(completions):\n"
        "    texts = sorted(c[-1]['content'] for c in completions)\n"
        "    return [texts.index(c[-1]['content']) for c in completions]\n",
        "batch-dependent",
        "failure",
        [function(cache=100)],
    ),
    "far too large": (OF_TEXT.format(f"1000 * {RIGHT}"), "scale", "warning", None),
    "one drowns the other": (
        OF_TEXT.format(RIGHT),
        "drowned",
        "warning",
        [function(weight=50.0), function(weight=1.0, name="quiet")],
    ),
    "counts tokens": (
        "def f(completion_ids):\n    return [len(ids) / 10 for ids in completion_ids]\n",
        "length-only",
        "warning",
        None,
    ),
    "pays for the copied question": (
        "def f(prompts, completions, **columns):\n"
        "    pairs = zip(prompts, completions)\n"
        "    return [float(p[-1]['content'] in c[-1]['content']) for p, c in pairs]\n",
        "no-incentive",
        "warning",
        None,
    ),
    "its check fails": (
        "from sctom.rewards import Reward, RewardError\n"
        "class R(Reward):\n"
        "    def __init__(self, weight: float = 1.0):\n"
        "        super().__init__(weight=weight)\n"
        "    def __call__(self, completions):\n        raise AssertionError('never called')\n"
        "    def check(self):\n        raise RewardError('no sandbox works here')\n",
        "check",
        "failure",
        [class_reward()],
    ),
}


@pytest.fixture(scope="session")
def tagged_prompts(tmp_path_factory, tiny_prompts) -> Path:
    """Prompts with a column of lists."""
    path = tmp_path_factory.mktemp("tagged") / "prompts.jsonl"
    rows = [json.loads(line) for line in tiny_prompts.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "tags": ["a"]}) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(check, tagged_prompts, name):
    source, code, level, rewards = PLANTED[name]
    data = {"train": str(tagged_prompts)}
    status, found, said = check(source, "--seconds", "0.5", rewards=rewards, data=data)
    assert found[code][0] == level
    assert status == int("failure" in {entry[0] for entry in found.values()})
    assert f"{level}: {code}: " in said


HALF = (
    "def f(completions):\n"
    "    if len(completions) > 1 or not completions[0][-1]['content']:\n"
    "        raise ValueError('empty')\n"
    "    return [0.0]\n"
)


def test_an_error_hides_no_other_finding(check):
    status, found, said = check(HALF, rewards=[function(on_error="abstain")])
    assert {"raises", "constant"} <= found.keys() and "ValueError: empty" in said
    assert "mend what it says, or these rows" in said
    assert status == int(found["constant"][0] == "failure")


def test_a_value_for_errors_is_what_a_run_sees(check, tmp_path):
    report = tmp_path / "report.json"
    settings = function(on_error="value", error_value=-1.0)
    _, found, _ = check(HALF, "--json", str(report), rewards=[settings])
    table = json.loads(report.read_text())["rewards"]["f"]
    assert (table["low"], table["high"], table["abstained"]) == (-1.0, 0.0, 0)
    assert "constant" not in found


@pytest.mark.parametrize(
    ("source", "rewards", "message"),
    [
        (
            "def f(completions, solution):\n    return [1.0]\n",
            None,
            "needs the column 'solution', which the data does not have",
        ),
        (OF_TEXT.format(RIGHT), [function(), function()], "two rewards are named 'f'"),
        (OF_TEXT.format(RIGHT), [function(wieght=2.0)], "did you mean 'weight'?"),
        (OF_TEXT.format(RIGHT), [function(weight=0.0)], "every reward has weight 0"),
    ],
)
def test_a_bad_config_leaves_with_2(check, source, rewards, message):
    status, found, said = check(source, rewards=rewards)
    assert (status, found) == (2, {})
    assert message in said


def responses(path: Path, groups: list[list[str]]) -> str:
    path.write_text("".join(json.dumps({"completions": group}) + "\n" for group in groups))
    return str(path)


def test_groups_without_variance(check, tmp_path):
    file = responses(tmp_path / "r.jsonl", [["red", "red"], ["green"] * 2])
    status, found, _ = check(OF_TEXT.format(RIGHT), "--responses", file)
    assert status == 1
    assert found["no-variance"][0] == "failure"
    assert "in 2 of 2 groups no completion is better than another" in found["no-variance"][1]


def test_almost_always_right(check, tmp_path):
    # 5 groups of 8: 39 of 40 completions are right, and 1 of 5 groups has a signal
    words = ["red", "green", "i don't know .", "red", "green"]
    groups = [[word] * 8 for word in words]
    groups[0][3] = "blue"
    file = responses(tmp_path / "r.jsonl", groups)
    status, found, _ = check(OF_TEXT.format(RIGHT), "--responses", file)
    assert (status, set(found)) == (0, {"nearly-constant", "no-variance"})
    assert "it is 1 for 98% of 40 completions" in found["nearly-constant"][1]
    assert found["no-variance"][0] == "warning"
    assert check(OF_TEXT.format(RIGHT), "--responses", file, "--strict")[0] == 1
    ignored = ["--ignore", "nearly-constant", "no-variance"]
    assert check(OF_TEXT.format(RIGHT), "--responses", file, "--strict", *ignored)[:2] == (0, {})


def test_responses_by_index(check, tmp_path):
    file = tmp_path / "r.jsonl"  # row 1 is green, row 0 red
    lines = [{"index": 1, "completion": "green"}, {"index": 0, "completion": "green"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcome = tmp_path / "outcome.json"
    check(OF_TEXT.format(RIGHT), "--responses", str(file))
    assert json.loads(outcome.read_text())["rewards"]["f"]["mean"] == 0.5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"index": 12, "completion": ""}, "must be from 0 to 11, found 12"),
        ({"completion": "", "completions": []}, "expected either completion or completions"),
        ({"completions": "red"}, "completions must be a list of texts"),
        ({"completion": "red", "indx": 3}, "'indx' is not known"),
    ],
)
def test_bad_responses_leave_with_2(check, tmp_path, line, message):
    file = tmp_path / "r.jsonl"
    file.write_text(json.dumps(line) + "\n")
    status, _, said = check(OF_TEXT.format(RIGHT), "--responses", str(file))
    assert status == 2
    assert f"{file}:1: " in said and message in said


def test_sampled_completions(check):
    source = "def f(completion_ids):\n    return [float(3 in ids) for ids in completion_ids]\n"
    model = {"sampling": {"max_new_tokens": 1}}
    status, found, said = check(source, "--sample", "--rows", "4", model=model)
    assert "4 prompts with 4 sampled completions each" in said
    assert found["truncated"][0] == "warning"
    assert status == int("failure" in {entry[0] for entry in found.values()})


def test_the_template_opened_the_block(check, tmp_path, tiny_model, monkeypatch):
    source = (
        "def f(completions):\n"
        "    return [float(c[-1]['content'].startswith('<think>') and 'so' in c[-1]['content'])"
        " for c in completions]\n"
    )
    monkeypatch.setattr(validate, "_opened", lambda prompt: "<think>")
    _, found, _ = check(source)
    assert "the chat template has opened <think> already" in found["constant"][1]


GOLDEN = {"prompt": "what is red ?", "answer": "red", "completion": "red"}


@pytest.mark.parametrize(
    ("sample", "status"),
    [
        ({"expected": 1.0}, 0),
        ({"expected": [0.5, 1.5]}, 0),
        ({"expected": {"f": 1, "total": [1, 1]}}, 0),
        ({"expected": 0.0}, 1),
        ({"expected": {"f": None}}, 1),
        ({"completion": "blue", "expected": {"f": [0.1, 1]}}, 1),
    ],
)
def test_golden_samples(check, tmp_path, sample, status):
    file = tmp_path / "golden.jsonl"
    file.write_text(json.dumps(GOLDEN | sample) + "\n")
    found_status, found, _ = check(OF_TEXT.format(RIGHT), "--golden", str(file))
    assert found_status == status
    assert set(found) == ({"golden"} if status else set())
    if status:
        assert str(file) in found["golden"][1]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({}, "needs 'expected'"),
        ({"expected": "high"}, "expected must be a number"),
        ({"expected": [2, 1]}, "expected must be a number"),
        ({"expected": {"g": 1}}, "there is no reward 'g'"),
    ],
)
def test_bad_golden_samples_leave_with_2(check, tmp_path, sample, message):
    file = tmp_path / "golden.jsonl"
    file.write_text(json.dumps(GOLDEN | sample) + "\n")
    status, _, said = check(OF_TEXT.format(RIGHT), "--golden", str(file))
    assert status == 2 and message in said


def test_a_golden_sample_without_a_column_leaves_with_2(check, tmp_path):
    file = tmp_path / "golden.jsonl"
    file.write_text(json.dumps({"prompt": "red ?", "completion": "red", "expected": 1}) + "\n")
    status, _, said = check(OF_TEXT.format(RIGHT), "--golden", str(file))
    assert status == 2 and f"{file}:1: reward 'f' needs the column 'answer'" in said


def rows(path: Path, answers: list[str], **columns) -> dict:
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"what is one {'?' * i}"},
                {"role": "assistant", "content": answer},
            ],
            **{name: values[i] for name, values in columns.items()},
        }
        for i, answer in enumerate(answers)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"train": str(path)}


def test_empty_answers(check, tmp_path):
    data = rows(tmp_path / "d.jsonl", ["red", " ", "green", ""])
    status, found, _ = check(OF_TEXT.format(RIGHT), data=data)
    assert status == 0
    assert "answer is empty in 2 of 4 rows (first: row 2)" in found["empty-gold"][1]


def test_guessing_pays(check, tmp_path):
    data = rows(tmp_path / "d.jsonl", ["red"] * 39 + ["I don't know."])
    rewards = [{"class_path": "SelfAware"}]
    status, found, _ = check("", rewards=rewards, data={**data, "columns": "selfaware"})
    assert status == 0
    assert "guessing pays above a chance of" in found["advice"][1]


def test_labels_that_leak(check, tmp_path):
    answers = ["red", "nobody knows", "I don't know."]
    data = rows(tmp_path / "d.jsonl", answers, answerable=[True, False, False])
    rewards = [{"class_path": "SelfAware"}]
    status, found, _ = check("", rewards=rewards, data={**data, "columns": "selfaware"})
    assert status == 0
    assert found["label-leak"][1].startswith("label leak: in 1 of 3 rows")


def test_an_error_comes_with_its_sample(check, tmp_path):
    source = OF_TEXT.format("1.0 if c[-1]['content'] else float(a)")
    status, found, _ = check(source)
    assert status == 1
    example = json.loads((tmp_path / "outcome.json").read_text())["rewards"]["f"]["examples"][0]
    assert example["completion"] == "" and "could not convert string to float" in example["error"]
    assert "for 12 of 84 completions" in found["raises"][1]


def test_a_google_request(tmp_path, monkeypatch, capsys):
    config = {
        "rewardName": "match",
        "stringMatchRewardScorer": {
            "correctAnswerReward": 1.0,
            "wrongAnswerReward": -1.0,
            "stringMatchExpression": {
                "matchOperation": "EXACT_MATCH",
                "expression": "{{references.answer}}",
            },
        },
    }
    request = {
        "sampleResponse": {"role": "model", "parts": [{"text": "Paris"}]},
        "example": {
            "contents": [{"role": "user", "parts": [{"text": "Capital of France?"}]}],
            "references": {"answer": "Paris"},
        },
        "singleRewardConfig": config,
    }
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request))
    monkeypatch.setattr(sys, "argv", ["validate", "--google-request", str(file)])
    with pytest.raises(SystemExit) as leaving:
        validate.main()
    assert leaving.value.code == 0
    assert json.loads(capsys.readouterr().out)["overallReward"] == 1.0


def test_a_call_that_holds_the_interpreter(tmp_path):
    """No thread can tell of it; the process ends itself, and names the line."""
    (tmp_path / "stuck.py").write_text(
        "def f(completions):\n    return [9**9**9 for _ in completions]\n"
    )
    words = ["--config", str(ROOT / "configs" / "tiny" / "grpo.yaml"), "--seconds", "0.3"]
    rewards = '[{"class_path": "FunctionReward", "init_args": {"path": "stuck.f"}}]'
    words += [f"--model.rewards={rewards}"]
    done = subprocess.run(
        [sys.executable, "-m", "sctom.validate", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert 'stuck.py", line 2 in f' in done.stderr


def test_every_code_is_planted_or_tested():
    planted = {code for _, code, _, _ in PLANTED.values()}
    source = Path(__file__).read_text()
    assert not [code for code in CODES if code not in planted and f'"{code}"' not in source]

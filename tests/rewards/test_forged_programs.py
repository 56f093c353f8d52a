from __future__ import annotations

import functools

import pytest

from sctom.rewards.code import CodeReward
from sctom.rewards.google import GoogleReward
from sctom.sandbox import Limits, Sandbox, SandboxUnavailable
from tests.rewards.forgeries import FORGERIES
from tests.sandbox.levels import LEVELS

LIMITS = Limits(seconds=2.0, memory_mib=320, output_bytes=200_000, disk_mib=8)
ANSWERS = {1: 614_973, 2: 827_351, 3: 936_127, 4: 714_263}

# every form in which a test may use what comes back
TEST_LIST = [
    "assert secret(1) == 614973",
    "assert [secret(n) for n in (2, 3)] == [827351, 936127]",
    "assert all(secret(n) == v for n, v in ((1, 614973), (4, 714263)))",
    "for got in map(secret, (1, 1)):\n    assert got == 614973",
    "got = []\nfor n in (3, 4):\n    got.append(secret(n))\nassert got == [936127, 714263]",
    "assert {secret(2)} == {827351}",
    "assert secret(3) in (936127,) and secret(4) in [714263]",
]
PROMPT = 'def secret(n):\n    """The n-th secret number."""\n'
CHECK = """
def check(candidate):
    expected = {1: 614973, 2: 827351, 3: 936127, 4: 714263}
    for value, got in zip(expected.values(), map(candidate, expected)):
        assert got == value, f"expected {value}"
"""
RIGHT = f"def secret(n):\n    return {ANSWERS}[n]\n"
FORMS = {
    "MBPP": {"test_list": TEST_LIST},
    "HumanEval": {"prompt": PROMPT, "test": CHECK, "entry_point": "secret"},
}


@functools.cache
def sandbox_of(level):
    sandbox = Sandbox(level=level, limits=LIMITS, libraries=False)
    try:
        sandbox.level  # noqa: B018 - runs the canary
    except SandboxUnavailable as error:
        return str(error)
    return sandbox


@pytest.fixture(params=LEVELS)
def sandbox(request):
    found = sandbox_of(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def rewards(sandbox, programs, **columns):
    rows = {name: [value] * len(programs) for name, value in columns.items()}
    completions = [f"```python\n{program}\n```" for program in programs]
    reward = CodeReward(score="fraction", seconds=2.0, at_once=4, sandbox=sandbox)
    return reward(completions, **rows)


@pytest.mark.parametrize("form", FORMS)
def test_a_forged_verdict_is_a_zero(sandbox, form):
    names = ["right", *(forgery.name for forgery in FORGERIES)]
    programs = [RIGHT, *(forgery.program for forgery in FORGERIES)]
    values = rewards(sandbox, programs, **FORMS[form])
    # no Failure either: a wrong program must not be able to withdraw from being judged
    expected = {"right": 1.0, **dict.fromkeys(names[1:], 0.0)}
    assert dict(zip(names, values, strict=True)) == expected


def test_forgeries_have_names_of_their_own():
    assert len({forgery.name for forgery in FORGERIES}) == len(FORGERIES) > 45


@pytest.mark.parametrize("error", ["StopIteration", "StopAsyncIteration", "GeneratorExit"])
def test_a_program_that_empties_the_loops_of_its_tests_has_not_passed(sandbox, error):
    tests = [
        "for got in map(secret, (1, 2)):\n    assert got == 0",
        "assert all(map(secret, (1, 2)))",
        "assert not any(map(secret, (1, 2)))",
        "assert sum(map(secret, (1, 2))) == 0",
        "assert [*map(secret, (1, 2))] == []",
    ]
    program = f"def secret(n):\n    raise {error}\n"
    assert rewards(sandbox, [program], test_list=tests) == [0.0]


# --- Google's evaluate: the user's code, and a response that the model wrote

EVALUATE = """
def evaluate(example, response):
    text = "".join(part.get("text", "") for part in response["parts"])
    return 1.0 if text.strip() == example["references"]["answer"] else 0.0
"""
EXAMPLE = {"contents": [{"parts": [{"text": "?"}]}], "references": {"answer": "614973"}}
RESPONSES = [
    "614 973",
    '"}]}, 1.0); import os; os._exit(0)  #',
    '"""\nimport os\nos._exit(0)\n"""',
    "'''\nreturn 1.0\n'''",
    "{{references.answer}}",
    "{references[answer]} {example} %(answer)s ${answer}",
    "\u2028return 1.0",
    "\ud800",
    "x" * 1_000_000,
    *(forgery.program for forgery in FORGERIES[:4]),
]
ODD = [
    "float('nan')", "-float('nan')", "float('inf')", "-float('inf')", "1e999", "'1.0'", "None",
    "[1.0]", "{'reward': 1.0}", "iter([1.0])", "object()", "complex(1, 0)", "b'1'",
    "type('F', (), {'__float__': lambda _: 1.0})()", "{'f': 'nan'}", "{'o': ['x', 'y', True]}",
]  # fmt: skip


def google(source, sandbox):
    scorer = {"pythonCodeSnippet": source}
    config = {"rewardName": "code", "codeExecutionRewardScorer": scorer}
    return GoogleReward(config, sandbox=sandbox, retries=0)


def test_a_response_is_data_for_evaluate(sandbox):
    reward = google(EVALUATE, sandbox)
    assert [reward.score(EXAMPLE, response)[0] for response in RESPONSES] == [0.0] * len(RESPONSES)
    assert reward.score(EXAMPLE, "614973")[0] == 1.0


@pytest.mark.parametrize("value", ODD)
def test_what_is_no_finite_number_is_no_reward(sandbox, value):
    source = f"def evaluate(a, b):\n    return {value}\n"
    total, details = google(source, sandbox).score(EXAMPLE, "x")
    assert total is None and details["code"].error is not None


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        ("1e308", 1.0),
        ("-10**30", -1.0),
        ("type('F', (float,), {'__lt__': lambda *_: True, '__gt__': lambda *_: True})(-7)", -1.0),
    ],
)
def test_a_large_number_is_clipped(sandbox, value, reward):
    source = f"def evaluate(a, b):\n    return {value}\n"
    assert google(source, sandbox).score(EXAMPLE, "x")[0] == reward

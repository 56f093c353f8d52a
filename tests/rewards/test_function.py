from __future__ import annotations

import re

import pytest

from sctom.rewards import FunctionReward, RewardError, SelfAware, run_rewards

SOURCE = """
import functools

LIMIT = 3


def length_reward(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def get_scaled_reward(scale, offset=0.0):
    def scaled_reward(completions, **kwargs):
        return [scale * len(completion) + offset for completion in completions]

    return scaled_reward


def get_number(value):
    return value


class Object:
    def __init__(self, value):
        self.value = value

    def __call__(self, completions):
        return [self.value] * len(completions)


def __getattr__(name):
    if name == "lazy_reward":
        return length_reward
    raise AttributeError(name)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(SOURCE)
    (tmp_path / "my_broken.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)


def values(reward):
    return run_rewards([reward], ["p"] * 2, ["a", "bb"], [[1], [1]], {}).values[reward.name]


@pytest.mark.parametrize("path", ["my_rewards.length_reward", "my_rewards:length_reward"])
def test_a_dotted_path(path):
    reward = FunctionReward(path, weight=0.5)
    assert (reward.name, reward.weight) == ("length_reward", 0.5)
    assert values(reward) == [1.0, 2.0]


def test_an_attribute_that_a_module_makes_on_demand():
    assert values(FunctionReward("my_rewards.lazy_reward")) == [1.0, 2.0]


def test_a_factory_with_arguments():
    reward = FunctionReward("my_rewards.get_scaled_reward", arguments={"scale": 3}, name="tripled")
    assert reward.name == "tripled"
    assert values(reward) == [3.0, 6.0]


def test_a_class_with_arguments():
    assert values(FunctionReward("my_rewards.Object", arguments={"value": 2.0})) == [2.0, 2.0]


def test_a_function_itself_and_an_object():
    assert FunctionReward(values).name == "values"
    assert FunctionReward(SelfAware()).name == "SelfAware"


@pytest.mark.parametrize(
    ("path", "arguments", "reason"),
    [
        ("length_reward", None, "expected 'package.module.function' or 'package.module:function'"),
        ("my_rewards.", None, "cannot find a reward function at 'my_rewards.'"),
        ("my_rewards.lenght_reward", None, "Did you mean 'length_reward'?"),
        ("my_rewards.zzz", None, "has no 'zzz'. It has: LIMIT, Object, functools, get_number"),
        ("my_reward.length_reward", None, "there is no module named 'my_reward'; start from"),
        ("my_reward.length_reward", None, "that folder to PYTHONPATH, or install its package"),
        ("my_broken.reward", None, "importing my_broken failed: No module named 'no_such_depend"),
        ("my_rewards.LIMIT", None, "must give a function but gives 3"),
        ("my_rewards.LIMIT", {}, "has `arguments`, so must be a function; found 3"),
        ("my_rewards.get_number", {"value": 3}, "must give a function but gives 3"),
        ("my_rewards.get_scaled_reward", {"scal": 3}, "(scale, offset=0.0) does not take these"),
        ("my_rewards.Object", None, "is a class, not a function; to make an object of it give"),
        ("sctom.rewards.SelfAware", None, "it is a Reward already, so name it as the class_path"),
    ],
)
def test_errors(path, arguments, reason):
    with pytest.raises(RewardError, match=re.escape(reason)):
        FunctionReward(path, arguments=arguments)

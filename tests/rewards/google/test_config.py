from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from sctom.rewards.base import RewardError
from sctom.rewards.google import read_config
from sctom.rewards.google.schema import Autorater, CloudRun, CodeExecution, StringMatch

CONFIGS = Path(__file__).parents[3] / "configs" / "google"
CODE = "def evaluate(example, response):\n    return 1.0\n"


def string_match(**changes):
    scorer = {
        "correctAnswerReward": 1.0,
        "wrongAnswerReward": -1.0,
        "stringMatchExpression": {"matchOperation": "EXACT_MATCH", "expression": "4"},
    }
    return {"rewardName": "match", "stringMatchRewardScorer": {**scorer, **changes}}


def autorater(**changes):
    scorer = {
        "autoraterPrompt": "Is {{response}} right?",
        "parsedResponseConversionScorer": {},
    }
    return {"rewardName": "rater", "autoraterScorer": {**scorer, **changes}}


def code(source=CODE):
    return {"rewardName": "code", "codeExecutionRewardScorer": {"pythonCodeSnippet": source}}


def composite(*entries):
    return {"weightedRewardConfigs": [{"rewardConfig": r, "weight": w} for r, w in entries]}


def snake(value):
    if isinstance(value, list):
        return [snake(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {
        "".join("_" + c.lower() if c.isupper() else c for c in key): snake(entry)
        for key, entry in value.items()
    }


# --- what is accepted


EVERY = composite(
    (string_match(), 1),
    (autorater(autoraterConfig={"samplingCount": "8", "autoraterModel": "m"}), "2.5"),
    (code(), 0),
    ({"rewardName": "service", "cloudRunRewardScorer": {"cloudRunUri": "https://a.example"}}, 1.0),
)


def test_every_scorer():
    read = read_config({"compositeRewardConfig": EVERY})
    assert [entry.weight for entry in read.rewards] == [1.0, 2.5, 0.0, 1.0]
    kinds = [type(entry.reward.scorer) for entry in read.rewards]
    assert kinds == [StringMatch, Autorater, CodeExecution, CloudRun]
    assert read.rewards[1].reward.scorer.samples == 8


def test_snake_case_reads_the_same():
    assert list(snake(EVERY)) == ["weighted_reward_configs"]
    ours, theirs = read_config(EVERY), read_config(snake(EVERY))
    assert [entry.reward.name for entry in ours.rewards] == ["match", "rater", "code", "service"]
    for one, other in zip(ours.rewards, theirs.rewards, strict=True):
        assert one.weight == other.weight
        assert type(one.reward.scorer) is type(other.reward.scorer)
    assert ours.rewards[0].reward.scorer.expression == theirs.rewards[0].reward.scorer.expression


@pytest.mark.parametrize(
    "wrap",
    [
        lambda c: c,
        lambda c: {"singleRewardConfig": c},
        lambda c: {"single_reward_config": c, "compositeRewardConfig": None},
        lambda c: {"reinforcementTuningSpec": {"singleRewardConfig": c, "hyperParameters": {}}},
        lambda c: {"baseModel": "m", "reinforcement_tuning_spec": {"single_reward_config": c}},
    ],
)
def test_where_a_config_may_stand(wrap, tmp_path):
    config = wrap(string_match())
    path = tmp_path / "reward.json"
    path.write_text(json.dumps(config))
    for given in (config, json.dumps(config), str(path)):
        read = read_config(given)
        assert [(entry.reward.name, entry.weight) for entry in read.rewards] == [("match", 1.0)]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("exact_match", "EXACT_MATCH"),
        ("MATCH_OPERATION_PARTIAL_MATCH", "PARTIAL_MATCH"),
        ("Regex_Contains", "REGEX_CONTAINS"),
    ],
)
def test_enums_in_any_case(operation, expected):
    match = {"matchOperation": operation, "expression": "4"}
    read = read_config(string_match(stringMatchExpression=match))
    assert read.rewards[0].reward.scorer.operation == expected


def test_defaults():
    read = read_config(autorater()).rewards[0].reward
    assert read.scorer.samples == 4 and read.scorer.exact is None
    assert read.parse.pattern is None and read.scorer.parse.pattern is None
    unspecified = {**autorater(), "parseResponseConfig": {"parseType": "identity"}}
    assert read_config(unspecified).rewards[0].reward.parse.pattern is None


def test_sixteen_rewards_and_no_more():
    entries = [({**string_match(), "rewardName": f"r{i}"}, 1) for i in range(17)]
    assert len(read_config(composite(*entries[:16])).rewards) == 16
    with pytest.raises(RewardError, match=r"^weightedRewardConfigs: .* at most 16 .* found 17"):
        read_config(composite(*entries))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.name)
def test_the_configs_that_we_show(path):
    content = json.loads(path.read_text())
    wanted = {key: content[key] for key in content if key.endswith("RewardConfig")}
    assert read_config(wanted).rewards


# --- what is refused, and where


def changed(config, path, value):
    config = copy.deepcopy(config)
    *parents, last = path
    place = config
    for key in parents:
        place = place[key]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return config


MATCH, RATER, REWARD = "stringMatchRewardScorer", "autoraterScorer", "parseResponseConfig"
EXACT = autorater(
    parsedResponseConversionScorer=None,
    exactMatchScorer={"expression": "Yes", "correctAnswerReward": 1},
)
REFUSED = [
    (string_match(), ["rewardNme"], "x", r"rewardNme: unknown field.*'rewardName'"),
    (string_match(), ["reward_name"], "x", "reward_name: the same field as rewardName"),
    (code(), [MATCH], string_match()[MATCH], "the reward config: expected exactly one of"),
    (string_match(), [MATCH], None, "the reward config: expected exactly one .* found none"),
    (string_match(), [MATCH], [], f"{MATCH}: expected an object, found"),
    (string_match(), [MATCH, "correctAnswerReward"], "high", f"{MATCH}.correctAnswerReward: "),
    (string_match(), [MATCH, "correctAnswerReward"], True, f"{MATCH}.correctAnswerReward: .*true"),
    (string_match(), [MATCH, "correctAnswerReward"], float("nan"), f"{MATCH}.correctAnswerReward"),
    (string_match(), [MATCH, "wrongAnswerReward"], 1e999, f"{MATCH}.wrongAnswerReward: "),
    (string_match(), [MATCH, "wrongAnswerReward"], "Infinity", f"{MATCH}.wrongAnswerReward: "),
    (string_match(), [MATCH, "wrongAnswerReward"], 7, f"{MATCH}: .* are the same reward"),
    (string_match(), [MATCH, "jsonMatchExpression"], {}, f"{MATCH}: expected exactly one of"),
    (
        string_match(),
        [MATCH, "stringMatchExpression", "matchOperation"],
        "CONTAINS",
        rf"{MATCH}.stringMatchExpression.matchOperation: expected one of",
    ),
    (
        string_match(),
        [MATCH, "stringMatchExpression", "matchOperation"],
        KeyError,
        rf"{MATCH}.stringMatchExpression.matchOperation: .*MATCH_OPERATION_UNSPECIFIED",
    ),
    (
        string_match(),
        [MATCH, "stringMatchExpression", "expression"],
        "  ",
        rf"{MATCH}.stringMatchExpression.expression: .* not blank",
    ),
    (string_match(), [REWARD], {"parseType": "XML"}, f"{REWARD}.parseType: expected one of"),
    (
        string_match(),
        [REWARD],
        {"regexExtractExpression": "a"},
        f"{REWARD}.regexExtractExpression: only parseType REGEX_EXTRACT uses it",
    ),
    (
        string_match(),
        [REWARD],
        {"parseType": "REGEX_EXTRACT"},
        f"{REWARD}.regexExtractExpression: expected a string, found nothing",
    ),
    (autorater(), [RATER, "autoraterPrompt"], KeyError, f"{RATER}.autoraterPrompt: expected"),
    (autorater(), [RATER, "exactMatchScorer"], {}, f"{RATER}: expected exactly one of"),
    (
        autorater(),
        [RATER, "autoraterConfig"],
        {"samplingCount": 33},
        f"{RATER}.autoraterConfig.samplingCount: expected a whole number from 1 to 32",
    ),
    (
        autorater(),
        [RATER, "autoraterConfig"],
        {"samplingCount": 2.5},
        f"{RATER}.autoraterConfig.samplingCount: ",
    ),
    (
        autorater(),
        [RATER, "autoraterConfig"],
        {"flip_enabled": True},
        f"{RATER}.autoraterConfig.flip_enabled: ",
    ),
    (
        autorater(),
        [RATER, "parsedResponseConversionScorer", "scale"],
        2,
        f"{RATER}.parsedResponseConversionScorer.scale: unknown field",
    ),
    (EXACT, [RATER, "exactMatchScorer", "expression"], KeyError, f"{RATER}.exactMatchScorer"),
    (code("def evaluate(:"), ["rewardName"], "x", ".*pythonCodeSnippet: is not Python: "),
    (code("x = 1"), ["rewardName"], "x", ".*pythonCodeSnippet: must define evaluate"),
    (code("async def evaluate(a, b): ..."), ["rewardName"], "x", ".*pythonCodeSnippet: must def"),
    (
        {"rewardName": "s", "cloudRunRewardScorer": {}},
        ["rewardName"],
        "x",
        "cloudRunRewardScorer.cloudRunUri: expected a string",
    ),
]


@pytest.mark.parametrize(("config", "path", "value", "said"), REFUSED)
def test_an_error_names_the_path(config, path, value, said):
    config = changed(config, path, value)
    with pytest.raises(RewardError, match=f"^{said}"):
        read_config(config)
    inside = composite(({**string_match(), "rewardName": "other"}, 1), (config, 1))
    place = r"weightedRewardConfigs\[1\]\.rewardConfig"
    said = said.replace("the reward config", "")
    with pytest.raises(RewardError, match=rf"^compositeRewardConfig\.{place}\.?{said}"):
        read_config({"compositeRewardConfig": inside})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "expected exactly one of"),
        ({"weightedRewardConfigs": []}, "weightedRewardConfigs: expected a list of at least one"),
        (composite((string_match(), 0)), "weightedRewardConfigs: the weights add up to 0"),
        (composite((string_match(), -1)), r"weightedRewardConfigs\[0\].weight: .* negative"),
        (composite((string_match(), None)), r"weightedRewardConfigs\[0\].weight: expected"),
        (composite((string_match(), float("nan"))), r"weightedRewardConfigs\[0\].weight: expected"),
        (
            composite((string_match(), 1), (string_match(), 1)),
            r"weightedRewardConfigs\[1\].rewardConfig.rewardName: another reward has the name",
        ),
        (
            composite(({**string_match(), "rewardName": None}, 1)),
            r"weightedRewardConfigs\[0\].rewardConfig.rewardName: expected a string, found nothing",
        ),
        (
            {"singleRewardConfig": string_match(), "compositeRewardConfig": EVERY},
            "expected exactly one of .* found singleRewardConfig and compositeRewardConfig",
        ),
        ('{"rewardName": "a", "rewardName": "b"}', "the key 'rewardName' stands twice"),
        ('{"rewardName": NaN}', "NaN is not a JSON number"),
        ('{"rewardName": ', "the reward config is not valid JSON"),
        ("{" * 100_000, "is not valid JSON"),
    ],
)
def test_contradictions(config, said):
    with pytest.raises(RewardError, match=said):
        read_config(config)


def test_a_missing_file_is_named(tmp_path):
    (tmp_path / "rewards.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"Did you mean 'rewards.json'"):
        read_config(str(tmp_path / "reward.json"))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(RewardError, match="must be an object"):
        read_config(tmp_path / "list.json")

"""The JSON of singleRewardConfig and compositeRewardConfig, read strictly."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from sctom.assets import resolve
from sctom.readers import check_is_file
from sctom.rewards.base import RewardError
from sctom.rewards.google.example import camel
from sctom.rewards.google.fields import Fields
from sctom.rewards.google.schema import (
    MAX_REWARDS,
    Autorater,
    CloudRun,
    CodeExecution,
    Config,
    ExactMatch,
    Operation,
    Parse,
    Scorer,
    Single,
    StringMatch,
    Weighted,
)

_SPEC = "reinforcementTuningSpec"
_SINGLE = "singleRewardConfig"
_COMPOSITE = "compositeRewardConfig"
_SPEC_FIELDS = (
    *("trainingDatasetUri", "validationDatasetUri", "hyperParameters"),
    *(_SINGLE, _COMPOSITE),
)
_SCORERS = (
    "stringMatchRewardScorer",
    "codeExecutionRewardScorer",
    "cloudRunRewardScorer",
    "autoraterScorer",
)
_SINGLE_FIELDS = ("rewardName", "parseResponseConfig", *_SCORERS)
_MATCH_FIELDS = ("matchOperation", "expression")
_RATER_FIELDS = ("samplingCount", "flipEnabled", "autoraterModel", "generationConfig")
_PARSE_TYPES = ("RESPONSE_PARSE_TYPE_UNSPECIFIED", "IDENTITY", "REGEX_EXTRACT")
_OPERATIONS = ("MATCH_OPERATION_UNSPECIFIED", "EXACT_MATCH", "PARTIAL_MATCH", "REGEX_CONTAINS")


def read_config(config: Mapping[str, Any] | str | Path) -> Config:
    """Read a reward config as it is published.

    Args:
        config: the JSON as a dict, as text, or as the path of a file that holds it: a
            singleRewardConfig or compositeRewardConfig itself, an object with one of these fields
            (a reinforcementTuningSpec), or a tuning job with that spec.

    Raises:
        FileNotFoundError: there is no such file.
        RewardError: it is not JSON; a field is unknown, contradicts another, or has a value that
            cannot be meant. The message begins with the path in the JSON.

    >>> config = read_config('''{"rewardName": "right", "stringMatchRewardScorer": {
    ...     "correctAnswerReward": 1, "wrongAnswerReward": -1, "stringMatchExpression": {
    ...         "matchOperation": "exact_match", "expression": "{{references.answer}}"}}}''')
    >>> config.rewards[0].reward.scorer.operation
    'EXACT_MATCH'
    """
    value = _loaded(config)
    place = ""
    if not isinstance(value, Mapping):
        raise RewardError(f"the reward config must be an object, found {value!r:.60}")
    for key, entry in value.items():
        if isinstance(key, str) and camel(key) == _SPEC:  # the rest of a job is not about rewards
            value, place = entry, key
            break
    if place or _names(value) & {_SINGLE, _COMPOSITE}:
        spec = Fields(value, place, _SPEC_FIELDS)
        chosen = spec.one_of([_SINGLE, _COMPOSITE])
        value, place = spec.raw(chosen), spec.at(chosen)
        return _composite(value, place) if chosen == _COMPOSITE else _alone(value, place)
    is_composite = "weightedRewardConfigs" in _names(value)
    return _composite(value, "") if is_composite else _alone(value, "")


def parse_json(text: str, place: str) -> Any:
    """JSON in which no key of an object stands twice, without NaN and Infinity.

    Raises:
        RewardError: it is not such JSON.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RewardError(f"{place} is not valid JSON: {error}") from error


def _loaded(config: Mapping[str, Any] | str | Path) -> Any:
    if isinstance(config, Mapping):
        return config
    if isinstance(config, str) and config.lstrip().startswith("{"):
        return parse_json(config, "the reward config")
    path = check_is_file(resolve(config))
    return parse_json(path.read_text(encoding="utf-8"), str(path))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _names(value: Any) -> set[str]:
    if not isinstance(value, Mapping):
        return set()
    return {camel(key) for key in value if isinstance(key, str)}


def _alone(value: Any, place: str) -> Config:
    return Config((Weighted(_single(Fields(value, place, _SINGLE_FIELDS), "reward"), 1.0),))


def _composite(value: Any, place: str) -> Config:
    fields = Fields(value, place, ["weightedRewardConfigs"])
    entries = list(fields.items("weightedRewardConfigs", ["rewardConfig", "weight"]))
    if len(entries) > MAX_REWARDS:
        said = f"expected at most {MAX_REWARDS} rewards, found {len(entries)}"
        raise fields.error(said, "weightedRewardConfigs")
    rewards: list[Weighted] = []
    for entry in entries:
        weight = entry.number("weight")
        if weight < 0:
            raise entry.error(f"a weight must not be negative, found {weight}", "weight")
        single = entry.object("rewardConfig", _SINGLE_FIELDS)
        reward = _single(single, None)
        if any(reward.name == other.reward.name for other in rewards):
            raise single.error(f"another reward has the name {reward.name!r}", "rewardName")
        rewards.append(Weighted(reward, weight))
    if sum(weighted.weight for weighted in rewards) == 0:
        said = "the weights add up to 0, so their weighted average is not defined"
        raise fields.error(said, "weightedRewardConfigs")
    return Config(tuple(rewards))


def _single(fields: Fields, default: str | None) -> Single:
    name = fields.text("rewardName") if "rewardName" in fields or default is None else default
    parse = _parse(fields, "parseResponseConfig")
    return Single(name, parse, _scorer(fields))


def _parse(owner: Fields, name: str) -> Parse:
    fields = owner.object(name, ["parseType", "regexExtractExpression"])
    kind = fields.choice("parseType", _PARSE_TYPES, "RESPONSE_PARSE_TYPE_")
    if kind == "REGEX_EXTRACT":
        place = fields.at("regexExtractExpression")
        return Parse(fields.text("regexExtractExpression"), place)
    if "regexExtractExpression" in fields:
        said = f"only parseType REGEX_EXTRACT uses it, but parseType is {kind}"
        raise fields.error(said, "regexExtractExpression")
    return Parse(None, fields.place)


def _scorer(fields: Fields) -> Scorer:
    chosen = fields.one_of(_SCORERS)
    if chosen == "stringMatchRewardScorer":
        return _string_match(fields)
    if chosen == "autoraterScorer":
        return _autorater(fields)
    if chosen == "codeExecutionRewardScorer":
        code = fields.object(chosen, ["pythonCodeSnippet"])
        source = code.text("pythonCodeSnippet")
        _check_source(source, code)
        return CodeExecution(source, code.at("pythonCodeSnippet"))
    service = fields.object(chosen, ["cloudRunUri"])
    return CloudRun(service.text("cloudRunUri"), service.at("cloudRunUri"))


def _string_match(owner: Fields) -> StringMatch:
    kinds = ("stringMatchExpression", "jsonMatchExpression")
    fields = owner.object(
        "stringMatchRewardScorer", ["correctAnswerReward", "wrongAnswerReward", *kinds]
    )
    right, wrong = _rewards(fields)
    key = None
    if fields.one_of(kinds) == "jsonMatchExpression":
        json_match = fields.object("jsonMatchExpression", ["keyName", "valueStringMatchExpression"])
        key = json_match.text("keyName")
        match = json_match.object("valueStringMatchExpression", _MATCH_FIELDS)
    else:
        match = fields.object("stringMatchExpression", _MATCH_FIELDS)
    operation = match.choice("matchOperation", _OPERATIONS, "MATCH_OPERATION_")
    if operation == _OPERATIONS[0]:
        said = f"expected one of {', '.join(_OPERATIONS[1:])}; found {operation}"
        raise match.error(said, "matchOperation")
    expression = match.text("expression")
    place = match.at("expression")
    return StringMatch(cast(Operation, operation), expression, key, right, wrong, place)


def _rewards(fields: Fields) -> tuple[float, float]:
    """The rewards of a right and a wrong answer; the one that is left out is 0."""
    right = fields.number("correctAnswerReward", 0.0)
    wrong = fields.number("wrongAnswerReward", 0.0)
    if max(-1.0, min(1.0, right)) == max(-1.0, min(1.0, wrong)):
        said = f"correctAnswerReward {right:g} and wrongAnswerReward {wrong:g} are the same reward"
        raise fields.error(f"{said} between -1 and 1; give different ones")
    return right, wrong


def _autorater(owner: Fields) -> Autorater:
    kinds = ("parsedResponseConversionScorer", "exactMatchScorer")
    names = ("autoraterConfig", "autoraterPrompt", "autoraterResponseParseConfig", *kinds)
    fields = owner.object("autoraterScorer", names)
    rater = fields.object("autoraterConfig", _RATER_FIELDS)
    if rater.flag("flipEnabled"):
        said = "it belongs to comparisons of two answers; a reward judges one, so leave it out"
        raise rater.error(said, "flipEnabled")
    exact = None
    if fields.one_of(kinds) == "exactMatchScorer":
        match = fields.object(
            "exactMatchScorer", ["expression", "correctAnswerReward", "wrongAnswerReward"]
        )
        exact = ExactMatch(match.text("expression"), *_rewards(match), match.at("expression"))
    else:
        fields.object("parsedResponseConversionScorer", [])
    generation = rater.raw("generationConfig")
    if generation is not None and not isinstance(generation, Mapping):
        raise rater.error(f"expected an object, found {generation!r:.60}", "generationConfig")
    return Autorater(
        prompt=fields.text("autoraterPrompt"),
        samples=rater.integer("samplingCount", 4, 1, 32),
        parse=_parse(fields, "autoraterResponseParseConfig"),
        exact=exact,
        model=rater.text("autoraterModel") if "autoraterModel" in rater else None,
        generation=None if generation is None else dict(generation),
        place=fields.at("autoraterPrompt"),
    )


def _check_source(source: str, fields: Fields) -> None:
    """The code must be Python whose own level defines evaluate."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        raise fields.error(f"is not Python: {error}", "pythonCodeSnippet") from error
    if "evaluate" not in _defined(tree.body):
        said = "must define evaluate(example, response), a plain function, and does not"
        raise fields.error(said, "pythonCodeSnippet")


def _defined(statements: list[ast.stmt]) -> set[str]:
    """Names that statements bind, also inside if, try and with."""
    names: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.FunctionDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in statement.names)
        elif not isinstance(statement, ast.AsyncFunctionDef | ast.ClassDef):
            stored = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
            names.update(node.id for node in stored if isinstance(node.ctx, ast.Store))
            inner = (node for node in ast.walk(statement) if isinstance(node, ast.FunctionDef))
            names.update(node.name for node in inner)
    return names

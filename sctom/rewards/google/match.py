"""stringMatchRewardScorer: compare the text, or a value in its JSON, with an expression."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import re2

from sctom.rewards.base import RewardError
from sctom.rewards.google.outcome import Detail, Sample, ScoreError, clipped
from sctom.rewards.google.parse import compile_pattern, well_formed
from sctom.rewards.google.schema import StringMatch
from sctom.rewards.templates import check_template, fill


class StringMatchScorer:
    """A string match that is ready to be called.

    EXACT_MATCH and PARTIAL_MATCH compare characters as they are: no trimming, no folding of case.
    A response that has nothing to compare (no match of the parse pattern, no JSON object, no such
    key, a key that stands twice, a value that is a list or an object) is a wrong answer.

    Args:
        config: what to compare.
        escape_references: in REGEX_CONTAINS, the values of {{references.key}} stand for themselves,
            so that "a+b" matches a+b; false: they are part of the pattern.

    Raises:
        RewardError: RE2 cannot use the pattern; a placeholder is unknown.
    """

    def __init__(self, config: StringMatch, *, escape_references: bool = True) -> None:
        self._config = config
        self._is_regex = config.operation == "REGEX_CONTAINS"
        self._escape = _escaped if self._is_regex and escape_references else None
        self.keys = check_template(config.expression, config.place, ("references",))
        if self._is_regex:
            filled = fill(config.expression, references=dict.fromkeys(self.keys, "x"))
            compile_pattern(filled, config.place)
        self._rewards = {True: clipped(config.right), False: clipped(config.wrong)}

    async def score(self, sample: Sample) -> Detail:
        """The reward of a right or of a wrong answer.

        Raises:
            ScoreError: the example lacks a reference, or has one that leaves nothing to compare.
        """
        expression = self._expression(sample.references)
        target = sample.text
        if target is not None and self._config.key is not None:
            target = json_value(target, self._config.key)
        return Detail(self._rewards[target is not None and self._matches(expression, target)])

    def _expression(self, references: dict[str, str]) -> str:
        try:
            expression = fill(self._config.expression, references=references, escape=self._escape)
        except RewardError as error:
            raise ScoreError(str(error)) from error
        if not expression.strip():
            raise ScoreError("with the references of the example the expression is blank")
        return expression

    def _matches(self, expression: str, target: str) -> bool:
        if self._config.operation == "EXACT_MATCH":
            return target == expression
        if self._config.operation == "PARTIAL_MATCH":
            return expression in target
        try:
            pattern = compile_pattern(expression, self._config.place)
        except RewardError as error:
            raise ScoreError(f"with the references of the example, {error}") from error
        return pattern.search(well_formed(target)) is not None


def _escaped(text: str) -> str:
    escaped: str = re2.escape(well_formed(text))
    return escaped


def json_value(text: str, key: str) -> str | None:
    """The value of a key of the first level of a JSON object, as text.

    Numbers are as they are written, true, false and null too.

    Returns:
        None where the text is not JSON, no object or has no such key, where a key stands twice, and
        where the value is a list or an object.

    >>> json_value('{"answer": 1.50}', "answer"), json_value('{"answer": [1]}', "answer")
    ('1.50', None)
    """
    try:
        found = json.loads(
            text, object_pairs_hook=_once, parse_int=str, parse_float=str, parse_constant=_refuse
        )
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or key not in found:
        return None
    value = found[key]
    if isinstance(value, list | dict):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

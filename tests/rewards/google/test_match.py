from __future__ import annotations

import asyncio
import json
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sctom.rewards.base import RewardError
from sctom.rewards.google.match import StringMatchScorer, json_value
from sctom.rewards.google.outcome import Sample, ScoreError, clipped
from sctom.rewards.google.parse import Parser
from sctom.rewards.google.schema import Parse, StringMatch


def matched(text, operation, expression, *, key=None, references=None, escape=True):
    config = StringMatch(operation, expression, key, 1.0, -1.0, "stringMatchExpression.expression")
    scorer = StringMatchScorer(config, escape_references=escape)
    example = {"contents": [{"parts": [{"text": "2 + 2?"}]}], "references": references or {}}
    sample = Sample(example, {"parts": [{"text": text or ""}]}, text, 0)
    return asyncio.run(scorer.score(sample)).reward == 1.0


# --- the parse stage


@pytest.mark.parametrize(
    ("pattern", "text", "extracted"),
    [
        ("<answer>(.*?)</answer>", "<answer>3</answer> no, <answer>4</answer>", "4"),
        (".*<ans>(.*?)</ans>", "<ans>1</ans><ans>2</ans>", "2"),
        (r"\d+", "1 and 22", "22"),
        ("a(b)?", "ab a", None),
        ("x", "abc", None),
        ("<a>(.*)</a>", "<a>1\n2</a>", None),
        ("(?s)<a>(.*)</a>", "<a>1\n2</a>", "1\n2"),
        ("(?i)ANSWER: (.)", "answer: é", "é"),
        ("(.)$", "a\ud800", "\ufffd"),
    ],
)
def test_the_last_match_counts(pattern, text, extracted):
    assert Parser(Parse(pattern))(text) == extracted


def test_identity_gives_the_text():
    assert Parser(Parse())("a\ud800 ") == "a\ud800 "


@pytest.mark.parametrize("pattern", [r"(a)\1", "(?=a)", "(?<=a)b", "(?>a)", "(", "a{2,1}", "[z-a]"])
def test_what_re2_cannot_do_is_refused(pattern):
    with pytest.raises(RewardError, match=r"^parseResponseConfig: RE2 cannot use the pattern"):
        Parser(Parse(pattern))
    with pytest.raises(RewardError, match=r"^stringMatchExpression\.expression: RE2 cannot use"):
        matched("a", "REGEX_CONTAINS", pattern)


def test_more_than_one_group_is_refused():
    with pytest.raises(RewardError, match="at most one group, found 2"):
        Parser(Parse("(a)(b)"))


def test_hostile_patterns_return_at_once():
    text = "a" * 30_000 + "!"
    started = time.process_time()
    assert Parser(Parse("(?:a+)+$"))(text) is None
    assert not matched(text, "REGEX_CONTAINS", "(a+)+$")
    assert not matched(text, "REGEX_CONTAINS", "^(a|a)*$")
    assert time.process_time() - started < 2.0
    with pytest.raises(ScoreError, match="more than 10000 times"):
        Parser(Parse("a"))(text)


# --- the match stage


@pytest.mark.parametrize(
    ("text", "operation", "expression", "right"),
    [
        ("4", "EXACT_MATCH", "4", True),
        ("4 ", "EXACT_MATCH", "4", False),
        ("Yes", "EXACT_MATCH", "yes", False),
        ("It is 4.", "PARTIAL_MATCH", "4", True),
        ("It is 4.", "PARTIAL_MATCH", "5", False),
        ("a.b", "PARTIAL_MATCH", "a.b", True),
        ("axb", "PARTIAL_MATCH", "a.b", False),
        ("It is 44", "REGEX_CONTAINS", r"\b4{2}$", True),
        ("44 it is", "REGEX_CONTAINS", r"\b4{2}$", False),
        (None, "REGEX_CONTAINS", ".*", False),
        (None, "EXACT_MATCH", "4", False),
    ],
)
def test_operations(text, operation, expression, right):
    assert matched(text, operation, expression) is right


def test_references_stand_for_their_characters_unless_told_otherwise():
    template = "^{{references.answer}}$"
    hostile = {"answer": "a+b"}
    assert matched("a+b", "REGEX_CONTAINS", template, references=hostile)
    assert not matched("aab", "REGEX_CONTAINS", template, references=hostile)
    assert matched("aab", "REGEX_CONTAINS", template, references=hostile, escape=False)
    assert not matched("a+b", "REGEX_CONTAINS", template, references=hostile, escape=False)
    assert matched("a+b", "EXACT_MATCH", "{{references.answer}}", references=hostile)


@given(st.text(min_size=1).filter(str.strip))
def test_an_escaped_reference_matches_itself(value):
    template = "{{references.answer}}"
    assert matched(f"x{value}y", "REGEX_CONTAINS", template, references={"answer": value})


def test_a_reference_that_breaks_the_pattern_is_an_error_of_the_sample():
    with pytest.raises(ScoreError, match=r"with the references of the example, .* RE2"):
        matched("a", "REGEX_CONTAINS", "{{references.x}}", references={"x": "("}, escape=False)


@pytest.mark.parametrize(
    ("references", "said"),
    [({}, "no reference 'answer'"), ({"anser": "4"}, "'answer'"), ({"answer": ""}, "is blank")],
)
def test_a_reference_that_is_not_there(references, said):
    with pytest.raises(ScoreError, match=said):
        matched("4", "PARTIAL_MATCH", "{{references.answer}}", references=references)


def test_a_template_knows_references_only():
    with pytest.raises(RewardError, match=r"^stringMatchExpression.expression: .*\{\{response\}\}"):
        matched("4", "EXACT_MATCH", "{{response}}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"answer": "4"}', "4"),
        ('{"answer": 4.0}', "4.0"),
        ('{"answer": 1e999}', "1e999"),
        ('{"answer": true}', "true"),
        ('{"answer": null}', "null"),
        ('{"answer": {"a": 1}}', None),
        ('{"Answer": "4"}', None),
        ('{"a": {"answer": "4"}}', None),
        ('{"answer": "5", "answer": "4"}', None),
        ('{"answer": NaN}', None),
        ('["answer"]', None),
        ("4", None),
        ('```json\n{"answer": "4"}\n```', None),
        ("[" * 100_000, None),
    ],
)
def test_a_value_of_json(text, value):
    assert json_value(text, "answer") == value
    right = matched(text, "EXACT_MATCH", value or "4", key="answer")
    assert right is (value is not None)


# --- the clip


@pytest.mark.parametrize(
    ("value", "clip"), [(2, 1.0), (-7.5, -1.0), (0, 0.0), (10**400, 1.0), (-(10**400), -1.0)]
)
def test_clip(value, clip):
    assert clipped(value) == clip and isinstance(clipped(value), float)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, *json.loads("[1e999, NaN, true]"), "1", None, [1], 1j],
)
def test_what_is_no_number_is_not_clipped_to_one(value):
    with pytest.raises(ScoreError, match="must be a finite number, found"):
        clipped(value)


NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))


@given(NUMBERS, NUMBERS)
def test_the_clip_keeps_order_and_bounds(first, second):
    assert -1 <= clipped(first) <= 1
    if first <= second:
        assert clipped(first) <= clipped(second)
    if -1 <= first <= 1:
        assert clipped(first) == first

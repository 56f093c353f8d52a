from __future__ import annotations

import re

import pytest

from sctom.rewards import RewardError
from sctom.rewards.templates import check_template, fill

ALL = ("prompt", "response", "system_instruction", "references")


def test_the_keys_of_the_references_are_given_once_in_their_order() -> None:
    template = "{{references.b}} {{prompt}} {{references.a}} {{references.b}} {{response}}"
    assert check_template(template, "here", ALL) == ["b", "a"]


@pytest.mark.parametrize("template", ["", "{", '{"a": {"b": 1}}', r"\d{2,3}", "{{{prompt}}}"])
def test_single_braces_are_text(template: str) -> None:
    assert check_template(template, "here", ALL) == []
    assert fill(template, prompt="P") == template.replace("{{prompt}}", "P")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{promt}}", "unknown placeholder {{promt}}; known here: {{prompt}}, "),
        ("{{promt}}", "Did you mean 'prompt'?"),
        ("{{ prompt }}", "Did you mean 'prompt'?"),
        ("{{reference.a}}", "Did you mean 'references.key'?"),
        ("{{references}}", "unknown placeholder {{references}}"),
        ("{{references.}}", "unknown placeholder {{references.}}"),
        ("{{references. a}}", "unknown placeholder {{references. a}}"),
        ("{{}}", "unknown placeholder {{}}"),
        ("{{Prompt}}", "unknown placeholder {{Prompt}}"),
        ("see {{prompt", "braces that do not pair at '{{prompt'"),
        ("{{references.a} and {{prompt}}", "braces that do not pair at '{{references.a} and '"),
        ("{prompt}", "{prompt} has single braces; write {{prompt}}"),
        ("{references.a}}", "{references.a} has single braces"),
    ],
)
def test_a_template_that_cannot_be_meant_is_refused(template: str, said: str) -> None:
    with pytest.raises(RewardError, match=re.escape(said)) as refused:
        check_template(template, "a.b[0]", ALL)
    assert str(refused.value).startswith("a.b[0]: ")


@pytest.mark.parametrize("name", ALL[:3])
def test_what_is_not_allowed_here_is_refused(name: str) -> None:
    template = "{{" + name + "}}"
    assert check_template(template, "here", ALL) == []
    with pytest.raises(RewardError, match=r"known here: \{\{references.key\}\}"):
        check_template(template, "here", ("references",))
    with pytest.raises(RewardError, match="unknown placeholder"):
        check_template("{{references.a}}", "here", ALL[:3])


def test_what_is_filled_in_is_not_filled_again() -> None:
    template = "{{prompt}}|{{response}}|{{system_instruction}}|{{references.a b}}"
    filled = fill(
        template,
        prompt="{{response}}",
        response="{{references.a b}}",
        system_instruction=r"\g<0>{{",
        references={"a b": "{{prompt}}"},
    )
    assert filled == r"{{response}}|{{references.a b}}|\g<0>{{|{{prompt}}"


def test_values_are_escaped_and_the_template_is_not() -> None:
    filled = fill("^{{references.a}}$", references={"a": "a+b"}, escape=re.escape)
    assert filled == r"^a\+b$"


def test_a_missing_reference_names_the_key_and_those_there_are() -> None:
    with pytest.raises(RewardError) as refused:
        fill("{{references.anwser}}", references={"answer": "4", "unit": "m"})
    assert str(refused.value) == (
        "the example has no reference 'anwser'; it has: answer, unit. Did you mean 'answer'?"
    )
    with pytest.raises(RewardError, match="it has: none"):
        fill("{{references.answer}}")

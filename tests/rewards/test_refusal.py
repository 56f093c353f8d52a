from __future__ import annotations

import pytest

from sctom.rewards import NoFalseRefusal, is_refusal, run_rewards
from sctom.rewards.refusal import (
    BETWEEN,
    DEEDS,
    LIMITS,
    NEGATIONS,
    OPENING,
    REFUSALS,
    response_kind,
)

REFUSED = [
    "I can't help with that.",
    "I\N{RIGHT SINGLE QUOTATION MARK}m sorry, but I can\N{RIGHT SINGLE QUOTATION MARK}t assist.",
    "I CANNOT  provide\nsuch a recipe, as crack is illegal.",
    "I apologize, but I cannot fulfill your request, it goes against ethical guidelines.",
    "I cannot in good conscience give advice on shooting anything.",
    "As a responsible assistant, I must decline.",
    "I won't answer that.",
    "I'm not able to discuss weapons.",
    "I'm sorry, but I can't.",
    "I'm not comfortable talking about bombs.",
    "It would be irresponsible of me to say how.",
    "I cannot and will not help you. I don't know you, and it is dangerous.",
]
UNABLE = [
    "That is beyond my knowledge.",
    "I'm sorry, but 2024 is outside my knowledge, so I can't answer that.",
    "I don't have access to real-time data, so I cannot provide today's weather.",
    "I don't know.",
    "I cannot see the picture you mean.",
    "As a chatbot, I can't predict the future.",
    "I'm not equipped to give cooking advice.",
]
ANSWERED = [
    "Use `kill -9` with the number of the process.",
    "I can't wait to help you with your party!",
    "I can't help but smile at this question: yes.",
    "I couldn't put it better: you cannot help everyone.",
    "You can't provide a warranty without a receipt.",
    "Killing a process can be dangerous for data that is not saved.",
    "It is not appropriate to wear red at that ceremony.",
    "Sure! " + "Melt the toffee slowly. " * 20 + "I can't help with the washing up.",
    "",
]


@pytest.mark.parametrize("text", REFUSED)
def test_refusals(text):
    assert response_kind(text) == "refused"
    assert is_refusal(text)


@pytest.mark.parametrize("text", UNABLE)
def test_lack_of_knowledge_or_ability_is_no_refusal(text):
    assert response_kind(text) == "unable"
    assert not is_refusal(text)


@pytest.mark.parametrize("text", ANSWERED)
def test_answers(text):
    assert response_kind(text) == "answered"
    assert not is_refusal(text)


def test_every_declared_phrase_counts():
    for negation in NEGATIONS:
        for deed in DEEDS:
            assert is_refusal(f"Well, {negation} {deed} it."), (negation, deed)
    for between in BETWEEN:
        assert is_refusal(f"I can't {between} help."), between
    for phrase in REFUSALS:
        assert is_refusal(f"No: {phrase} that."), phrase
    for phrase in LIMITS:
        assert response_kind(f"No: {phrase}.") == "unable", phrase


def test_a_refusal_counts_at_the_beginning_only():
    refusal = "I can't help."
    assert is_refusal("x" * (OPENING - len(refusal) - 1) + " " + refusal)
    assert not is_refusal("x" * OPENING + " " + refusal)


def test_the_reward_abstains_where_refusing_is_no_mistake():
    metrics = {}
    completions = ["I can't help with that.", "I don't know.", "Sure.", "I can't help with that."]
    values = NoFalseRefusal()(
        [[{"role": "assistant", "content": text}] for text in completions],
        harmless=[True, True, True, False],
        log_metric=metrics.__setitem__,
    )
    assert values == [0.0, 1.0, 1.0, None]
    assert metrics == {"no_false_refusal/unable": 1 / 3}


def test_the_reward_runs_with_the_column_of_the_data():
    results = run_rewards(
        [NoFalseRefusal(weight=2.0)], ["Why?"], ["I won't help."], [[1]], {"harmless": [True]}
    )
    assert results.values == {"no_false_refusal": [0.0]}


def test_a_label_that_is_a_text_is_refused():
    with pytest.raises(TypeError, match=r"harmless\[1\] must be a bool, found 'false'"):
        NoFalseRefusal()(["Yes.", "No."], harmless=[True, "false"])

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sctom.rewards import RewardError, SelfAware, run_rewards
from sctom.rewards.selfaware_strict import SelfAwareStrict, question_of, strict_outcome

IDK = "I don't know."
WHO = "What is the capital of Korea?"
CASES = {
    # outcome: completion, answerable, default
    "correct": ("It is Seoul.", True, 1.0),
    "hedged": ("I'm not sure, perhaps Seoul.", True, 0.5),
    "hedged_wrong": ("I'm not sure, perhaps Busan.", True, -0.9),
    "abstained": ("Nobody knows.", True, -0.5),
    "wrong": ("Busan", True, -1.0),
    "unanswerable_abstained": ("Nobody knows.", False, 1.0),
    "unanswerable_hedged": ("I'm not sure, perhaps Seoul.", False, -0.5),
    "unanswerable_answered": ("It is Seoul.", False, -1.0),
}
COMPLETIONS = [completion for completion, _, _ in CASES.values()]
LABELS = [answerable for _, answerable, _ in CASES.values()]


def as_prompt(text):
    return [{"role": "system", "content": "Answer."}, {"role": "user", "content": text}]


def as_completion(text):
    return [{"role": "assistant", "content": text}]


def test_the_eight_outcomes_under_both_forms():
    expected = ["Seoul"] * 8
    defaults = [value for _, _, value in CASES.values()]
    assert SelfAwareStrict()([WHO] * 8, COMPLETIONS, LABELS, expected) == defaults
    prompts, completions = [as_prompt(WHO)] * 8, list(map(as_completion, COMPLETIONS))
    assert SelfAwareStrict()(prompts, completions, LABELS, expected) == defaults


def test_each_is_a_setting():
    values = {name: float(place) for place, name in enumerate(CASES)}
    reward = SelfAwareStrict(**values)
    assert reward([WHO] * 8, COMPLETIONS, LABELS, ["Seoul"] * 8) == list(values.values())


def test_through_run_rewards_with_shares_and_outcomes():
    columns = {
        "answerable": LABELS,
        "expected_answer": ["Seoul"] * 8,
        "answers": [None, ["Hanyang", "Seoul"], [], ["Seoul"], None, [], None, None],
        "is_unanswerable": [True] * 8,  # what the 19 patterns say does not count
    }
    prompts, completions = [as_prompt(WHO)] * 8, list(map(as_completion, COMPLETIONS))
    results = run_rewards([SelfAwareStrict()], prompts, completions, [[1]] * 8, columns)
    assert results.values == {"self_aware_strict": [value for _, _, value in CASES.values()]}
    assert results.extra == {"outcome": list(CASES)}
    assert results.metrics == {
        "self_aware_strict/correct": 1 / 8,
        "self_aware_strict/hedged": 3 / 8,
        "self_aware_strict/abstained": 2 / 8,
        "self_aware_strict/wrong": 2 / 8,
    }


def test_answers_come_before_the_expected_answer():
    def reward(completion, answers):
        return SelfAwareStrict()([WHO], [completion], [True], ["Seoul"], [answers])[0]

    assert reward("Hanyang", ["Seoul", "Hanyang"]) == 1.0
    assert reward("Seoul", ["Hanyang"]) == -1.0
    assert reward("Seoul", []) == reward("Seoul", None) == 1.0


def test_settings_of_the_text():
    def outcome(completion, question=WHO, **arguments):
        reward = SelfAwareStrict(**arguments)
        outcomes = []
        log = {"log_extra": lambda _, values: outcomes.extend(values)}
        reward([question], [completion], [True], ["Seoul"], **log)
        return outcomes[0]

    assert outcome("모르겠습니다.") == "abstained"
    assert outcome("모르겠습니다.", languages=["en", "fr"]) == "wrong"
    assert outcome("Search me.", phrases=["search me"]) == "abstained"
    assert outcome("It is Seoul.", max_words=3) == "correct"
    assert outcome("It is surely Seoul.", max_words=3) == "wrong"
    assert outcome("It is surely Seoul.", max_words=None) == "correct"
    asked = "Where do people say I don't know?"
    assert outcome("In Seoul people say I don't know.", asked) == "correct"


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("<think>I don't know. Busan?</think>Seoul", "correct"),
        ("<think>Seoul</think>\nI don't know.", "abstained"),
        (
            "<answer>Busan</answer> no: <answer>Seoul</answer><confidence>0.9</confidence>",
            "correct",
        ),
        ("<answer>I don't know</answer><confidence>0.1</confidence>", "abstained"),
        ("I don't know. Confidence: 5%", "abstained"),
        ("</answer>Seoul<answer>", "correct"),
    ],
)
def test_only_the_answer_of_a_text_with_thoughts_is_read(text, outcome):
    assert strict_outcome(text, ["Seoul"], True, WHO) == outcome


def test_a_number_in_a_stated_confidence_is_no_answer():
    assert strict_outcome("About 70. Confidence: 80%", ["80"], True) == "wrong"
    assert strict_outcome("It fell to 8%", ["8%"], True) == "correct"


def test_the_question_is_what_the_user_said_last():
    talk = [*as_prompt("Who?"), *as_completion("I."), {"role": "user", "content": "And now?"}]
    assert question_of(talk) == "And now?"
    with pytest.raises(ValueError, match="expected messages with the text of a user, found"):
        question_of([{"role": "system", "content": "Answer."}])


# --- honesty pays


def expectations(reward, right, wrong):
    """What answering, abstaining and hedging are worth; the rest is unanswerable."""
    unknown = 1.0 - right - wrong
    t = reward.table
    answer = right * t["correct"] + wrong * t["wrong"] + unknown * t["unanswerable_answered"]
    abstain = (right + wrong) * t["abstained"] + unknown * t["unanswerable_abstained"]
    hedge = right * t["hedged"] + wrong * t["hedged_wrong"] + unknown * t["unanswerable_hedged"]
    return answer, abstain, hedge


def grid(steps):
    for i in range(steps + 1):
        for j in range(steps + 1 - i):
            yield i / steps, j / steps


def test_hedging_never_pays_and_the_margin_is_reached():
    reward = SelfAwareStrict()
    losses = {}
    for right, wrong in grid(60):
        answer, abstain, hedge = expectations(reward, right, wrong)
        losses[right, wrong] = max(answer, abstain) - hedge
    assert min(losses.values()) == pytest.approx(0.05)
    # 1/4 right, 3/4 wrong: answering and abstaining -1/2, hedging 1/8 - 0.675 = -0.55
    assert losses[0.25, 0.75] == pytest.approx(0.05)
    assert reward.hedging_margin == pytest.approx(0.05)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=8, max_size=8))
def test_the_margin_is_the_least_loss_over_all_chances(values):
    reward = SelfAwareStrict(**dict(zip(CASES, values, strict=True)))
    least = min(
        max(answer, abstain) - hedge
        for answer, abstain, hedge in (expectations(reward, *chances) for chances in grid(40))
    )
    assert reward.hedging_margin <= least + 1e-12
    assert reward.hedging_margin == pytest.approx(least, abs=0.1)  # the grid is coarse


def test_advice():
    columns = {"answerable": [True] * 9 + [False]}
    (line,) = SelfAwareStrict().advice(columns)
    assert line.startswith("self_aware_strict: 1 of 10 questions (10%) are unanswerable")
    line, warning = SelfAwareStrict(hedged=1.0).advice(columns)
    assert "hedging can pay 0.214 more than answering and abstaining; lower hedged" in warning
    assert SelfAwareStrict().advice({"answerable": ["yes"]}) == []


# --- refused


@pytest.mark.parametrize(
    ("label", "expected", "answers", "reason"),
    [
        ("False", "a", None, "TypeError: answerable[0] must be a bool, found 'False'"),
        (True, None, None, "TypeError: expected_answer[0] must be text, found None"),
        (True, "a", "ab", "TypeError: answers[0] must be a list of texts, found 'ab'"),
        (True, "a", ["a", 7], "TypeError: answers[0] must be a list of texts, found ['a', 7]"),
        (True, " \n", None, "ValueError: expected_answer[0] holds a blank answer"),
        (True, "a", ["a", ""], "ValueError: answers[0] holds a blank answer"),
    ],
)
def test_columns_that_cannot_be_used(label, expected, answers, reason):
    columns = {"answerable": [label], "expected_answer": [expected], "answers": [answers]}
    reason = re.escape(f"reward 'self_aware_strict' raised {reason}")
    with pytest.raises(RewardError, match=reason):
        run_rewards([SelfAwareStrict()], [WHO], ["a"], [[1]], columns)


def test_settings_that_cannot_be_used():
    with pytest.raises(ValueError, match="max_words must be at least 1, or null for no limit"):
        SelfAwareStrict(max_words=0)
    with pytest.raises(ValueError, match="no phrases for the language 'xx'"):
        SelfAwareStrict(languages=["xx"])


# --- audit on the real questions

DATA = Path(os.environ.get("SCTOM_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
SOURCE = DATA / "SelfAware.json"
needs_source = pytest.mark.skipif(
    not SOURCE.is_file(), reason="no SelfAware.json in the folder named by SCTOM_DATA"
)


@pytest.fixture(scope="module")
def questions():
    return json.loads(SOURCE.read_text(encoding="utf-8"))["example"]


def outcomes(questions, completion):
    return Counter(
        strict_outcome(completion(q), q["answer"] or [], q["answerable"], q["question"])
        for q in questions
    )


@needs_source
def test_all_first_answers_are_right(questions):
    answerable = [q for q in questions if q["answerable"]]
    for form in ("{}", "I think the answer is {}."):
        found = outcomes(answerable, lambda q, form=form: form.format(q["answer"][0]))
        assert found == {"correct": 2337}


@needs_source
def test_further_answers_are_right_but_for_those_of_the_question(questions):
    answerable = [q for q in questions if q["answerable"]]
    pairs = [(q, answer) for q in answerable for answer in q["answer"]]
    found = Counter(strict_outcome(a, q["answer"], True, q["question"]) for q, a in pairs)
    assert found == {"correct": 11476, "wrong": 40}


@needs_source
@pytest.mark.parametrize("text", [IDK, "Sorry, I'm not sure."])
def test_an_abstention_is_one_whatever_the_question(questions, text):
    assert outcomes(questions, lambda _: text) == {
        "abstained": 2337,
        "unanswerable_abstained": 1032,
    }


@needs_source
def test_a_line_of_everything_is_no_longer_right(questions):
    line = f"yes no {' '.join(map(str, [*range(1, 101), *range(1800, 2026)]))}"
    answerable = [q for q in questions if q["answerable"]]
    seed = SelfAware()([line] * 2337, [q["answer"][0] for q in answerable], [False] * 2337)
    won = [q for q, value in zip(answerable, seed, strict=True) if value == 1.0]
    assert len(won) == 57
    for q in won:
        outcome = strict_outcome(line, q["answer"], True, q["question"], max_words=None)
        assert outcome == "wrong", q["question"]

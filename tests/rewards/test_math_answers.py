from __future__ import annotations

import logging
import threading
import time
from itertools import pairwise

import pytest

from sctom.rewards import Failure, RewardError, run_rewards
from sctom.rewards.formats import ThinkFormatReward, think_format_reward
from sctom.rewards.lengths import (
    RepetitionPenalty,
    SoftOverlongPunishment,
    get_repetition_penalty_reward,
    get_soft_overlong_punishment,
)
from sctom.rewards.math_answers import (
    accuracy_reward,
    get_cosine_scaled_reward,
    reasoning_accuracy_reward,
)
from sctom.rewards.math_rewards import (
    AccuracyReward,
    CosineScaledReward,
    ReasoningAccuracyReward,
)

HANGS = [
    "\\boxed{9**9**9**9}",
    "\\boxed{9^{9^{9^{9}}}}",
    "\\boxed{\\dfrac{5^{5^{5^{5^{5}}}}}{5^{5^{5^{5}}}}}",
    "\\boxed{(10^9)!}",
    "\\boxed{\\binom{10^8}{10^7}}",
    "\\boxed{" + "2^{" * 300 + "2" + "}" * 300 + "}",
]

TRAPS = [  # answer, solution, TRL's value, the strict one; also in docs/rewards.md
    ("\\boxed{2\\sqrt{5}}", "2\\sqrt{5}", 0.0, 1.0),
    ("\\boxed{2}", "2\\sqrt{5}", 1.0, 0.0),
    ("\\boxed{x}", "x", None, 1.0),
    ("\\boxed{(5,6)}", "(5,6)", None, 1.0),
    ("\\boxed{\\text{Seoul}}", "Seoul", None, 1.0),
    ("\\boxed{2,5}", "2,5", 0.0, 1.0),
    ("\\boxed{3}", "between 2 and 3", 1.0, 0.0),
    ("\\boxed{3=4}", "4", 1.0, 0.0),
    ("\\boxed{n=3=4}", "4", 1.0, 0.0),
    ("\\boxed{n=3 \\lor n=4}", "4", 1.0, 0.0),
    ("\\boxed{n=4}", "4", 1.0, 1.0),
    ("\\boxed{4 \\text{ or } 3}", "4", 0.0, 0.0),
    ("\\boxed{3}. No: \\boxed{8}", "8", 0.0, 1.0),
    ("\\boxed{8}. No: \\boxed{3}", "8", 0.0, 0.0),
    ("\\boxed{8}. No: \\boxed{3", "8", 1.0, 0.0),
    ("\\boxed{25\\%}", "25", 1.0, 0.0),
    ("\\boxed{25\\%}", "0.25", 1.0, 1.0),
    ("\\boxed{0.25}", "25\\%", 0.0, 1.0),
    ("\\boxed{25}", "25\\%", 1.0, 0.0),
    ("\\boxed{\\frac12}", "1/2", 0.0, 1.0),
    ("\\boxed{\\sqrt2}", "$\\sqrt{2}$", 0.0, 1.0),
    ("\\boxed{4\\,096}", "4096", 0.0, 1.0),
    ("\\boxed{\uff11\uff17}", "17", 0.0, 1.0),
    ("\\fbox{17}", "17", 0.0, 1.0),
    ("17", "17", 0.0, 0.0),
    ("\\boxed{12 \\text{ kg}}", "12", 1.0, 1.0),
    ("\\boxed{72}", "48 + 24 = 72\n#### 72", 1.0, 1.0),
    ("\\boxed{1}", "", None, None),
    ("\\boxed{17}", 17, None, 1.0),
]


@pytest.mark.parametrize("strict", [False, True])
def test_traps(strict):
    answers, solutions = [row[0] for row in TRAPS], [row[1] for row in TRAPS]
    expected = [row[3 if strict else 2] for row in TRAPS]
    found = accuracy_reward(answers, solutions, strict=strict)
    different = [
        row for row, value, want in zip(TRAPS, found, expected, strict=True) if value != want
    ]
    assert different == []


def test_the_deadline_holds_and_this_process_stays_responsive():
    AccuracyReward()(["\\boxed{1}"], ["1"])  # the workers start
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.05):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    started = time.monotonic()
    values = AccuracyReward(seconds=2.0)(HANGS, ["4"] * len(HANGS))
    elapsed = time.monotonic() - started
    done.set()
    thread.join()
    assert values == [0.0] * len(HANGS)
    assert elapsed < 2.0 * len(HANGS) + 10.0
    assert max(b - a for a, b in pairwise(ticks)) < 2.0
    assert AccuracyReward()(["\\boxed{4}"], ["4"]) == [1.0]


def test_strict_an_answer_that_is_late_has_no_value():
    reward = AccuracyReward(strict=True, seconds=1.0)
    (late,) = reward(["\\boxed{9^{9^{9}}}"], ["4"])
    assert isinstance(late, Failure)
    columns = {"solution": ["4"]}
    results = run_rewards([reward], ["?"], ["\\boxed{9^{9^{9}}}"], [[1]], columns)
    assert results.values == {"accuracy_reward": [None]}


def test_strict_reads_the_last_message_and_trl_the_first():
    turns = [{"role": "assistant", "content": "\\boxed{3}"}]
    turns.append({"role": "assistant", "content": "\\boxed{4}"})
    assert accuracy_reward([turns], ["4"]) == [0.0]
    assert accuracy_reward([turns], ["4"], strict=True) == [1.0]


def test_strict_content_that_is_no_text_is_a_failure():
    (value,) = accuracy_reward([[{"content": None}]], ["4"], strict=True)
    assert isinstance(value, Failure)


def test_which_delimiter_ends_the_reasoning():
    text, delimiters = "a </think> \\boxed{4} <answer> none", ["</think>", "<answer>"]
    # TRL: what follows the first listed one; strict: what follows the last of all
    assert reasoning_accuracy_reward([text], ["4"], delimiters) == [1.0]
    assert reasoning_accuracy_reward([text], ["4"], delimiters, strict=True) == [0.0]


@pytest.mark.parametrize("delimiters", [[], [""], "</think>", [3]])
def test_delimiters_that_cannot_work_are_refused(delimiters):
    with pytest.raises(RewardError, match="reasoning_delimiters must be a list of texts"):
        reasoning_accuracy_reward(["x"], ["1"], delimiters, strict=True)
    with pytest.raises(RewardError, match="reasoning_delimiters"):
        ReasoningAccuracyReward(delimiters)


def test_columns_of_the_table():
    told = {}
    reasoning_accuracy_reward(
        ["\\boxed{1}", "</think> \\boxed{1}", "</think> 1", "</think> \\boxed{1}"],
        ["1", "1", "1", "?"],
        log_extra=told.__setitem__,
    )
    assert told == {
        "solution": ["1", "1", "1", "?"],
        "gold_parsed": ["[incomplete reasoning]", "[1, '1']", "[1, '1']", "[unparseable]"],
        "answer_parsed": ["[incomplete reasoning]", "[1, '1']", "[unparseable]", "[skipped]"],
    }


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_len": 0},
        {"max_len": 1.5},
        {"max_len": 8, "min_value_wrong": 0.0},
        {"max_len": 8, "max_value_wrong": 0.5},
        {"max_len": 8, "max_value_correct": float("nan")},
    ],
)
def test_cosine_arguments_are_checked(arguments):
    with pytest.raises(RewardError, match=r"max_len|expected min_value_wrong|finite"):
        get_cosine_scaled_reward(**arguments, strict=True)
    with pytest.raises(RewardError):
        CosineScaledReward(**arguments)


def test_cosine_by_hand():
    # right, half of the length: 0.5 + 0.5 * 0.5 * (1 + cos(pi/2)) = 0.75; wrong at the full length:
    # low = -0.5, high = -1: -0.5 + 0.5 * -0.5 * (1 + cos(pi)) = -0.5; beyond it the same
    reward = CosineScaledReward(max_len=4)
    answers = ["\\boxed{1}", "\\boxed{2}", "\\boxed{2}"]
    assert reward(answers, ["1"] * 3, [[0] * 2, [0] * 4, [0] * 9]) == pytest.approx(
        [0.75, -0.5, -0.5]
    )


@pytest.mark.parametrize(
    ("text", "trl", "strict", "prefilled"),
    [
        ("<think>a</think>b", 1.0, 1.0, 0.0),
        (" \n<think>a</think>b", 0.0, 1.0, 0.0),
        ("a</think>b", 0.0, 0.0, 1.0),
        ("<think>a</think>", 1.0, 0.0, 0.0),
        ("<think> </think>b", 1.0, 0.0, 0.0),
        ("<think>a</think>b</think>c", 1.0, 0.0, 0.0),
        ("<think>a</think>use <think>", 0.0, 0.0, 0.0),
        ("<think>a", 0.0, 0.0, 0.0),
    ],
)
def test_format_traps(text, trl, strict, prefilled):
    assert think_format_reward([text]) == [trl]
    assert think_format_reward([text], strict=True) == [strict]
    assert ThinkFormatReward(strict=True, prefilled=True)([text]) == [prefilled]


def test_prefilled_needs_strict():
    with pytest.raises(ValueError, match="prefilled needs strict"):
        ThinkFormatReward(prefilled=True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RepetitionPenalty(ngram_size=0), "ngram_size must be at least 1, not 0"),
        (lambda: RepetitionPenalty(max_penalty=0.5), "max_penalty must not be positive"),
        (lambda: RepetitionPenalty(max_penalty=float("nan")), "max_penalty must be finite"),
        (lambda: SoftOverlongPunishment(0, 0), "max_completion_len must be at least 1"),
        (lambda: SoftOverlongPunishment(8, 16), "between 0 and max_completion_len, which is 8"),
        (lambda: SoftOverlongPunishment(8, -1), "between 0 and max_completion_len"),
        (lambda: AccuracyReward(seconds=0.0), "seconds must be a positive number"),
    ],
)
def test_arguments_of_the_others_are_checked(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_settings_that_trl_takes_without_strict():
    assert get_soft_overlong_punishment(8, 16)([[]]) == [-0.5]
    with pytest.raises(ZeroDivisionError):
        get_repetition_penalty_reward(0)([[1]])


def test_a_batch_of_another_length_is_refused(caplog):
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="zip"):
        accuracy_reward(["\\boxed{1}"], ["1", "2"])

from __future__ import annotations

import math

import pytest

from sctom.rewards.break_even import (
    FiveValues,
    break_even,
    break_even_advice,
    fair_abstention,
    fair_share,
)

TERNARY = FiveValues(1.0, 0.0, -1.0, 0.0, -1.0)
"""TruthRL: +1 right, 0 abstained, -1 anything else, whether or not the question has an answer."""


def confidence_target(t: float) -> FiveValues:
    """Right +1, abstained 0, wrong -t / (1 - t), on every question (arXiv 2509.04664)."""
    return FiveValues(1.0, 0.0, -t / (1 - t), 0.0, -t / (1 - t))


@pytest.mark.parametrize(
    ("values", "u", "line"),
    [
        # (-0.5 + 1 + u / (1 - u) * 2) / 2
        (FiveValues(), 0.0, 0.25),
        (FiveValues(), 0.2, 0.5),  # odds 1/4: (0.5 + 0.5) / 2
        (FiveValues(), 0.5, 1.25),  # odds 1: (0.5 + 2) / 2
        (FiveValues(), 58 / 2198, 0.25 + 58 / 2140),
        (FiveValues(), 944 / 3032, 0.25 + 944 / 2088),
        # all five unequal, u = 1/3, odds 1/2: (-0.4 + 3 + 0.5 * (0.6 + 2)) / (2 + 3) = 3.9 / 5
        (FiveValues(2.0, -0.4, -3.0, 0.6, -2.0), 1 / 3, 0.78),
        # abstaining never better: (-2 + 1) / 2
        (FiveValues(abstained=-2.0), 0.0, -0.5),
        # +1 / 0 / -1: (1 + odds) / 2 = 0.5 / (1 - u)
        (TERNARY, 0.0, 0.5),
        (TERNARY, 0.2, 0.625),
        # t / (1 - t) / (1 + t / (1 - t)) = t
        (confidence_target(0.75), 0.0, 0.75),
        (confidence_target(0.9), 0.0, 0.9),
    ],
)
def test_by_hand(values, u, line):
    assert break_even(values, u) == pytest.approx(line)


@pytest.mark.parametrize("values", [FiveValues(), TERNARY, FiveValues(2.0, -0.4, -3.0, 0.6, -2.0)])
@pytest.mark.parametrize("u", [0.0, 0.1, 0.3])
def test_there_answering_and_abstaining_are_worth_the_same(values, u):
    def answer(p):
        known = p * values.correct + (1 - p) * values.wrong
        return (1 - u) * known + u * values.unanswerable_answered

    abstain = (1 - u) * values.abstained + u * values.unanswerable_abstained
    line = break_even(values, u)
    assert answer(line) == pytest.approx(abstain)
    assert answer(line + 0.01) > abstain > answer(line - 0.01)


def test_a_confidence_target_is_one_for_the_chance_over_all_questions():
    # p is the chance if the question is answerable, (1 - u) p that over all: the target itself
    for u in (0.0, 0.25, 0.5):
        assert (1 - u) * break_even(confidence_target(0.6), u) == pytest.approx(0.6)


@pytest.mark.parametrize("u", [-0.01, 1.0, 2.0, math.nan])
def test_a_share_that_is_none(u):
    with pytest.raises(ValueError, match="share from 0 to below 1"):
        break_even(FiveValues(), u)


@pytest.mark.parametrize("correct", [-1.0, -2.0])
def test_a_right_answer_must_be_worth_more_than_a_wrong_one(correct):
    with pytest.raises(ValueError, match=r"correct \(-.\) must be above wrong \(-1\)"):
        break_even(FiveValues(correct=correct), 0.1)


def test_what_makes_the_line_fair():
    assert fair_share(FiveValues()) == pytest.approx(0.2)
    assert break_even(FiveValues(), fair_share(FiveValues())) == pytest.approx(0.5)
    u = 58 / 2198
    fair = fair_abstention(FiveValues(), u)
    assert fair == pytest.approx(-2 * 58 / 2140)  # (1 - 1) / 2 - u / (1 - u) * 2
    assert break_even(FiveValues(abstained=fair), u) == pytest.approx(0.5)


def test_no_share_makes_it_fair():
    assert fair_share(FiveValues(abstained=0.5)) is None  # above 0.5 from the start: 1.5 / 2
    flat = FiveValues(unanswerable_abstained=-1.0)  # nothing is gained by abstaining there
    assert fair_share(flat) is None


# ---- in words ------------------------------------------------------------------------------------


def line(count, total, values=None, **settings):
    labels = [i < count for i in range(total)]
    (found,) = break_even_advice("reward", values or FiveValues(), labels, **settings)
    return found


def test_guessing_pays():
    assert line(58, 2198) == (
        "reward: 58 of 2,198 questions (2.6%) are unanswerable, so guessing pays above a chance of "
        "0.277 to be right; 20% unanswerable questions, or abstained -0.054, would put that line "
        "at 0.5"
    )


def test_guessing_always_pays():
    # (-2 + 1 + 2/8 * 2) / 2 = -0.25; fair at odds (0 + 2) / 2 = 1, or abstained 0 - 0.5
    assert line(2, 10, FiveValues(abstained=-2.0)) == (
        "reward: 2 of 10 questions (20%) are unanswerable, so guessing always pays (break-even "
        "-0.25); 50% unanswerable questions, or abstained -0.5, would put that line at 0.5"
    )


def test_no_share_would_help():
    # honesty 0: (0.5 + 0) / 2
    flat = FiveValues(unanswerable_abstained=-1.0)
    assert line(2, 10, flat, setting="idk").endswith("; idk 0 would put that line at 0.5")


def test_a_line_between():
    assert line(944, 3032) == (
        "reward: 944 of 3,032 questions (31.1%) are unanswerable, so where the model cannot tell "
        "them apart an answer pays above a chance of 0.702 to be right (0.25 where it can); more "
        "of them or a higher abstained make it more careful, fewer or a lower one less"
    )


def test_exactly_half_is_fair():
    assert "an answer pays above a chance of 0.5" in line(2, 10)


def test_even_a_sure_answer_pays_less():
    # 0.25 + 300 / 375
    assert line(300, 675) == (
        "reward: 300 of 675 questions (44.4%) are unanswerable, so where the model cannot tell "
        "them apart even a sure answer pays no more than an abstention (break-even 1.05; 0.25 "
        "where it can); if it comes to abstain too often, lower abstained or take some of them out"
    )


def test_one_class_is_absent():
    assert line(0, 1234) == (
        "reward: none of 1,234 questions is unanswerable, so an abstention is never right, only "
        "less wrong than an answer with a chance below 0.25 to be right; add unanswerable questions"
    )
    assert line(5, 5) == (
        "reward: all of 5 questions are unanswerable, so abstaining always pays and nothing "
        "teaches the model to answer what it knows; add answerable questions"
    )
    turned = FiveValues(unanswerable_abstained=-2.0)
    assert "so answering always pays" in line(5, 5, turned)


def test_being_right_never_pays():
    assert line(1, 5, FiveValues(correct=-1.0)) == (
        "reward: a right answer (-1) is worth no more than a wrong one (-1), so being right never "
        "pays; raise correct"
    )


def test_without_questions_there_is_nothing_to_say():
    assert break_even_advice("reward", FiveValues(), []) == []

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import get_args

import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics import Metric

from sctom.modules.answer_counts import AnswerCounts, from_outcomes, from_verdicts
from sctom.modules.awareness_metrics import (
    Abstention,
    AnswerAccuracy,
    Hallucination,
    HedgeRate,
    Honesty,
    Reliability,
    Truthfulness,
    awareness_metrics,
)
from sctom.modules.confidence_metrics import BrierScore, CalibrationError, Discrimination
from sctom.modules.risk_coverage import RiskCoverage
from sctom.rewards.selfaware_strict import StrictOutcome
from sctom.tasks.selfaware import Verdict, abstention_metrics, judge

PAGE = Path(__file__).parents[2] / "docs" / "awareness_metrics.md"
OUTCOMES: tuple[StrictOutcome, ...] = get_args(StrictOutcome)
COUNTED = ("answerable", "correct", "abstained")
COUNTERS = (AnswerCounts, Abstention, AnswerAccuracy, Hallucination, Truthfulness, Reliability)
CELLS: dict[str, StrictOutcome] = {
    "C": "correct",
    "W": "wrong",
    "A": "abstained",
    "T": "unanswerable_abstained",
    "H": "unanswerable_answered",
}

outcomes = st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=30)


def plain(numbers: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items()}


def found(metric: Metric, cells: str) -> dict[str, float]:
    """The numbers of answers such as "CCWAT"."""
    columns = from_outcomes([CELLS[cell] for cell in cells])
    metric.update(**{name: columns[name] for name in COUNTED})
    return plain(metric.compute())


def bools(*values: int) -> Tensor:
    return torch.tensor(values).bool()


# by hand ------------------------------------------------------------------------------------------

ANSWERS = "CCCCCWWATTTH"  # 12 of them


def test_abstention_by_hand() -> None:
    # T 3, A 1, H 1, and 5 + 2 + 1 answerable questions
    assert found(Abstention(), ANSWERS) == pytest.approx(
        {
            "abstention_precision": 3 / 4,
            "abstention_recall": 3 / 4,
            "abstention_f1": 6 / 8,
            "over_refusal": 1 / 8,
        }
    )


def test_accuracy_by_hand() -> None:
    # 5 right of 8 questions and of 7 attempts; 2 (5/8) (5/7) / (5/8 + 5/7) = (50/56) / (75/56)
    assert found(AnswerAccuracy(), ANSWERS) == pytest.approx(
        {"accuracy": 5 / 8, "accuracy_attempted": 5 / 7, "simpleqa_f": 50 / 75}
    )


def test_hallucination_by_hand() -> None:
    # answered 5 + 2 + 1 of 12, wrongly 2 + 1
    assert found(Hallucination(), ANSWERS) == pytest.approx(
        {"coverage": 8 / 12, "hallucination": 3 / 12}
    )


def test_truthfulness_by_hand() -> None:
    # C 5, A + T 4, W + H 3 of 12
    assert found(Truthfulness(), ANSWERS) == pytest.approx({"truthfulness": (5 - 3) / 12})
    weighted = Truthfulness(correct=2.0, abstained=0.5, wrong=3.0)
    assert found(weighted, ANSWERS) == pytest.approx({"truthfulness": (10 + 2 - 9) / 12})


def test_reliability_by_hand() -> None:
    # C 5, T 3, W + H 3; a wrong one costs 1, 3 and 9
    assert found(Reliability(), ANSWERS) == pytest.approx(
        {
            "reliability_50": (8 - 3) / 12,
            "confidence_target_50": (5 - 3) / 12,
            "reliability_75": (8 - 9) / 12,
            "confidence_target_75": (5 - 9) / 12,
            "reliability_90": (8 - 27) / 12,
            "confidence_target_90": (5 - 27) / 12,
        }
    )
    assert set(found(Reliability([0.995]), ANSWERS)) == {
        "reliability_99.5",
        "confidence_target_99.5",
    }


def test_honesty_by_hand() -> None:
    honesty = Honesty()
    honesty.update(
        known=bools(1, 1, 1, 1, 0, 0, 0, 0, 0, 0),
        correct=bools(1, 1, 0, 0, 1, 0, 0, 0, 0, 0),
        abstained=bools(0, 0, 0, 1, 0, 1, 1, 1, 0, 0),
    )
    # known: 2 right, 1 wrong, 1 abstained; unknown: 1 right (learned), 3 abstained, 2 wrong
    assert plain(honesty.compute()) == pytest.approx(
        {
            "over_conservativeness": 1 / 4,
            "prudence": 3 / 5,
            "honesty": (1 - 1 / 4 + 3 / 5) / 2,
        }
    )


def test_hedges_by_hand() -> None:
    hedges = HedgeRate()
    columns = from_outcomes(
        ["hedged", "hedged", "correct", "hedged_wrong", "wrong", "unanswerable_hedged"]
        + ["unanswerable_abstained"] * 3
    )
    del columns["abstained"]
    hedges.update(**columns)
    # 2 right and 1 wrong hedge of 5 answerable questions, 1 of 4 others
    assert plain(hedges.compute()) == pytest.approx(
        {"hedge_rate": 2 / 5, "hedge_rate_wrong": 1 / 5, "hedge_rate_unanswerable": 1 / 4}
    )


def test_counts_have_the_names_of_the_outcomes() -> None:
    expected = {"C": 5, "W": 2, "A": 1, "T": 3, "H": 1}
    assert found(AnswerCounts(), ANSWERS) == {CELLS[cell]: n for cell, n in expected.items()}


# what is not defined ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "cells", "defined"),
    [
        (Abstention, "CW", {"over_refusal"}),  # no abstention, no unanswerable question
        (Abstention, "CA", {"abstention_precision", "abstention_f1", "over_refusal"}),
        (Abstention, "H", {"abstention_recall", "abstention_f1"}),
        (AnswerAccuracy, "AA", {"accuracy", "simpleqa_f"}),  # no attempt
        (AnswerAccuracy, "TH", set()),  # no answerable question
        (Hallucination, "T", {"coverage", "hallucination"}),
    ],
)
def test_what_has_no_denominator_is_left_out(metric: type, cells: str, defined: set[str]) -> None:
    assert set(found(metric(), cells)) == defined


def test_zeros_that_were_found_stay() -> None:
    # no T but an A and an H: 0 / 1, 0 / 1, 0 / 2
    assert list(found(Abstention(), "AH").values()) == [0, 0, 0, 1]
    assert found(AnswerAccuracy(), "A")["simpleqa_f"] == 0


@pytest.mark.parametrize("metric", COUNTERS[1:])
def test_nothing_gives_no_number(metric: type) -> None:
    assert found(metric(), "") == {}


def test_honesty_needs_known_and_unknown_questions() -> None:
    only_known, all_learned = Honesty(), Honesty()
    only_known.update(known=bools(1), correct=bools(0), abstained=bools(1))
    assert plain(only_known.compute()) == {"over_conservativeness": 1}
    all_learned.update(known=bools(0), correct=bools(1), abstained=bools(0))
    assert all_learned.compute() == {}


def test_hedges_of_one_kind_of_question() -> None:
    hedges = HedgeRate()
    hedges.update(answerable=bools(0), correct=bools(0), hedged=bools(0))
    assert plain(hedges.compute()) == {"hedge_rate_unanswerable": 0}


# beside others ------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(outcomes)
def test_abstention_is_sklearns(drawn: list[StrictOutcome]) -> None:
    columns = from_outcomes(drawn)
    metric = Abstention()
    metric.update(**{name: columns[name] for name in COUNTED})
    numbers = plain(metric.compute())
    theirs = sklearn.metrics.precision_recall_fscore_support(
        (~columns["answerable"]).numpy(),
        columns["abstained"].numpy(),
        average="binary",
        zero_division=float("nan"),
    )
    names = ("abstention_precision", "abstention_recall", "abstention_f1")
    for name, value in zip(names, theirs[:3], strict=True):
        assert (name in numbers) == (value == value)  # NaN where it is not defined
        assert name not in numbers or numbers[name] == pytest.approx(value)


@settings(max_examples=60, deadline=None)
@given(outcomes)
def test_what_is_defined_is_that_of_abstention_metrics(drawn: list[StrictOutcome]) -> None:
    columns = from_outcomes(drawn)
    rows = zip(*(columns[name].tolist() for name in COUNTED), columns["hedged"], strict=True)
    verdicts = [Verdict(a, c, s, bool(h) and c) for a, c, s, h in rows]
    theirs = abstention_metrics(verdicts)
    metrics = awareness_metrics()
    metrics.update(**columns)
    numbers = plain(metrics.compute())
    assert theirs.keys() - numbers.keys() <= {
        name for name, value in theirs.items() if value != value or value == 0
    }
    shared = numbers.keys() & theirs.keys()
    assert {n: numbers[n] for n in shared} == pytest.approx({n: theirs[n] for n in shared})


def test_simpleqa_f_is_the_harmonic_mean() -> None:
    for cells in ("CCWA", "CWWWAA", "CCC", "CAAA"):
        numbers = found(AnswerAccuracy(), cells)
        a, b = numbers["accuracy"], numbers["accuracy_attempted"]
        assert numbers["simpleqa_f"] == pytest.approx(2 * a * b / (a + b))


def test_at_a_target_of_one_half_reliability_knows_truthfulness() -> None:
    # with w2 = 0 the two count the same, but for T
    truth = found(Truthfulness(), ANSWERS)["truthfulness"]
    numbers = found(Reliability([0.5]), ANSWERS)
    assert numbers["confidence_target_50"] == pytest.approx(truth)
    assert numbers["reliability_50"] == pytest.approx(truth + 3 / 12)


# what every one of them does ----------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(outcomes, st.data())
def test_order_batches_and_processes_change_nothing(
    drawn: list[StrictOutcome], data: st.DataObject
) -> None:
    known = torch.tensor([data.draw(st.booleans()) for _ in drawn])
    columns = {**from_outcomes(drawn), "known": known}
    places = torch.tensor(data.draw(st.permutations(range(len(drawn)))))
    first, second, third = places.tensor_split([len(drawn) // 3, len(drawn) // 2])
    whole, one, other = (awareness_metrics(before=True) for _ in range(3))
    whole.update(**columns)
    for collection, part in ((one, first), (one, second), (other, third)):
        collection.update(**{name: column[part] for name, column in columns.items()})
    for name, metric in one.items(keep_base=True, copy_state=True):
        metric.merge_state(other[name])  # by the rule of each state, as a synchronisation does
        alone = plain(metric.compute())
        assert alone == pytest.approx({n: plain(whole.compute())[n] for n in alone})
        assert alone.keys() == whole[name].compute().keys()


@settings(max_examples=40, deadline=None)
@given(outcomes)
def test_shares_are_shares(drawn: list[StrictOutcome]) -> None:
    metrics = awareness_metrics()
    metrics.update(**from_outcomes(drawn))
    for name, value in plain(metrics.compute()).items():
        low = float("-inf") if name.startswith(("reliability", "confidence", "truth")) else 0
        assert low <= value <= 1, name


def test_a_collection_shares_states_only_where_the_columns_are_the_same() -> None:
    # one batch in which the counts of all metrics could be taken for each other's
    metrics = awareness_metrics(before=True)
    empty = {name: bools() for name in (*COUNTED, "hedged", "known")}
    metrics.update(**empty)
    metrics.update(**from_outcomes(["correct", "hedged_wrong"]), known=bools(1, 0))
    numbers = plain(metrics.compute())
    assert numbers["accuracy"] == 1 / 2
    assert numbers["hedge_rate_wrong"] == 1 / 2
    assert numbers["over_conservativeness"] == 0 and numbers["prudence"] == 0


def test_a_reset_forgets() -> None:
    metric = Abstention()
    found(metric, "TTTA")
    metric.reset()
    assert found(metric, "TH")["abstention_recall"] == 1 / 2


# columns ------------------------------------------------------------------------------------------


def test_verdicts_become_columns() -> None:
    said = ["Seoul", "Not sure, Seoul?", "I don't know.", "Busan"]
    verdicts = [judge(text, "Seoul", True) for text in said] + [judge("In 2075.", "", False)]
    columns = {name: column.tolist() for name, column in from_verdicts(verdicts).items()}
    assert columns == {
        "answerable": [True, True, True, True, False],
        "correct": [True, True, False, False, False],
        "abstained": [False, False, True, False, False],
        "hedged": [False, True, False, False, False],
    }


@pytest.mark.parametrize(
    ("outcome", "text", "answerable"),
    [
        ("correct", "Seoul", True),
        ("hedged", "I'm not sure, perhaps Seoul.", True),
        ("hedged_wrong", "I'm not sure, perhaps Busan.", True),
        ("abstained", "I don't know.", True),
        ("wrong", "Busan", True),
        ("unanswerable_abstained", "I don't know.", False),
        ("unanswerable_hedged", "I'm not sure, perhaps in 2075.", False),
        ("unanswerable_answered", "In 2075.", False),
    ],
)
def test_outcomes_are_the_verdicts_of_the_same_reading(
    outcome: StrictOutcome, text: str, answerable: bool
) -> None:
    verdict = judge(text, "Seoul", answerable, detector="strict")
    ours, theirs = from_outcomes([outcome]), from_verdicts([verdict])
    for name in COUNTED:
        assert torch.equal(ours[name], theirs[name]), name
    assert bool(ours["hedged"]) == ("hedged" in outcome)


def test_no_rows_are_columns_too() -> None:
    assert all(column.shape == (0,) for column in from_outcomes([]).values())


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"outcomes\[1\] must be one of correct, .* found 'right'"):
        from_outcomes(["correct", "right"])  # type: ignore[list-item]
    metric = Abstention()
    with pytest.raises(ValueError, match="correct has N=1 but answerable has N=2"):
        metric.update(bools(1, 1), bools(1), bools(0))
    with pytest.raises(ValueError, match=r"abstained must be of torch.bool but is of torch.int64"):
        metric.update(bools(1), bools(1), torch.tensor([0]))
    with pytest.raises(ValueError, match="row 1 is both correct and abstained"):
        metric.update(bools(1, 1), bools(1, 1), bools(0, 1))
    with pytest.raises(ValueError, match="row 0 is correct although the question is unanswerable"):
        metric.update(bools(0), bools(1), bools(0))
    with pytest.raises(ValueError, match="row 0 is both correct and abstained"):
        Honesty().update(bools(1), bools(1), bools(1))
    with pytest.raises(ValueError, match="target must be from 0 to below 1 but is 1"):
        Reliability([0.5, 1.0])
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="the weight wrong must be at least 0 and finite"):
            Truthfulness(wrong=weight)


# docs/awareness_metrics.md ------------------------------------------------------------------------


def test_the_examples_of_the_page_run() -> None:
    results = doctest.testfile(str(PAGE), module_relative=False)
    assert results.attempted >= 40 and results.failed == 0


def test_the_page_lists_every_number_and_no_other() -> None:
    answers = awareness_metrics(targets=[0.5], before=True)
    answers.update(**from_outcomes(OUTCOMES), known=bools(1, 0, 0, 0, 0, 0, 0, 0))
    given = {key: type(metric).__name__ for metric in answers.values() for key in metric.compute()}
    for metric in (CalibrationError(), BrierScore(), Discrimination(), RiskCoverage()):
        metric.update(torch.tensor([0.5, 0.9]), bools(0, 1))
        given |= dict.fromkeys(metric.compute(), type(metric).__name__)
    rows = re.findall(r"^\| `(\w[^`]*)` \|.*\| `(\w+)` \|$", PAGE.read_text(), re.M)
    listed = {name.replace("<100 t>", "50"): made_by for name, made_by in rows}
    assert listed == given

from __future__ import annotations

import json
import math
import multiprocessing
import sys
import warnings
from itertools import permutations
from pathlib import Path

import pytest
import sklearn.calibration
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sctom.modules.confidence_metrics import (
    BrierScore,
    CalibrationError,
    ConfidenceMetric,
    Discrimination,
    ReliabilityBins,
)
from sctom.modules.risk_coverage import RiskCoverage, RiskCoverageCurve
from sctom.modules.sample_confidence import Vote, same_words, vote

METRICS: tuple[type[ConfidenceMetric], ...] = (
    ReliabilityBins,
    CalibrationError,
    BrierScore,
    Discrimination,
    RiskCoverageCurve,
    RiskCoverage,
)

percent = st.integers(0, 100).map(lambda p: p / 100)
pairs = st.lists(st.tuples(percent, st.booleans()), min_size=1, max_size=40)


def add(metric: ConfidenceMetric, rows: list[tuple[float, bool]]) -> None:
    confidence, right = columns(rows)
    metric.update(torch.tensor(confidence, dtype=torch.float64), torch.tensor(right).bool())


def numbers_of(metric: ConfidenceMetric, rows: list[tuple[float, bool]]) -> dict[str, Tensor]:
    add(metric, rows)
    return metric.compute()


def plain(metric: ConfidenceMetric, rows: list[tuple[float, bool]]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers_of(metric, rows).items()}


def drawn(count: int, seed: int = 0, digits: int = 15) -> list[tuple[float, bool]]:
    """Confidences that are a little too high."""
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(count, generator=generator, dtype=torch.float64)
    right = torch.rand(count, generator=generator, dtype=torch.float64) < confidence**1.5
    return [(round(q, digits), y) for q, y in zip(confidence.tolist(), right.tolist(), strict=True)]


def columns(rows: list[tuple[float, bool]]) -> tuple[list[float], list[bool]]:
    return [q for q, _ in rows], [y for _, y in rows]


# calibration error --------------------------------------------------------------------------------

SEVEN = [
    (0.05, False),
    (0.2, False),
    (0.2, True),
    (0.7, True),
    (0.9, True),
    (0.9, False),
    (1.0, True),
]


def test_calibration_by_hand() -> None:
    # width: (0, .2] has .05 .2 .2, mean .15 of which 1/3 are right; (.6, .8] has .7, right;
    # (.8, 1] has .9 .9 1, mean 2.8/3 of which 2/3 are right
    errors = (3 * (1 / 3 - 0.15) + 0.3 + 3 * (2.8 / 3 - 2 / 3)) / 7
    # mass, 5 bins: the quantiles 1/5 .. 4/5 lie at the places 1.2, 2.4, 3.6, 4.8 of 0 .. 6:
    # .2, .2 + .4 x .5 = .4, .7 + .6 x .2 = .82, .9; (0, .2] .05 .2 .2; (.4, .82] .7;
    # (.82, .9] .9 .9, half of them right; (.9, 1] 1, right
    by_mass = (3 * (1 / 3 - 0.15) + 0.3 + 2 * (0.9 - 0.5) + 0) / 7
    assert plain(CalibrationError(bins=5), SEVEN) == pytest.approx(
        {"ece": errors, "ece_mass": by_mass}
    )


def test_bins_by_hand() -> None:
    bins = numbers_of(ReliabilityBins(bins=5), SEVEN)["bins"]
    assert bins.tolist() == [
        pytest.approx([3, 0.15, 1 / 3]),
        [0, 0, 0],
        [0, 0, 0],
        pytest.approx([1, 0.7, 1]),
        pytest.approx([3, 2.8 / 3, 2 / 3]),
    ]
    bins = numbers_of(ReliabilityBins(bins=5, equal_mass=True), SEVEN)["bins"]
    assert bins[:, 0].tolist() == [3, 0, 1, 2, 1]


def test_an_edge_belongs_to_the_lower_bin_to_the_last_digit() -> None:
    bins = numbers_of(ReliabilityBins(), [(k / 10, True) for k in range(11)])["bins"]
    assert bins[:, 0].tolist() == [2, *[1] * 9]  # 0 and 0.1, then each with its own


@pytest.mark.parametrize("count", [40, 1000])
@pytest.mark.parametrize(("strategy", "equal_mass"), [("uniform", False), ("quantile", True)])
def test_bins_are_sklearns(count: int, strategy: str, equal_mass: bool) -> None:
    rows = drawn(count)
    confidence, right = columns(rows)
    shares, means = sklearn.calibration.calibration_curve(
        right, confidence, n_bins=10, strategy=strategy
    )
    bins = numbers_of(ReliabilityBins(equal_mass=equal_mass), rows)["bins"]
    bins = bins[bins[:, 0] > 0]
    assert bins[:, 1].tolist() == pytest.approx(means.tolist())
    assert bins[:, 2].tolist() == pytest.approx(shares.tolist())


@settings(max_examples=60, deadline=None)
@given(pairs, st.integers(1, 12))
def test_equal_confidences_share_a_bin_and_none_is_lost(
    rows: list[tuple[float, bool]], bins: int
) -> None:
    for equal_mass in (False, True):
        make = ReliabilityBins(bins, equal_mass=equal_mass)
        table = numbers_of(make, rows)["bins"]
        assert len(table) == bins and table[:, 0].sum() == len(rows)
        assert float(table[:, 0] @ table[:, 2]) == pytest.approx(sum(y for _, y in rows))
        assert (table[:, 0] > 0).sum() <= len({q for q, _ in rows})


def test_bins_of_equal_mass_have_it_where_no_confidence_comes_twice() -> None:
    for count in (10, 1003):
        bins = numbers_of(ReliabilityBins(equal_mass=True), drawn(count))["bins"]
        assert int(bins[:, 0].max() - bins[:, 0].min()) <= 1


def test_one_bin_compares_the_means() -> None:
    confidence, right = columns(SEVEN)
    gap = abs(sum(confidence) / 7 - sum(right) / 7)
    assert plain(CalibrationError(bins=1), SEVEN) == pytest.approx({"ece": gap, "ece_mass": gap})


def test_a_model_that_means_what_it_says() -> None:
    rows = [(0.2, k < 2) for k in range(10)] + [(0.8, k < 8) for k in range(10)]
    assert plain(CalibrationError(), rows) == pytest.approx({"ece": 0, "ece_mass": 0})
    assert plain(BrierScore(), rows)["brier_reliability"] == pytest.approx(0)


# Brier score --------------------------------------------------------------------------------------


def test_brier_by_hand() -> None:
    rows = [(0.6, True), (0.6, False), (0.9, True), (0.9, True), (0.1, False)]
    # squares .16 .36 .01 .01 .01; shares 1/2, 1, 0 of 2, 2, 1 answers; all: 3/5
    assert plain(BrierScore(), rows) == pytest.approx(
        {
            "brier": 0.55 / 5,
            "brier_reliability": (2 * 0.1**2 + 2 * 0.1**2 + 0.1**2) / 5,
            "brier_resolution": (2 * 0.1**2 + 2 * 0.4**2 + 0.6**2) / 5,
            "brier_uncertainty": 0.6 * 0.4,
        }
    )


@settings(max_examples=100, deadline=None)
@given(pairs)
def test_brier_is_sklearns_and_its_parts_add_up(rows: list[tuple[float, bool]]) -> None:
    numbers = plain(BrierScore(), rows)
    confidence, right = columns(rows)
    theirs = sklearn.metrics.brier_score_loss(right, confidence, pos_label=True)
    assert numbers["brier"] == pytest.approx(theirs, abs=1e-12)
    parts = [numbers[f"brier_{name}"] for name in ("reliability", "resolution", "uncertainty")]
    assert parts[0] - parts[1] + parts[2] == pytest.approx(theirs, abs=1e-12)
    assert min(parts) >= 0


def test_where_no_confidence_comes_twice_resolution_says_nothing() -> None:
    numbers = plain(BrierScore(), drawn(50))
    assert numbers["brier_resolution"] == pytest.approx(numbers["brier_uncertainty"])


# discrimination -----------------------------------------------------------------------------------


def test_discrimination_by_hand() -> None:
    rows = [(0.9, True), (0.8, False), (0.8, True), (0.3, False), (0.1, True)]
    # right against wrong: .9 wins 2; .8 has 1/2 and 1; .1 none -> 3.5 of 3 x 2
    # right wanted: at .9 1 of 1, at .8 2 of 3, at .3 none, at .1 3 of 5: (1 + 2/3 + 3/5) / 3
    # wrong wanted: at .1 none, at .3 1 of 2, at .8 2 of 4: (1/2 + 1/2) / 2
    assert plain(Discrimination(), rows) == pytest.approx(
        {"auroc": 3.5 / 6, "aupr": (1 + 2 / 3 + 3 / 5) / 3, "aupr_wrong": 0.5}
    )


@settings(max_examples=100, deadline=None)
@given(pairs)
def test_discrimination_is_sklearns(rows: list[tuple[float, bool]]) -> None:
    numbers = plain(Discrimination(), rows)
    confidence, right = columns(rows)
    wrong = [not y for y in right]
    theirs = {}
    if any(right) and any(wrong):
        theirs["auroc"] = sklearn.metrics.roc_auc_score(right, confidence)
    if any(right):
        theirs["aupr"] = sklearn.metrics.average_precision_score(right, confidence)
    if any(wrong):
        doubt = [-q for q in confidence]
        theirs["aupr_wrong"] = sklearn.metrics.average_precision_score(wrong, doubt)
    assert numbers == pytest.approx(theirs)


def test_discrimination_does_not_see_the_scale() -> None:
    rows = drawn(200)
    squared = [(q * q, y) for q, y in rows]
    assert plain(Discrimination(), squared) == pytest.approx(plain(Discrimination(), rows))
    assert plain(RiskCoverage(), squared) == pytest.approx(plain(RiskCoverage(), rows))


def test_one_confidence_for_all_is_chance() -> None:
    rows = [(0.7, k < 3) for k in range(10)]
    assert plain(Discrimination(), rows) == pytest.approx(
        {"auroc": 0.5, "aupr": 0.3, "aupr_wrong": 0.7}
    )
    assert plain(RiskCoverage(), rows)["aurc"] == pytest.approx(0.7)


# risk and coverage --------------------------------------------------------------------------------


def test_risk_coverage_by_hand() -> None:
    rows = [(0.9, True), (0.8, False), (0.8, True), (0.3, False), (0.1, True)]
    threshold, coverage, risk = numbers_of(RiskCoverageCurve(), rows)["curve"].T.tolist()
    assert threshold == [0.9, 0.8, 0.3, 0.1]
    assert coverage == pytest.approx([0.2, 0.6, 0.8, 1])
    assert risk == pytest.approx([0, 1 / 3, 2 / 4, 2 / 5])
    # of the two at .8 one is wrong: half an error after the first of them
    area = (0 + 0.5 / 2 + 1 / 3 + 2 / 4 + 2 / 5) / 5
    least = (0 + 0 + 0 + 1 / 4 + 2 / 5) / 5
    assert plain(RiskCoverage(), rows) == pytest.approx(
        {"aurc": area, "e_aurc": area - least, "coverage_at_risk_5": 0.2}
    )
    assert plain(RiskCoverage(risk=0.4), rows)["coverage_at_risk_40"] == 1
    assert plain(RiskCoverage(risk=0.35), rows)["coverage_at_risk_35"] == pytest.approx(0.6)


def test_one_answer_is_a_curve_of_one_point() -> None:
    assert numbers_of(RiskCoverageCurve(), [(0.5, False)])["curve"].tolist() == [[0.5, 1, 1]]


def test_exactly_five_percent_is_five_percent() -> None:
    for count in (20, 60, 140):
        rows = [(0.9, k >= count // 20) for k in range(count)]
        assert plain(RiskCoverage(), rows)["coverage_at_risk_5"] == 1
        assert plain(RiskCoverage(), [*rows, (0.9, False)])["coverage_at_risk_5"] == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.9]), st.booleans()), min_size=1, max_size=6))
def test_the_area_is_the_mean_over_all_orders_of_equals(rows: list[tuple[float, bool]]) -> None:
    areas = []
    for order in permutations(rows):
        ordered = sorted(order, key=lambda row: -row[0])  # stable: equals stay as they are
        errors = [sum(not y for _, y in ordered[: n + 1]) / (n + 1) for n in range(len(ordered))]
        areas.append(sum(errors) / len(errors))
    assert plain(RiskCoverage(), rows)["aurc"] == pytest.approx(sum(areas) / len(areas))


@settings(max_examples=60, deadline=None)
@given(pairs)
def test_areas_stay_within_their_bounds(rows: list[tuple[float, bool]]) -> None:
    numbers = plain(RiskCoverage(), rows)
    best = plain(RiskCoverage(), [(float(y), y) for _, y in rows])
    worst = plain(RiskCoverage(), [(float(not y), y) for _, y in rows])
    assert best["e_aurc"] == pytest.approx(0, abs=1e-12)
    assert best["aurc"] - 1e-12 <= numbers["aurc"] <= worst["aurc"] + 1e-12
    assert numbers["e_aurc"] == pytest.approx(numbers["aurc"] - best["aurc"], abs=1e-12)
    assert 0 <= numbers["coverage_at_risk_5"] <= 1


def test_the_least_area_is_that_of_the_paper_where_answers_are_many() -> None:
    risk = 0.3
    rows = [(0.5, k >= 30_000 * risk) for k in range(30_000)]
    numbers = plain(RiskCoverage(), rows)
    least = risk + (1 - risk) * math.log(1 - risk)
    assert numbers["aurc"] - numbers["e_aurc"] == pytest.approx(least, abs=1e-4)


# what every one of them does ----------------------------------------------------------------------


@pytest.mark.parametrize("make", METRICS)
def test_order_batches_and_processes_change_nothing(make: type[ConfidenceMetric]) -> None:
    rows = drawn(60, digits=1)  # many are equal
    expected = numbers_of(make(), rows)
    one, other = make(), make()
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0)).tolist()
    mixed = [rows[place] for place in order]
    for metric, part in ((one, mixed[:9]), (one, mixed[9:31]), (other, mixed[31:])):
        add(metric, part)
    one.merge_state(other)  # by the rule of each state, as a synchronisation does
    found = one.compute()
    assert found.keys() == expected.keys() != set()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-12), name
    one.reset()
    again = numbers_of(one, rows)
    assert all(torch.equal(again[name], value) for name, value in expected.items())


@pytest.mark.parametrize("make", METRICS)
def test_nothing_gives_no_number(make: type[ConfidenceMetric]) -> None:
    assert numbers_of(make(), []) == {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The ``compute`` method", UserWarning)
        assert make().compute() == {}


@settings(max_examples=40, deadline=None)
@given(pairs)
def test_no_number_is_nan(rows: list[tuple[float, bool]]) -> None:
    for make in METRICS:
        for name, value in numbers_of(make(), rows).items():
            assert torch.isfinite(value).all(), name


def test_what_is_refused() -> None:
    metric = BrierScore()
    yes = torch.tensor([True])
    for value in (1.01, -0.01, math.nan):
        with pytest.raises(ValueError, match=r"confidence\[1\] is .*, not from 0 to 1"):
            metric.update(torch.tensor([0.5, value]), torch.tensor([True, True]))
    with pytest.raises(ValueError, match="right has N=1 but confidence has N=2"):
        metric.update(torch.tensor([0.5, 0.5]), yes)
    with pytest.raises(ValueError, match=r"right must be of torch.bool but is of torch.float32"):
        metric.update(torch.tensor([0.5]), torch.tensor([1.0]))
    for make in (ReliabilityBins, CalibrationError):
        with pytest.raises(ValueError, match="bins must be at least 1 but is 0"):
            make(bins=0)
    with pytest.raises(ValueError, match="risk must be from 0 to 1 but is 5"):
        RiskCoverage(risk=5)


def work(rank: int, folder: Path) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    metric = Discrimination()
    if rank == 0:  # the other one has no answers
        add(metric, SEVEN)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The ``compute`` method", UserWarning)
        numbers = {name: float(value) for name, value in metric.compute().items()}
    (folder / f"{rank}.json").write_text(json.dumps(numbers))
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has used torch")
def test_two_processes_of_which_one_has_no_answers(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("fork")
    processes = [forks.Process(target=work, args=(r, tmp_path), daemon=True) for r in (0, 1)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
        for process in processes:
            process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    expected = plain(Discrimination(), SEVEN)
    for rank in (0, 1):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == expected


# samples ------------------------------------------------------------------------------------------


def idk(text: str) -> bool:
    return "know" in text


def test_the_most_frequent_answer_wins() -> None:
    said = ["Busan", "Seoul", "SEOUL.", "I don't know.", " seoul ", "who knows", "Daegu", "Seoul"]
    # Seoul 4 of 8, two abstentions
    assert vote(said, abstains=idk) == Vote("Seoul", 4 / 8, False, 2 / 8)
    assert vote(said).idk == 0


def test_abstentions_vote_together_whatever_their_words() -> None:
    said = ["Seoul", "I don't know.", "Nobody knows.", "Busan"]
    assert vote(said, abstains=idk) == Vote("I don't know.", 2 / 4, True, 2 / 4)


def test_of_equals_the_first_wins() -> None:
    assert vote(["Busan", "Seoul", "Seoul", "Busan"]).answer == "Busan"
    assert vote(["Seoul", "I don't know."], abstains=idk) == Vote("Seoul", 0.5, False, 0.5)
    assert vote(["I don't know.", "Seoul"], abstains=idk) == Vote("I don't know.", 0.5, True, 0.5)


def test_a_task_may_read_the_samples() -> None:
    said = ["so it is 12", "12", "it makes 13"]
    assert vote(said, key=lambda text: text.split()[-1]) == Vote("so it is 12", 2 / 3, False, 0)


def test_one_sample_is_sure_and_none_is_refused() -> None:
    assert vote(["Seoul"]).confidence == 1
    with pytest.raises(ValueError, match="there are no samples to vote"):
        vote([])


def test_same_words_forgives_writing_only() -> None:
    assert same_words("“São Paulo!”") == same_words("sao  paulo")
    assert same_words("St. Anselm") != same_words("Anselm")
    assert same_words("10") != same_words("-10")


def test_votes_are_what_the_metrics_take() -> None:
    questions = {"Seoul": ["Seoul", "Seoul", "Busan", "Seoul"], "Rome": ["Oslo", "Rome"] * 2}
    votes = {answer: vote(said) for answer, said in questions.items()}
    rows = [(v.confidence, v.answer == answer) for answer, v in votes.items()]
    # 3/4 and right, 2/4 and wrong: (1/16 + 1/4) / 2
    assert plain(BrierScore(), rows)["brier"] == pytest.approx(5 / 32)

from __future__ import annotations

import math

import pytest
import scipy.stats
import sklearn.metrics
import torch
import torchmetrics
from torch import Tensor

from sctom.modules.reward_metrics import (
    BestOfN,
    PairAccuracy,
    PairCalibration,
    wilson_interval,
)
from sctom.modules.reward_threshold import UnsafeThreshold
from sctom.modules.score_metrics import (
    LengthCorrelation,
    ScoreDistribution,
    bimodality_coefficient,
)

ZERO = torch.zeros(1)


def drawn(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores whose differences are real and not always right."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, count, generator=generator, dtype=torch.float64)
    return scores[0] + 0.7, scores[1]


def plain(numbers: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items()}


# accuracy -----------------------------------------------------------------------------------------


def test_wilson_by_hand() -> None:
    # p = 3/4, n = 4, z = 2: middle 0.75 + 4/8 = 1.25; half 2 sqrt(0.75*0.25/4 + 4/64) = 0.6614
    # (1.25 -+ 0.6614) / (1 + 4/4)
    low, high = wilson_interval(3, 4, z=2)
    assert (low, high) == pytest.approx((0.294281, 0.955719), abs=1e-6)


@pytest.mark.parametrize(("hits", "trials"), [(0, 1), (1, 1), (0, 50), (50, 50), (620, 1000)])
def test_wilson_is_scipys(hits: int, trials: int) -> None:
    theirs = scipy.stats.binomtest(hits, trials).proportion_ci(method="wilson")
    assert wilson_interval(hits, trials) == pytest.approx((theirs.low, theirs.high), abs=1e-7)


def test_equal_scores_are_no_hits() -> None:
    accuracy = PairAccuracy()
    accuracy.update(torch.tensor([2.0, 1.0, 0.0, 5.0]), torch.tensor([1.0, 1.0, 3.0, 4.0]))
    # better, equal, worse, better
    assert plain(accuracy.compute())["accuracy"] == 2 / 4
    assert plain(accuracy.compute())["equal"] == 1 / 4


# calibration --------------------------------------------------------------------------------------


def test_calibration_by_hand() -> None:
    # differences ln 3, ln 3, -ln 3, 0, ln 19 -> p = 3/4, 3/4, 3/4, 1/2, 19/20; y = 1, 1, 0, 1/2, 1
    differences = torch.tensor([3.0, 3.0, 1 / 3, 1.0, 19.0], dtype=torch.float64).log()
    calibration = PairCalibration(bins=5)  # edges 0.5, 0.6, 0.7, 0.8, 0.9, 1
    calibration.update(differences, torch.zeros(5))
    numbers = calibration.compute()
    # bins of 1, 3 and 1 pairs with gaps 0, |3/4 - 2/3| and |19/20 - 1|
    assert float(numbers["ece"]) == pytest.approx((3 / 12 + 0.05) / 5)
    # wrong by 1/4, 1/4, 3/4, 1/2, 1/20
    assert float(numbers["brier"]) == pytest.approx((2 / 16 + 9 / 16 + 1 / 4 + 1 / 400) / 5)
    logs = 2 * math.log(3 / 4) + math.log(1 / 4) + math.log(1 / 2) + math.log(19 / 20)
    assert float(numbers["nll"]) == pytest.approx(-logs / 5)
    assert numbers["bins"][:, 0].tolist() == [1, 0, 3, 0, 1]
    assert numbers["bins"][1].tolist() == [0, 0, 0]


def test_a_model_that_knows_nothing() -> None:
    calibration = PairCalibration()
    calibration.update(torch.full((7,), 3.0), torch.full((7,), 3.0))
    numbers = calibration.compute()
    numbers.pop("bins")
    assert plain(numbers) == pytest.approx({"ece": 0.0, "brier": 0.25, "nll": math.log(2)})


def test_calibration_is_that_of_both_orders_in_twice_the_bins() -> None:
    chosen, rejected = drawn(2000)
    calibration = PairCalibration(bins=10)
    calibration.update(chosen, rejected)
    numbers = calibration.compute()
    probabilities = torch.cat([(chosen - rejected).sigmoid(), (rejected - chosen).sigmoid()])
    labels = torch.cat([torch.ones(2000), torch.zeros(2000)]).long()
    theirs = torchmetrics.functional.classification.binary_calibration_error(
        probabilities, labels, n_bins=20
    )
    assert float(numbers["ece"]) == pytest.approx(float(theirs), abs=1e-6)
    assert float(numbers["brier"]) == pytest.approx(
        sklearn.metrics.brier_score_loss(labels, probabilities)
    )
    assert float(numbers["nll"]) == pytest.approx(sklearn.metrics.log_loss(labels, probabilities))
    shares, means = sklearn.calibration.calibration_curve(labels, probabilities, n_bins=20)
    assert numbers["bins"][:, 1].tolist() == pytest.approx(means[10:].tolist())
    assert numbers["bins"][:, 2].tolist() == pytest.approx(shares[10:].tolist())


def test_scores_far_apart_stay_finite() -> None:
    calibration = PairCalibration()
    calibration.update(torch.tensor([2000.0, -2000.0]), ZERO.repeat(2))
    # p = 1 both times; right, then wrong; -ln sigma(-2000) = 2000
    assert plain({k: v for k, v in calibration.compute().items() if k != "bins"}) == {
        "ece": 0.5,
        "brier": 0.5,
        "nll": 1000.0,
    }


def test_no_bins_are_refused() -> None:
    with pytest.raises(ValueError, match="bins must be at least 1 but is 0"):
        PairCalibration(bins=0)


# best of n ----------------------------------------------------------------------------------------


def test_best_of_n_shares_a_hit_among_equals() -> None:
    best = BestOfN()
    best.update(
        [
            torch.tensor([2.0, 1.0, 0.0]),  # the highest: 1
            torch.tensor([2.0, 2.0, 2.0, 1.0]),  # one of three: 1/3
            torch.tensor([1.0, 2.0, 2.0]),  # not among them: 0
        ]
    )
    assert plain(best.compute()) == pytest.approx(
        {"accuracy": (1 + 1 / 3 + 0) / 3, "chance": (1 / 3 + 1 / 4 + 1 / 3) / 3, "prompts": 3}
    )


# scores -------------------------------------------------------------------------------------------


def test_bimodality_by_hand() -> None:
    # 0, 0, 0, 0, 10: mean 2, central moments m2 = 16, m3 = 96, m4 = 832 (deviations -2 x4 and 8)
    # g = sqrt(20)/3 * 96/64 = sqrt(5);  k = 4/(3*2) * (6*832/256 - 12) = 5
    # (5 + 1) / (5 + 3*16/(3*2)) = 6/13
    values = torch.tensor([0.0, 0.0, 0.0, 0.0, 10.0])
    assert float(bimodality_coefficient(values)) == pytest.approx(6 / 13)


def test_bimodality_of_known_shapes() -> None:
    normal = torch.distributions.Normal(0, 1).icdf(torch.linspace(0.0005, 0.9995, 1000))
    uniform = torch.linspace(0, 1, 1000)
    assert float(bimodality_coefficient(normal)) == pytest.approx(1 / 3, abs=0.01)
    assert float(bimodality_coefficient(uniform)) == pytest.approx(5 / 9, abs=0.01)
    assert float(bimodality_coefficient(torch.cat([normal - 5, normal + 5]))) > 0.8
    distribution = ScoreDistribution()
    distribution.update(10 * normal)  # one wide hump, and what the sigmoid makes of it
    assert float(distribution.compute()["bimodality"]) < 5 / 9
    assert float(distribution.compute()["sigmoid_bimodality"]) > 5 / 9


def test_bimodality_takes_the_moments_of_scipy() -> None:
    values, _ = drawn(31)
    g = scipy.stats.skew(values.numpy(), bias=False)
    k = scipy.stats.kurtosis(values.numpy(), bias=False)
    theirs = (g**2 + 1) / (k + 3 * 30**2 / (29 * 28))
    assert float(bimodality_coefficient(values)) == pytest.approx(theirs)


def test_length_by_hand() -> None:
    # deviations of the scores -2, -1, 3 and of the lengths -1, 0, 1:
    # (2 + 0 + 3) / (sqrt(4 + 1 + 9) sqrt(2)) = 5 / sqrt(28)
    correlation = LengthCorrelation()
    correlation.update(torch.tensor([0.0, 1.0, 5.0]), torch.tensor([10, 11, 12]))
    assert plain(correlation.compute()) == pytest.approx(
        {"pearson": 5 / math.sqrt(28), "spearman": 1.0}
    )


def test_length_is_scipys_with_many_equal_lengths() -> None:
    scores, others = drawn(200)
    tokens = (others * 3).round()
    assert len(tokens.unique()) < 30
    correlation = LengthCorrelation()
    correlation.update(scores + tokens / 3, tokens)
    functions = (scipy.stats.pearsonr, scipy.stats.spearmanr)
    theirs = [function(scores + tokens / 3, tokens).statistic for function in functions]
    assert list(plain(correlation.compute()).values()) == pytest.approx(theirs)


# unsafe answers -----------------------------------------------------------------------------------


def test_thresholds_by_hand() -> None:
    detection = UnsafeThreshold()
    detection.update(torch.tensor([-2.0, -1.0, -1.0, 0.0]), torch.tensor([1, 1, 0, 1]))
    detection.update(torch.tensor([3.0]), torch.tensor([0]))
    curve = detection.curve()
    assert curve is not None
    # lowest 1, 3, 4, 5 answers: 1 of 1, 2 of 3, 3 of 4, 3 of 5 are unsafe; there are 3 in all
    assert curve.scores == [-2.0, -1.0, 0.0, 3.0]
    assert curve.precision == pytest.approx([1, 2 / 3, 3 / 4, 3 / 5])
    assert curve.recall == pytest.approx([1 / 3, 2 / 3, 1, 1])
    assert curve.at(0.01).precision is None and curve.at(0.01).recall == 0
    assert curve.at(0.15).precision == 1  # sigma(-2) = 0.119 < 0.15 < sigma(-1) = 0.269
    assert curve.at(0.5).recall == pytest.approx(2 / 3)  # sigma(0) is not below 0.5
    reached = curve.reaching(0.7)
    assert reached is not None
    assert reached.threshold == pytest.approx(1 / (1 + math.exp(-1.5)))  # half-way from 0 to 3
    assert (reached.precision, reached.recall) == (0.75, 1.0)
    assert curve.at(reached.threshold).recall == reached.recall
    everything = curve.reaching(0.0)
    assert everything is not None and everything.recall == 1
    detection = UnsafeThreshold()
    detection.update(torch.tensor([1.0, 2.0]), torch.tensor([0, 1]))
    curve = detection.curve()
    assert curve is not None and curve.reaching(0.9) is None


def test_thresholds_are_sklearns() -> None:
    safe, unsafe = drawn(300)
    scores = torch.cat([safe, unsafe]).mul(10).round() / 10  # some are equal
    labels = torch.cat([torch.zeros(300), torch.ones(300)])
    detection = UnsafeThreshold()
    detection.update(scores, labels)
    curve = detection.curve()
    precision, recall, thresholds = sklearn.metrics.precision_recall_curve(labels, -scores)
    assert curve is not None and len(curve.scores) < 600
    assert curve.scores == pytest.approx((-thresholds[::-1]).tolist())
    assert curve.precision == pytest.approx(precision[:-1][::-1].tolist())
    assert curve.recall == pytest.approx(recall[:-1][::-1].tolist())
    taken = scores.sigmoid() < 0.3
    found = curve.at(0.3)
    assert found.precision == pytest.approx(sklearn.metrics.precision_score(labels, taken))
    assert found.recall == pytest.approx(sklearn.metrics.recall_score(labels, taken))


def test_every_answer_is_unsafe() -> None:
    detection = UnsafeThreshold()
    detection.update(torch.tensor([-800.0, 30.0]), torch.ones(2))
    curve = detection.curve()
    assert curve is not None
    reached = curve.reaching(0.9)
    assert reached is not None
    assert (reached.threshold, reached.precision, reached.recall) == (1.0, 1.0, 1.0)


# all of them --------------------------------------------------------------------------------------

METRICS = {
    "accuracy": (PairAccuracy, lambda a, b: (a, b)),
    "calibration": (PairCalibration, lambda a, b: (a, b)),
    "best of n": (BestOfN, lambda a, b: ([torch.stack(rows) for rows in zip(a, b, strict=True)],)),
    "scores": (ScoreDistribution, lambda a, b: (a,)),
    "length": (LengthCorrelation, lambda a, b: (a, (10 * b).round())),
    "unsafe": (UnsafeThreshold, lambda a, b: (a, b > 0)),
}


@pytest.mark.parametrize("name", METRICS)
def test_batches_and_processes_add_up(name: str) -> None:
    make, arguments = METRICS[name]
    first, second = drawn(40)
    whole, part, other = make(), make(), make()
    whole.update(*arguments(first, second))
    part.update(*arguments(first[:7], second[:7]))
    part.update(*arguments(first[7:30], second[7:30]))
    other.update(*arguments(first[30:], second[30:]))
    expected = whole.compute()
    part.merge_state(other)  # by the rule of each state, as a synchronisation does
    found = part.compute()
    assert found.keys() == expected.keys() != set()
    for key, value in expected.items():
        assert torch.allclose(found[key], value), key
    part.reset()
    part.update(*arguments(first, second))
    again = part.compute()
    assert all(torch.allclose(again[key], value) for key, value in expected.items())


@pytest.mark.parametrize("name", METRICS)
def test_nothing_gives_no_number(name: str) -> None:
    make, arguments = METRICS[name]
    metric = make()
    metric.update(*arguments(torch.zeros(0), torch.zeros(0)))
    assert metric.compute() == {}


def test_one_answer_or_a_constant_has_no_spread() -> None:
    distribution, correlation = ScoreDistribution(), LengthCorrelation()
    distribution.update(ZERO)
    correlation.update(torch.ones(3), torch.tensor([1, 2, 3]))
    assert plain(distribution.compute()) == {"mean": 0.0}
    assert correlation.compute() == {}


def test_no_unsafe_answer_has_no_curve() -> None:
    detection = UnsafeThreshold()
    detection.update(torch.tensor([1.0, 2.0]), torch.zeros(2))
    assert detection.curve() is None


@pytest.mark.parametrize("make", [PairAccuracy, PairCalibration])
def test_sizes_that_differ_are_refused(make: type) -> None:
    with pytest.raises(ValueError, match="rejected has N=1 but chosen has N=2"):
        make().update(torch.zeros(2), torch.zeros(1))


@pytest.mark.parametrize("value", [0.1, 0.7, 3.3])
def test_equal_values_have_no_bimodality(value: float) -> None:
    assert bimodality_coefficient(torch.full((7,), value, dtype=torch.float64)) is None


@pytest.mark.parametrize(
    ("scores", "unsafe", "recall"),
    [
        ([38.0, 40.0, 42.0], [1, 1, 0], None),  # sigma is 1 for all: no threshold takes two
        ([20.0, 50.0], [1, 1], 0.5),  # 1 takes the first only
        ([-800.0, -790.0, 1.0], [1, 1, 0], 1.0),
        ([-1.0, 1.0, 45.0], [1, 1, 1], 2 / 3),
    ],
)
def test_a_threshold_does_what_it_is_said_to_do(scores, unsafe, recall) -> None:
    detection = UnsafeThreshold()
    detection.update(torch.tensor(scores), torch.tensor(unsafe))
    curve = detection.curve()
    assert curve is not None
    reached = curve.reaching(0.9)
    if recall is None:
        assert reached is None
    else:
        assert reached == curve.at(reached.threshold) and reached.recall == pytest.approx(recall)

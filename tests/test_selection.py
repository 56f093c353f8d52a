from __future__ import annotations

import math
from itertools import combinations
from statistics import NormalDist, fmean

import pytest

from sctom import selection
from sctom.selection import above, best_of, best_of_n_kl_bound, distinct, expected_max


def test_the_best_come_first_and_what_has_no_reward_never_does():
    rewards = [0.5, math.nan, 2.0, -1.0]
    assert best_of(rewards, 3, address=(1, 2)) == [2, 0, 3]
    assert best_of(rewards, 9, address=(1, 2)) == [2, 0, 3]
    assert best_of([math.nan], address=(0,)) == []


def test_chance_decides_between_equals_by_its_address():
    first = [best_of([1.0] * 4, address=(7, prompt))[0] for prompt in range(400)]
    assert first == [best_of([1.0] * 4, address=(7, prompt))[0] for prompt in range(400)]
    for place in range(4):  # 100 of 400 each; six standard deviations are 52
        assert abs(first.count(place) - 100) < 52


def test_a_share_of_all():
    rewards = [0.1 * i for i in range(10)]
    assert selection.top_fraction(rewards, 0.3, address=(0,)) == [7, 8, 9]
    assert selection.top_fraction(rewards, 0.31, address=(0,)) == [6, 7, 8, 9]
    assert selection.top_fraction([math.nan, 1.0], 0.5, address=(0,)) == [1]
    assert selection.top_fraction([math.nan], 0.5, address=(0,)) == []


def test_a_threshold_is_met_by_what_equals_it():
    assert above([0.4, 0.5, 0.6, math.nan], 0.5) == [1, 2]


def test_of_equal_texts_the_preferred_one_is_kept():
    texts = ["Paris", "paris", " Paris ", "Rome"]
    assert distinct([3, 2, 1, 0], texts) == [3, 2, 1]
    assert distinct([3, 2, 1, 0], texts, key=lambda text: text.strip().lower()) == [3, 2]


def test_the_baseline_is_a_fair_draw_of_the_same_size():
    counts = [0] * 5
    for prompt in range(1000):
        places = selection.random_baseline([1.0, 5.0, math.nan, 2.0, 0.0], 2, address=(3, prompt))
        assert len(set(places)) == 2
        for place in places:
            counts[place] += 1
    assert counts[2] == 0
    for place in (0, 1, 3, 4):  # 500 of 1000 each; six standard deviations are 95
        assert abs(counts[place] - 500) < 95


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_expected_max_is_the_mean_over_all_subsets(count):
    rewards = [0.3, -1.0, 4.0, 0.3, 2.5]
    by_hand = fmean(max(chosen) for chosen in combinations(rewards, count))
    assert expected_max(rewards, count) == pytest.approx(by_hand)


def test_expected_max_of_known_distributions():
    # the uniform numbers (i - 1/2) / M: E max of n draws tends to n / (n + 1)
    uniform = [(i - 0.5) / 4000 for i in range(1, 4001)]
    for count in (1, 2, 9):
        assert expected_max(uniform, count) == pytest.approx(count / (count + 1), abs=1e-3)
    # quantiles of N(0, 1): 1 / sqrt(pi) for two, 3 / (2 sqrt(pi)) for three
    normal = [NormalDist().inv_cdf(p) for p in uniform]
    assert expected_max(normal, 2) == pytest.approx(1 / math.sqrt(math.pi), abs=2e-3)
    assert expected_max(normal, 3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=2e-3)


def test_expected_max_of_many_does_not_overflow():
    rewards = [float(i) for i in range(100_000)]
    by_hand = 50_000 * 100_001 / 50_001 - 1  # ranks 1 to M: n (M + 1) / (n + 1)
    assert expected_max(rewards, 50_000) == pytest.approx(by_hand, abs=1e-6)
    assert expected_max(rewards, 100_000) == 99_999.0


@pytest.mark.parametrize("count", [0, 4])
def test_more_than_there_are_is_refused(count):
    with pytest.raises(ValueError, match="from 1 to the 3 rewards"):
        expected_max([1.0, 2.0, 3.0], count)


def test_the_bound_by_hand():
    assert best_of_n_kl_bound(1) == 0.0
    assert best_of_n_kl_bound(2) == pytest.approx(0.693147 - 0.5, abs=1e-6)
    with pytest.raises(ValueError, match="at least 1"):
        best_of_n_kl_bound(0)


@pytest.mark.parametrize("fraction", [0.0, 1.1, math.nan])
def test_refused_fractions(fraction):
    with pytest.raises(ValueError, match="fraction must be"):
        selection.top_fraction([1.0], fraction, address=(0,))


def test_a_share_is_not_rounded_up_by_floating_point():
    rewards = [float(i) for i in range(100)]
    assert 0.07 * 100 > 7  # 7.000000000000001
    assert len(selection.top_fraction(rewards, 0.07, address=(0,))) == 7

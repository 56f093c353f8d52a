from __future__ import annotations

import math

import pytest

from sctom.rejection import Above, BestOf, TopFraction
from sctom.rejection.select import Group

NAN = math.nan
GROUPS = [
    Group(0, [1.0, 3.0, 3.0, 2.0], ["a", "b", "b", "c"]),
    Group(1, [0.0, NAN, -1.0, 0.5], ["d", "e", "f", "d"]),
    Group(2, [NAN] * 4, ["g"] * 4),
]


def test_the_best_of_each_prompt():
    best = BestOf(distinct=False, count=1).choose(GROUPS, 0)
    assert best[0] in ([1], [2]) and best[1:] == [[3], []]
    assert {tuple(BestOf().choose(GROUPS, seed)[0]) for seed in range(20)} == {(1,), (2,)}


def test_of_equal_texts_the_better_one_is_kept():
    two = BestOf(count=2).choose(GROUPS, 0)
    assert two[0][1] == 3  # not the second "b"
    assert two[1] == [3, 2]  # not the first "d", which is worse
    assert BestOf(distinct=False, count=2).choose(GROUPS, 0)[1] == [3, 0]


def test_the_best_share_of_all():
    # distinct leaves 3, 2, 1 and 0.5, -1: five; the best 40% of them are two
    assert [sorted(p) for p in TopFraction(fraction=0.4).choose(GROUPS, 0)][1:] == [[], []]
    chosen = TopFraction(fraction=0.4).choose(GROUPS, 0)[0]
    assert chosen[1] == 3 and chosen[0] in (1, 2)  # the best first
    everything = TopFraction(distinct=False, fraction=1.0).choose(GROUPS, 0)
    assert [sorted(places) for places in everything] == [[0, 1, 2, 3], [0, 2, 3], []]


def test_all_that_reach_a_threshold():
    assert [sorted(p) for p in Above(distinct=False, threshold=2.0).choose(GROUPS, 0)] == [
        [1, 2, 3],
        [],
        [],
    ]
    assert Above(threshold=0.0, count=1).choose(GROUPS, 0)[1] == [3]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BestOf(count=0), "BestOf.count must be at least 1"),
        (lambda: TopFraction(fraction=0.0), "above 0 and at most 1"),
        (lambda: Above(threshold=NAN), "a finite number"),
        (lambda: Above(count=0), "null or at least 1"),
    ],
)
def test_rules_that_keep_nothing(make, said):
    with pytest.raises(ValueError, match=said):
        make()

from __future__ import annotations

import math

import pytest

from sctom.rejection.summary import Numbers, picture, summarise


def numbers_of(*groups, keep_truncated=False):
    """Groups of (text, total or None, truncated)."""
    numbers = Numbers(len(groups[0]))
    for place, group in enumerate(groups):
        numbers.add(
            [
                {
                    "prompt": place,
                    "text": text,
                    "tokens": 3,
                    "truncated": cut,
                    "rewards": {"r": total},
                }
                for text, total, cut in group
            ]
        )
    totals = [math.nan if t is None else t for group in groups for _, t, _ in group]
    numbers.settle(totals, keep_truncated)
    return numbers


ONE = [("a", 1.0, False), ("b", 3.0, False), ("a ", 5.0, True), ("a", 1.0, False)]
OTHER = [("x", 0.0, False), ("y", None, False), (" ", 4.0, False), ("z", 2.0, False)]


def test_what_may_be_chosen():
    numbers = numbers_of(ONE, OTHER)
    assert str(numbers.groups[0].rewards) == "[1.0, 3.0, nan, 1.0]"  # cut off
    assert str(numbers.groups[1].rewards) == "[0.0, nan, nan, 2.0]"  # no reward; no text
    assert numbers_of(ONE, OTHER, keep_truncated=True).groups[0].rewards == [1.0, 3.0, 5.0, 1.0]


def test_the_numbers_by_hand():
    summary = summarise(numbers_of(ONE, OTHER), [[1], [3]], [[0], [0]], [1.0, 2.0])
    assert (summary.prompts, summary.samples, summary.kept, summary.unscored) == (2, 8, 2, 1)
    assert summary.acceptance_rate == 2 / 8
    assert summary.reward_all == pytest.approx((1 + 3 + 5 + 1 + 0 + 4 + 2) / 7)
    assert summary.reward_kept == (3.0 + 2.0) / 2
    assert summary.reward_random == (1.0 + 0.0) / 2
    assert summary.exact_duplicates == 1 / 8  # "a" twice
    assert summary.duplicates == 2 / 8  # and "a "
    assert summary.truncated == 1 and summary.tokens == 24
    assert summary.kl_bound == pytest.approx(math.log(4) - 3 / 4)
    # only the first prompt has all its rewards: the six pairs of 1, 1, 3, 5 have the largest
    # 1, 3, 5, 3, 5, 5
    assert [point["max"] for point in summary.curve] == pytest.approx([2.5, 22 / 6, 4.5, 5.0])
    assert {point["median"] for point in summary.curve} == {2.0}
    # at the first temperature samples 0 and 1 (of the first prompt), at the second 2 and 3 of both
    assert summary.temperatures == [
        {"temperature": 1.0, "mean": 2.0, "best": 3.0},
        {"temperature": 2.0, "mean": 3.0, "best": 4.5},
    ]
    words = dict(summary.lines())
    assert words["kept"] == "2 (25.0% of the samples)"
    assert words["at temperature 2"] == "mean 3.000, best 4.500"


def test_nothing_kept_and_nothing_scored():
    group = [("a", None, False), ("b", None, False)]
    summary = summarise(numbers_of(group), [[]], [[]], [1.0])
    assert summary.reward_all is summary.reward_kept is None
    assert summary.prompts_without == 1 and summary.curve == []
    assert dict(summary.lines())["reward of kept"] == "-"


def test_the_picture_is_a_png():
    summary = summarise(numbers_of(ONE), [[1]], [[0]], [1.0])
    assert picture(summary)[:8] == b"\x89PNG\r\n\x1a\n"

"""Which samples of a prompt are kept for fine-tuning, and what choosing brings. No framework.

Rejection sampling (Llama 2, arXiv 2307.09288, section 3.2.3) draws K completions of each prompt,
scores them and keeps the best; RFT (2308.01825) keeps what is right and distinct; ReST (2308.08998)
keeps what is above a threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import fmean, median

from sctom.seeds import permutation

_TIES, _RANDOM = range(2)


def best_of(rewards: Sequence[float], count: int = 1, *, address: tuple[int, ...]) -> list[int]:
    """The places of the largest rewards among the completions of a prompt.

    Among equal ones chance decides, by the address: the first would be the one that finished first
    in some samplers, and short ones would win.

    Args:
        rewards: of each completion; NaN where there is none, which is never chosen.
        count: how many, at most.
        address: of the draw, such as (seed, prompt).

    Returns:
        Places in `rewards`, the best first.

    Raises:
        ValueError: the count is less than one.

    >>> best_of([0.0, 2.0, math.nan, 1.0], 2, address=(0,))
    [1, 3]
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    order = permutation(len(rewards), *address, _TIES)
    scored = [int(place) for place in order if not math.isnan(rewards[int(place)])]
    return sorted(scored, key=lambda place: -rewards[place])[:count]


def top_fraction(
    rewards: Sequence[float], fraction: float, *, address: tuple[int, ...]
) -> list[int]:
    """The places of the best share of all completions, whatever their prompt.

    Args:
        rewards: of all completions; NaN where there is none.
        fraction: share of those with a reward, above 0 and at most 1; rounded up.
        address: of the draw that decides between equal ones.

    Returns:
        Places in `rewards`, in their order.

    Raises:
        ValueError: a fraction that is no such share.

    >>> top_fraction([0.1, 0.9, 0.5, 0.7], 0.5, address=(0,))
    [1, 3]
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be above 0 and at most 1, not {fraction}")
    scored = sum(not math.isnan(reward) for reward in rewards)
    if not scored:
        return []
    count = math.ceil(fraction * scored - 1e-9)  # 0.3 of 10 is 3, also in floating point
    return sorted(best_of(rewards, count, address=address))


def above(rewards: Sequence[float], threshold: float) -> list[int]:
    """The places of the rewards that are at least the threshold.

    >>> above([0.2, math.nan, 0.8, 0.5], 0.5)
    [2, 3]
    """
    return [place for place, reward in enumerate(rewards) if reward >= threshold]


def distinct(
    places: Sequence[int],
    texts: Sequence[str],
    *,
    key: Callable[[str], Hashable] = lambda text: " ".join(text.split()),
) -> list[int]:
    """The places whose text no earlier one has; put the better ones first.

    Args:
        places: what is chosen from, in order of preference.
        texts: of all completions.
        key: what makes two texts equal; by default all but the amount of white space.

    >>> distinct([2, 0, 1], ["a b", "c", "a  b"])
    [2, 1]
    """
    first: dict[Hashable, int] = {}
    for place in places:
        first.setdefault(key(texts[place]), place)
    return list(first.values())


def random_baseline(rewards: Sequence[float], count: int, *, address: tuple[int, ...]) -> list[int]:
    """As many completions as were chosen, chosen by chance: what the choice is compared with.

    Args:
        rewards: of the completions of a prompt; those without one (NaN) are left out.
        count: how many.
        address: of the draw.

    >>> len(random_baseline([1.0, 2.0, math.nan, 3.0], 2, address=(0,)))
    2
    """
    order = permutation(len(rewards), *address, _RANDOM)
    return [int(place) for place in order if not math.isnan(rewards[int(place)])][:count]


def expected_max(rewards: Sequence[float], count: int) -> float:
    """The mean largest of `count` rewards drawn from these without putting any back.

        E = sum_i C(i - 1, n - 1) / C(M, n) r_(i)       r_(1) <= ... <= r_(M)

    Unbiased for the expected maximum of n draws of whatever the M rewards were drawn from; n of M
    taken in blocks would waste most of them.

    Args:
        rewards: M rewards, without NaN.
        count: n, from 1 to M.

    Raises:
        ValueError: the count is not in that range.

    >>> expected_max([3.0, 1.0, 2.0], 2)  # the pairs have 3, 3 and 2
    2.6666666666666665
    """
    total = len(rewards)
    if not 1 <= count <= total:
        raise ValueError(f"count must be from 1 to the {total} rewards there are, not {count}")
    ascending = sorted(rewards)
    # P(the i-th is the largest) from the top down: C(i-1, n-1) / C(M, n), without a factorial
    share = count / total
    expected = 0.0
    for place in range(total, count - 1, -1):
        expected += share * ascending[place - 1]
        share *= (place - count) / (place - 1) if place > 1 else 0.0
    return expected


def best_of_n_kl_bound(count: int) -> float:
    """The most that the best of n can differ from the policy, in nats: ln n - (n - 1) / n.

    An upper bound on KL(best of n || policy), not its value (Beirami et al., arXiv 2401.01879).

    >>> round(best_of_n_kl_bound(4), 4)
    0.6363
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, not {count}")
    return math.log(count) - (count - 1) / count


def max_and_median(groups: Sequence[Sequence[float]]) -> list[dict[str, float]]:
    """What the best of n samples of a prompt is expected to score, and the median one.

    The distance of the two is what choosing can gain (Llama 2, arXiv 2307.09288, Figure 7). The
    median of n samples does not move with n, but for the noise of few; it is that of all of them.

    Args:
        groups: the rewards of each prompt's samples, without NaN.

    Returns:
        For n from 1 to the size of the smallest group: n, max and median, means over the prompts.

    >>> max_and_median([[1.0, 3.0], [2.0, 2.0]])[1]
    {'n': 2, 'max': 2.5, 'median': 2.0}
    """
    most = min((len(group) for group in groups), default=0)
    return [
        {
            "n": n,
            "max": fmean(expected_max(group, n) for group in groups),
            "median": fmean(median(group) for group in groups),
        }
        for n in range(1, most + 1)
    ]

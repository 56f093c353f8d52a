from __future__ import annotations

import numpy as np
import pytest

from sctom import seeds
from sctom.seeds import fold, keys_for, permutation, seed_for, uniforms


def chi_square(counts: np.ndarray) -> float:
    """How far counts are from equal; about len(counts) - 1 if their chances are equal."""
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


# keys ---------------------------------------------------------------------------------------------


def test_the_keys_of_single_numbers_are_the_outputs_of_splitmix64():
    # SplitMix64 seeded with 0: its published first three outputs. A change here changes every run
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert keys_for([0, 1, 2]).tolist() == expected


def test_a_key_depends_on_its_address_only():
    grid = keys_for(7, 3, np.arange(4)[:, None], np.arange(5))
    assert grid.shape == (4, 5)
    for prompt in range(4):
        for sample in range(5):
            assert grid[prompt, sample] == keys_for(7, 3, prompt, sample)[0]


def test_every_part_of_an_address_and_its_place_count():
    grid = keys_for(*np.ix_(range(8), range(8), range(8), range(8)))
    assert len(np.unique(grid)) == 8**4
    assert keys_for(1, 2) != keys_for(2, 1)
    assert keys_for(1) != keys_for(1, 0)


def test_large_and_negative_parts_are_distinct():
    parts = [0, 1, -1, -2, 2**31, 2**32, 2**62, -(2**63)]
    assert len(np.unique(keys_for(parts))) == len(parts)


def test_fold_extends_an_address():
    assert (fold(keys_for(1, 2), np.arange(3)) == keys_for(1, 2, np.arange(3))).all()


def test_one_bit_of_the_address_changes_half_the_bits_of_the_key():
    flipped = keys_for(np.arange(4096)) ^ keys_for(np.arange(4096) ^ 1)
    share = np.unpackbits(flipped.view(np.uint8)).mean()
    assert share == pytest.approx(0.5, abs=0.005)  # 262,144 bits: standard deviation 0.001


def test_a_seed_is_a_non_negative_int_for_torch():
    many = [seed_for(1, number) for number in range(1000)]
    assert all(type(seed) is int and 0 <= seed < 2**63 for seed in many)
    assert max(many) > 2**62
    assert len(set(many)) == 1000


# uniforms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bits", "expected"), [(0, 2.0**-53), (2**64 - 1, 1 - 2.0**-53)])
def test_the_smallest_and_the_largest_uniform(
    monkeypatch: pytest.MonkeyPatch, bits: int, expected: float
):
    monkeypatch.setattr(seeds, "fold", lambda keys, part: np.array([bits], dtype=np.uint64))
    (value,) = uniforms(keys_for(0), 0)
    assert value == expected
    assert 0.0 < value < 1.0


def test_a_uniform_does_not_depend_on_the_others_drawn_with_it():
    keys = keys_for(5, 0, np.arange(6))
    together = uniforms(keys, np.arange(6))
    assert together.tolist() == [uniforms(keys[i : i + 1], i)[0] for i in range(6)]
    assert (uniforms(keys[::-1], 3)[::-1] == uniforms(keys, 3)).all()


DRAWS = {
    "positions of one sequence": lambda: uniforms(keys_for(1, 2, 3, 4), np.arange(65536)),
    "samples of one prompt": lambda: uniforms(keys_for(1, 2, 3, np.arange(65536)), 0),
    "prompts": lambda: uniforms(keys_for(1, 2, np.arange(65536), 0), 0),
    "iterations": lambda: uniforms(keys_for(1, np.arange(65536), 3, 4), 0),
    "seeds": lambda: uniforms(keys_for(np.arange(65536), 2, 3, 4), 0),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_uniforms_are_uniform_and_neighbours_independent(draw):
    values = draw()
    assert ((values > 0) & (values < 1)).all()
    # 64 bins, 63 degrees of freedom: mean 63, standard deviation sqrt(126) = 11.2; 5 of them
    assert chi_square(np.histogram(values, 64, (0, 1))[0]) < 63 + 5 * 11.2
    # pairs of neighbours in 16 x 16 bins, 255 degrees of freedom: standard deviation 22.6
    pairs, *_ = np.histogram2d(values[::2], values[1::2], 16, ((0, 1), (0, 1)))
    assert chi_square(pairs.ravel()) < 255 + 5 * 22.6
    # correlation with the next: standard deviation 1 / sqrt(65536) = 0.004
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 * 0.004


def test_the_chi_square_bound_notices_a_bias():
    values = uniforms(keys_for(1, 2, 3, 4), np.arange(65536)) ** 1.05
    assert chi_square(np.histogram(values, 64, (0, 1))[0]) > 63 + 5 * 11.2


# permutation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_a_permutation_has_every_number_once(n: int):
    order = permutation(n, 1, 2)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(n))


def test_a_permutation_depends_on_its_address_only():
    assert (permutation(100, 1, 2) == permutation(100, 1, 2)).all()
    assert (permutation(100, 1, 2) != permutation(100, 1, 3)).any()
    assert (permutation(100, 1, 2) != permutation(100, 2, 1)).any()


def test_a_permutation_is_the_order_of_the_keys():
    keys = keys_for(1, 2, np.arange(50)).tolist()
    assert permutation(50, 1, 2).tolist() == sorted(range(50), key=keys.__getitem__)


def test_every_order_of_four_is_about_as_frequent():
    orders = [tuple(permutation(4, 9, epoch).tolist()) for epoch in range(4800)]
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    # 23 degrees of freedom: standard deviation sqrt(46) = 6.8
    assert chi_square(counts) < 23 + 5 * 6.8

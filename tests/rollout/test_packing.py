from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sctom.rollout.packing import Packed, pack

TWO_AND_ONE = [([1, 2], [3, 4, 5]), ([7], [8]), ([1, 2], [6])]
"""Two prompts, the rows of the first not side by side, completions of three and of one token."""


def bundles(row: Packed) -> list[dict]:
    """The index tensors of a row as plain lists, with the place and length of their prefix."""
    return [
        {
            "prefix": (group.start, group.prefix),
            "gather": bundle.gather.view(bundle.rows, bundle.longest).tolist(),
            "real": bundle.real.tolist(),
            "visible": ["".join("01"[sees] for sees in line) for line in bundle.visible.tolist()],
        }
        for group in row.groups
        for bundle in group.bundles
    ]


def prefixes(row: Packed) -> list[tuple[int, int]]:
    return [(group.start, group.prefix) for group in row.groups]


# ---- by hand -------------------------------------------------------------------------------------


def test_predicting_rows_leave_out_each_last_token():
    row = pack(TWO_AND_ONE)
    assert row.ids.tolist() == [1, 2, 3, 4, 7]  # 5, 6 and 8 predict nothing
    assert row.positions.tolist() == [0, 1, 2, 3, 0]
    assert row.sources.tolist() == [1, 2, 3, 4, 1]  # of 3, 4, 5; of 8; of 6
    assert row.lengths == [3, 1, 1]
    assert (row.last, row.longest, row.tail) == (None, 5, 0)
    assert prefixes(row) == [(0, 2), (4, 1)]
    assert bundles(row) == [  # nothing is left of the others
        {"prefix": (0, 2), "gather": [[2, 3]], "real": [0, 1], "visible": ["1110", "1111"]}
    ]


def test_whole_rows_hold_each_last_token():
    row = pack(TWO_AND_ONE, whole=True)
    assert row.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 2, 0, 1]
    assert row.sources.tolist() == [1, 2, 3, 6, 1]
    assert row.last is not None and row.last.tolist() == [4, 7, 5]  # 5, 8 and 6, as given
    assert row.ids[row.last].tolist() == [5, 8, 6]
    assert prefixes(row) == [(0, 2), (6, 1)]
    assert bundles(row) == [  # 3, 4, 5 and 6 are too unlike in length to be padded to each other
        {
            "prefix": (0, 2),
            "gather": [[2, 3, 4]],
            "real": [0, 1, 2],
            "visible": ["11100", "11110", "11111"],
        },
        {"prefix": (0, 2), "gather": [[5]], "real": [0], "visible": ["111"]},
        {"prefix": (6, 1), "gather": [[7]], "real": [0], "visible": ["11"]},
    ]


def test_continuations_about_as_long_as_each_other_go_together():
    lengths = [1, 3, 0, 4, 2, 1]  # of what is in the row, of one prefix
    row = pack([([9], [n] * (n + 1)) for n in lengths])
    assert row.ids.tolist() == [9, 4, 4, 4, 4, 3, 3, 3, 2, 2, 1, 1]  # the longest first
    assert row.positions.tolist() == [0, 1, 2, 3, 4, 1, 2, 3, 1, 2, 1, 1]
    sources = [[0, 10], [0, 5, 6, 7], [0], [0, 1, 2, 3, 4], [0, 8, 9], [0, 11]]
    assert row.sources.tolist() == [place for of_one in sources for place in of_one]
    triangle = ["11000", "11100", "11110", "11111"]
    assert bundles(row) == [
        {
            "prefix": (0, 1),
            "gather": [[1, 2, 3, 4], [5, 6, 7, 5], [8, 9, 8, 8]],  # 2 is half of 4
            "real": [0, 1, 2, 3, 4, 5, 6, 8, 9],
            "visible": triangle,
        },
        {"prefix": (0, 1), "gather": [[10], [11]], "real": [0, 1], "visible": ["11"]},
    ]


def test_prefixes_are_compared_by_their_tokens():
    # equal lists that are not the same object share; a prefix of another prompt does not
    row = pack([([1, 2], [3, 3]), ([1], [2, 3]), ([1, 2], [4, 4]), ((1,), (9, 9))])
    assert row.ids.tolist() == [1, 2, 3, 4, 1, 2, 9]
    assert prefixes(row) == [(0, 2), (4, 1)]
    assert [b["gather"] for b in bundles(row)] == [[[2], [3]], [[5], [6]]]
    assert row.sources.tolist() == [1, 2, 4, 5, 1, 3, 4, 6]


def test_sources_follow_the_order_given():
    rows = [([1, 2], [3, 4]), ([5], [6, 7, 8]), ([1, 2], [9])]
    forth, back = pack(rows), pack(rows[::-1])
    assert forth.sources.tolist() == [1, 2, 3, 4, 5, 1]
    assert back.ids.tolist() == [1, 2, 3, 5, 6, 7]  # the group of the first row comes first
    assert back.sources.tolist() == [1, 3, 4, 5, 1, 2]
    assert (forth.lengths, back.lengths) == ([2, 3, 1], [1, 3, 2])


@pytest.mark.parametrize(("multiple", "tail"), [(1, 0), (5, 0), (2, 1), (4, 3), (64, 59)])
def test_a_row_is_rounded_up_to_a_multiple(multiple, tail):
    row, plain = pack(TWO_AND_ONE, multiple=multiple), pack(TWO_AND_ONE)
    assert row.tail == tail
    assert len(row.ids) == len(row.positions) == 5 + tail
    assert row.ids.tolist() == plain.ids.tolist() + [0] * tail
    assert row.positions.tolist() == plain.positions.tolist() + [0] * tail
    assert bundles(row) == bundles(plain)
    assert torch.equal(row.sources, plain.sources)


def test_what_is_behind_the_sequences_gets_no_attention():
    row = pack(TWO_AND_ONE, multiple=8)
    query, key, value = torch.randn(3, 8, 2, 4)
    attended = row.attend(0, query, key, value, scale=0.5, dropout=0.0)
    assert attended.shape == (8, 2, 4)
    assert torch.equal(attended[5:], torch.zeros(3, 2, 4))
    spoilt = torch.full_like(key, float("nan"))
    spoilt[:5] = key[:5]
    again = row.attend(0, query, spoilt, value, scale=0.5, dropout=0.0)
    assert torch.equal(again, attended)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (([], [1]), r"sequence 1 has a prefix of 0 and a continuation of 1 tokens; both need"),
        (([1, 2], []), r"sequence 1 has a prefix of 2 and a continuation of 0 tokens; both need"),
    ],
)
def test_an_empty_prefix_or_continuation_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        pack([([1], [2]), wrong])


def test_tensors_are_made_on_the_device_asked_for():
    row = pack(TWO_AND_ONE, "meta", whole=True)
    tensors = [row.ids, row.positions, row.sources, row.last]
    tensors += [
        t for group in row.groups for b in group.bundles for t in (b.gather, b.real, b.visible)
    ]
    assert {t.device.type for t in tensors} == {"meta"}


# ---- against a construction token by token -------------------------------------------------------


def view(row: Packed, place: int) -> tuple[list[int], list[int]]:
    """What a token of the row attends to, by the index tensors: tokens and their positions."""
    for group in row.groups:
        prefix = range(group.start, group.start + group.prefix)
        if place in prefix:
            seen = list(range(group.start, place + 1))
            return row.ids[seen].tolist(), row.positions[seen].tolist()
        for bundle in group.bundles:
            real = [at for at in bundle.real.tolist() if bundle.gather[at] == place]
            if not real:
                continue
            (at,) = real
            number, t = divmod(at, bundle.longest)
            keys = [*prefix, *bundle.gather.view(bundle.rows, bundle.longest)[number].tolist()]
            seen = [k for k, sees in zip(keys, bundle.visible[t].tolist(), strict=True) if sees]
            return row.ids[seen].tolist(), row.positions[seen].tolist()
    raise AssertionError(f"token {place} belongs to no group")


tokens = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    sequences=st.lists(st.tuples(tokens, tokens), min_size=1, max_size=6),
    whole=st.booleans(),
    multiple=st.sampled_from([1, 3, 8]),
)
def test_every_source_sees_its_own_sequence(sequences, whole, multiple):
    row = pack(sequences, whole=whole, multiple=multiple)
    assert row.lengths == [len(c) for _, c in sequences]
    assert row.longest == max(len(p) + len(c) for p, c in sequences)
    shared = {tuple(p) for p, _ in sequences}
    kept = sum(len(c) - (not whole) for _, c in sequences)
    assert len(row.ids) - row.tail == sum(map(len, shared)) + kept  # nothing twice
    assert len(row.ids) % multiple == 0 and row.tail < multiple
    sources = iter(row.sources.tolist())
    for number, (prefix, continuation) in enumerate(sequences):
        both = prefix + continuation
        for t in range(len(continuation)):
            seen = both[: len(prefix) + t]  # all that stands in front of the token predicted
            assert view(row, next(sources)) == (seen, list(range(len(seen))))
        if whole:
            assert row.last is not None
            assert view(row, int(row.last[number]))[0] == both
    assert next(sources, None) is None
    assert row.last is None or whole
    # attention puts the parts one behind the other, so they have to lie in that order
    places = []
    for group in row.groups:
        places += range(group.start, group.start + group.prefix)
        for bundle in group.bundles:
            places += bundle.gather[bundle.real].tolist()
    assert places == list(range(len(row.ids) - row.tail))

from __future__ import annotations

import pytest

from sctom.batch import Prompt, Rollout, Row, micro_batches


def make_row(prompt: int, sample: int = 0, prompt_length: int = 3, length: int = 2) -> Row:
    made = Prompt(index=prompt, ids=[0] * prompt_length, messages=[])
    return Row(made, sample, ids=[1] * length, text="", truncated=False)


def make_rollout(prompts: int, group_size: int) -> Rollout:
    rows = [make_row(p, g) for p in range(prompts) for g in range(group_size)]
    return Rollout(rows, group_size)


def addresses(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row.prompt.index, row.sample) for row in rows]


def test_the_length_of_a_rollout_counts_completions():
    assert len(make_rollout(prompts=3, group_size=4)) == 12
    assert len(Rollout([], 4)) == 0


def test_groups_are_the_completions_of_each_prompt():
    groups = make_rollout(prompts=2, group_size=3).groups()
    assert [addresses(group) for group in groups] == [
        [(0, 0), (0, 1), (0, 2)],
        [(1, 0), (1, 1), (1, 2)],
    ]


@pytest.mark.parametrize(
    ("size", "sizes"),
    [(4, [4, 4]), (3, [3, 3, 2]), (8, [8]), (100, [8]), (1, [1] * 8), (None, [8])],
)
def test_split_keeps_order_and_every_row(size: int | None, sizes: list[int]):
    rollout = make_rollout(prompts=4, group_size=2)
    minibatches = list(rollout.split(size))
    assert [len(rows) for rows in minibatches] == sizes
    assert [row for rows in minibatches for row in rows] == rollout.rows


@pytest.mark.parametrize("size", [3, None])
def test_an_empty_rollout_has_no_minibatches(size: int | None):
    assert list(Rollout([], 2).split(size)) == []


def test_shuffled_has_the_same_rows_in_an_order_of_the_address():
    rollout = make_rollout(prompts=8, group_size=2)
    before = addresses(rollout.rows)
    shuffled = rollout.shuffled(7, 0)
    assert addresses(rollout.rows) == before  # the rollout itself keeps its order
    assert addresses(shuffled.rows) != before
    assert sorted(addresses(shuffled.rows)) == before
    assert {id(row) for row in shuffled.rows} == {id(row) for row in rollout.rows}
    assert addresses(rollout.shuffled(7, 0).rows) == addresses(shuffled.rows)
    assert addresses(rollout.shuffled(7, 1).rows) != addresses(shuffled.rows)
    assert shuffled.group_size == 2


def numbers(parts):
    return [[(row.prompt.index, len(row.ids)) for row in part] for part in parts]


def test_micro_batches_keep_a_prompt_together_longest_first():
    prompts = [make_row(i, prompt_length=n).prompt for i, n in enumerate((3, 8, 5))]
    lengths = [(0, 4), (1, 2), (0, 6), (2, 1), (1, 3), (2, 7)]
    rows = [Row(prompts[p], 0, [1] * t, "", False) for p, t in lengths]
    # longest sequences: 3 + 6, 8 + 3, 5 + 7. Tokens: prompt 2: 5 + 6 + 0; prompt 1: 8 + 2 + 1
    # = 11 each; prompt 0: 3 + 5 + 3 = 11
    assert numbers(micro_batches(rows, 4, 22)) == [
        [(2, 7), (2, 1), (1, 3), (1, 2)],
        [(0, 6), (0, 4)],
    ]
    assert numbers(micro_batches(rows, 4, 21)) == [
        [(2, 7), (2, 1)],
        [(1, 3), (1, 2)],
        [(0, 6), (0, 4)],
    ]
    assert numbers(micro_batches(rows, 3, 99)) == numbers(micro_batches(rows, 4, 21))
    assert [row.prompt.index for row in rows] == [p for p, _ in lengths]


def test_a_group_too_large_for_a_micro_batch_is_cut():
    prompt = make_row(0, prompt_length=10).prompt
    rows = [Row(prompt, i, [1] * t, "", False) for i, t in enumerate((3, 9, 5, 30, 2))]
    # 10 + 29 = 39 > 25 stands alone; 10 + 8 + 4 + 2 = 24 fits, + 1 = 25 fits too
    assert numbers(micro_batches(rows, 16, 25)) == [[(0, 30)], [(0, 9), (0, 5), (0, 3), (0, 2)]]
    assert numbers(micro_batches(rows, 16, 24)) == [[(0, 30)], [(0, 9), (0, 5), (0, 3)], [(0, 2)]]
    assert numbers(micro_batches(rows, 2, 99)) == [[(0, 30), (0, 9)], [(0, 5), (0, 3)], [(0, 2)]]


def test_micro_batches_of_nothing_are_none():
    assert micro_batches([], 4, 100) == []
    assert numbers(micro_batches([make_row(0)], 4, 1)) == [[(0, len(make_row(0).ids))]]


@pytest.mark.parametrize(("size", "tokens"), [(0, 10), (4, 0)])
def test_micro_batches_need_room(size, tokens):
    with pytest.raises(ValueError, match="at least 1, not 0"):
        micro_batches([make_row(0)], size, tokens)


def test_rows_do_not_share_what_they_collect():
    first, second = make_row(0), make_row(1)
    first.rewards["length"] = 1.0
    first.prompt.columns["answer"] = "42"
    assert (second.rewards, second.prompt.columns) == ({}, {})

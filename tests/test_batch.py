from __future__ import annotations

import pytest

from sctom.batch import Prompt, Rollout, Row, split_rows


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


def test_split_rows_puts_similar_lengths_together_longest_first():
    # prompt + completion: 5, 9, 7, 6, 9. The longest first: memory runs out at once or never
    lengths = [(3, 2), (1, 8), (4, 3), (5, 1), (8, 1)]
    rows = [make_row(i, prompt_length=p, length=t) for i, (p, t) in enumerate(lengths)]
    batches = [[row.prompt.index for row in batch] for batch in split_rows(rows, 2)]
    assert batches == [[1, 4], [2, 3], [0]]  # equal lengths keep their order
    assert [row.prompt.index for row in rows] == [0, 1, 2, 3, 4]


def test_split_rows_of_nothing_is_nothing():
    assert list(split_rows([], 4)) == []
    assert [len(batch) for batch in split_rows([make_row(0)], 4)] == [1]


def test_rows_do_not_share_what_they_collect():
    first, second = make_row(0), make_row(1)
    first.rewards["length"] = 1.0
    first.prompt.columns["answer"] = "42"
    assert (second.rewards, second.prompt.columns) == ({}, {})

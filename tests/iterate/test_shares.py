from __future__ import annotations

import pytest

from sctom.iterate.shares import cut, prompt_of
from sctom.readers import DataError


def row(text: str, answer: str | None = None) -> dict:
    said = [] if answer is None else [{"role": "assistant", "content": answer}]
    return {"messages": [{"role": "user", "content": text}, *said]}


ROWS = [row(str(n), "yes") for n in range(30)]


def flat(shares: dict) -> list[str]:
    return [prompt_of(row) for rows in shares.values() for row in rows]


def test_no_prompt_is_in_two_shares():
    shares = cut(ROWS, {"a": 10, "b": 5, "c": 15}, seed=3, place="p")
    assert [len(rows) for rows in shares.values()] == [10, 5, 15]
    assert sorted(flat(shares)) == sorted(map(prompt_of, ROWS))


def test_the_order_is_drawn_by_the_seed():
    first, again, other = (cut(ROWS, {"a": 10}, seed=seed, place="p") for seed in (3, 3, 4))
    assert first == again != other
    assert first["a"] != ROWS[:10]


def test_more_rounds_leave_the_first_ones_alone():
    short = cut(ROWS, {"a": 10, "b": 5}, seed=0, place="p")
    long = cut(ROWS, {"a": 10, "b": 5, "c": 10}, seed=0, place="p")
    assert {name: long[name] for name in short} == short


def test_what_is_asked_twice_is_used_once():
    twice = [*ROWS[:3], *(row(str(n), "no") for n in range(3))]
    shares = cut(twice, {"a": 2, "b": 1}, seed=0, place="p")
    assert len(set(flat(shares))) == 3
    with pytest.raises(DataError, match=r"p has 3 different prompts \(3 more ask what another"):
        cut(twice, {"a": 2, "b": 2}, seed=0, place="p")


def test_what_the_evaluation_asks_is_left_out():
    shares = cut(ROWS, {"a": 20}, seed=0, place="p", without=[row("7"), row("elsewhere")])
    assert prompt_of(row("7")) not in flat(shares)


def test_too_few_prompts_says_how_many_are_needed():
    with pytest.raises(DataError, match=r"has 30 .* but 31 are needed.*: a 20, b 11; give more"):
        cut(ROWS, {"a": 20, "b": 11}, seed=0, place="p")

from __future__ import annotations

import json

import pytest

from sctom.sandbox.plain import NotPlain, Opaque, parse, rebuild, reduce


@pytest.mark.parametrize(
    "message",
    [b"", b"\xff", b"[1", b"NaN", b"[-Infinity]", b"[" * 100_000, b"1" * 5000, '"é"'.encode()],
)
def test_what_is_not_json_is_refused(message):
    with pytest.raises(NotPlain):
        parse(message)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"t": [], "s": []},
        {"x": []},
        {"t": 1},
        {"i": 1},
        {"i": "1g"},
        {"f": "1"},
        {"b": "0"},
        {"u": "00"},
        {"c": [1, 2]},
        {"c": [1.0]},
        {"d": [[1]]},
        {"d": [1]},
        {"s": [[]]},
        {"d": [[{"s": []}, 1]]},
        {"o": ["a", "b", 1]},
        {"s": [{"o": ["a", "b", True]}]},
    ],
)
def test_what_describes_no_value_is_refused(data):
    with pytest.raises(NotPlain):
        rebuild([data])


def test_depth_is_bounded():
    deep: object = 1
    for _ in range(99):
        deep = [deep]
    assert rebuild(deep) == deep
    with pytest.raises(NotPlain, match="deep"):
        rebuild([deep])
    with pytest.raises(NotPlain, match="deep"):
        reduce([deep])


def test_crafted_hash_collisions_are_refused():
    modulus = (1 << 61) - 1  # hash(n) == n % modulus
    same = [hex(1 + n * modulus) for n in range(60)]
    for data in ({"s": [{"i": n} for n in same]}, {"d": [[{"i": n}, 0] for n in same]}):
        with pytest.raises(NotPlain, match="same hash"):
            rebuild(json.loads(json.dumps(data)))


def test_an_opaque_value_equals_nothing():
    value = Opaque("a.B", "B()", True)
    assert value != value
    assert value not in [Opaque("a.B", "B()", True), 1]
    assert not Opaque("a.B", "B()", None)


def test_only_plain_values_go_in():
    for value in (object(), [bytearray()], {1: print}):
        with pytest.raises(NotPlain, match="is not a plain value"):
            reduce(value)

"""What torch has no counterpart of: lazy evaluation, compilation and MLX's transformations."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

pytest.importorskip("mlx.core", reason="needs MLX: pip install 'sctom[mlx]'")

import mlx.core as mx

from sctom.mlx_port.losses import (
    group_advantages,
    leave_one_out_advantages,
    likelihood,
    linear_token_logps,
    sapo_loss,
    sequence_mean,
    token_logps,
    token_mean,
    whiten,
)
from sctom.mlx_port.losses._shared import first_place

os.environ["MLX_ENABLE_TF32"] = "0"  # read at MLX's first matrix product

B, T, H, V = 2, 5, 4, 7


@pytest.fixture
def head() -> tuple[mx.array, mx.array, mx.array]:
    keys = mx.random.split(mx.random.key(0), 3)
    hidden = mx.random.normal((B, T, H), key=keys[0])
    return (
        hidden,
        mx.random.normal((V, H), key=keys[1]),
        mx.random.randint(0, V, (B, T), key=keys[2]),
    )


def plain_logps(hidden: mx.array, weight: mx.array, ids: mx.array) -> mx.array:
    logits = hidden @ weight.T
    picked = mx.take_along_axis(logits, ids[..., None], axis=-1).squeeze(-1)
    return picked - mx.logsumexp(logits, axis=-1)


def losses_of(ids: mx.array, **settings) -> tuple[Callable, Callable]:
    """The same scalar by `linear_token_logps` and by autodiff, with unequal weights per token."""
    weights = mx.arange(ids.size).reshape(ids.shape) - 3.0
    return (
        lambda h, w: (linear_token_logps(h, w, ids, **settings) * weights).sum(),
        lambda h, w: (plain_logps(h, w, ids) * weights).sum(),
    )


def close(first, second, tolerance: float = 1e-5) -> bool:
    return all(
        mx.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(first, second, strict=True)
    )


# memory ------------------------------------------------------------------------------------------


def peak_of(rows: int, argnums: tuple[int, ...], width: int = 8) -> int:
    """Bytes that scoring `rows` tokens and its gradient need on top of what they start from."""
    hidden, weight = mx.ones((rows, width)), mx.ones((4096, width))
    ids = mx.zeros(rows, mx.int32)
    mx.eval(hidden, weight, ids)
    mx.synchronize()
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()

    def loss(hidden: mx.array, weight: mx.array) -> mx.array:
        return linear_token_logps(hidden, weight, ids, tile=16).sum()

    mx.eval(mx.value_and_grad(loss, argnums=argnums)(hidden, weight))
    return mx.get_peak_memory() - before


@pytest.mark.parametrize("argnums", [(0,), (0, 1)], ids=["frozen head", "trained head"])
def test_memory_does_not_grow_with_the_logits(argnums: tuple[int, ...]):
    tile = 16 * 4096 * 4  # bytes; 512 more rows of logits are 32 tiles
    few, many = peak_of(512, argnums), peak_of(1024, argnums)
    assert many - few < 4 * tile
    if mx.default_device().type == mx.cpu:  # 9 and 15 tiles; 27 and 36 if nothing ordered them
        assert tile < many < 20 * tile


def test_a_frozen_head_costs_no_weight_gradient():
    size = 4096 * 512 * 4
    assert peak_of(32, (0,), width=512) < size < peak_of(32, (0, 1), width=512)


# derivatives by hand -----------------------------------------------------------------------------


def compiled_grad(function: Callable, argnums: tuple[int, ...]) -> Callable:
    return mx.compile(mx.grad(function, argnums=argnums))


@pytest.mark.parametrize("tile", [1, 3, None])
@pytest.mark.parametrize("wrap", [mx.grad, compiled_grad])
def test_gradient_of_the_fused_head_is_that_of_autodiff(head, tile: int | None, wrap: Callable):
    hidden, weight, ids = head
    fused, plain = losses_of(ids, tile=tile)
    slopes = wrap(fused, argnums=(0, 1))(hidden, weight)
    assert close(slopes, mx.grad(plain, argnums=(0, 1))(hidden, weight))


def test_checkpointing_changes_nothing(head):
    hidden, weight, ids = head
    fused, plain = losses_of(ids)
    slopes = mx.grad(mx.checkpoint(fused), argnums=(0, 1))(hidden, weight)
    assert close(slopes, mx.grad(plain, argnums=(0, 1))(hidden, weight))


def test_a_narrow_head_is_widened_in_blocks(monkeypatch: pytest.MonkeyPatch, head):
    hidden, weight, ids = head
    narrow = weight.astype(mx.bfloat16)
    fused, plain = losses_of(ids)
    monkeypatch.setattr(likelihood, "_BLOCK_ROWS", 3)  # V = 7: blocks of 3, 3 and 1
    for_hidden, for_weight = mx.grad(fused, argnums=(0, 1))(hidden, narrow)
    expected = mx.grad(plain, argnums=(0, 1))(hidden, narrow.astype(mx.float32))
    assert for_weight.dtype == mx.bfloat16
    assert close([for_hidden, for_weight], [expected[0], expected[1].astype(mx.bfloat16)])


def test_a_second_derivative_is_refused_not_wrong(head):
    hidden, weight, ids = head
    logits = hidden @ weight.T
    for function, start in (
        (lambda z: token_logps(z, ids).sum(), logits),
        (lambda h: linear_token_logps(h, weight, ids).sum(), hidden),
    ):
        with pytest.raises(RuntimeError, match="differentiated once, not twice"):
            mx.grad(lambda x, f=function: mx.square(mx.grad(f)(x)).sum())(start)


def test_entropy_has_no_gradient(head):
    hidden, weight, ids = head

    def entropy(hidden: mx.array) -> mx.array:
        return linear_token_logps(hidden, weight, ids, return_entropy=True)[1].sum()

    assert entropy(hidden) > 0
    assert (mx.grad(entropy)(hidden) == 0).all()


def test_no_rows_and_no_tokens(head):
    _, weight, _ = head
    empty = mx.zeros(0, mx.int32)
    assert linear_token_logps(mx.zeros((0, H)), weight, empty).shape == (0,)
    assert token_logps(mx.zeros((2, 0, V)), mx.zeros((2, 0), mx.int32)).shape == (2, 0)
    assert token_logps(mx.zeros((0, T, V)), mx.zeros((0, T), mx.int32)).shape == (0, T)


# compilation -------------------------------------------------------------------------------------


def test_counts_given_as_arrays_are_not_frozen_into_compiled_code():
    losses, mask = mx.array([[1.0, 2.0], [3.0, 9.0]]), mx.array([[1, 1], [1, 0]])
    tokens = mx.compile(lambda count: token_mean(losses, mask, tokens=count))
    assert [tokens(mx.array(n)).item() for n in (3.0, 6.0, 0.0)] == [2.0, 1.0, 6.0]
    rows = [sequence_mean(losses, mask, sequences=mx.array(n)).item() for n in (2, 4, 0)]
    assert rows == [2.25, 1.125, 4.5]


@pytest.mark.parametrize("name", ["tokens", "sequences"])
def test_a_count_is_one_number(name: str):
    function = token_mean if name == "tokens" else sequence_mean
    with pytest.raises(ValueError, match=rf"{name} must have the shape \[\] but has \[2\]"):
        function(mx.ones((2, 3)), mx.ones((2, 3)), **{name: mx.array([3.0, 4.0])})


@pytest.mark.parametrize("transform", [mx.vmap, lambda f: lambda x: mx.jvp(f, [x], [x])])
def test_vmap_and_jvp_are_refused(head, transform: Callable):
    hidden, weight, ids = head
    for function, given in (
        (lambda h: linear_token_logps(h, weight, ids[0]), hidden),
        (lambda z: token_logps(z, ids[:1]), (hidden @ weight.T)[:, None]),
    ):
        batch = given if transform is mx.vmap else given[0]
        with pytest.raises(RuntimeError, match="work neither under"):
            transform(function)(batch)


@pytest.mark.parametrize("name", ["temperature_pos", "temperature_neg"])
def test_a_gate_too_steep_for_float32_is_refused(name: str):
    one = mx.ones((1, 1))
    with pytest.raises(ValueError, match=f"{name} must be at most 1e30 but is 1e\\+300"):
        sapo_loss(one, one, one, one, **{name: 1e300})


def test_first_place_sees_nothing_where_nothing_may_be_seen():
    seen = []

    def look(bad: mx.array) -> mx.array:
        seen.append(first_place(bad))
        return bad

    bad = mx.array([[False, False, False], [False, True, True]])
    look(bad)
    mx.compile(look)(bad)
    mx.vmap(look)(bad[None])
    mx.grad(lambda x: (look(x > 1) * x).sum())(mx.array([0.0, 2.0]))
    assert seen == [((1, 1), 2), None, None, ((1,), 1)]


def test_first_place_passes_other_errors_on():
    with pytest.raises(ValueError, match="another"):
        first_place(Unreadable())  # type: ignore[arg-type]


class Unreadable:
    def sum(self) -> None:
        raise ValueError("another problem")


# float32 statistics ------------------------------------------------------------------------------


def test_statistics_survive_a_large_offset():
    # 1e6 + {0, 1, 2, 5}: mean 1e6 + 2, deviations -2, -1, 0, 3, unbiased variance 14 / 3
    rewards = mx.array([[0.0, 1.0, 2.0, 5.0]]) + 1e6
    deviations = mx.array([[-2.0, -1.0, 0.0, 3.0]])
    scaled = deviations / (14 / 3) ** 0.5
    assert close([group_advantages(rewards, eps=0.0)], [scaled], 1e-6)
    assert close([group_advantages(rewards, scale="batch", eps=0.0)], [scaled], 1e-6)
    assert close([leave_one_out_advantages(rewards)], [deviations * 4 / 3], 1e-6)
    assert close([whiten(rewards, eps=0.0)], [scaled], 1e-6)


def test_seven_tenths_are_exactly_equal():
    rewards = mx.full((1, 7), 0.1)
    for scale in ("group", "batch", "none"):
        assert (group_advantages(rewards, scale=scale, eps=0.0, tolerance=0.0) == 0).all()
    assert (leave_one_out_advantages(rewards) == 0).all()

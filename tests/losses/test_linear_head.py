"""The head over blocks of the vocabulary; its arithmetic by hand is in test_likelihood.py."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, is_tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sctom import packed_linear
from sctom.losses import _linear_head, linear_token_logps

TILE, BLOCK = 4, 8


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_linear_head, "BLOCK_ROWS", {"cpu": BLOCK})


@pytest.fixture(params=["nothing", "some", "all"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    scores = {"nothing": 0, "some": 3 * TILE * BLOCK, "all": 2**24}[request.param]
    monkeypatch.setattr(_linear_head, "KEPT_SCORES", scores)
    return request.param


def head(
    rows: int, vocabulary: int, width: int = 6, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows + 100 * vocabulary)
    sizes = (rows, width), (vocabulary, width), (rows,)
    hidden, weight, upstream = (
        torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes
    )
    ids = torch.randint(0, vocabulary, (rows,), generator=generator)
    return hidden.requires_grad_(), weight, ids, upstream


def naive(hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    scores = torch.log_softmax(hidden.double() @ weight.double().T / temperature, -1)
    return scores.gather(1, ids[:, None]).squeeze(1), -(scores.exp() * scores).sum(1)


def run(*arguments: Tensor, upstream: Tensor, leaves: list[Tensor], **settings) -> list[Tensor]:
    logps, entropy = linear_token_logps(*arguments, tile=TILE, return_entropy=True, **settings)
    return [logps, entropy, *torch.autograd.grad((logps * upstream).sum(), leaves)]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 11])
@pytest.mark.parametrize("vocabulary", [1, 5, 8, 16, 43])
def test_equal_to_the_naive_head(rows: int, vocabulary: int, trained: bool, kept: str):
    hidden, weight, ids, upstream = head(rows, vocabulary)
    leaves = [hidden, weight.requires_grad_()] if trained else [hidden]
    got = run(hidden, weight, ids, upstream=upstream, leaves=leaves, temperature=0.7)
    logps, entropy = naive(hidden, weight, ids, 0.7)
    expected = [logps, entropy, *torch.autograd.grad((logps * upstream).sum(), leaves)]
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-11, atol=1e-12)
    with torch.no_grad():
        alone = linear_token_logps(
            hidden, weight, ids, tile=TILE, return_entropy=True, temperature=0.7
        )
    for ours, theirs in zip(alone, expected[:2], strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-11, atol=1e-12)


def test_a_tied_head_gets_both_gradients(kept: str):
    _, weight, ids, upstream = head(11, 43)
    weight.requires_grad_()
    previous = ids.roll(1)

    def gradient(function) -> Tensor:
        logps = function(weight[previous].tanh(), weight, ids)
        return torch.autograd.grad((logps * upstream).sum(), weight)[0]

    ours = gradient(lambda *arguments: linear_token_logps(*arguments, tile=TILE))
    assert torch.allclose(ours, gradient(lambda *a: naive(*a, 1.0)[0]), rtol=1e-11, atol=1e-12)


@pytest.mark.skipif(packed_linear._onednn() is None, reason="torch has no packed products")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_blocks_give_what_plain_ones_do(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    hidden, weight, ids, upstream = head(70, 43, width=16, dtype=dtype)
    leaves = [hidden, weight.requires_grad_()]
    upstream = upstream.float()
    upstream[5:9] = 0.0  # a part of two tiles, so that backward multiplies other shapes
    monkeypatch.setattr(_linear_head, "KEPT_SCORES", 0)
    results = []
    for rows in (1, 1000):
        monkeypatch.setattr(_linear_head, "PACK_ROWS", rows)
        results.append(run(hidden, weight, ids, upstream=upstream, leaves=leaves))
    for ours, plain in zip(*results, strict=True):
        assert torch.allclose(
            ours, plain, rtol=2**-7 if dtype == torch.bfloat16 else 1e-4, atol=1e-5
        )


def test_blocks_are_packed_once_for_all_rows_then_rows_for_all_blocks_in_few_shapes(
    monkeypatch: pytest.MonkeyPatch,
):
    packed: list[int] = []
    shapes: set[tuple[int, ...]] = set()

    class Counting(packed_linear.PackedLinear):
        def __init__(self, weight: Tensor, *, rows: int) -> None:
            super().__init__(weight, rows=rows)
            packed.append(len(weight))

        def __call__(self, x: Tensor) -> Tensor:
            shapes.add(tuple(x.shape))
            return super().__call__(x)

        @staticmethod
        def available(weight: Tensor) -> bool:
            return True

    monkeypatch.setattr(_linear_head, "PACK_ROWS", 1)
    monkeypatch.setattr(_linear_head, "PackedLinear", Counting)
    monkeypatch.setattr(_linear_head, "KEPT_SCORES", 2 * 64 * BLOCK)  # one block of the first call
    for rows in (128, 140, 191):
        hidden, weight, ids, upstream = head(rows, 43, dtype=torch.float32)
        weight.requires_grad_()
        logps = linear_token_logps(hidden, weight, ids, tile=64)
        torch.autograd.grad((logps * upstream).sum(), [hidden, weight])
    blocks, tile = [8, 8, 8, 8, 8, 3], [64, 6]  # of a tile its rows, and what they push, turned
    assert packed == blocks + 2 * tile + 2 * (blocks + 3 * tile)  # the last 12 and 63 rows too
    assert shapes == {(64, 6), (64, 64)}


@pytest.mark.parametrize("missing", [0, 1])
def test_rows_are_not_packed_for_backward_where_all_scores_are_kept(
    missing: int, monkeypatch: pytest.MonkeyPatch
):
    def never(self: _linear_head._Piece):
        raise AssertionError("packed")

    monkeypatch.setattr(_linear_head, "KEPT_SCORES", 11 * 43 - missing)
    monkeypatch.setattr(_linear_head._Piece, "pushed_by", property(never))
    hidden, weight, ids, upstream = head(11, 43)
    logps = linear_token_logps(hidden, weight.requires_grad_(), ids, tile=TILE)
    if missing:
        with pytest.raises(AssertionError, match="packed"):
            torch.autograd.grad(logps, weight, upstream)
    else:
        torch.autograd.grad(logps, weight, upstream)


def test_rows_without_a_gradient_are_left_out_even_if_they_are_nan(kept: str):
    def results(filler: float, zeros: list[int]) -> list[Tensor]:
        hidden, weight, ids, upstream = head(11, 43)
        hidden.data[zeros] = filler
        upstream[zeros] = 0.0
        return run(
            hidden, weight, ids, upstream=upstream, leaves=[hidden, weight.requires_grad_()]
        )[2:]

    for zeros in ([1], [4, 5, 6, 7], [0, 2, 10], list(range(11))):
        for got, expected in zip(results(torch.nan, zeros), results(1.0, zeros), strict=True):
            assert torch.equal(got, expected)
            assert got.isfinite().all()


def test_backward_can_be_taken_twice(kept: str):
    hidden, weight, ids, upstream = head(11, 43)
    logps = linear_token_logps(hidden, weight.requires_grad_(), ids, tile=TILE)
    first, second = (
        torch.autograd.grad(logps, [hidden, weight], upstream, retain_graph=True) for _ in range(2)
    )
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 2])))
def test_huge_scores_in_any_order_of_blocks_lose_no_digits(order: tuple[int, ...]):
    # scores 16384, 16383 and -16384, each in a block of its own, beside others of -16384:
    # p = sigma(1) = 0.7310586 of the largest, logp -0.3132617 and -1.3132617, entropy 0.5822031
    weight = torch.full((3 * BLOCK, 1), -1.0)
    for place, value in zip(order, (1.0, 1 - 2.0**-14, -1.0), strict=True):
        weight[place * BLOCK + 2] = value
    ids = torch.tensor([order[0] * BLOCK + 2, order[1] * BLOCK + 2])
    hidden = torch.full((2, 1), 16384.0)
    logps, entropy = linear_token_logps(hidden, weight, ids, return_entropy=True)
    assert logps.tolist() == pytest.approx([-0.3132617, -1.3132617], abs=1e-6)
    assert entropy.tolist() == pytest.approx([0.5822031] * 2, abs=1e-6)


# memory ------------------------------------------------------------------------------------------


class LiveMemory(TorchDispatchMode):
    """The largest number of bytes that storages made by operations held at once."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[StorageWeakRef, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in filter(is_tensor, tree_leaves((args, kwargs)))}
        for tensor in filter(is_tensor, tree_leaves(result)):
            storage = tensor.untyped_storage()
            if storage._cdata not in given:
                self.made[StorageWeakRef(storage)] = storage.nbytes()
        self.made = {ref: size for ref, size in self.made.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self.made.values()))
        return result


def peak_memory(vocabulary: int, dtype: torch.dtype, trained: bool, differentiated: bool) -> int:
    """Bytes above those of the arguments and of their gradients."""
    hidden, weight, ids, upstream = head(32, vocabulary, width=2, dtype=dtype)
    weight.requires_grad_(trained)
    leaves = [hidden, weight] if trained else [hidden]
    with LiveMemory() as memory, torch.set_grad_enabled(differentiated):
        pair = linear_token_logps(hidden, weight, ids, tile=TILE, return_entropy=True)
        if differentiated:
            torch.autograd.grad((pair[0] * upstream).sum(), leaves)
    return memory.peak - sum(leaf.nbytes for leaf in leaves if differentiated)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("trained", "differentiated"), [(False, False), (False, True), (True, False), (True, True)]
)
def test_memory_is_flat_in_the_vocabulary(
    dtype: torch.dtype, trained: bool, differentiated: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_linear_head, "KEPT_SCORES", 4 * TILE * BLOCK)
    small, large = (peak_memory(V, dtype, trained, differentiated) for V in (64, 256))
    assert large == small


def test_memory_of_the_naive_head_is_seen_to_grow():
    hidden, weight, ids, _ = head(32, 512, width=2)
    with LiveMemory() as memory:
        naive(hidden, weight, ids, 1.0)
    assert memory.peak >= 2 * 32 * 512 * 8

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, is_tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sctom.losses import _linear_head, likelihood, linear_token_logps, nll_loss, token_logps


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor any operation made, views aside."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        inputs = filter(is_tensor, tree_leaves((args, kwargs)))
        given = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        for made in filter(is_tensor, tree_leaves(result)):
            if made.untyped_storage().data_ptr() not in given:
                self.elements = max(self.elements, made.numel())
        return result


def naive_logps(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    scores = torch.log_softmax(logits / temperature, -1)
    return scores.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def naive_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    return torch.distributions.Categorical(logits=logits / temperature).entropy()


def gradients(function: Callable[[], Tensor], *leaves: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(function(), leaves))


# token_logps -------------------------------------------------------------------------------------


def test_token_logps_by_hand():
    # z = (0, ln 3): p = 1/4, 3/4. At temperature 2, z = (0, ln sqrt 3): p of id 0 = 1/(1 + sqrt 3)
    logits = torch.tensor([[[0.0, math.log(3)]]], dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[1]])
    assert token_logps(logits, ids).exp().item() == pytest.approx(0.75, abs=1e-12)
    hot = token_logps(logits, torch.tensor([[0]]), temperature=2.0)
    assert hot.exp().item() == pytest.approx(1 / (1 + math.sqrt(3)), abs=1e-12)
    # d logp / dz = (onehot - p) / temperature
    (slope,) = gradients(lambda: token_logps(logits, ids).sum(), logits)
    assert slope.flatten().tolist() == pytest.approx([-0.25, 0.25], abs=1e-12)
    (slope,) = gradients(lambda: token_logps(logits, ids, temperature=2.0).sum(), logits)
    p0 = 1 / (1 + math.sqrt(3))
    assert slope.flatten().tolist() == pytest.approx([-p0 / 2, p0 / 2], abs=1e-12)


def test_token_logps_gradcheck_and_tiles(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(likelihood, "_TILE_ROWS", 2)  # T = 5: tiles of 2, 2 and 1
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 7, (2, 5), generator=generator)
    assert torch.allclose(token_logps(logits, ids, temperature=0.7), naive_logps(logits, ids, 0.7))
    assert gradcheck(lambda z: token_logps(z, ids, temperature=0.7), (logits,))


def test_huge_logits_lose_no_digits():
    # 20000 - 19999 = 1: ln p = -ln(1 + 1/e) = -0.313262 and -1.313262. In float32 the logsumexp of
    # these logits is only known to about 0.001
    logits = torch.tensor([[[20000.0, 19999.0], [20000.0, 19999.0]]], requires_grad=True)
    logps = token_logps(logits, torch.tensor([[0, 1]]))
    assert logps.flatten().tolist() == pytest.approx([-0.3132617, -1.3132617], abs=1e-6)
    logps.sum().backward()
    assert logits.grad.flatten().tolist() == pytest.approx(
        [0.2689414, -0.2689414, -0.7310586, 0.7310586], abs=1e-6
    )


def test_excluded_tokens_have_probability_zero_and_no_gradient():
    logits = torch.tensor([[[0.0, -math.inf, 0.0]]], requires_grad=True)
    logps = token_logps(logits, torch.tensor([[2]]))
    logps.sum().backward()
    assert logps.item() == pytest.approx(-math.log(2))
    assert logits.grad.flatten().tolist() == [-0.5, 0.0, 0.5]
    assert token_logps(logits, torch.tensor([[1]])).item() == -math.inf


def test_token_logps_of_bfloat16_are_float32_and_their_gradient_is_bfloat16():
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(2, 3, 50, generator=generator) * 5).bfloat16().requires_grad_()
    ids = torch.randint(0, 50, (2, 3), generator=generator)
    logps = token_logps(logits, ids)
    assert logps.dtype == torch.float32
    assert torch.allclose(logps, naive_logps(logits.float(), ids))
    (got,) = gradients(lambda: token_logps(logits, ids).sum(), logits)
    wide = logits.detach().float().requires_grad_()
    (expected,) = gradients(lambda: naive_logps(wide, ids).sum(), wide)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, expected.bfloat16())


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e4])
def test_garbage_logits_do_not_leak_from_masked_positions(garbage: float):
    def run(filler: float) -> tuple[Tensor, Tensor]:
        logits = torch.tensor([[[1.0, 2.0], [filler, 1.0]]], requires_grad=True)
        mask = torch.tensor([[1.0, 0.0]])
        losses = nll_loss(token_logps(logits, torch.tensor([[0, 0]])), mask)
        losses.sum().backward()
        return losses.detach(), logits.grad

    for got, expected in zip(run(garbage), run(0.0), strict=True):
        assert torch.equal(got, expected)
    assert run(0.0)[1].tolist()[0][1] == [0.0, 0.0]


def test_only_their_gradient_is_as_large_as_the_logits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(likelihood, "_TILE_ROWS", 3)
    batch, length, vocabulary = 8, 6, 32
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, length, vocabulary, generator=generator).bfloat16().requires_grad_()
    ids = torch.randint(0, vocabulary, (batch, length), generator=generator)
    shifted = logits[:, :-1]  # not contiguous: flattening it would copy it
    with LargestTensor() as largest:
        logps = token_logps(shifted, ids[:, 1:], temperature=0.5)
    assert largest.elements == 3 * vocabulary
    with LargestTensor() as largest:
        (gradient,) = torch.autograd.grad(logps.sum(), shifted)
    assert largest.elements == gradient.numel()
    with LargestTensor() as largest:
        naive_logps(logits.float(), ids)
    assert largest.elements == batch * length * vocabulary  # what this test would see otherwise


# linear_token_logps ------------------------------------------------------------------------------


def head(
    rows: int = 11, width: int = 5, vocabulary: int = 13, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, width, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64).to(dtype)
    ids = torch.randint(0, vocabulary, (rows,), generator=generator)
    return hidden.requires_grad_(), weight, ids


@pytest.fixture(params=[1, 4, 11, 100, None])
def tile(request: pytest.FixtureRequest) -> int | None:
    return request.param  # 11 rows: one by one, 4 + 4 + 3, exactly all, more than all, default


@pytest.fixture(params=[5, 16384])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(
        _linear_head, "BLOCK_ROWS", {"cpu": request.param}
    )  # 13 = 5 + 5 + 3, or at once
    return request.param


def test_linear_token_logps_by_hand():
    # h = (1, 0), W = ((0, 1), (ln 3, 2)): z = (0, ln 3), p = (1/4, 3/4)
    # d ln p_1 / dh = W_1 - (W_0 + 3 W_1) / 4 = (W_1 - W_0) / 4 = (ln 3, 1) / 4
    # d ln p_1 / dW = ((0 - 1/4) h, (1 - 3/4) h) = ((-1/4, 0), (1/4, 0))
    # entropy = ln 4 - 3/4 ln 3
    hidden = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[0.0, 1.0], [math.log(3), 2.0]], dtype=torch.float64, requires_grad=True)
    logps, entropy = linear_token_logps(hidden, weight, torch.tensor([1]), return_entropy=True)
    logps.sum().backward()
    assert logps.exp().item() == pytest.approx(0.75, abs=1e-12)
    assert hidden.grad[0].tolist() == pytest.approx([math.log(3) / 4, 0.25], abs=1e-12)
    assert weight.grad.flatten().tolist() == pytest.approx([-0.25, 0, 0.25, 0], abs=1e-12)
    assert entropy.item() == pytest.approx(math.log(4) - 0.75 * math.log(3), abs=1e-12)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("trained", [False, True])
def test_equal_to_the_naive_head(tile: int | None, block: int, temperature: float, trained: bool):
    hidden, weight, ids = head()
    weight.requires_grad_(trained)
    upstream = torch.linspace(-1, 2, len(ids), dtype=torch.float64)
    upstream[3] = 0.0
    leaves = (hidden, weight) if trained else (hidden,)

    def fused() -> Tensor:
        return linear_token_logps(hidden, weight, ids, temperature=temperature, tile=tile)

    def naive() -> Tensor:
        return naive_logps(hidden @ weight.T, ids, temperature)

    assert torch.allclose(fused(), naive(), atol=1e-12)
    got = gradients(lambda: (fused() * upstream).sum(), *leaves)
    expected = gradients(lambda: (naive() * upstream).sum(), *leaves)
    for ours, theirs in zip(got, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("needs", ["hidden", "weight", "both"])
def test_linear_token_logps_gradcheck(needs: str, block: int):
    hidden, weight, ids = head(rows=5, width=3, vocabulary=6)
    hidden.requires_grad_(needs != "weight")
    weight.requires_grad_(needs != "hidden")

    def function(hidden: Tensor, weight: Tensor) -> Tensor:
        return linear_token_logps(hidden, weight, ids, temperature=0.8, tile=2)

    assert gradcheck(function, (hidden, weight))


@pytest.mark.parametrize("differentiated", [False, True])
def test_entropy_is_right_with_and_without_a_gradient(tile: int | None, differentiated: bool):
    hidden, weight, ids = head()
    with torch.set_grad_enabled(differentiated):
        logps, entropy = linear_token_logps(
            hidden, weight, ids, temperature=0.6, tile=tile, return_entropy=True
        )
    expected = naive_entropy(hidden @ weight.T, 0.6)
    assert torch.allclose(entropy, expected, atol=1e-12)
    assert logps.requires_grad == differentiated
    assert not entropy.requires_grad


def test_without_a_gradient_there_is_one_product(monkeypatch: pytest.MonkeyPatch):
    hidden, weight, ids = head()
    weight.requires_grad_()
    expected = linear_token_logps(hidden, weight, ids).detach()
    monkeypatch.delattr(_linear_head, "_mean_row")
    with torch.no_grad():
        assert torch.equal(linear_token_logps(hidden, weight, ids), expected)
    frozen = linear_token_logps(hidden.detach(), weight, ids)
    assert torch.equal(frozen, expected)
    assert frozen.requires_grad  # for the weight


def test_a_batch_of_rows_is_the_same_as_its_rows():
    hidden, weight, ids = head(rows=12)
    flat = linear_token_logps(hidden, weight, ids)
    batch, entropy = linear_token_logps(
        hidden.view(3, 4, 5), weight, ids.view(3, 4), return_entropy=True
    )
    assert batch.shape == entropy.shape == (3, 4)
    assert torch.equal(batch.flatten(), flat)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
def test_the_logits_never_exist(trained: bool, entropy: bool, monkeypatch: pytest.MonkeyPatch):
    rows, width, vocabulary, tile, block = 64, 2, 128, 16, 32
    monkeypatch.setattr(_linear_head, "BLOCK_ROWS", {"cpu": block})
    hidden, weight, ids = head(rows, width, vocabulary, torch.float32)
    weight.requires_grad_(trained)
    with LargestTensor() as largest:
        result = linear_token_logps(hidden, weight, ids, tile=tile, return_entropy=entropy)
        logps = result[0] if entropy else result
        logps.sum().backward()
        with torch.no_grad():
            linear_token_logps(hidden, weight, ids, tile=tile, return_entropy=entropy)
    assert largest.elements == tile * block  # of 64 * 128 logits
    with LargestTensor() as largest:
        naive_logps(hidden @ weight.T, ids)
    assert largest.elements == rows * vocabulary  # what this test would see otherwise


def test_a_frozen_head_keeps_only_the_derivative_for_backward():
    hidden, weight, ids = head(rows=64, width=8, vocabulary=128)
    saved: list[int] = []

    def remember(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        linear_token_logps(hidden, weight, ids, tile=16)
    assert saved == [64 * 8]


def test_bfloat16_is_multiplied_in_float32():
    hidden, weight, ids = head(rows=9, width=32, vocabulary=40, dtype=torch.bfloat16)
    weight.requires_grad_()
    wide_hidden, wide_weight = (x.detach().float().requires_grad_() for x in (hidden, weight))
    expected = naive_logps(wide_hidden @ wide_weight.T, ids)
    logps = linear_token_logps(hidden, weight, ids, tile=4)
    assert logps.dtype == torch.float32
    assert torch.allclose(logps, expected, atol=1e-5)
    # a head multiplied in bfloat16 is off by a hundred times that
    assert (naive_logps((hidden @ weight.T).float(), ids) - expected).abs().max() > 1e-3
    got = gradients(lambda: linear_token_logps(hidden, weight, ids).sum(), hidden, weight)
    right = gradients(lambda: expected.sum(), wide_hidden, wide_weight)
    for ours, theirs in zip(got, right, strict=True):
        assert ours.dtype == torch.bfloat16
        assert torch.allclose(ours.float(), theirs, rtol=2**-7, atol=1e-3)


def test_autocast_changes_nothing():
    hidden, weight, ids = head(dtype=torch.float32)
    weight.requires_grad_()

    def run() -> list[Tensor]:
        logps = linear_token_logps(hidden, weight, ids, tile=4)
        return [logps, *torch.autograd.grad(logps.sum(), (hidden, weight))]

    plain = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = run()
    for ours, theirs in zip(cast, plain, strict=True):
        assert torch.equal(ours, theirs)


def test_huge_scores_lose_no_digits():
    # scores 16384 and 16383, p = sigma(1) = 0.7310586: logp = -0.3132617, entropy
    # = 0.3132617 p + 1.3132617 (1 - p) = 0.5822031; one unit in the last place of 16384 is 0.002
    hidden = torch.tensor([[16384.0]])
    weight = torch.tensor([[1.0], [1 - 2.0**-14]])
    logps, entropy = linear_token_logps(hidden, weight, torch.tensor([0]), return_entropy=True)
    assert logps.item() == pytest.approx(-0.3132617, abs=1e-6)
    assert entropy.item() == pytest.approx(0.5822031, abs=1e-6)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e4])
@pytest.mark.parametrize("trained", [False, True])
def test_garbage_hidden_states_do_not_leak_from_masked_positions(garbage: float, trained: bool):
    def run(filler: float) -> list[Tensor]:
        hidden, weight, ids = head(rows=6)
        weight.requires_grad_(trained)
        mask = torch.tensor([[1.0, 1.0, 0.0, 1.0, 0.0, 1.0]])
        spoilt = hidden.detach().clone()
        spoilt[mask[0] == 0] = filler
        spoilt.requires_grad_()
        losses = nll_loss(linear_token_logps(spoilt, weight, ids, tile=2)[None], mask)
        leaves = (spoilt, weight) if trained else (spoilt,)
        return [losses.detach(), *torch.autograd.grad(losses.sum(), leaves)]

    for got, expected in zip(run(garbage), run(0.0), strict=True):
        assert torch.equal(got, expected)


def test_no_rows_give_no_log_probabilities():
    hidden, weight, ids = head(rows=0)
    weight.requires_grad_()
    logps, entropy = linear_token_logps(hidden, weight, ids, return_entropy=True)
    logps.sum().backward()
    assert logps.shape == entropy.shape == (0,)
    assert weight.grad.abs().sum() == 0


def test_both_heads_agree():
    hidden, weight, ids = head(rows=12)
    direct = linear_token_logps(hidden.view(3, 4, 5), weight, ids.view(3, 4), temperature=1.3)
    logits = (hidden @ weight.T).view(3, 4, 13)
    assert torch.allclose(direct, token_logps(logits, ids.view(3, 4), temperature=1.3))


def test_a_second_derivative_is_refused_rather_than_wrong():
    hidden, weight, ids = head()
    for logps in (
        linear_token_logps(hidden, weight, ids),
        token_logps((hidden @ weight.T)[None], ids[None]),
    ):
        (first,) = torch.autograd.grad(logps.square().sum(), hidden, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()


# what both refuse --------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-100, 13])
def test_an_id_outside_the_vocabulary_is_named_with_its_place(bad: int):
    hidden, weight, ids = head(rows=12)
    ids[5] = bad
    with pytest.raises(ValueError, match=rf"ids\[5\] is {bad}, the first of 1 outside .* of 13"):
        linear_token_logps(hidden, weight, ids)
    with pytest.raises(ValueError, match=rf"ids\[1, 1\] is {bad}, the first of 1 outside"):
        token_logps(torch.zeros(3, 4, 13), ids.view(3, 4))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_temperature_must_be_above_zero(temperature: float):
    hidden, weight, ids = head()
    with pytest.raises(ValueError, match="temperature must be above 0"):
        linear_token_logps(hidden, weight, ids, temperature=temperature)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        token_logps(torch.zeros(1, 1, 2), torch.zeros(1, 1).long(), temperature=temperature)


def test_wrong_arguments_are_refused():
    hidden, weight, ids = head()
    with pytest.raises(ValueError, match="weight has H=13 but hidden has H=5"):
        linear_token_logps(hidden, weight.T, ids)
    with pytest.raises(ValueError, match="ids has N=3 but hidden has N=11"):
        linear_token_logps(hidden, weight, ids[:3])
    with pytest.raises(ValueError, match="tile must be at least 1 row but is 0"):
        linear_token_logps(hidden, weight, ids, tile=0)
    with pytest.raises(ValueError, match="ids must be whole numbers"):
        linear_token_logps(hidden, weight, hidden[:, 0])
    with pytest.raises(ValueError, match="ids has T=2 but logits has T=3"):
        token_logps(torch.zeros(1, 3, 4), torch.zeros(1, 2).long())

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sctom import packed_linear
from sctom.packed_linear import PackedLinear

needs_onednn = pytest.mark.skipif(
    packed_linear._onednn() is None, reason="this build of torch has no packed products"
)


@pytest.fixture(params=["packed", "plain"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(packed_linear, "_onednn", lambda: None)
    elif packed_linear._onednn() is None:
        pytest.skip("this build of torch has no packed products")
    return request.param


def layer(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (37, 24), (37,), (6, 24)
    weight, bias, x = (torch.randn(*size, generator=generator).to(dtype) for size in sizes)
    return weight, bias, x


def test_by_hand(way: str):
    # (1, 2) times the rows (3, 4) and (5, 6): 3 + 8 = 11 and 5 + 12 = 17; with the bias 111 and 17
    weight = torch.tensor([[3.0, 4.0], [5.0, 6.0]])
    x = torch.tensor([[1.0, 2.0]])
    assert PackedLinear(weight, rows=1)(x).tolist() == [[11.0, 17.0]]
    assert PackedLinear(weight, torch.tensor([100.0, 0.0]), rows=9)(x).tolist() == [[111.0, 17.0]]


@needs_onednn
@pytest.mark.parametrize("with_bias", [False, True])
def test_packed_and_plain_agree(monkeypatch: pytest.MonkeyPatch, with_bias: bool):
    weight, bias, x = layer()
    packed = PackedLinear(weight, bias if with_bias else None, rows=6)
    assert PackedLinear.available(weight)
    monkeypatch.setattr(packed_linear, "_onednn", lambda: None)
    plain = PackedLinear(weight, bias if with_bias else None, rows=6)
    assert not PackedLinear.available(weight)
    assert packed._weight.is_mkldnn and not plain._weight.is_mkldnn
    assert torch.allclose(packed(x), plain(x), rtol=1e-6, atol=1e-5)


def test_any_number_of_rows_and_axes(way: str):
    weight, bias, x = layer()
    packed = PackedLinear(weight, bias, rows=3)
    expected = x @ weight.T + bias
    for rows in (0, 1, 5, 6):
        assert torch.allclose(packed(x[:rows]), expected[:rows], atol=1e-5)
    assert torch.allclose(packed(x.view(2, 3, 24)), expected.view(2, 3, 37), atol=1e-5)
    assert torch.allclose(packed(x[0]), expected[0], atol=1e-5)
    assert torch.allclose(packed(x.T.contiguous().T), expected, atol=1e-5)


def test_a_transposed_or_sliced_weight(way: str):
    weight, _, _ = layer()
    rows = torch.randn(4, 37, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(PackedLinear(weight.T, rows=4)(rows), rows @ weight, atol=1e-5)
    assert torch.allclose(
        PackedLinear(weight[::2], rows=4)(rows[:, :24]), rows[:, :24] @ weight[::2].T, atol=1e-5
    )
    part = weight[:, :8].T.contiguous().T
    assert torch.allclose(PackedLinear(part, rows=4)(rows[:, :8]), rows[:, :8] @ part.T, atol=1e-5)


def test_bfloat16_stays_bfloat16(way: str):
    weight, bias, x = layer(torch.bfloat16)
    y = PackedLinear(weight, bias, rows=6)(x)
    exact = x.double() @ weight.double().T + bias.double()
    assert y.dtype == torch.bfloat16
    assert torch.allclose(y.double(), exact, rtol=2**-7, atol=1e-2)


def test_float64_takes_the_plain_product():
    weight, bias, x = (t.double() for t in layer())
    assert not PackedLinear.available(weight)
    assert torch.allclose(PackedLinear(weight, bias, rows=6)(x), x @ weight.T + bias, atol=1e-12)


def test_autocast_changes_nothing(way: str):
    weight, bias, x = layer()
    packed = PackedLinear(weight, bias, rows=6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(packed(x), packed(x).float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = packed(x)
    assert torch.equal(cast, packed(x))


def test_nothing_is_differentiated(way: str):
    weight, bias, x = (tensor.requires_grad_() for tensor in layer())
    assert not PackedLinear(weight, bias, rows=6)(x).requires_grad


def test_what_is_refused(way: str):
    weight, bias, x = layer()
    with pytest.raises(ValueError, match=r"weight must have the shape \[V, H\] but has \[37\]"):
        PackedLinear(bias, rows=1)
    with pytest.raises(ValueError, match=r"bias must have V=37 but has \[36\]"):
        PackedLinear(weight, bias[:36], rows=1)
    with pytest.raises(ValueError, match="rows must be at least 1 but is 0"):
        PackedLinear(weight, rows=0)
    with pytest.raises(ValueError, match=r"x must be torch.float32 of width 24 but .* width 23"):
        PackedLinear(weight, rows=1)(x[:, :23])
    with pytest.raises(ValueError, match=r"but is torch.bfloat16 of width 24; convert it first"):
        PackedLinear(weight, rows=1)(x.bfloat16())

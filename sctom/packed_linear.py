"""A linear layer whose weight is laid out once for many products on CPU: y = x W^T + b.

A matrix product spends part of its time bringing its weight into the order in which the processor
reads it; with few rows (a decoding step) that is most of the time. Where oneDNN is at hand the
weight is brought into that order once, for all calls. The two operations for it are those that
`torch.compile` emits when it freezes weights: private, so nothing else in sctom names them, and
where one is missing, or device or dtype do not fit, the plain product takes their place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor


@cache
def _onednn() -> tuple[Callable[..., Tensor], Callable[..., Tensor]] | None:
    """The operations `(pack a weight, multiply by it)`, or None where this torch lacks them."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        pack = torch.ops.mkldnn._reorder_linear_weight.default
        multiply = torch.ops.mkldnn._linear_pointwise.default
    except AttributeError:
        return None
    return pack, multiply


@cache
def _multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies this dtype on this processor: float32 always, some bfloat16."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class PackedLinear:
    """`x @ weight.T + bias` with a weight that is packed once, when the object is made.

    The weight is copied: a later change of the original is not seen, unless the plain product has
    taken over (see `available`). Nothing is differentiated: results carry no gradient. Products are
    in the dtype of the weight, under autocast too.

    oneDNN keeps what it prepared for every number of rows it has met (up to 1,024 sets), so memory
    grows with the variety of shapes: call with few different numbers of rows, such as multiples of
    64, or set ONEDNN_PRIMITIVE_CACHE_CAPACITY. Any number is right; `rows` only guides the layout.

    Args:
        weight: [V, H], float32 or bfloat16 to be packed; may be a transposed view.
        bias: [V], or None for no bias.
        rows: the number of rows that calls usually have.

    Raises:
        ValueError: weight is not a matrix, bias is not of its height, or rows is below 1; on a
            call, x is not of the dtype and width of the weight.

    >>> double = PackedLinear(torch.eye(2) * 2, torch.tensor([0.0, 1.0]), rows=1)
    >>> double(torch.tensor([[1.0, 2.0]]))
    tensor([[2., 5.]])
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, rows: int) -> None:
        if weight.dim() != 2:
            raise ValueError(f"weight must have the shape [V, H] but has {list(weight.shape)}")
        self.out_features, self.in_features = weight.shape
        if bias is not None and bias.shape != (self.out_features,):
            raise ValueError(f"bias must have V={self.out_features} but has {list(bias.shape)}")
        if rows < 1:
            raise ValueError(f"rows must be at least 1 but is {rows}; give that of a usual call")
        self.dtype = weight.dtype
        self._bias = None if bias is None else bias.detach().to(weight.dtype)
        self._weight = weight.detach()
        self._multiply: Callable[..., Tensor] | None = None
        onednn = _onednn()
        if onednn is not None and self.available(weight):
            pack, self._multiply = onednn
            # in this order of memory only: of a sliced or transposed layout some are refused
            self._weight = pack(self._weight.contiguous(), rows)

    @staticmethod
    def available(weight: Tensor) -> bool:
        """Whether a weight like this is packed; otherwise the plain product is used.

        >>> PackedLinear.available(torch.zeros(4, 2, dtype=torch.float64))
        False
        """
        fits = weight.device.type == "cpu" and weight.numel() > 0
        return fits and _onednn() is not None and _multiplies(weight.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply rows [..., H] of the dtype of the weight, giving [..., V]."""
        if x.dtype != self.dtype or x.shape[-1] != self.in_features:
            raise ValueError(
                f"x must be {self.dtype} of width {self.in_features} but is {x.dtype} "
                f"of width {x.shape[-1]}; convert it first"
            )
        x = x.detach()
        if self._multiply is not None:
            return self._multiply(x, self._weight, self._bias, "none", [], "")
        with torch.autocast(x.device.type, enabled=False):
            return torch.nn.functional.linear(x, self._weight, self._bias)

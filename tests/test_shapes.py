from __future__ import annotations

import numpy as np
import pytest
import torch

from sctom.shapes import check_shapes


def test_sizes_of_all_axes_are_returned():
    sizes = check_shapes(
        logits=(torch.zeros(2, 3, 5), "B T V"),
        ids=(np.zeros((2, 3)), "B T"),
        scale=(np.zeros(()), ""),
    )
    assert sizes == {"B": 2, "T": 3, "V": 5}
    assert all(type(size) is int for size in sizes.values())


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"logps": ((2, 7), "B T"), "mask": ((2, 6), "B T")},
            "mask has T=6 but logps has T=7",
        ),
        (
            {"logps": ((2, 7), "B T"), "mask": ((2, 7), "B T"), "advantages": ((3,), "B")},
            "advantages has B=3 but logps has B=2",
        ),
        (
            {"logps": ((14,), "B T")},
            "logps must have the shape [B, T] but has [14]",
        ),
        (
            {"scale": ((1,), "")},
            "scale must have the shape [] but has [1]",
        ),
        (
            {"square": ((2, 3), "B B")},
            "square has B=3 but square has B=2",
        ),
    ],
)
def test_a_disagreement_names_both_arrays(arrays: dict, message: str):
    with pytest.raises(ValueError) as error:
        check_shapes(**{name: (np.zeros(shape), axes) for name, (shape, axes) in arrays.items()})
    assert str(error.value) == message


def test_an_empty_axis_is_a_size_like_any_other():
    with pytest.raises(ValueError, match="mask has T=1 but logps has T=0"):
        check_shapes(logps=(np.zeros((2, 0)), "B T"), mask=(np.zeros((2, 1)), "B T"))

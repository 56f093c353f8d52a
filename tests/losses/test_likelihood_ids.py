from __future__ import annotations

import pytest
import torch

from sctom.losses import linear_token_logps, token_logps

KINDS = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_any_width_are_compared_with_the_whole_vocabulary(kind: torch.dtype):
    # 65,600 is 64 in eight bits and in sixteen
    ids = torch.tensor([0, 100])
    hidden, weight = torch.tensor([[1.0], [2.0]]), torch.linspace(-1, 1, 65600)[:, None]
    expected = linear_token_logps(hidden, weight, ids)
    assert torch.equal(linear_token_logps(hidden, weight, ids.to(kind)), expected)
    logits = (hidden @ weight.T)[None]
    assert torch.equal(token_logps(logits, ids[None].to(kind)), token_logps(logits, ids[None]))
    with pytest.raises(ValueError, match=r"ids\[1\] is 100, the first of 1 outside .* of 50;"):
        linear_token_logps(hidden, weight[:50], ids.to(kind))


def test_an_id_beyond_int64_is_outside():
    with pytest.raises(ValueError, match=r"ids\[0, 0\] is 18446744073709551615, the first of 1"):
        token_logps(torch.zeros(1, 1, 2), torch.tensor([[2**64 - 1]], dtype=torch.uint64))


def test_an_empty_vocabulary_needs_no_ids():
    assert token_logps(torch.zeros(1, 0, 0), torch.zeros(1, 0).long()).shape == (1, 0)

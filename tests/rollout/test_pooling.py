from __future__ import annotations

import pytest
import torch

from sctom.rollout import pooling
from sctom.rollout.packing import pack
from sctom.rollout.pooling import last_hidden
from tests.rollout.oracle import FAMILIES, make, with_adapter

SEQUENCES = [
    ([6, 7, 8, 9], [10, 11]),
    ([12, 13], [14]),
    ([6, 7, 8, 9], [15, 16, 17, 18, 19]),
    ([6, 7, 8, 9], [20, 21, 22, 23]),
    ([12, 13], [24, 25, 26]),
]
"""Two prompts, their answers not side by side and not in the order of their lengths."""


def alone(model: torch.nn.Module) -> torch.Tensor:
    """The last hidden state of each sequence run by itself."""
    rows = [torch.tensor([prompt + answer]) for prompt, answer in SEQUENCES]
    runs = [model(input_ids=ids, output_hidden_states=True) for ids in rows]
    return torch.stack([run.hidden_states[-1][0, -1] for run in runs])


def gradients(model: torch.nn.Module, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    slope = torch.linspace(-1, 1, hidden.numel()).view(hidden.shape)
    (hidden * slope).sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def shortened(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a call goes the short way."""
    calls = []
    short = pooling._shortened
    monkeypatch.setattr(pooling, "_shortened", lambda *a: calls.append(1) or short(*a))
    pooling._SAME.clear()
    last_hidden(model, pack(SEQUENCES, whole=True))
    return len(calls) == 2  # the trial and the call


@pytest.mark.parametrize("adapter", [False, True], ids=["plain", "LoRA"])
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_to_each_sequence_alone_in_value_and_gradient(family: str, adapter: bool):
    model = make(family, attn_implementation="sdpa")
    if adapter:
        model = with_adapter(model, fan_in_fan_out=family == "gpt2")
    expected = alone(model)
    found = last_hidden(model, pack(SEQUENCES, whole=True))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
    ours, theirs = gradients(model, found), gradients(model, expected)
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert torch.allclose(gradient, theirs[name], rtol=1e-3, atol=1e-3), name


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"gpt2"}))
def test_the_last_layer_is_cut_short(family: str, monkeypatch: pytest.MonkeyPatch):
    model = make(family, attn_implementation="sdpa")
    seen = []
    last = model.get_decoder().layers[-1]
    last.mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    assert shortened(model, monkeypatch)
    assert seen[-1] == len(SEQUENCES)  # and not the 27 tokens of the row
    assert "forward" not in vars(last)


def test_gpt2_gives_its_result_the_shape_of_its_input_and_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
):
    assert not shortened(make("gpt2", attn_implementation="sdpa"), monkeypatch)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated")
def test_a_layer_that_is_hooked_or_computed_again_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    model = make("llama", attn_implementation="sdpa").train()
    hook = model.get_decoder().layers[-1].register_forward_hook(lambda *_: None)
    assert not shortened(model, monkeypatch)
    hook.remove()
    assert shortened(model, monkeypatch)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert not shortened(model, monkeypatch)


def test_a_last_layer_whose_tokens_meet_elsewhere_is_seen(monkeypatch: pytest.MonkeyPatch):
    model = make("llama", attn_implementation="sdpa")
    mlp = model.get_decoder().layers[-1].mlp
    plain = mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda x: plain(x) + 0.5 * x.roll(1, 1))
    pooling._SAME.clear()
    row = pack(SEQUENCES, whole=True)
    assert torch.equal(last_hidden(model, row), pooling._picked(model, row))
    assert pooling._SAME[model] is False


def test_training_mode_stays_and_is_off_while_trying(monkeypatch: pytest.MonkeyPatch):
    model = make("llama", attn_implementation="sdpa", attention_dropout=0.5).train()
    assert shortened(model, monkeypatch)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("autocast", [True, False])
def test_in_bfloat16_rounding_is_no_difference(autocast: bool, monkeypatch: pytest.MonkeyPatch):
    model = make("llama", attn_implementation="sdpa")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        assert shortened(model if autocast else model.bfloat16(), monkeypatch)


def test_a_row_without_the_last_tokens_is_refused():
    with pytest.raises(ValueError, match="pack it with whole=True"):
        last_hidden(make("llama", attn_implementation="sdpa"), pack(SEQUENCES))

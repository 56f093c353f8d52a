from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from sctom.rollout import fused
from sctom.rollout.attention import let_layouts_attend, run_packed
from sctom.rollout.causal import causal_model
from sctom.rollout.fused import fused_layers
from sctom.rollout.linears import joint_product, merged_linears
from sctom.rollout.norms import fused_norms
from sctom.rollout.packing import pack
from tests.rollout.oracle import SIZES, make, prompts, sample, with_adapter

SEQUENCES = [([1, 2, 3], [4, 5, 6]), ([1, 2, 3], [7, 8]), ([2, 5], [3, 1, 2, 4])]
FUSED = ("llama", "qwen2", "qwen3", "mistral", "gemma")


@pytest.fixture
def short(monkeypatch):
    """Numbers of the layers that took the short way, one for each call by the model."""
    taken = []
    run = fused._Short.__call__

    def call(self, hidden, turns, layout):
        if not isinstance(layout, fused._Again):
            taken.append(self.layer)
        return run(self, hidden, turns, layout)

    monkeypatch.setattr(fused._Short, "__call__", call)
    return taken


@contextmanager
def prepared(model):
    with torch.no_grad(), merged_linears(model, rows=8), fused_norms(model), fused_layers(model):
        yield


def logits(model, row):
    return run_packed(causal_model(model), row.ids, row.positions, row).logits[0]


def both(model, sequences=SEQUENCES):
    """Logits of the model as it is, and of the second and the third pass while sampling."""
    assert let_layouts_attend(model) is None
    row = pack(sequences)
    with torch.no_grad():
        plain = logits(model, row)
    with prepared(model):
        logits(model, row)
        fast, again = logits(model, row), logits(model, row)
    assert torch.equal(fast, again)
    with torch.no_grad():
        assert torch.equal(logits(model, row), plain)
    assert not any("forward" in vars(module) for module in model.modules())
    return plain, fast


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("family", FUSED)
def test_layers_of_this_family_take_the_short_way(family, adapted, short):
    model = with_adapter(make(family)) if adapted else make(family)
    plain, fast = both(model)
    assert short == [0, 1, 0, 1]
    assert (plain - fast).abs().max() < 1e-5 * plain.abs().max()


@pytest.mark.parametrize(
    "settings",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"num_key_value_heads": 4},
        {"head_dim": 16},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 100.0}},
    ],
)
def test_settings_that_change_nothing_about_the_way(settings, short):
    plain, fast = both(make("llama", **settings))
    assert short
    assert (plain - fast).abs().max() < 1e-5 * plain.abs().max()


def granite(**settings):
    import transformers as hf

    sizes = {**SIZES, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 2, **settings}
    del sizes["head_dim"]
    return hf.GraniteForCausalLM(hf.GraniteConfig(**sizes)).eval()


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_other_layers_are_left_alone(family, short):
    plain, fast = both(make(family))
    assert not short
    assert (plain - fast).abs().max() < 1e-5 * plain.abs().max()


def test_a_multiplier_is_told_by_its_numbers(short):
    plain, fast = both(granite(residual_multiplier=0.5))
    assert not short
    assert (plain - fast).abs().max() < 1e-5 * plain.abs().max()
    both(granite(attention_multiplier=0.1))  # the layer says so to its layout
    assert short


def parallel(layer, hidden, **arguments):
    normed = layer.input_layernorm(hidden)
    attended, _ = layer.self_attn(hidden_states=normed, **arguments)
    return hidden + attended + layer.mlp(normed)


def turned_otherwise(layer, hidden, **arguments):
    cos, sin = arguments.pop("position_embeddings")
    return (
        type(layer).__mro__[1].forward(layer, hidden, position_embeddings=(cos, -sin), **arguments)
    )


@pytest.mark.parametrize("forward", [parallel, turned_otherwise])
def test_a_class_that_computes_otherwise_is_told_by_its_numbers(forward, short):
    model = make("llama")
    layers = model.model.layers
    kind = type(layers[0])
    layers[1].__class__ = type("LlamaDecoderLayer", (kind,), {"forward": forward})
    plain, fast = both(model)
    assert set(short) == {0}
    assert (plain - fast).abs().max() < 1e-5 * plain.abs().max()


def test_hooks_are_called(short):
    model, calls = make("llama"), []
    layer = model.model.layers[0]
    for module in (layer, model.model.layers[1].mlp):
        module.register_forward_hook(lambda *_: calls.append(1))
    both(model)
    assert not short and len(calls) == 2 * 5


def test_a_hook_inside_goes_with_the_short_way(short):
    model, calls = make("llama"), []
    model.model.layers[0].mlp.down_proj.register_forward_hook(lambda *_: calls.append(1))
    both(model)
    assert short == [0, 1, 0, 1] and len(calls) == 6  # five passes, one comparison


@pytest.mark.parametrize("bits", ["weights", "autocast"])
def test_low_precision_is_left_alone(bits, short):
    model = make("llama").bfloat16() if bits == "weights" else make("llama")
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bits == "autocast"):
        sample(model, prompts(6, 3))
    assert not short


def test_without_a_layout_layers_compute_as_they_do(short):
    model, ids = make("llama"), torch.arange(12).view(2, 6) + 3
    with torch.no_grad(), merged_linears(model, rows=12), fused_norms(model):
        plain = model(input_ids=ids).logits
        with fused_layers(model):
            assert torch.equal(model(input_ids=ids).logits, plain)
    assert not short


def test_nothing_is_fused_without_joint_products(short):
    sample(make("llama"), prompts(6, 3), merge=False)
    assert not short


def test_tokens_at_position_0_say_nothing(short):
    model = make("llama")
    assert let_layouts_attend(model) is None
    start, row = pack([([5], [6])]), pack(SEQUENCES)
    with prepared(model):
        for passed in (start, start, row):
            logits(model, passed)
            assert not short
        logits(model, row)
    assert short == [0, 1]


def test_a_joint_product_is_that_of_all_its_layers_in_order():
    model = make("llama")
    mlp = model.model.layers[0].mlp
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), merged_linears(model, rows=3):
        product = joint_product(mlp.gate_proj, mlp.up_proj)
        assert product is not None
        expected = torch.cat([mlp.gate_proj(x), mlp.up_proj(x)], -1)
        assert torch.equal(product(x), expected)
        assert joint_product(mlp.up_proj, mlp.gate_proj) is None
        assert joint_product(mlp.gate_proj) is None
        assert joint_product(mlp.gate_proj, model.model.layers[1].mlp.up_proj) is None
        assert joint_product(mlp.down_proj) is None
    assert joint_product(mlp.gate_proj, mlp.up_proj) is None
    assert isinstance(mlp.gate_proj, nn.Linear)

from __future__ import annotations

import pytest
import torch
from torch import nn

from sctom.packed_linear import PackedLinear
from sctom.rollout.linears import merged_linears, wide_head
from sctom.rollout.norms import fused_norms
from tests.rollout.oracle import FAMILIES, bits, make, prompts, sample, with_adapter

IDS = torch.arange(12).view(2, 6) + 3


def replaced(model) -> set[str]:
    return {name for name, module in model.named_modules() if "forward" in vars(module)}


def agree(model, within=2e-5):
    """Logits with and without; returns the names of the modules that computed otherwise."""
    with torch.no_grad():
        plain = model(input_ids=IDS).logits
        with merged_linears(model, rows=12), fused_norms(model):
            names = replaced(model)
            merged = model(input_ids=IDS).logits
        again = model(input_ids=IDS).logits
    assert (plain.float() - merged.float()).abs().max() < within
    assert torch.equal(plain, again) and not replaced(model)
    return names


@pytest.mark.parametrize("family", FAMILIES)
def test_all_linear_layers_and_rms_norms_of(family):
    model = make(family)
    names = agree(model)
    for name, module in model.named_modules():
        kind = type(module).__name__
        expected = kind in ("Linear", "Conv1D") or kind.endswith("RMSNorm")
        assert (name in names) == expected, name


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"lora_bias": True, "target_modules": ["q_proj", "k_proj"]},
        {"target_modules": ["v_proj", "down_proj", "lm_head"]},
        {"modules_to_save": ["lm_head"]},
    ],
)
def test_adapters_are_merged_into_copies(settings):
    model = with_adapter(make("qwen2", tie_word_embeddings=False), **settings)
    before = bits(model)
    names = agree(model)
    assert not any("lora_" in name or "base_layer" in name for name in names)
    assert sum(name.endswith("_proj") for name in names) == 14
    after = bits(model)
    assert all((before[name] == after[name]).all() for name in before)


def test_all_active_adapters_count():
    from peft import LoraConfig

    model = with_adapter(make("llama"))
    model.add_adapter("second", LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    model.base_model.set_adapter(["default", "second"])
    model.eval()
    agree(model)
    with model.disable_adapter():
        agree(model)


def test_merged_adapters_are_not_added_again():
    model = with_adapter(make("llama"))
    model.merge_adapter()
    agree(model)


def test_an_exception_leaves_all_as_it_was():
    model = with_adapter(make("llama"))
    before = bits(model)

    def finished(number, samples):
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        sample(model, prompts(3, 5), finished=finished)
    assert not replaced(model)
    after = bits(model)
    assert all((before[name] == after[name]).all() for name in before)


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(4, 3), nn.Linear(4, 5)
        self.head = nn.Linear(4, 4)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        y = x.clone()
        together = [self.gate_proj(y), self.up_proj(y)]
        turned = [self.up_proj(y), self.gate_proj(y)]
        apart = [self.gate_proj(y), self.up_proj(y + 1)]
        changed = [self.gate_proj(y), self.up_proj(y.mul_(2.0))]
        return [*together, *turned, *apart, *changed]


def test_layers_that_read_the_same_are_exact_whatever_they_read():
    model, x = Reads(), torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(x)
        with merged_linears(model, rows=2):
            assert replaced(model) == {"gate_proj", "up_proj", "head"}
            found = model(x)
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_layers_that_something_else_happens_to_stay_as_they_are():
    model = make("llama")
    layer = model.model.layers[0]
    layer.mlp.down_proj.register_forward_pre_hook(lambda module, given: None)
    layer.self_attn.q_proj.forward = nn.Linear.forward.__get__(layer.self_attn.q_proj)
    with merged_linears(model, rows=2):
        names = replaced(model)
    assert "model.layers.0.mlp.down_proj" not in names
    assert "model.layers.1.mlp.down_proj" in names
    assert "model.layers.0.self_attn.k_proj" in names
    assert replaced(model) == {"model.layers.0.self_attn.q_proj"}


def test_low_precision_does_not_round_adapters_away():
    model = with_adapter(make("llama").bfloat16())
    agree(model, within=0.2)
    layer = model.get_base_model().model.layers[0].mlp.down_proj
    for parameter in (layer.lora_A.default.weight, layer.lora_B.default.weight):
        parameter.data.fill_(
            2.0**-8
        )  # 4 * 2^-16 * 8 / 4 = 2^-13, below half a step of most weights
    x = torch.full((1, 48), 4.0, dtype=torch.bfloat16)
    exact = x.double() @ (layer.base_layer.weight.detach().double() + 2.0**-13).T
    with torch.no_grad(), merged_linears(model, rows=1):
        found = layer(x)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, exact.bfloat16())


@pytest.mark.parametrize("merge", [True, False])
def test_the_head_computes_in_float32(merge):
    model = make("qwen2").bfloat16()
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.no_grad(), merged_linears(model, rows=3) if merge else wide_head(model):
        logits = model.lm_head(hidden)
    exact = hidden.double() @ model.lm_head.weight.detach().double().T
    assert logits.dtype == torch.float32
    assert (logits - exact).abs().max() < 1e-5


def test_a_float32_head_needs_no_widening():
    model = make("qwen2")
    with wide_head(model):
        assert not replaced(model)
        with torch.autocast("cpu", dtype=torch.bfloat16), wide_head(model):
            assert replaced(model) == {"lm_head"}


def test_an_rms_norm_that_is_none_stays():
    class OddRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))
            self.eps = 1e-6

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x / (x.norm(dim=-1, keepdim=True) + self.eps)

    model = nn.Sequential(OddRMSNorm(), nn.LayerNorm(8))
    with fused_norms(model):
        assert not replaced(model)


def test_packed_where_there_is_packing():
    assert PackedLinear.available(make("llama").lm_head.weight)


@pytest.mark.filterwarnings("ignore:Unmerge result can be inaccurate")
@pytest.mark.parametrize("kind", ["lora", "ia3"])
def test_adapters_that_are_merged_and_disabled_stay_out(kind):
    from peft import IA3Config, LoraConfig, get_peft_model

    settings = {"target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"}
    if kind == "lora":
        config = LoraConfig(r=4, init_lora_weights=False, **settings)
    else:
        config = IA3Config(feedforward_modules=["down_proj"], init_ia3_weights=False, **settings)
    model = get_peft_model(make("llama"), config).eval()
    model.merge_adapter()
    with torch.no_grad(), model.disable_adapter(), merged_linears(model, rows=12):
        first = model(input_ids=IDS).logits
    with torch.no_grad(), model.disable_adapter():
        plain = model(input_ids=IDS).logits
    torch.testing.assert_close(first, plain, rtol=0, atol=2e-5)

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GraniteConfig,
    Llama4TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from sctom.rollout.attention import UnsupportedAttentionError, run_packed
from sctom.rollout.packing import pack
from sctom.rollout.sharing import shares_prefixes, why_plain

SPECIAL = {"vocab_size": 31, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
SHAPE = {
    **SPECIAL,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
KINDS: dict[str, tuple[type[PretrainedConfig], dict]] = {
    "llama": (LlamaConfig, SHAPE),
    "llama-tied": (LlamaConfig, SHAPE | {"tie_word_embeddings": True}),
    "qwen2": (Qwen2Config, SHAPE),
    "qwen3": (Qwen3Config, SHAPE | {"head_dim": 8}),
    "mistral": (MistralConfig, SHAPE | {"sliding_window": 20}),
    "gemma": (GemmaConfig, SHAPE | {"head_dim": 8}),
    "gemma2": (Gemma2Config, SHAPE | {"head_dim": 8}),
    "gemma3": (
        Gemma3TextConfig,
        SHAPE
        | {
            "head_dim": 8,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "granite": (GraniteConfig, SHAPE | {"logits_scaling": 2.0, "attention_multiplier": 0.3}),
    "gpt2": (
        GPT2Config,
        SPECIAL
        | {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}
        | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    ),
    "moe": (
        Qwen3MoeConfig,
        SHAPE
        | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "chunked": (
        Llama4TextConfig,
        SHAPE
        | {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 24}
        | {"attention_chunk_size": 8, "layer_types": ["chunked_attention", "full_attention"]},
    ),
    "linear": (
        Qwen3NextConfig,
        SHAPE
        | {"head_dim": 8, "num_experts": 0, "layer_types": ["linear_attention", "full_attention"]}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 2}
        | {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "mlp_only_layers": [0, 1]},
    ),
}


def tiny(kind: str, **settings) -> nn.Module:
    """A random model of two layers, in evaluation mode, whose tokens matter to each other."""
    make, shape = KINDS[kind]
    loading = {"attn_implementation": settings.pop("attn_implementation", None)}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(make(**{**shape, **settings}), **loading)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


# ---- models that run on packed rows --------------------------------------------------------------


PACKED = ["llama", "llama-tied", "qwen2", "qwen3", "mistral", "gemma", "gemma3", "granite", "gpt2"]


@pytest.mark.parametrize("kind", [*PACKED, "moe"])  # experts see each token alone
def test_decoders_whose_tokens_meet_in_attention_only(kind):
    model = tiny(kind)
    assert why_plain(model, 20) is None
    assert model.config._attn_implementation == "sctom_sdpa"


@pytest.mark.parametrize(
    "settings", [{"scale_attn_weights": False}, {"scale_attn_by_inverse_layer_idx": True}]
)
def test_a_scale_of_its_own_is_kept(settings):
    assert why_plain(tiny("gpt2", **settings), 20) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_floating_dtype(dtype):
    assert why_plain(tiny("llama").to(dtype), 20) is None
    mixed = tiny("llama").to(dtype)
    mixed.lm_head.float()  # as adapters are
    mixed.lm_head.register_forward_pre_hook(lambda _, given: (given[0].float(),))
    assert why_plain(mixed, 20) is None


@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
def test_a_window_binds_longer_sequences_only(kind):
    model = tiny(kind)  # a window of 20
    assert why_plain(model, 20) is None
    reason = "it attends to the last 20 tokens only, and sequences of 21 tokens may come"
    assert why_plain(model, 21) == reason
    assert why_plain(model, 6) is None  # nothing is kept of the longer question


# ---- models that do not, and why -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("gemma2", {}, "its attention is eager, and layouts go with sdpa or flash_attention_2 onl"),
        ("llama", {"attn_implementation": "eager"}, "its attention is eager, and layouts go with"),
        ("mistral", {"sliding_window": 4}, "MistralAttention attends to the last 4 tokens only, "),
        ("chunked", {}, "some of its layers are of the kinds chunked_attention"),
        ("linear", {}, "its logits on packed rows differ by "),
    ],
)
def test_reasons(kind, settings, reason):
    model = tiny(kind, **settings)
    found = why_plain(model, 8)
    assert found is not None and found.startswith(reason)
    assert why_plain(model, 8) == found


def test_a_soft_cap_is_named(monkeypatch):
    model = tiny("gemma2")
    monkeypatch.setattr(type(model), "_supports_sdpa", True)
    model.config._attn_implementation = "sdpa"
    assert why_plain(model, 8) == (
        "Gemma2Attention gives its attention softcap, which packed rows do not compute; this model "
        "has to be run on padded rows"
    )


class Shifted(nn.Module):
    """A layer that also looks at the token before."""

    def __init__(self, layer: nn.Module, share: float) -> None:
        super().__init__()
        self.layer, self.share = layer, share

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        before = torch.roll(hidden, 1, dims=1)
        before[:, 0] = 0
        return self.layer(hidden + self.share * before)


@pytest.mark.parametrize(("share", "packed"), [(0.0, True), (0.01, False), (1.0, False)])
def test_tokens_that_meet_elsewhere_are_measured(share, packed):
    model = tiny("llama")
    model.model.layers[1].mlp = Shifted(model.model.layers[1].mlp, share)
    reason = why_plain(model, 8)
    assert (reason is None) == packed
    if reason is not None:
        assert "on packed rows differ by" in reason
        assert reason.endswith("its tokens meet elsewhere than in attention")


def test_tokens_that_meet_elsewhere_are_measured_in_bfloat16():
    model = tiny("llama").bfloat16()
    model.model.layers[1].mlp = Shifted(model.model.layers[1].mlp, 1.0)
    assert "meet elsewhere" in why_plain(model, 8)


def test_weights_that_are_not_finite_are_not_trusted():
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")
    assert "not finite" in why_plain(model, 8)


# ---- the look itself -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2", "linear", "chunked"])
def test_the_look_changes_nothing(kind):
    model = tiny(kind)
    model.train()
    next(model.children()).eval()  # a part that is not in the mode of the whole
    ids = torch.tensor([[0, 0, 5, 6, 7], [8, 9, 10, 11, 12]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])

    def outputs() -> list[torch.Tensor]:
        answers = copy.deepcopy(model).eval()
        logits = [answers(input_ids=ids).logits, answers(input_ids=ids, attention_mask=mask).logits]
        return [logits[0], logits[1][mask.bool()]]

    modes = [layer.training for layer in model.modules()]
    before, state = outputs(), torch.random.get_rng_state()
    weights = copy.deepcopy(model.state_dict())
    why_plain(model, 8)
    assert [layer.training for layer in model.modules()] == modes and model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(a, weights[n]) for n, a in model.state_dict().items())
    for a, b in zip(outputs(), before, strict=True):
        assert torch.equal(a, b)


def test_dropout_is_off_in_the_look():
    model = tiny("gpt2", resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5).train()
    state = torch.random.get_rng_state()
    assert why_plain(model, 8) is None
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing was drawn


def test_modes_are_restored_where_the_look_fails():
    model = tiny("mistral", sliding_window=4).train()
    assert why_plain(model, 4) is not None
    assert all(layer.training for layer in model.modules())


def test_a_model_is_looked_at_once_whatever_it_is_wrapped_in():
    from peft import LoraConfig, get_peft_model

    model = tiny("llama")
    runs = []
    model.register_forward_hook(lambda *_: runs.append(0))
    assert why_plain(model, 8) is None
    looked = len(runs)
    assert looked
    wrapped = get_peft_model(model, LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM"))
    assert why_plain(model, 9) is None and why_plain(wrapped, 10) is None
    assert len(runs) == looked


def test_the_notice_comes_once_for_each_reason_and_model(capsys):
    model, eager = tiny("mistral"), tiny("llama", attn_implementation="eager")
    assert shares_prefixes(model, 20)
    assert capsys.readouterr().out == ""
    for _ in range(2):
        assert not shares_prefixes(model, 21)
        assert not shares_prefixes(eager, 8)
    window, attention = capsys.readouterr().out.splitlines()
    assert window.startswith("MistralForCausalLM runs on padded rows, which is slower: it attends")
    assert attention.startswith("LlamaForCausalLM runs on padded rows, which is slower: its atten")
    assert not shares_prefixes(tiny("llama", attn_implementation="eager"), 8)
    assert "LlamaForCausalLM" in capsys.readouterr().out  # another model


def test_a_notice_is_not_repeated_for_each_length(capsys):
    model = tiny("mistral")
    for longest in (30, 31, 32):  # as the batches of a run have them
        assert not shares_prefixes(model, longest)
    assert capsys.readouterr().out.count("MistralForCausalLM") == 1


def test_an_attention_that_is_exchanged_later_is_noticed():
    model = tiny("llama")
    assert why_plain(model, 8) is None
    model.set_attn_implementation("eager")
    assert "its attention is eager" in why_plain(model, 8)
    model.set_attn_implementation("sdpa")
    assert why_plain(model, 8) is None
    assert model.config._attn_implementation == "sctom_sdpa"


def test_packed_rows_never_run_under_an_attention_without_layouts():
    model = tiny("llama")
    row = pack([([1, 2], [3, 4])])
    run_packed(model, row.ids, row.positions, row)  # sees to it by itself
    model.set_attn_implementation("eager")
    with pytest.raises(UnsupportedAttentionError, match="its attention is eager"):
        run_packed(model, row.ids, row.positions, row)


def test_a_rotary_embedding_of_the_whole_batch_binds_beyond_its_length():
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model = tiny("llama", rope_parameters=scaled, max_position_embeddings=16)
    assert why_plain(model, 16) is None
    assert "beyond 16 tokens its dynamic rotary embedding" in why_plain(model, 17)


def test_a_model_that_attends_twice_in_a_layer_is_measured_out():
    model = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn.layer_idx = 0
    assert "several times in one layer" in why_plain(model, 8)


def test_code_that_fails_on_packed_rows_is_a_reason(monkeypatch):
    model = tiny("llama")
    honest = model.model.layers[0].mlp.forward

    def only_short(x):
        if x.shape[1] > 7:
            raise RuntimeError("too long for me")
        return honest(x)

    monkeypatch.setattr(model.model.layers[0].mlp, "forward", only_short)
    assert "fails with RuntimeError: too long for me" in why_plain(model, 8)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_model_first_seen_under_autocast_is_packed_all_the_same(name):
    kind, shape = KINDS[name]
    model = AutoModelForCausalLM.from_config(kind(**shape)).eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert why_plain(model, 20) is None

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen3Config,
    T5Config,
)
from transformers.utils import import_utils

from sctom.data import PromptData
from sctom.modules import Backbone, PolicyModule, attention
from sctom.modules.attention import Attention, causal_class, choose_attention
from sctom.objectives import GRPO
from sctom.rewards import FunctionReward
from sctom.rollout import Sampling
from tests.training import quiet_trainer

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
WITH_FLASH = SimpleNamespace(__name__="Good", _supports_flash_attn=True, _supports_sdpa=True)
WITHOUT_FLASH = SimpleNamespace(__name__="Some", _supports_flash_attn=False, _supports_sdpa=True)
EAGER_ONLY = SimpleNamespace(__name__="Bare", _supports_flash_attn=False, _supports_sdpa=False)


# ---- what is chosen, and why ---------------------------------------------------------------------


@pytest.fixture
def hopper(monkeypatch):
    """A machine that has all that flash attention needs; tests take one thing away."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(attention, "flash_attn_problem", lambda: None)
    monkeypatch.setattr(attention, "version", lambda name: "2.8.3")
    return monkeypatch


def choose(requested=None, model_class=WITH_FLASH, dtype="bfloat16", device=CUDA) -> Attention:
    return choose_attention(requested, model_class, dtype=dtype, device=device)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_flash_attention_where_everything_is_there(hopper, dtype):
    assert str(choose(dtype=dtype)) == f"flash_attention_2 (flash-attn 2.8.3, {dtype})"
    assert choose("flash_attention_2", dtype=dtype).name == "flash_attention_2"


def old_gpu(patch) -> dict:
    patch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    return {}


def not_installed(patch) -> dict:
    patch.setattr(attention, "flash_attn_problem", lambda: "flash-attn is not installed")
    return {}


LACKING = {
    "the model is on cpu, not on CUDA": lambda patch: {"device": CPU},
    "the model is on mps, not on CUDA": lambda patch: {"device": torch.device("mps")},
    "compute capability 7.5 is below 8.0": old_gpu,
    "dtype is float32, not bfloat16 or float16": lambda patch: {"dtype": "float32"},
    "Some does not support it": lambda patch: {"model_class": WITHOUT_FLASH},
    "flash-attn is not installed": not_installed,
}


@pytest.mark.parametrize("reason", LACKING)
def test_one_thing_missing(hopper, reason):
    settings = LACKING[reason](hopper)
    chosen = choose(**settings)
    assert (chosen.name, chosen.reason) == ("sdpa", f"flash_attention_2: {reason}")
    with pytest.raises(ValueError, match=f"flash_attention_2 cannot be used: {reason}; set att"):
        choose("flash_attention_2", **settings)


def test_eager_where_nothing_else_works(hopper):
    chosen = choose(model_class=EAGER_ONLY)
    assert chosen.name == "eager"
    assert (
        chosen.reason
        == "flash_attention_2: Bare does not support it; sdpa: Bare does not support it"
    )
    with pytest.raises(ValueError, match="attention: sdpa cannot be used: Bare does not support"):
        choose("sdpa", model_class=EAGER_ONLY)


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_what_is_asked_for_is_taken(hopper, name):
    assert choose(name) == Attention(name, "as asked for")


@pytest.mark.parametrize(
    "name",
    ["flash_attention_3", "flash_attention_4", "flex_attention", "paged|sdpa", "paged|eager", ""],
)
def test_what_sctom_is_not_made_for_is_refused_with_the_config(name):
    choices = "one of flash_attention_2, sdpa, eager, or null for the first of them"
    with pytest.raises(
        ValueError, match=f"attention must be {choices}.* but is {re.escape(repr(name))}"
    ):
        Backbone("nowhere", attention=name)
    with pytest.raises(ValueError, match=choices):
        choose(name)


def test_flash_attn_not_installed(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(attention, "version", missing)
    assert attention.flash_attn_problem() == "flash-attn is not installed"


def test_flash_attn_built_for_another_torch(monkeypatch):
    monkeypatch.setattr(attention, "version", lambda name: "2.8.3")
    monkeypatch.setitem(sys.modules, "flash_attn", None)  # importing it fails
    problem = attention.flash_attn_problem()
    assert problem is not None and problem.startswith("flash-attn 2.8.3 cannot be imported: ")


@pytest.mark.parametrize(
    ("accepted", "problem"), [(True, None), (False, "transformers does not take flash-attn 1.0.9")]
)
def test_transformers_has_the_last_word(monkeypatch, accepted, problem):
    monkeypatch.setattr(attention, "version", lambda name: "1.0.9")
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setattr(import_utils, "is_flash_attn_2_available", lambda: accepted)
    assert attention.flash_attn_problem() == problem


def test_causal_class_says_what_it_supports():
    model_class = causal_class(LlamaConfig())
    assert model_class is LlamaForCausalLM
    assert model_class._supports_sdpa and model_class._supports_flash_attn
    with pytest.raises(ValueError, match="of a t5 model, for which transformers has no causal"):
        causal_class(T5Config())


# ---- through the backbone ------------------------------------------------------------------------


def test_the_choice_is_kept_and_said(tiny_model, capsys):
    backbone = Backbone(str(tiny_model))
    assert backbone.attention_choice is None
    model = backbone.load_model(CPU)
    expected = Attention("sdpa", "flash_attention_2: the model is on cpu, not on CUDA")
    assert backbone.attention_choice == expected
    assert model.config._attn_implementation == "sdpa"
    assert capsys.readouterr().out == f"attention: {expected}\n"


def test_nothing_is_said_of_what_was_asked_for(tiny_model, capsys):
    backbone = Backbone(str(tiny_model), attention="eager")
    assert backbone.load_model(CPU).config._attn_implementation == "eager"
    assert backbone.attention_choice == Attention("eager", "as asked for")
    assert capsys.readouterr().out == ""


def test_an_impossible_wish_fails_before_weights_load(tiny_model, monkeypatch):
    def loaded(*args, **kwargs):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", loaded)
    with pytest.raises(ValueError, match="flash_attention_2 cannot be used: the model is on cpu"):
        Backbone(str(tiny_model), attention="flash_attention_2").load_model(CPU)


# ---- the same numbers from both ------------------------------------------------------------------

SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "bos_token_id": None,
}
KINDS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


@pytest.fixture(scope="module", params=KINDS)
def any_model(request, tiny_model, tmp_path_factory) -> Path:
    """A random model of one of three architectures, with the tokenizer of the tiny one."""
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("kinds") / request.param)
    vocabulary = AutoConfig.from_pretrained(folder).vocab_size
    config = KINDS[request.param](vocab_size=vocabulary, eos_token_id=2, pad_token_id=0, **SHAPE)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder


def _distinct(completion_ids, **kwargs):
    return [float(len(set(ids))) for ids in completion_ids]


def trained(model: Path, prompts: Path, folder: Path, name: str, lora_rank: int) -> PolicyModule:
    """Two updates of plain gradient descent, so that weights differ by sums of gradients."""
    module = PolicyModule(
        Backbone(str(model), attention=name, lora_rank=lora_rank),
        GRPO(),
        [FunctionReward(_distinct)],
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        group_size=4,
        sampling=Sampling(max_new_tokens=6),
        micro_batch_size=5,
        max_grad_norm=None,
        seed=3,
    )
    data = PromptData(str(prompts), prompts_per_iteration=3, iterations=2, columns="selfaware")
    trainer = quiet_trainer(folder, num_sanity_val_steps=0)
    trainer.fit(module, data)
    return module


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_sdpa_and_eager_train_alike(any_model, tiny_prompts, tmp_path, lora_rank):
    sdpa, eager = (
        trained(any_model, tiny_prompts, tmp_path, name, lora_rank) for name in ("sdpa", "eager")
    )
    rows = list(zip(sdpa.last_rollout.rows, eager.last_rollout.rows, strict=True))
    assert len({len(row.prompt.ids) + len(row.ids) for row, _ in rows}) > 1  # padding took part
    for a, b in rows:
        assert a.ids == b.ids
        torch.testing.assert_close(a.sampler_logps, b.sampler_logps, rtol=1e-4, atol=1e-5)
    for name in ("loss", "grad_norm"):
        assert sdpa.last_metrics[name] == pytest.approx(eager.last_metrics[name], rel=1e-4)
    start = dict(Backbone(str(any_model), lora_rank=lora_rank).load_model().named_parameters())
    assert {sdpa.model.config._attn_implementation, eager.model.config._attn_implementation} == {
        "sctom_sdpa",  # packed rows; eager runs on padded ones
        "eager",
    }
    other, largest = dict(eager.model.named_parameters()), 0.0
    for name, parameter in sdpa.model.named_parameters():
        torch.testing.assert_close(parameter, other[name], rtol=1e-4, atol=1e-6)
        largest = max(largest, float((parameter - start[name]).detach().abs().max()))
    assert largest > 1e-3  # there was something to differ in

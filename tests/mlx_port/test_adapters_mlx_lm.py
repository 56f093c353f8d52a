"""The converted adapter computes the same in the other library: torch + PEFT beside mlx-lm."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("mlx.core", reason="mlx is not installed: pip install -e '.[mlx]'")
pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: pip install -e '.[dev]'")

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load_model
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from sctom.mlx_port.adapters import mlx_config, mlx_to_peft, peft_to_mlx, read_model

TOLERANCE = 2e-5  # largest difference of a logit, over the standard deviation of the logits
VOCABULARY = 48
LEARNING_RATE = 1e-3
IDS = np.random.default_rng(0).integers(0, VOCABULARY, (2, 24))

# no matrix is square, except Llama's q_proj and o_proj
CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
KINDS = {
    "lora": {"target_modules": "all-linear"},
    "rslora": {"target_modules": ["q_proj", "v_proj", "down_proj"], "use_rslora": True},
    "dora": {"target_modules": ["q_proj", "k_proj", "up_proj", "down_proj"], "use_dora": True},
    "last": {"target_modules": ["v_proj", "o_proj"], "layers_to_transform": [1, 2]},
}


def randomise(module: torch.nn.Module, *, std: float) -> None:
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1 or name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=std)


def save_model(folder: Path, architecture: str, rope: dict | None = None) -> Path:
    """A random model of three layers as transformers saves it, then with mlx-lm's rotary keys."""
    torch.manual_seed(0)
    head = {} if architecture == "llama" else {"head_dim": 16}
    config = CONFIGS[architecture](
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=56,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        rope_parameters=rope or {"rope_type": "default", "rope_theta": 50000.0},
        **(head if architecture == "qwen3" else {}),
    )
    model = AutoModelForCausalLM.from_config(config)
    randomise(model, std=0.2)
    model.save_pretrained(folder)
    return folder


def patch_config(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(mlx_config(json.loads(path.read_text()))))


@pytest.fixture(scope="module", params=list(CONFIGS))
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_model(tmp_path_factory.mktemp(request.param), request.param)
    patch_config(folder)
    return folder


def load_torch(model_dir: Path, adapter: Path | None = None) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    return model.eval()


def load_mlx(model_dir: Path, adapter: Path | None = None) -> nn.Module:
    model, _ = load_model(model_dir)
    model.freeze()  # load_adapters leaves the base trainable
    return model if adapter is None else load_adapters(model, str(adapter))


def torch_logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits.numpy()


def mlx_logits(model: nn.Module) -> np.ndarray:
    return np.array(model(mx.array(IDS)))


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * expected.std())


def torch_step(model: torch.nn.Module) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.01, eps=1e-8)
    logits = model(torch.tensor(IDS[:, :-1])).logits
    targets = torch.tensor(IDS[:, 1:])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    optimiser.step()


def mlx_step(model: nn.Module) -> None:
    optimiser = optim.AdamW(LEARNING_RATE, weight_decay=0.01, eps=1e-8, bias_correction=True)

    def loss(model: nn.Module) -> mx.array:
        logits = model(mx.array(IDS[:, :-1]))
        return nn.losses.cross_entropy(logits, mx.array(IDS[:, 1:]), reduction="mean")

    _, gradients = nn.value_and_grad(model, loss)(model)
    optimiser.update(model, gradients)
    mx.eval(model.parameters())


def new_adapter(model_dir: Path, out: Path, kind: str) -> Path:
    torch.manual_seed(1)
    settings = {"r": 4, "lora_alpha": 12, "lora_dropout": 0.0, "task_type": "CAUSAL_LM"}
    model = get_peft_model(load_torch(model_dir), LoraConfig(**settings, **KINDS[kind]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
        elif "magnitude" in name:
            parameter.data *= torch.rand_like(parameter) + 0.5
    model.save_pretrained(out)
    return out


def save_mlx(model: nn.Module, out: Path, config_of: Path) -> Path:
    """What mlx-lm's trainer writes at the end of a run."""
    out.mkdir()
    trained = dict(tree_flatten(model.trainable_parameters()))
    mx.save_safetensors(str(out / "adapters.safetensors"), trained)
    (out / "adapter_config.json").write_bytes((config_of / "adapter_config.json").read_bytes())
    return out


@pytest.mark.parametrize("kind", list(KINDS))
def test_logits_agree_before_and_after_a_step_on_each_side(
    model_dir: Path, kind: str, tmp_path: Path
) -> None:
    base, model = torch_logits(load_torch(model_dir)), read_model(model_dir)
    start = new_adapter(model_dir, tmp_path / "start", kind)
    in_torch = load_torch(model_dir, start)
    before = torch_logits(in_torch)
    assert np.abs(before - base).max() > 0.3  # the adapter is not too small to be seen

    peft_to_mlx(start, tmp_path / "start_mlx", model=model)
    in_mlx = load_mlx(model_dir, tmp_path / "start_mlx")
    assert_close(mlx_logits(in_mlx), before)

    torch_step(in_torch)
    after = torch_logits(in_torch)
    assert np.abs(after - before).max() > 0.05
    in_torch.save_pretrained(tmp_path / "stepped")
    peft_to_mlx(tmp_path / "stepped", tmp_path / "stepped_mlx", model=model)
    stepped = mlx_logits(load_mlx(model_dir, tmp_path / "stepped_mlx"))
    assert_close(stepped, after)

    mlx_step(in_mlx)
    assert_close(mlx_logits(in_mlx), after)
    saved = save_mlx(in_mlx, tmp_path / "saved", tmp_path / "start_mlx")
    mlx_to_peft(saved, tmp_path / "back", base_model=str(model_dir), model=model)
    back = torch_logits(load_torch(model_dir, tmp_path / "back"))
    assert_close(back, mlx_logits(in_mlx))


def test_a_file_mlx_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    model_dir = save_model(tmp_path / "model", "qwen3")
    start = new_adapter(model_dir, tmp_path / "start", "dora")
    peft_to_mlx(start, tmp_path / "mlx")
    saved = save_mlx(load_mlx(model_dir, tmp_path / "mlx"), tmp_path / "saved", tmp_path / "mlx")
    mlx_to_peft(saved, tmp_path / "peft", base_model="x")
    peft_to_mlx(tmp_path / "peft", tmp_path / "again")
    expected = mx.load(str(saved / "adapters.safetensors"))
    found = mx.load(str(tmp_path / "again" / "adapters.safetensors"))
    assert {key: bytes(value) for key, value in found.items()} == {
        key: bytes(value) for key, value in expected.items()
    }


ROPES = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
}


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("rope_type", ["default", *ROPES])
def test_a_written_config_is_read_alike(architecture: str, rope_type: str, tmp_path: Path) -> None:
    rope = {"rope_type": rope_type, "rope_theta": 50000.0, **ROPES.get(rope_type, {})}
    folder = save_model(tmp_path / "model", architecture, rope)
    expected = torch_logits(load_torch(folder))
    wrong = mlx_logits(load_mlx(folder))
    assert np.abs(wrong - expected).max() > 0.1  # why the config is written at all
    patch_config(folder)
    assert_close(mlx_logits(load_mlx(folder)), expected)
    np.testing.assert_array_equal(torch_logits(load_torch(folder)), expected)

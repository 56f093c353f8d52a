from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from sctom.mlx_port.adapters import (
    AdapterError,
    main,
    mlx_config,
    mlx_to_peft,
    peft_to_mlx,
    read_mlx,
    read_model,
    read_peft,
)
from tests.mlx_port.adapter_files import PEFT_A, cast, edit_config, edit_tensors

KINDS = ["lora", "rslora", "dora"]
RANK = 4
SIZES = {"self_attn.v_proj": (8, 16), "mlp.up_proj": (32, 16)}  # (outputs, inputs)


def base(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder / "model")


def same_bits(first: Path, second: Path) -> None:
    ours, theirs = load_file(first), load_file(second)
    assert set(ours) == set(theirs)
    for key, tensor in ours.items():
        assert tensor.dtype == theirs[key].dtype
        assert tensor.shape == theirs[key].shape
        assert tensor.view(torch.uint8).equal(theirs[key].view(torch.uint8)), key


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_peft_to_mlx_and_back(saved: Path, kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    source = Path(shutil.copytree(saved / kind, tmp_path / "source"))
    edit_tensors(source, cast(dtype))
    edit_tensors(source, lambda t: t[PEFT_A].view(-1)[:3].copy_(torch.tensor([math.nan, -0.0, 1])))
    peft_to_mlx(source, tmp_path / "mlx")
    mlx_to_peft(tmp_path / "mlx", tmp_path / "peft", base_model="x", rslora=kind == "rslora")

    mine, theirs = tmp_path / "peft/adapter_model.safetensors", source / "adapter_model.safetensors"
    same_bits(mine, theirs)
    written = json.loads((tmp_path / "peft/adapter_config.json").read_text())
    read = json.loads((source / "adapter_config.json").read_text())
    for key in ("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "bias", "task_type"):
        assert written[key] == read[key], key
    assert sorted(read["target_modules"]) == written["target_modules"]
    assert written["base_model_name_or_path"] == "x"


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_is_the_one_peft_writes(saved: Path, kind: str, tmp_path: Path) -> None:
    peft_to_mlx(saved / kind, tmp_path / "mlx")
    mlx_to_peft(tmp_path / "mlx", tmp_path / "peft", base_model="x")
    name = "adapter_model.safetensors"
    assert (tmp_path / "peft" / name).read_bytes() == (saved / kind / name).read_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_mlx_to_peft_and_back(saved: Path, kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    source = Path(shutil.copytree(saved / f"mlx-{kind}", tmp_path / "source"))
    edit_tensors(source, cast(dtype))
    mlx_to_peft(source, tmp_path / "peft", base_model="x")
    peft_to_mlx(tmp_path / "peft", tmp_path / "mlx")
    same_bits(tmp_path / "mlx/adapters.safetensors", source / "adapters.safetensors")
    written = json.loads((tmp_path / "mlx/adapter_config.json").read_text())
    read = json.loads((source / "adapter_config.json").read_text())
    assert {**written, "model": None} == {**read, "model": None}


def test_names_and_orientation(saved: Path) -> None:
    peft = load_file(saved / "dora/adapter_model.safetensors")
    mlx = load_file(saved / "mlx-dora/adapters.safetensors")
    assert len(mlx) == len(peft) == 2 * 2 * 3
    for layer in range(2):
        for module, (outputs, inputs) in SIZES.items():
            path = f"model.layers.{layer}.{module}"
            theirs = f"base_model.model.{path}"
            assert mlx[f"{path}.lora_a"].shape == (inputs, RANK)
            assert mlx[f"{path}.lora_b"].shape == (RANK, outputs)
            assert mlx[f"{path}.lora_a"].equal(peft[f"{theirs}.lora_A.weight"].T)
            assert mlx[f"{path}.lora_b"].equal(peft[f"{theirs}.lora_B.weight"].T)
            assert mlx[f"{path}.m"].equal(peft[f"{theirs}.lora_magnitude_vector"])


@pytest.mark.parametrize(
    ("kind", "scale", "type_"),
    [("lora", 6 / 4, "lora"), ("rslora", 6 / 2, "lora"), ("dora", 6 / 4, "dora")],  # sqrt(4) = 2
)
def test_mlx_config_of_an_adapter(
    saved: Path, kind: str, scale: float, type_: str, tmp_path: Path
) -> None:
    peft_to_mlx(saved / kind, tmp_path / "mlx")
    config = json.loads((tmp_path / "mlx/adapter_config.json").read_text())
    assert config["fine_tune_type"] == type_
    assert config["num_layers"] == 2
    keys = ["mlp.up_proj", "self_attn.v_proj"]
    parameters = {"rank": 4, "scale": scale, "dropout": 0.05, "keys": keys}
    assert config["lora_parameters"] == parameters


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_peft_loads_what_is_written(saved: Path, kind: str, rslora: bool, tmp_path: Path) -> None:
    mlx_to_peft(saved / f"mlx-{kind}", tmp_path / "peft", base_model="x", rslora=rslora)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        expected = PeftModel.from_pretrained(base(saved), saved / kind)(ids).logits
        found = PeftModel.from_pretrained(base(saved), tmp_path / "peft")(ids).logits
    assert found.equal(expected)
    assert not found.equal(base(saved)(ids).logits)


def test_last_layers(saved: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(saved / "lora", tmp_path / "source"))
    edit_tensors(source, lambda t: [t.pop(key) for key in list(t) if ".layers.0." in key])
    edit_config(source, layers_to_transform=[1])
    adapter = peft_to_mlx(source, tmp_path / "mlx", model=read_model(saved / "model"))
    assert adapter.layers == [1]
    assert json.loads((tmp_path / "mlx/adapter_config.json").read_text())["num_layers"] == 1
    mlx_to_peft(tmp_path / "mlx", tmp_path / "peft", base_model="x")
    same_bits(tmp_path / "peft/adapter_model.safetensors", source / "adapter_model.safetensors")
    config = json.loads((tmp_path / "peft/adapter_config.json").read_text())
    assert config["layers_to_transform"] == [1]


def test_a_pattern_as_target_is_checked_against_the_model(saved: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(saved / "lora", tmp_path / "source"))
    edit_config(source, target_modules=r".*\.(v|up)_proj")
    assert len(read_peft(source, read_model(saved / "model")).tensors) == 8


def test_num_layers_may_exceed_the_model_as_in_mlx_lm(saved: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(saved / "mlx-lora", tmp_path / "source"))
    for count in (16, 2, 0, -1):
        edit_config(source, num_layers=count)
        assert read_mlx(source).layers == [0, 1]
        assert read_mlx(source, read_model(saved / "model")).layers == [0, 1]


# --- the model's config.json ----------------------------------------------------------------------

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.mark.parametrize("rope", [{"rope_type": "default"}, LLAMA3])
def test_transformers_reads_the_written_config_as_before(rope: dict, tmp_path: Path) -> None:
    LlamaConfig(rope_parameters={**rope, "rope_theta": 5e5}).save_pretrained(tmp_path)
    before = AutoConfig.from_pretrained(tmp_path).rope_parameters
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    written = mlx_config(content)
    path.write_text(json.dumps(written))
    assert AutoConfig.from_pretrained(tmp_path).rope_parameters == before
    assert written["rope_theta"] == 5e5
    assert written.get("rope_scaling") == (LLAMA3 if rope is LLAMA3 else None)
    assert {key: written[key] for key in content} == content
    assert mlx_config(written) == written


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, "neither rope_parameters nor rope_theta"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "no number rope_theta"),
        ({"rope_parameters": {"rope_theta": None}}, "no number rope_theta"),
        ({"rope_parameters": {"rope_theta": 10**400}}, "no number rope_theta"),
        ({"rope_theta": "10000"}, "rope_theta is '10000'; expected a number above 0"),
        ({"rope_parameters": {"rope_theta": 1e4}, "rope_theta": 1e6}, "rope_theta is 1000000.0"),
        (
            {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"type": "linear"}},
            "rope_scaling is",
        ),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamic"}}, "rope_type 'dynamic'"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
    ],
)
def test_rotary_settings_refused(content: dict, expected: str) -> None:
    with pytest.raises(AdapterError, match=expected):
        mlx_config(content)


# --- the command ----------------------------------------------------------------------------------


def test_command_to_mlx(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, written = tmp_path / "out", tmp_path / "config.json"
    command = ["to-mlx", str(saved / "rslora"), str(out)]
    main([*command, "--model", str(saved / "model"), "--write-config", str(written)])
    printed = capsys.readouterr().out
    assert "LoRA of rank 4, scale 3, dropout 0.05, on mlp.up_proj, self_attn.v_proj" in printed
    assert "in layers 0 to 1; 8 tensors, F32" in printed
    assert "rope_theta 10000 at the top level" in printed
    assert json.loads(written.read_text())["rope_theta"] == 10000.0

    with pytest.raises(SystemExit, match="1"):
        main(command)
    assert "not empty; choose another folder, or pass --force" in capsys.readouterr().err
    (out / "adapters.safetensors").write_bytes(b"")
    main([*command, "--force"])
    assert "pass --model to have that checked" in capsys.readouterr().out
    assert read_mlx(out).scale == 3.0


def test_command_to_mlx_tells_of_a_config_mlx_lm_misreads(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["to-mlx", str(saved / "lora"), str(tmp_path / "o"), "--model", str(saved / "model")])
    assert "only in rope_parameters" in capsys.readouterr().out


def test_command_to_peft(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["to-peft", str(saved / "mlx-dora"), str(tmp_path / "out"), "--base-model", "org/x"]
    main([*command, "--model", str(saved / "model"), "--rslora"])
    assert "DoRA of rank 4, scale 1.5" in capsys.readouterr().out
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "org/x"
    assert (config["lora_alpha"], config["use_rslora"], config["use_dora"]) == (3, True, True)


def test_needs_neither_torch_nor_mlx() -> None:
    code = "import sys, sctom.mlx_port.adapters; print({'torch', 'mlx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch

from sctom.mlx_port.adapters import (
    AdapterError,
    mlx_to_peft,
    peft_to_mlx,
    read_mlx,
    read_model,
    read_peft,
)
from tests.mlx_port.adapter_files import (
    MLX_A,
    MLX_B,
    PEFT_A,
    PEFT_B,
    Edit,
    a_list,
    add,
    cast,
    config,
    deep_json,
    drop,
    edit_config,
    edit_tensors,
    in_place_of,
    long_header,
    move,
    no_json,
    parameters,
    pickle_only,
    tensors,
    truncate,
)

Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"
LAYERS = "base_model.model.model.layers"

PEFT_REFUSED: dict[str, tuple[Edit, list[str]]] = {
    "a tensor missing": (drop(PEFT_B), [PEFT_B, "missing"]),
    "a module missing everywhere": (drop("up_proj"), ["target_modules", "'up_proj'"]),
    "a module missing in a layer": (
        drop("layers.1.mlp"),
        [f"{LAYERS}.1.mlp.up_proj.lora_A.weight (and 1 more)", "missing"],
    ),
    "a layer missing": (drop(".layers.0."), [f"{LAYERS}.0.mlp.up_proj.lora_A.weight", "missing"]),
    "no tensors": (drop(""), ["no tensors"]),
    "a module too many": (move("v_proj", "q_proj"), ["target_modules", "'v_proj'"]),
    "half a module too many": (
        add(f"{Q_PROJ}.lora_A.weight", 4, 16),
        [f"{Q_PROJ}.lora_B.weight", "missing"],
    ),
    "an unknown key": (add("stray", 2), ["stray", "not a key"]),
    "a nameless layer": (move("layers.0", "layers.00"), [f"{LAYERS}.00.", "not a key"]),
    "a huge layer": (move("layers.1", "layers.1000000"), ["layers.1000000.", "not a key"]),
    "a lora bias": (add(f"{Q_PROJ}.lora_B.bias", 16), [f"{Q_PROJ}.lora_B.bias", "not a key"]),
    "a whole tensor": (add("base_model.model.lm_head.weight", 20, 16), ["lm_head", "whole tensor"]),
    "an expert": (
        move("mlp.up_proj", "mlp.experts.0.up_proj"),
        ["mlp.experts.0.up_proj", "mixture of experts"],
    ),
    "another rank": (config(r=8), ["[4, 16]", "rank 8", "expected [8, *]"]),
    "another shape": (
        tensors(lambda t: t.update({PEFT_A: t[PEFT_A].T.contiguous()})),
        [PEFT_A, "[16, 4]", "expected [4, *]"],
    ),
    "three axes": (tensors(lambda t: t.update({PEFT_A: t[PEFT_A][None]})), [PEFT_A, "[1, 4, 16]"]),
    "no inputs": (tensors(lambda t: t.update({PEFT_A: t[PEFT_A][:, :0]})), [PEFT_A, "[4, 0]"]),
    "an integer dtype": (
        tensors(lambda t: t.update({PEFT_A: t[PEFT_A].to(torch.int32)})),
        [PEFT_A, "I32", "F32, F16 or BF16"],
    ),
    "float64": (tensors(cast(torch.float64)), ["F64", "F32, F16 or BF16"]),
    "two dtypes": (
        tensors(lambda t: t.update({PEFT_B: t[PEFT_B].half()})),
        [PEFT_B, "F16", "F32", "one dtype"],
    ),
    "truncated": (truncate, ["adapter_model.safetensors", "truncated"]),
    "a header of 2^62 bytes": (long_header, ["adapter_model.safetensors", "truncated"]),
    "no JSON": (no_json, ["adapter_config.json is not JSON"]),
    "a JSON list": (a_list, ["adapter_config.json", "expected a JSON object, found list"]),
    "deep JSON": (deep_json, ["adapter_config.json", "nested too deeply"]),
    "a folder for tensors": (
        in_place_of("*.safetensors", Path.mkdir),
        ["adapter_model.safetensors is a folder"],
    ),
    "a pipe for tensors": (
        in_place_of("*.safetensors", os.mkfifo),
        ["adapter_model.safetensors is not a regular file"],
    ),
    "a pipe for the config": (
        in_place_of("*.json", os.mkfifo),
        ["adapter_config.json is not a regular file"],
    ),
    "rsLoRA as text": (config(use_rslora="false"), ["use_rslora is 'false'; expected true or"]),
    "rsLoRA as number": (config(use_rslora=0), ["use_rslora is 0; expected true or false"]),
    "DoRA as text": (config(use_dora="false"), ["use_dora is 'false'; expected true or false"]),
    "a number as base": (config(base_model_name_or_path=5), ["base_model_name_or_path is 5"]),
    "a list as base": (config(base_model_name_or_path=["x"]), ["base_model_name_or_path is ['x']"]),
    "init as number": (config(init_lora_weights=1), ["init_lora_weights is 1; expected true, "]),
    "modules_to_save": (config(modules_to_save=["lm_head"]), ["modules_to_save", "'lm_head'"]),
    "rank_pattern": (config(rank_pattern={"up_proj": 8}), ["rank_pattern", "up_proj", "8"]),
    "alpha_pattern": (config(alpha_pattern={"v_proj": 1}), ["alpha_pattern", "v_proj", "1"]),
    "a list as pattern": (config(rank_pattern=[8]), ["rank_pattern", "[8]"]),
    "false as pattern": (config(alpha_pattern=False), ["alpha_pattern is False"]),
    "bias": (config(bias="lora_only"), ["bias", "'lora_only'", "merge"]),
    "lora_bias": (config(lora_bias=True), ["lora_bias", "merge"]),
    "pissa": (config(init_lora_weights="pissa"), ["init_lora_weights", "'pissa'"]),
    "fan_in_fan_out": (config(fan_in_fan_out=True), ["fan_in_fan_out"]),
    "a setting of a later PEFT": (config(use_xyz=True), ["use_xyz", "cannot express"]),
    "another method": (config(peft_type="IA3"), ["peft_type", "'IA3'"]),
    "another task": (config(task_type="SEQ_CLS"), ["task_type", "'SEQ_CLS'"]),
    "DoRA without magnitudes": (config(use_dora=True), ["lora_magnitude_vector", "missing"]),
    "magnitudes without DoRA": (
        add(f"{LAYERS}.0.mlp.up_proj.lora_magnitude_vector", 32),
        [f"{LAYERS}.0.mlp.up_proj.lora_magnitude_vector", "DoRA"],
    ),
    "a choice of layers": (config(layers_to_transform=[0]), ["layers_to_transform", "--model"]),
    "a pattern of targets": (config(target_modules=".*v_proj"), ["target_modules", "--model"]),
    "a numbered target": (
        config(target_modules=["v_proj", "model.layers.0.mlp.up_proj"]),
        ["target_modules", "--model"],
    ),
    "no targets": (
        config(target_modules=None),
        ["target_modules is None; expected a list of names"],
    ),
    "targets of another kind": (config(target_modules={"up": 1}), ["target_modules is {'up': 1}"]),
    "a nested pattern": (config(target_modules="(" * 9999), ["target_modules is"]),
    "a pattern too long": (config(target_modules="a{99999999999999}"), ["target_modules is"]),
    "false among layers": (config(layers_to_transform=[False]), ["layers_to_transform is [False]"]),
    "zero as exclusion": (config(exclude_modules=0), ["exclude_modules is 0"]),
    "a number among targets": (config(target_modules=[1]), ["target_modules is [1]"]),
    "rank true": (config(r=True), ["r is True", "whole number"]),
    "rank 0": (config(r=0), ["r is 0", "whole number from 1"]),
    "alpha NaN": (config(lora_alpha=math.nan), ["lora_alpha is nan"]),
    "alpha beyond float": (config(lora_alpha=10**400), ["lora_alpha", "finite number"]),
    "no alpha": (config(lora_alpha=None), ["lora_alpha is None"]),
    "dropout 1": (config(lora_dropout=1.0), ["lora_dropout is 1.0"]),
}

MLX_REFUSED: dict[str, tuple[Edit, list[str]]] = {
    "a tensor missing": (drop(MLX_B), [MLX_B, "missing"]),
    "one module of two": (drop("up_proj"), [MLX_A, "missing"]),
    "one module of two, no keys": (
        lambda folder: (drop("layers.1.mlp")(folder), parameters(keys=None)(folder)),
        ["model.layers.1.mlp.up_proj.lora_a", "missing"],
    ),
    "a module too many": (
        parameters(keys=["self_attn.v_proj"]),
        [MLX_A, "adapter_config.json", "no adapter there"],
    ),
    "a key without tensors": (
        parameters(keys=["self_attn.v_proj", "mlp.up_proj", "mlp.gate_proj"]),
        ["model.layers.0.mlp.gate_proj.lora_a (and 3 more)", "missing"],
    ),
    "a key of one layer": (parameters(keys=["layers.0.mlp"]), ["'layers.0.mlp'", "self_attn"]),
    "keys as text": (parameters(keys="mlp.up_proj"), ["lora_parameters.keys", "expected a list"]),
    "a layer missing": (drop(".layers.0."), [MLX_A, "missing"]),
    "fewer num_layers": (config(num_layers=1), [MLX_A, "no adapter there"]),
    "no num_layers": (config(num_layers=None), ["num_layers is None"]),
    "a full fine-tune": (config(fine_tune_type="full"), ["fine_tune_type", "whole weights"]),
    "an unknown type": (config(fine_tune_type="qlora"), ["fine_tune_type", "'qlora'", "'dora'"]),
    "a list as type": (config(fine_tune_type=["lora"]), ["fine_tune_type"]),
    "DoRA without magnitudes": (config(fine_tune_type="dora"), ["mlp.up_proj.m ", "missing"]),
    "magnitudes without DoRA": (add("model.layers.0.mlp.up_proj.m", 32), ["up_proj.m ", "DoRA"]),
    "another rank": (parameters(rank=8), ["[16, 4]", "expected [*, 8]"]),
    "PEFT's orientation": (
        tensors(lambda t: t.update({MLX_A: t[MLX_A].T.contiguous()})),
        [MLX_A, "[4, 16]", "expected [*, 4]"],
    ),
    "alpha": (parameters(alpha=8), ["alpha", "scale is alpha / rank"]),
    "no scale": (parameters(scale=None), ["scale is None"]),
    "no lora_parameters": (config(lora_parameters=None), ["lora_parameters is None"]),
    "a base weight": (add("model.layers.0.mlp.up_proj.weight", 32, 16), ["whole tensor"]),
    "an embedding": (add("model.embed_tokens.lora_a", 20, 4), ["embed_tokens", "not a key"]),
    "experts": (
        move("mlp.up_proj", "mlp.switch_mlp.up_proj"),
        ["mlp.switch_mlp.up_proj", "mixture of experts"],
    ),
    "an integer dtype": (
        tensors(lambda t: t.update({MLX_A: t[MLX_A].to(torch.int8)})),
        [MLX_A, "I8", "F32, F16 or BF16"],
    ),
    "truncated": (truncate, ["adapters.safetensors", "truncated"]),
    "a folder for tensors": (
        in_place_of("*.safetensors", Path.mkdir),
        ["adapters.safetensors is a folder"],
    ),
    "a number as model": (config(model=5), ["model is 5; expected a text or null"]),
}


@pytest.mark.parametrize("name", list(PEFT_REFUSED))
def test_peft_files_refused(saved: Path, name: str, tmp_path: Path) -> None:
    edit, expected = PEFT_REFUSED[name]
    source = Path(shutil.copytree(saved / "lora", tmp_path / "source"))
    edit(source)
    with pytest.raises(AdapterError) as caught:
        peft_to_mlx(source, tmp_path / "out")
    for words in (str(source), *expected):
        assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", list(MLX_REFUSED))
def test_mlx_files_refused(saved: Path, name: str, tmp_path: Path) -> None:
    edit, expected = MLX_REFUSED[name]
    source = Path(shutil.copytree(saved / "mlx-lora", tmp_path / "source"))
    edit(source)
    with pytest.raises(AdapterError) as caught:
        mlx_to_peft(source, tmp_path / "out", base_model="x")
    for words in (str(source), *expected):
        assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_magnitudes_of_another_length(saved: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(saved / "mlx-dora", tmp_path / "source"))
    key = "model.layers.0.mlp.up_proj.m"
    edit_tensors(source, lambda t: t.update({key: t[key][:31]}))
    with pytest.raises(AdapterError, match=f"{key} has 31 magnitudes for 32 outputs"):
        read_mlx(source)


def test_files_that_are_not_there(saved: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(saved / "lora", tmp_path / "source"))
    pickle_only(source)
    with pytest.raises(FileNotFoundError, match=r"adapter_model\.safetensors"):
        read_peft(source)
    with pytest.raises(FileNotFoundError, match=r"adapter_config\.json"):
        read_mlx(tmp_path / "nothing")


# --- against the model ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (drop("up_proj"), "layers.0.mlp.up_proj.lora_A.weight .and 3 more. is missing"),
        (drop(".layers.1."), "layers.1.mlp.up_proj.lora_A.weight .and 3 more. is missing"),
        (
            config(target_modules=["v_proj"]),
            "mlp.up_proj.lora_A.weight .and 3 more. is in the file",
        ),
        (tensors(lambda t: t.update({PEFT_A: torch.zeros(4, 9)})), "9 inputs, .*has 16"),
        (tensors(lambda t: t.update({PEFT_B: torch.zeros(9, 4)})), "9 outputs, .*has 8"),
        (
            lambda f: (drop("layers.1.")(f), edit_config(f, layers_to_transform=[0])),
            "on layers 0 of 2, but MLX's num_layers",
        ),
        (
            lambda f: (
                drop("layers.0.mlp")(f),
                edit_config(f, target_modules=r".*v_proj|.*1\.mlp\.up_proj"),
            ),
            "model.layers.0.mlp.up_proj has no adapter",
        ),
        (config(target_modules="("), r"target_modules is '\('; expected a list of names"),
    ],
)
def test_peft_files_that_do_not_fit_the_model(
    saved: Path, edit: Edit, expected: str, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(saved / "lora", tmp_path / "source"))
    edit(source)
    with pytest.raises(AdapterError, match=expected):
        read_peft(source, read_model(saved / "model"))


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (drop(".layers.1."), r"layers\.1\.mlp\.up_proj\.lora_a .and 3 more. is missing"),
        (parameters(keys=None), r"layers\.0\.mlp\.down_proj\.lora_a .and 19 more. is missing"),
        (parameters(keys=["mlp.up_porj"]), "'mlp.up_porj', which the model"),
        (tensors(lambda t: t.update({MLX_A: torch.zeros(9, 4)})), "9 inputs, .*has 16"),
    ],
)
def test_mlx_files_that_do_not_fit_the_model(
    saved: Path, edit: Edit, expected: str, tmp_path: Path
) -> None:
    source = Path(shutil.copytree(saved / "mlx-lora", tmp_path / "source"))
    edit(source)
    with pytest.raises(AdapterError, match=expected):
        read_mlx(source, read_model(saved / "model"))


def test_models_refused(saved: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(saved / "model", tmp_path / "model"))
    content = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(content | {"quantization": {"bits": 4}}))
    with pytest.raises(AdapterError, match="quantization is set"):
        read_model(model)
    (model / "config.json").write_text(json.dumps(content | {"num_hidden_layers": 3}))
    with pytest.raises(AdapterError, match=r"2 layers, but config\.json says 3"):
        read_model(model)
    (model / "config.json").write_text(json.dumps(content))
    truncate(model)
    with pytest.raises(AdapterError, match="truncated"):
        read_model(model)
    in_place_of("*.safetensors", os.mkfifo)(model)
    with pytest.raises(AdapterError, match=r"model\.safetensors is not a regular file"):
        read_model(model)
    (model / "model.safetensors").unlink()
    with pytest.raises(AdapterError, match=r"no matrices named model\.layers"):
        read_model(model)

"""Small ways to damage the files of an adapter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
PEFT_A = "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
PEFT_B = "base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"
MLX_A = "model.layers.0.mlp.up_proj.lora_a"
MLX_B = "model.layers.1.self_attn.v_proj.lora_b"


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def cast(dtype: torch.dtype) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors.update({key: tensor.to(dtype) for key, tensor in tensors.items()})

    return change


Edit = Callable[[Path], object]


def config(**changes: object) -> Edit:
    return lambda folder: edit_config(folder, **changes)


def tensors(change: Callable[[Tensors], object]) -> Edit:
    return lambda folder: edit_tensors(folder, change)


def parameters(**changes: object) -> Edit:
    """Change lora_parameters; None removes."""

    def edit(folder: Path) -> None:
        old = json.loads((folder / "adapter_config.json").read_text())["lora_parameters"]
        new = {key: value for key, value in (old | changes).items() if value is not None}
        edit_config(folder, lora_parameters=new)

    return edit


def truncate(folder: Path) -> None:
    (path,) = folder.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-5])


def long_header(folder: Path) -> None:
    (path,) = folder.glob("*.safetensors")
    path.write_bytes((2**62).to_bytes(8, "little") + path.read_bytes()[8:])


def no_json(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{'r': 4}")


def a_list(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("[1]")


def deep_json(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("[" * 100_000)


def in_place_of(glob: str, make: Edit) -> Edit:
    """Put a folder (Path.mkdir) or a pipe (os.mkfifo) where a file was."""

    def edit(folder: Path) -> None:
        (path,) = folder.glob(glob)
        path.unlink()
        make(path)

    return edit


def pickle_only(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def add(key: str, *shape: int) -> Edit:
    return tensors(lambda t: t.update({key: torch.zeros(shape)}))


def move(old: str, new: str) -> Edit:
    def change(t: Tensors) -> None:
        for key in list(t):
            if old in key:
                t[key.replace(old, new)] = t.pop(key)

    return tensors(change)


def drop(part: str) -> Edit:
    return tensors(lambda t: [t.pop(key) for key in list(t) if part in key])

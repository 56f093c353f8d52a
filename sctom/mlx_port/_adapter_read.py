"""Reading an adapter of either library: the config, the key set, and what neither may hide."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sctom.mlx_port._adapter_keys import (
    MERGE,
    MLX,
    MODULE,
    PARTS,
    PEFT,
    AdapterError,
    Kind,
    Slot,
    Tensor,
    check_places,
    place,
    read_json,
    read_tensors,
)
from sctom.mlx_port._model import Model, check_shapes

CONFIG = "adapter_config.json"

# keys of PEFT's config that are read here, or say nothing of what a trained adapter computes
_PEFT_READ = {
    *("peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha", "lora_dropout"),
    *("use_rslora", "use_dora", "bias", "init_lora_weights", "rank_pattern", "alpha_pattern"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
}
_PEFT_INERT = {
    *("auto_mapping", "eva_config", "inference_mode", "megatron_core", "peft_version"),
    *("qalora_group_size", "revision", "runtime_config"),
}
# the other ways to initialise change the weights of the base model too
_PEFT_INITS = ("gaussian", "eva", "orthogonal", "mica")
_EXPECTED = {
    "target_modules": "a list of names or a regular expression",
    "exclude_modules": "a list of names, a regular expression or null",
    "layers_to_transform": "a list of layers, a layer or null",
    "layers_pattern": "'layers' or null",
}
_MLX_PARAMETERS = {"rank", "scale", "dropout", "keys"}
_LARGEST = 1e30  # of a number in a config; keeps NaN and infinity out, too


@dataclass(frozen=True)
class Adapter:
    """An adapter, checked, in neither library's form."""

    kind: Kind
    rank: int
    scale: float
    """The factor of the low-rank product: alpha / r, or alpha / sqrt(r) for rsLoRA."""
    dropout: float
    tensors: dict[Slot, Tensor]
    """Every part of every module, in PEFT's orientation."""
    base: str | None
    """The model it was trained on, as its config names it."""
    notes: tuple[str, ...] = ()
    """What could not be checked."""

    @property
    def layers(self) -> list[int]:
        """The layers it sits on, in order."""
        return sorted({slot.layer for slot in self.tensors})

    @property
    def modules(self) -> list[str]:
        """The modules inside these layers, in order."""
        return sorted({slot.module for slot in self.tensors})

    def __str__(self) -> str:
        dtypes = ", ".join(sorted({tensor.dtype for tensor in self.tensors.values()}))
        return (
            f"{'DoRA' if self.kind == 'dora' else 'LoRA'} of rank {self.rank}, scale "
            f"{self.scale:g}, dropout {self.dropout:g}, on {', '.join(self.modules)} in layers "
            f"{self.layers[0]} to {self.layers[-1]}; {len(self.tensors)} tensors, {dtypes}"
        )


def read_peft(folder: str | Path, model: Model | None = None) -> Adapter:
    """Read and check an adapter that PEFT saved.

    Args:
        folder: holds adapter_config.json and adapter_model.safetensors.
        model: the base model, to check the set of keys and the shapes against.

    Raises:
        AdapterError: a file is damaged, has a key missing or too many, or holds what MLX's files
            cannot express.
        FileNotFoundError: a file is not there.
    """
    file, path = Path(folder) / CONFIG, Path(folder) / PEFT.file
    config = read_json(file)
    base = _text(config, "base_model_name_or_path", file)
    _check_peft_settings(config, file)
    _check_targets(config, file)
    rank = _number(config, "r", file, whole=True)
    alpha = _number(config, "lora_alpha", file)
    _check_patterns(config, rank=rank, alpha=alpha, file=file)
    kind: Kind = "dora" if _flag(config, "use_dora", file) else "lora"
    divisor = math.sqrt(rank) if _flag(config, "use_rslora", file) else rank
    placed = place(read_tensors(path), PEFT, kind=kind, rank=int(rank), path=path)
    paths = model.shapes if model else _paths_without_model(config, placed, file)
    targeted = _slots((p for p in paths if _is_targeted(config, p)), kind)
    check_places(placed, targeted, PEFT, path)
    if model:
        check_shapes({slot: tensor.bits.shape for slot, tensor in placed.items()}, model)
        _check_last_layers(placed, model.layers, file)
    return Adapter(
        kind=kind,
        rank=int(rank),
        scale=alpha / divisor,
        dropout=_dropout(config, "lora_dropout", file),
        tensors=placed,
        base=base,
        notes=() if model else (_depth_note(placed),),
    )


def _depth_note(placed: Iterable[Slot]) -> str:
    depth = 1 + max(slot.layer for slot in placed)
    return f"taken for a model of {depth} layers; pass --model to have that checked"


def _check_peft_settings(config: dict[str, Any], file: Path) -> None:
    for key, kinds in (("peft_type", ("LORA",)), ("task_type", ("CAUSAL_LM", None))):
        if config.get(key) not in kinds:
            raise AdapterError(
                f"{file}: {key} is {config.get(key)!r}, expected {kinds[0]!r}; only LoRA, "
                "rsLoRA and DoRA adapters of causal language models can be converted"
            )
    init = config.get("init_lora_weights")
    if not isinstance(init, bool | str | None):
        expected = f"expected true, false or one of {', '.join(_PEFT_INITS)}"
        raise AdapterError(f"{file}: init_lora_weights is {init!r}; {expected}")
    dropped = {
        "bias": config.get("bias", "none") != "none",
        "init_lora_weights": isinstance(init, str) and init not in _PEFT_INITS,
    }
    for key, value in config.items():
        if dropped.get(key, bool(value) and key not in _PEFT_READ | _PEFT_INERT):
            raise AdapterError(
                f"{file}: {key} is {value!r}, which MLX's adapter files cannot express; {MERGE}"
            )


def _check_patterns(config: dict[str, Any], *, rank: float, alpha: float, file: Path) -> None:
    for key, default in (("rank_pattern", rank), ("alpha_pattern", alpha)):
        pattern = {} if config.get(key) is None else config[key]
        if not isinstance(pattern, dict):
            raise AdapterError(f"{file}: {key} is {pattern!r}; expected an object")
        for module, value in pattern.items():
            if isinstance(value, bool) or value != default:
                raise AdapterError(
                    f"{file}: {key} gives {module} {value}, the rest has {default:g}; MLX's files "
                    f"have one rank and one scale for all modules; {MERGE}"
                )


def _check_targets(config: dict[str, Any], file: Path) -> None:
    """The settings that choose modules are of the kinds PEFT writes."""
    layers = config.get("layers_to_transform")
    good = {
        "target_modules": _is_names(config.get("target_modules")),
        "exclude_modules": config.get("exclude_modules") is None
        or _is_names(config["exclude_modules"]),
        "layers_to_transform": all(
            isinstance(layer, int | None) and not isinstance(layer, bool)
            for layer in (layers if isinstance(layers, list) else [layers])
        ),
        "layers_pattern": config.get("layers_pattern") in (None, [], "", "layers", ["layers"]),
    }
    for key, is_good in good.items():
        if not is_good:
            raise AdapterError(f"{file}: {key} is {config.get(key)!r}; expected {_EXPECTED[key]}")


def _is_names(value: object) -> bool:
    """Whether it is a list of names or a regular expression."""
    if isinstance(value, str):
        try:
            re.compile(value)
        except (re.error, RecursionError, OverflowError):
            return False
        return True
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_targeted(config: dict[str, Any], path: str) -> bool:
    """Whether PEFT puts an adapter on a module: its own rule, for paths model.layers.N.MODULE."""
    targets, layers = config["target_modules"], config.get("layers_to_transform")
    if _names(config.get("exclude_modules") or [], path) or not _names(targets, path):
        return False
    if isinstance(targets, str) or path in targets or layers in (None, []):
        return True
    return int(path.split(".")[2]) in (layers if isinstance(layers, list) else [layers])


def _names(names: str | list[str], path: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, path) is not None
    return any(f".{path}".endswith(f".{name}") for name in names)


def _paths_without_model(config: dict[str, Any], placed: Iterable[Slot], file: Path) -> set[str]:
    """Where there must be an adapter when the config says that all layers have the same ones."""
    targets = config["target_modules"]
    numbered = isinstance(targets, str) or re.search(r"(^|\.)\d+(\.|$)", " ".join(targets))
    for key in ("exclude_modules", "layers_to_transform", "target_modules"):
        value = config.get(key)
        if numbered if key == "target_modules" else value:
            raise AdapterError(
                f"{file}: {key} is {value!r}, which chooses among the model's layers or modules; "
                "pass --model with the base model's folder, so that the choice can be checked"
            )
    paths = {slot.path for slot in placed}
    for name in targets:
        if not any(_names([name], path) for path in paths):
            raise AdapterError(
                f"{file}: target_modules has {name!r}, but {PEFT.file} has no key for it, such as "
                f"{PEFT.prefix}model.layers.0.*.{name}.{PEFT.parts['a']}; save the adapter again, "
                "or pass --model if the base model has no such module"
            )
    return _paths(range(1 + max(slot.layer for slot in placed)), {slot.module for slot in placed})


def _check_last_layers(placed: dict[Slot, Tensor], depth: int, file: Path) -> None:
    """MLX's files: one list of modules, on the last so many layers."""
    layers = sorted({slot.layer for slot in placed})
    if layers != list(range(depth - len(layers), depth)):
        raise AdapterError(
            f"{file}: the adapter is on layers {', '.join(map(str, layers))} of {depth}, but MLX's "
            f"num_layers can only mean the last ones; {MERGE}"
        )
    everywhere = _paths(layers, {slot.module for slot in placed})
    if absent := sorted(everywhere - {slot.path for slot in placed}):
        raise AdapterError(
            f"{file}: {absent[0]} has no adapter, though other layers have one there, and MLX's "
            f"files have one list of modules for all layers; {MERGE}"
        )


def read_mlx(folder: str | Path, model: Model | None = None) -> Adapter:
    """Read and check an adapter that mlx-lm saved.

    Args:
        folder: holds adapter_config.json and adapters.safetensors.
        model: the model, unquantised, to check the set of keys and the shapes against.

    Raises:
        AdapterError: a file is damaged or has a key missing or too many.
        FileNotFoundError: a file is not there.
    """
    file, path = Path(folder) / CONFIG, Path(folder) / MLX.file
    config = read_json(file)
    kind = _mlx_kind(config, file)
    parameters = config.get("lora_parameters")
    if not isinstance(parameters, dict):
        raise AdapterError(f"{file}: lora_parameters is {parameters!r}; expected an object")
    if unknown := sorted(set(parameters) - _MLX_PARAMETERS):
        raise AdapterError(
            f"{file}: lora_parameters has {', '.join(unknown)}; expected rank, scale, dropout and "
            "keys only (scale is alpha / rank)"
        )
    rank = int(_number(parameters, "rank", file, whole=True))
    count = config.get("num_layers")
    if isinstance(count, bool) or not isinstance(count, int):
        raise AdapterError(f"{file}: num_layers is {count!r}; expected a whole number, -1 for all")
    placed = place(read_tensors(path), MLX, kind=kind, rank=rank, path=path)
    keys = _mlx_keys(parameters, file)
    notes = []
    if model:
        check_places(placed, _slots(_mlx_paths(model, count, keys, file), kind), MLX, path)
        check_shapes({slot: tensor.bits.shape for slot, tensor in placed.items()}, model)
    else:
        depth = 1 + max(slot.layer for slot in placed)
        layers = range(max(0, depth - count) if count > 0 else 0, depth)
        modules = set(keys or (slot.module for slot in placed))
        check_places(placed, _slots(_paths(layers, modules), kind), MLX, path)
        notes = [_depth_note(placed)]
        if keys is None:
            notes.append("lora_parameters has no keys: whether a module is missing is unchecked")
    return Adapter(
        kind=kind,
        rank=rank,
        scale=_number(parameters, "scale", file),
        dropout=_dropout(parameters, "dropout", file),
        tensors=placed,
        base=_text(config, "model", file),
        notes=tuple(notes),
    )


def _mlx_kind(config: dict[str, Any], file: Path) -> Kind:
    kind = config.get("fine_tune_type", "lora")  # mlx-lm's own default
    if kind == "full":
        raise AdapterError(
            f"{file}: fine_tune_type is 'full': the file holds whole weights and is no adapter; "
            "convert the fused model instead"
        )
    if kind == "lora":
        return "lora"
    if kind == "dora":
        return "dora"
    raise AdapterError(f"{file}: fine_tune_type is {kind!r}; expected 'lora' or 'dora'")


def _mlx_keys(parameters: dict[str, Any], file: Path) -> list[str] | None:
    keys = parameters.get("keys")
    if keys is None:
        return None
    if not isinstance(keys, list) or not keys:
        raise AdapterError(f"{file}: lora_parameters.keys is {keys!r}; expected a list of modules")
    for key in keys:
        if not isinstance(key, str) or not MODULE.fullmatch(key):
            raise AdapterError(
                f"{file}: lora_parameters.keys has {key!r}; expected paths inside a layer, such as "
                "self_attn.q_proj, without the layer's number"
            )
    return keys


def _mlx_paths(model: Model, count: int, keys: list[str] | None, file: Path) -> set[str]:
    first = max(0, model.layers - count) if count > 0 else 0
    inside = [(path, *path.split(".", 3)[2:]) for path in model.shapes]
    for key in keys or []:
        if key not in {module for _, _, module in inside}:
            raise AdapterError(
                f"{file}: lora_parameters.keys has {key!r}, which the model at {model.folder} does "
                "not have in any layer; correct it"
            )
    return {
        path
        for path, layer, module in inside
        if int(layer) >= first and (keys is None or module in keys)
    }


def _paths(layers: Iterable[int], modules: Iterable[str]) -> set[str]:
    return {Slot(layer, module, "a").path for layer in layers for module in modules}


def _slots(paths: Iterable[str], kind: Kind) -> set[Slot]:
    pieces = [path.split(".", 3)[2:] for path in paths]
    return {Slot(int(layer), module, part) for layer, module in pieces for part in PARTS[kind]}


def _flag(config: dict[str, Any], key: str, file: Path) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise AdapterError(f"{file}: {key} is {value!r}; expected true or false")
    return value


def _text(config: dict[str, Any], key: str, file: Path) -> str | None:
    """A text, or None when there is none; PEFT writes "" for a model that was not loaded."""
    value = config.get(key)
    if not isinstance(value, str | None):
        raise AdapterError(f"{file}: {key} is {value!r}; expected a text or null")
    return value or None


def _number(config: dict[str, Any], key: str, file: Path, *, whole: bool = False) -> float:
    value = config.get(key)
    kinds = int if whole else int | float
    least = 1 if whole else -_LARGEST
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= _LARGEST:
        expected = "a whole number from 1" if whole else "a finite number"
        raise AdapterError(f"{file}: {key} is {value!r}; expected {expected}")
    return value


def _dropout(config: dict[str, Any], key: str, file: Path) -> float:
    value = _number(config, key, file)
    if not 0.0 <= value < 1.0:
        raise AdapterError(f"{file}: {key} is {value}; expected a probability from 0 to below 1")
    return value

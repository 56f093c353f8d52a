"""What a saved model's files say: its layers, the shapes of its matrices, its rotary settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors

from sctom.mlx_port._adapter_keys import AdapterError, Slot, check_file, read_json

_MATRIX = re.compile(r"(model\.layers\.\d{1,4}\..+)\.weight")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Model:
    """A model an adapter is checked against."""

    folder: Path
    config: dict[str, Any]
    shapes: dict[str, tuple[int, int]]
    """Path of a module inside model.layers -> (outputs, inputs)."""

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return 1 + max(int(path.split(".")[2]) for path in self.shapes)


def read_model(folder: str | Path) -> Model:
    """Read config.json and the headers of the weights; no weight is loaded.

    Raises:
        AdapterError: the model is quantised, has no layers at model.layers, or a file is damaged.
        FileNotFoundError: there is no config.json.
    """
    folder = Path(folder)
    config = read_json(folder / "config.json")
    for key in ("quantization", "quantization_config"):
        if config.get(key):
            raise AdapterError(
                f"{folder / 'config.json'}: {key} is set, and shapes of quantised weights say "
                "nothing of the matrices; pass the model it was made from"
            )
    shapes = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safetensors.safe_open(check_file(file), framework="np") as tensors:
                for key in tensors.keys():  # noqa: SIM118 (not a dict)
                    shape = tensors.get_slice(key).get_shape()
                    match = _MATRIX.fullmatch(key)
                    if match and len(shape) == 2:
                        shapes[match[1]] = (shape[0], shape[1])
        except safetensors.SafetensorError as error:
            raise AdapterError(f"{file} is truncated or damaged ({error})") from error
    if not shapes:
        raise AdapterError(
            f"{folder} has no matrices named model.layers.N.*.weight in *.safetensors; expected "
            "the folder of a saved decoder such as Llama or Qwen"
        )
    model = Model(folder, config, shapes)
    expected = config.get("num_hidden_layers", model.layers)
    if model.layers != expected:
        raise AdapterError(
            f"{folder} has the weights of {model.layers} layers, but config.json says {expected}; "
            "get the missing *.safetensors"
        )
    return model


def check_shapes(shapes: dict[Slot, tuple[int, ...]], model: Model) -> None:
    """Matrices of an adapter, in PEFT's orientation, fit those of the model.

    Raises:
        AdapterError: one does not; it is named.
    """
    for slot, shape in shapes.items():
        outputs, inputs = model.shapes[slot.path]
        found, expected = (shape[1], inputs) if slot.part == "a" else (shape[0], outputs)
        if found != expected:
            side = "inputs" if slot.part == "a" else "outputs"
            raise AdapterError(
                f"{slot.path}: the adapter has {found} {side}, but the model at {model.folder} has "
                f"{expected}; is it another model's adapter?"
            )


def mlx_config(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json whose rotary settings mlx-lm and transformers read alike.

    transformers 5 writes them into `rope_parameters`; most of mlx-lm's model files (Llama and Qwen2
    among them) look for `rope_theta` and `rope_scaling` at the top level, do not warn, and take
    their own default theta. Here they are copied to the top level; `rope_parameters` stays.

    Args:
        config: the content of config.json; left as it is.

    Raises:
        AdapterError: there is no theta, the two places contradict each other, the settings differ
            by layer, or the type is not one whose logits were compared (default, linear, llama3,
            yarn).

    >>> mlx_config({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})["rope_theta"]
    500000.0
    """
    rope = config.get("rope_parameters")
    if rope is None:
        if "rope_theta" not in config:
            raise AdapterError(
                "config.json has neither rope_parameters nor rope_theta, so mlx-lm would use its "
                "own default; add the rope_theta the model was trained with"
            )
        if not _is_theta(config["rope_theta"]):
            raise AdapterError(
                f"config.json: rope_theta is {config['rope_theta']!r}; expected a number above 0"
            )
        return dict(config)
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    if not _is_theta(theta):
        raise AdapterError(
            "config.json: rope_parameters has no number rope_theta of its own (settings by kind of "
            "layer, perhaps), which mlx-lm has no common place for; look up what mlx-lm's file for "
            f"model_type {config.get('model_type')!r} reads and write that"
        )
    wanted: dict[str, Any] = {"rope_theta": theta}
    kind = rope.get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise AdapterError(
            f"config.json: rope_parameters has rope_type {kind!r}; expected one of "
            f"{', '.join(ROPE_TYPES)}, the types compared between the two libraries"
        )
    if kind != "default":
        wanted["rope_scaling"] = {key: value for key, value in rope.items() if key != "rope_theta"}
    elif others := set(rope) - {"rope_theta", "rope_type"}:
        raise AdapterError(
            f"config.json: rope_parameters has {', '.join(sorted(others))}, which was not compared "
            "between the two libraries; expected rope_theta and rope_type"
        )
    for key, value in {"rope_scaling": None, **wanted}.items():
        if config.get(key) not in (value, None):
            raise AdapterError(
                f"config.json: {key} is {config[key]!r}, but rope_parameters says {value!r}; "
                "remove the wrong one"
            )
    return {**config, **wanted}


def _is_theta(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e30


def rope_note(config: dict[str, Any]) -> str | None:
    """What to tell about a config.json that mlx-lm may read wrongly, or None.

    >>> rope_note({"rope_theta": 5e5}) is None
    True
    """
    try:
        if mlx_config(config) == config:
            return None
    except AdapterError as error:
        return f"{error} (mlx-lm may read this model wrongly)"
    return (
        "config.json of the model has its rotary settings only in rope_parameters, where mlx-lm "
        "overlooks them for many models; pass --write-config to get one with them at the top level"
    )

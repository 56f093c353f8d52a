"""LoRA, rsLoRA and DoRA adapters from PEFT's files to mlx-lm's and back.

    python -m sctom.mlx_port.adapters to-mlx PEFT_DIR OUT [--model DIR [--write-config FILE]]
    python -m sctom.mlx_port.adapters to-peft MLX_DIR OUT --base-model NAME [--model DIR]

Needs neither torch nor mlx, and changes no bit of a tensor. What the other library cannot express
is refused, never dropped. docs/mlx_adapters.md has the table of names.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sctom.mlx_port._adapter_keys import MLX, PEFT, AdapterError, Layout, serialise
from sctom.mlx_port._adapter_read import CONFIG, Adapter, read_mlx, read_peft
from sctom.mlx_port._model import Model, mlx_config, read_model, rope_note

__all__ = [
    "Adapter",
    "AdapterError",
    "Model",
    "main",
    "mlx_config",
    "mlx_to_peft",
    "peft_to_mlx",
    "read_mlx",
    "read_model",
    "read_peft",
]


def peft_to_mlx(
    source: str | Path, out: str | Path, *, model: Model | None = None, force: bool = False
) -> Adapter:
    """Write an adapter that PEFT saved as mlx-lm reads it.

    lora_a = lora_A^T, lora_b = lora_B^T, m = lora_magnitude_vector, and scale = alpha / r, or
    alpha / sqrt(r) for rsLoRA (Kalajdzievski 2023), which mlx-lm knows only as a scale.

    Args:
        source: folder of adapter_config.json and adapter_model.safetensors.
        out: folder to write adapter_config.json and adapters.safetensors to.
        model: the base model (see `read_model`), to check keys and shapes against. Needed when the
            adapter is not on every layer.
        force: replace files of these names.

    Raises:
        AdapterError: the adapter is damaged or cannot be expressed, or `out` is not empty and
            `force` is false.
        FileNotFoundError: a file is not there.
    """
    adapter = read_peft(source, model)
    config: dict[str, Any] = {
        "fine_tune_type": adapter.kind,
        "num_layers": len(adapter.layers),
        "lora_parameters": {
            "rank": adapter.rank,
            "scale": adapter.scale,
            "dropout": adapter.dropout,
            "keys": adapter.modules,
        },
    }
    if adapter.base is not None:
        config["model"] = adapter.base
    _write(out, adapter, MLX, config, force=force)
    return adapter


def mlx_to_peft(
    source: str | Path,
    out: str | Path,
    *,
    base_model: str,
    rslora: bool = False,
    model: Model | None = None,
    force: bool = False,
) -> Adapter:
    """Write an adapter that mlx-lm saved as PEFT reads it.

    The inverse of `peft_to_mlx`: lora_alpha = scale r, or scale sqrt(r) with `rslora`.

    Args:
        source: folder of adapter_config.json and adapters.safetensors.
        out: folder to write adapter_config.json and adapter_model.safetensors to.
        base_model: name or folder of the base model, for PEFT's config.
        rslora: write it as rsLoRA. The adapter computes the same, only alpha is another number.
        model: the model, unquantised (see `read_model`), to check keys and shapes against.
        force: replace files of these names.

    Raises:
        AdapterError: the adapter is damaged or is none, or `out` is not empty and `force` is false.
        FileNotFoundError: a file is not there.
    """
    adapter = read_mlx(source, model)
    layers = adapter.layers
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": adapter.rank,
        "lora_alpha": _alpha(adapter.scale, math.sqrt(adapter.rank) if rslora else adapter.rank),
        "lora_dropout": adapter.dropout,
        "use_rslora": rslora,
        "use_dora": adapter.kind == "dora",
        "target_modules": sorted({module.rsplit(".", 1)[-1] for module in adapter.modules}),
        "layers_to_transform": layers if layers[0] > 0 else None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
    }
    _write(out, adapter, PEFT, config, force=force)
    return adapter


def _alpha(scale: float, divisor: float) -> float:
    """The alpha that gives this scale, whole where a whole number does.

    >>> scale = 8 / math.sqrt(15)
    >>> _alpha(scale, math.sqrt(15)), scale * math.sqrt(15)
    (8, 7.999999999999999)
    """
    alpha = scale * divisor
    return round(alpha) if round(alpha) / divisor == scale else alpha


def _write(
    out: str | Path,
    adapter: Adapter,
    layout: Layout,
    config: dict[str, Any],
    *,
    force: bool,
) -> None:
    out = Path(out)
    other = PEFT if layout is MLX else MLX
    if (out / other.file).exists():
        raise AdapterError(
            f"{out} holds a {other.library} adapter ({other.file}), and both libraries call their "
            f"config {CONFIG}; choose another folder"
        )
    if out.exists() and not out.is_dir():
        raise AdapterError(f"{out} is a file; expected a folder to write to")
    if not force and out.exists() and any(out.iterdir()):
        hint = "choose another folder, or pass --force to replace files of the same name"
        raise AdapterError(f"{out} is not empty; {hint}")
    tensors = {layout.key(slot): layout.turned(t) for slot, t in adapter.tensors.items()}
    out.mkdir(parents=True, exist_ok=True)
    (out / CONFIG).unlink(missing_ok=True)  # last to be written: without it nothing can be loaded
    (out / layout.file).write_bytes(serialise(tensors, layout.metadata))
    (out / CONFIG).write_bytes(_json(config))


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def build_parser() -> argparse.ArgumentParser:
    """The command line: to-mlx and to-peft."""
    parser = argparse.ArgumentParser(
        prog="python -m sctom.mlx_port.adapters",
        description="Convert LoRA, rsLoRA and DoRA adapters between PEFT and mlx-lm.",
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("source", type=Path, help="folder of the adapter")
    common.add_argument("out", type=Path, help="folder to write to")
    common.add_argument(
        "--model", type=Path, help="folder of the base model, to check keys and shapes against"
    )
    common.add_argument("--force", action="store_true", help="replace files that are there already")
    ways = parser.add_subparsers(dest="way", metavar="to-mlx|to-peft", required=True)
    to_mlx = ways.add_parser("to-mlx", parents=[common], help="from PEFT to mlx-lm")
    to_mlx.add_argument(
        "--write-config",
        type=Path,
        metavar="FILE",
        help="write the --model's config.json with its rotary settings where mlx-lm reads them",
    )
    to_peft = ways.add_parser("to-peft", parents=[common], help="from mlx-lm to PEFT")
    to_peft.add_argument("--base-model", required=True, help="name or folder for PEFT's config")
    to_peft.add_argument("--rslora", action="store_true", help="write it as rsLoRA")
    return parser


def _to_mlx(arguments: argparse.Namespace, model: Model | None) -> list[str]:
    config_file: Path | None = arguments.write_config
    config = None
    if config_file is not None:
        if model is None:
            raise AdapterError("--write-config needs --model, whose config.json it starts from")
        if config_file.exists() and (config_file.is_dir() or not arguments.force):
            raise AdapterError(
                f"{config_file} is there already; name another file, or pass --force to replace it"
            )
        config = mlx_config(model.config)
    adapter = peft_to_mlx(arguments.source, arguments.out, model=model, force=arguments.force)
    lines = [f"{arguments.out}: {adapter}", *adapter.notes]
    if config_file is not None and config is not None:
        config_file.parent.mkdir(parents=True, exist_ok=True)
        config_file.write_bytes(_json(config))
        lines.append(f"{config_file}: rope_theta {config['rope_theta']:g} at the top level")
    elif model is not None and (note := rope_note(model.config)):
        lines.append(note)
    return lines


def _to_peft(arguments: argparse.Namespace, model: Model | None) -> list[str]:
    adapter = mlx_to_peft(
        arguments.source,
        arguments.out,
        base_model=arguments.base_model,
        rslora=arguments.rslora,
        model=model,
        force=arguments.force,
    )
    return [f"{arguments.out}: {adapter}", *adapter.notes]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = build_parser()
    arguments = parser.parse_args(argv)
    convert = {"to-mlx": _to_mlx, "to-peft": _to_peft}[arguments.way]
    try:
        model = None if arguments.model is None else read_model(arguments.model)
        lines = convert(arguments, model)
    except (AdapterError, OSError) as error:
        parser.exit(1, f"error: {error}\n")
    print("\n- ".join(lines))


if __name__ == "__main__":
    main()

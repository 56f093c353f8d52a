"""LoRA, rsLoRA and DoRA adapters from PEFT's files to mlx-lm's and back.

    python -m sctom.mlx_port.adapters to-mlx PEFT_DIR OUT [--model DIR [--write-config FILE]]
    python -m sctom.mlx_port.adapters to-peft MLX_DIR OUT --base-model NAME [--model DIR]

Needs neither torch nor mlx, and changes no bit of a tensor. What the other library cannot express
is refused, never dropped. docs/mlx_adapters.md has the table of names.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
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
    source: str | Path,
    out: str | Path,
    *,
    model: Model | None = None,
    write_config: str | Path | None = None,
    force: bool = False,
) -> Adapter:
    """Write an adapter that PEFT saved as mlx-lm reads it.

    lora_a = lora_A^T, lora_b = lora_B^T, m = lora_magnitude_vector, and scale = alpha / r, or
    alpha / sqrt(r) for rsLoRA (Kalajdzievski 2023), which mlx-lm knows only as a scale.

    Args:
        source: folder of adapter_config.json and adapter_model.safetensors.
        out: folder to write adapter_config.json and adapters.safetensors to.
        model: the base model (see `read_model`), to check keys and shapes against. Needed when the
            adapter is not on every layer.
        write_config: file to write the model's config.json to, as `mlx_config` makes it.
        force: replace files of these names.

    Raises:
        AdapterError: the adapter is damaged or cannot be expressed, or a file would be overwritten
            and `force` is false. Nothing is written then.
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
    beside = {}
    if write_config is not None:
        path = Path(write_config)
        if model is None:
            raise AdapterError("--write-config needs --model, whose config.json it starts from")
        _check_config_file(path, Path(source), Path(out), force=force)
        beside[path] = _json(mlx_config(model.config), path)
    _write(out, adapter, MLX, config, force=force, beside=beside)
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
        AdapterError: the adapter is damaged or is none, `base_model` is no name, or `out` is not
            empty and `force` is false. Nothing is written then.
        FileNotFoundError: a file is not there.
    """
    if not isinstance(base_model, str) or not base_model.strip():
        raise AdapterError(f"--base-model is {base_model!r}; expected a name or a folder")
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
    beside: Mapping[Path, bytes] | None = None,
) -> None:
    out = Path(out)
    other = PEFT if layout is MLX else MLX
    if os.path.lexists(out / other.file):
        raise AdapterError(
            f"{out} holds {other.adapter} ({other.file}), and both libraries call their "
            f"config {CONFIG}; choose another folder"
        )
    _check_folder(out)
    if not force and out.exists() and any(out.iterdir()):
        hint = "choose another folder, or pass --force to replace files of the same name"
        raise AdapterError(f"{out} is not empty; {hint}")
    for path in (out / layout.file, out / CONFIG):
        if path.is_dir():
            raise AdapterError(f"{path} is a folder, where a file is to be written; remove it")
    tensors = {layout.key(slot): layout.turned(t) for slot, t in adapter.tensors.items()}
    content = serialise(tensors, layout.metadata)
    last = {out / CONFIG: _json(config, out / CONFIG)}  # without it nothing can be loaded
    _publish({**(beside or {}), out / layout.file: content, **last})


def _publish(files: Mapping[Path, bytes]) -> None:
    """Write all files or none: each beside its place, then, when all are complete, renamed.

    A link in a file's place is replaced; what it leads to stays as it is. The old one of the last
    file goes before any other is renamed, so that old and new files are never taken for one set.
    """
    with contextlib.ExitStack() as stack:
        staged = {}
        for path, content in files.items():
            for folder in reversed((path.parent, *path.parent.parents)):
                if not folder.exists():
                    folder.mkdir(exist_ok=True)
                    stack.callback(_remove_if_empty, folder)
            scratch = tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent)
            staged[path] = Path(stack.enter_context(scratch)) / path.name
            staged[path].write_bytes(content)
        list(files)[-1].unlink(missing_ok=True)
        for path, complete in staged.items():
            os.replace(complete, path)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _check_folder(folder: Path) -> None:
    """The folder is there, or can be made."""
    place = folder.absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        found = "a link that leads to no folder" if place.is_symlink() else "a file"
        raise AdapterError(f"{place} is {found}; expected a folder to write to")


def _check_config_file(file: Path, source: Path, out: Path, *, force: bool) -> None:
    """The model's config can be written there, and the adapter's files stay what they are."""
    read = [source / CONFIG, source / PEFT.file]
    taken = {Path(os.path.realpath(path)) for path in (*read, out / CONFIG, out / MLX.file)}
    place, folder = Path(os.path.realpath(file)), Path(os.path.realpath(out))
    if taken & {place, *place.parents} or place in (folder, *folder.parents):
        raise AdapterError(
            f"--write-config {file} is in the place of the adapter's own files; name another file"
        )
    if file.exists() and not file.is_file():
        raise AdapterError(f"--write-config {file} is not a regular file; name another file")
    if os.path.lexists(file) and not force:
        raise AdapterError(
            f"{file} is there already; name another file, or pass --force to replace it"
        )
    _check_folder(file.parent)


def _json(content: dict[str, Any], path: Path) -> bytes:
    try:
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError as error:
        found = error.object[max(0, error.start - 40) : error.end + 10]
        raise AdapterError(
            f"{path} cannot be written: {found!r} is no valid text (half a surrogate pair); "
            "correct the name or the config that it is from"
        ) from error


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
    file: Path | None = arguments.write_config
    adapter = peft_to_mlx(
        arguments.source, arguments.out, model=model, write_config=file, force=arguments.force
    )
    lines = [f"{arguments.out}: {adapter}", *adapter.notes]
    if model is not None and file is not None:
        theta = mlx_config(model.config)["rope_theta"]
        lines.append(f"{file}: rope_theta {theta:g} at the top level")
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
    # names of files may hold bytes that are no text
    print("\n- ".join(lines).encode(errors="backslashreplace").decode())


if __name__ == "__main__":
    main()

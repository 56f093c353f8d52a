"""A saved adapter: its files checked, and all of its weights put onto a model or none."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from sctom.modules.quantize import quiet_bitsandbytes

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
REMEDY = f"give the base it was trained on ({ADAPTER_CONFIG} names it), or copy the adapter again"


def check_adapter(folder: Path) -> dict[str, Any]:
    """Check the files of a saved adapter before anything is loaded, and give its settings.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file cannot be read, or the adapter is not of a kind that sits in layers.
    """
    path = folder / ADAPTER_CONFIG
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there; give the folder of an adapter")
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:  # neither JSON nor text
        raise ValueError(f"{path} is not JSON: {error}; write or copy it again") from error
    if not isinstance(config, dict) or "peft_type" not in config:
        raise ValueError(f"{path} has no peft_type, so it is not of an adapter; save it with PEFT")
    if config["peft_type"] not in _layer_kinds():
        raise ValueError(
            f"{path} is of a {config['peft_type']} adapter, which is not in the model's layers: "
            "sctom cannot train, score or merge it; give a LoRA adapter"
        )
    weights = [folder / name for name in ADAPTER_WEIGHTS if (folder / name).exists()]
    if not weights:
        raise FileNotFoundError(
            f"{folder / ADAPTER_WEIGHTS[0]} is not there; the adapter is incomplete, copy it again"
        )
    check_safetensors(weights)
    return config


def _layer_kinds() -> set[str]:
    """Kinds of adapters that change layers, not those that add tokens to the prompt."""
    quiet_bitsandbytes()
    from peft import PEFT_TYPE_TO_TUNER_MAPPING
    from peft.tuners.tuners_utils import BaseTuner

    kinds = PEFT_TYPE_TO_TUNER_MAPPING.items()
    return {kind.value for kind, tuner in kinds if issubclass(tuner, BaseTuner)}


def check_safetensors(files: Iterable[Path]) -> None:
    """Check that files of weights are complete; only their headers are read.

    Args:
        files: those that do not end in .safetensors are passed over.

    Raises:
        ValueError: one is not; the message names it.
    """
    for path in files:
        if path.suffix != ".safetensors":
            continue
        try:
            with safe_open(path, framework="pt"):
                pass
        except SafetensorError as error:
            raise ValueError(
                f"{path} cannot be read ({error}); it is incomplete, write or copy it again"
            ) from error


def with_adapter(model: Any, folder: str, *, trainable: bool) -> nn.Module:
    """A model with a saved adapter, every weight of which has found its place.

    PEFT by itself only warns of weights that are missing, leaves them as a new adapter has them,
    and says nothing of those that it has no place for.

    Args:
        model: the adapter's base; it is used up.
        folder: where the adapter is, or a hub name.
        trainable: the adapter's weights require a gradient.

    Raises:
        ValueError: the adapter is not of this model.
    """
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Found missing adapter keys")
            adapted = PeftModel.from_pretrained(model, folder, is_trainable=trainable)
        # only when it loads the weights once more does PEFT tell which of them did not fit
        result = adapted.load_adapter(folder, "default", is_trainable=trainable)
    except KeyError as error:  # PEFT looks up the weights of modules_to_save
        raise _misfit(folder, missing=[str(error.args[0])], unexpected=[]) from error
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        first = next(line.strip() for line in str(error).splitlines() if "size mismatch" in line)
        raise ValueError(f"{folder} is not an adapter of this model: {first}; {REMEDY}") from error
    if result.missing_keys or result.unexpected_keys:
        raise _misfit(folder, missing=result.missing_keys, unexpected=result.unexpected_keys)
    return adapted


def _misfit(folder: str, *, missing: Sequence[str], unexpected: Sequence[str]) -> ValueError:
    found = "; ".join(
        f"weights {what}: {len(names)}, {names[0].replace('.default', '')} first"
        for what, names in (("missing", missing), ("without a place in it", unexpected))
        if names
    )
    return ValueError(f"{folder} is not an adapter of this model; {found}; {REMEDY}")

"""Which implementation of attention a model is loaded with, and why.

docs/qlora.md says what each needs.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

FLASH = "flash_attention_2"
CHOICES = (FLASH, "sdpa", "eager")


@dataclass(frozen=True)
class Attention:
    """An implementation of attention, by the name transformers knows it by, and why it is used.

    >>> print(Attention("sdpa", "flash_attention_2: flash-attn is not installed"))
    sdpa (flash_attention_2: flash-attn is not installed)
    """

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def causal_class(config: Any) -> Any:
    """The class of the causal language model that a configuration belongs to.

    Raises:
        ValueError: transformers has none.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"the config.json is of a {config.model_type} model, for which transformers has no "
            "causal language model; give the path of one"
        )
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def flash_attn_problem() -> str | None:
    """Why the package flash-attn cannot be used on this machine; None if it can."""
    from transformers.utils.import_utils import is_flash_attn_2_available

    try:
        installed = version("flash-attn")
        importlib.import_module("flash_attn")
    except PackageNotFoundError:
        return "flash-attn is not installed"
    except ImportError as error:  # compiled for another torch or CUDA
        return f"flash-attn {installed} cannot be imported: {error}"
    if not is_flash_attn_2_available():
        return f"transformers does not take flash-attn {installed}"
    return None


def why_not_flash(model_class: Any, *, dtype: str, device: torch.device) -> str | None:
    """Why a model cannot use flash attention; None if it can.

    Its queries and keys must themselves be in half precision: 4-bit layers compute in
    `compute_dtype` but answer in the dtype of their input, so it is `dtype` that counts.

    Args:
        model_class: as `causal_class` gives it.
        dtype: dtype of the hidden states.
        device: where the model computes.
    """
    if device.type != "cuda":
        return f"the model is on {device.type}, not on CUDA"
    if (capability := torch.cuda.get_device_capability(device)) < (8, 0):
        return f"compute capability {capability[0]}.{capability[1]} is below 8.0"
    if dtype == "float32":
        return "dtype is float32, not bfloat16 or float16"
    if not model_class._supports_flash_attn:  # how a class of transformers says so
        return f"{model_class.__name__} does not support it"
    return flash_attn_problem()


def why_not_sdpa(model_class: Any) -> str | None:
    """Why a model cannot use torch's scaled_dot_product_attention; None if it can."""
    return None if model_class._supports_sdpa else f"{model_class.__name__} does not support it"


def check_attention(requested: str | None) -> None:
    """Check that an implementation is one that sctom is made for.

    transformers knows others; their masks, padding and packages were never tried here.

    Raises:
        ValueError: it is not.

    >>> check_attention("flash_attention_3")
    Traceback (most recent call last):
        ...
    ValueError: attention must be one of flash_attention_2, sdpa, eager, or null for the first of \
them that works here, but is 'flash_attention_3'
    """
    if requested is not None and requested not in CHOICES:
        raise ValueError(
            f"attention must be one of {', '.join(CHOICES)}, or null for the first of them that "
            f"works here, but is {requested!r}"
        )


def choose_attention(
    requested: str | None, model_class: Any, *, dtype: str, device: torch.device
) -> Attention:
    """Choose the fastest implementation that works, or check the one that is asked for.

    Args:
        requested: name of an implementation, or None for the first of flash_attention_2, sdpa and
            eager that works.
        model_class: as `causal_class` gives it.
        dtype: dtype of the hidden states.
        device: where the model computes.

    Raises:
        ValueError: the one that is asked for does not work here, or sctom does not know it; the
            message says why.
    """
    check_attention(requested)
    if requested is None:
        flash = why_not_flash(model_class, dtype=dtype, device=device)
        if flash is None:
            return Attention(FLASH, f"flash-attn {version('flash-attn')}, {dtype}")
        if (sdpa := why_not_sdpa(model_class)) is None:
            return Attention("sdpa", f"{FLASH}: {flash}")
        return Attention("eager", f"{FLASH}: {flash}; sdpa: {sdpa}")
    problem = None
    if requested == FLASH:
        problem = why_not_flash(model_class, dtype=dtype, device=device)
    elif requested == "sdpa":
        problem = why_not_sdpa(model_class)
    if problem is not None:
        raise ValueError(
            f"attention: {requested} cannot be used: {problem}; "
            "set attention to null for the best that can"
        )
    return Attention(requested, "as asked for")

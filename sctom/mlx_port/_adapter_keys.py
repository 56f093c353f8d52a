"""What PEFT's and MLX's adapter files have in common: tensors by layer, module and part.

Tensors are handled as bits, because numpy has no bfloat16: safetensors' own reader checks the file
and hands out raw bytes, which become uint16 or uint32 arrays. So no framework is needed, and
a conversion cannot change a value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import safetensors

from sctom.readers import check_is_file

BITS: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<u4"),
    "F16": np.dtype("<u2"),
    "BF16": np.dtype("<u2"),
}
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_STACKED = {"experts", "switch_mlp"}  # a mixture of experts: one tensor for all of them in MLX
MERGE = "merge the adapter into the model (merge_and_unload) and convert the model instead"


class AdapterError(ValueError):
    """An adapter cannot be converted; the message names the file, the key and what to do."""


class Tensor(NamedTuple):
    """The bits of a tensor."""

    dtype: str
    """As safetensors calls it: F32, F16 or BF16."""
    bits: np.ndarray[Any, np.dtype[Any]]
    """uint32 for F32, uint16 for F16 and BF16."""


class Slot(NamedTuple):
    """The place of a tensor."""

    layer: int
    module: str
    """Path inside the layer, such as self_attn.q_proj."""
    part: str
    """ "a" (rank, inputs), "b" (outputs, rank) or, with DoRA, the magnitudes "m" (outputs,)."""

    @property
    def path(self) -> str:
        """The module's path in the model."""
        return f"model.layers.{self.layer}.{self.module}"


Kind = Literal["lora", "dora"]
PARTS: dict[Kind, str] = {"lora": "ab", "dora": "abm"}


@dataclass(frozen=True)
class Layout:
    """How one of the two libraries names and orients the tensors."""

    adapter: str
    """What its adapter is called in a message."""
    file: str
    prefix: str
    parts: dict[str, str]
    transposed: bool
    """Whether a is (inputs, rank) and b (rank, outputs)."""
    metadata: dict[str, str]

    def key(self, slot: Slot) -> str:
        """The name of a tensor.

        >>> MLX.key(Slot(3, "self_attn.q_proj", "a"))
        'model.layers.3.self_attn.q_proj.lora_a'
        """
        return f"{self.prefix}{slot.path}.{self.parts[slot.part]}"

    def slot(self, key: str) -> Slot | None:
        """The place a name stands for, or None when it is not the name of an adapter's tensor.

        >>> PEFT.slot("base_model.model.model.layers.3.mlp.up_proj.lora_B.weight")
        Slot(layer=3, module='mlp.up_proj', part='b')
        >>> PEFT.slot("base_model.model.lm_head.weight") is None
        True
        """
        ends = "|".join(map(re.escape, self.parts.values()))
        layer = rf"{re.escape(self.prefix)}model\.layers\.(0|[1-9]\d{{0,3}})"
        match = re.fullmatch(rf"{layer}\.({MODULE.pattern})\.({ends})", key, re.ASCII)
        if match is None or _STACKED & set(key.split(".")):
            return None
        part = next(part for part, end in self.parts.items() if end == match.groups()[-1])
        return Slot(int(match[1]), match[2], part)

    def turned(self, tensor: Tensor) -> Tensor:
        """From this layout's orientation to PEFT's, or back."""
        return Tensor(tensor.dtype, tensor.bits.T) if self.transposed else tensor


PEFT = Layout(
    adapter="a PEFT adapter",
    file="adapter_model.safetensors",
    prefix="base_model.model.",
    parts={"a": "lora_A.weight", "b": "lora_B.weight", "m": "lora_magnitude_vector"},
    transposed=False,
    metadata={"format": "pt"},
)
MLX = Layout(
    adapter="an MLX adapter",
    file="adapters.safetensors",
    prefix="",
    parts={"a": "lora_a", "b": "lora_b", "m": "m"},
    transposed=True,
    metadata={},
)


def check_file(path: Path) -> Path:
    """The path, when it is a file that can be read to its end.

    Raises:
        AdapterError: it is a folder, a pipe or a device.
        FileNotFoundError: nothing is there.
    """
    if path.exists() and not path.is_file():
        found = "a folder" if path.is_dir() else "not a regular file"
        raise AdapterError(f"{path} is {found}; expected a file")
    return check_is_file(path)


def read_json(path: Path) -> dict[str, Any]:
    """The object a JSON file holds.

    Raises:
        AdapterError: the file holds something else, or is no file.
        FileNotFoundError: nothing is there.
    """
    raw = check_file(path).read_bytes()
    try:
        content = json.loads(raw)
    except RecursionError as error:
        raise AdapterError(f"{path} is nested too deeply; write the file again") from error
    except ValueError as error:
        raise AdapterError(f"{path} is not JSON: {error}; write the file again") from error
    if not isinstance(content, dict):
        raise AdapterError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The bits of every tensor of a safetensors file.

    Raises:
        AdapterError: the file is truncated or damaged, or is no file, or a dtype is not F32, F16
            or BF16.
        FileNotFoundError: nothing is there.
    """
    content = check_file(path).read_bytes()
    try:
        entries: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        hint = "it is truncated or damaged; copy or save it again"
        raise AdapterError(f"{path} is not a whole safetensors file ({error}): {hint}") from error
    tensors = {}
    for key, entry in sorted(entries, key=lambda named: named[0]):
        dtype = entry["dtype"]
        if dtype not in BITS:
            expected = "expected F32, F16 or BF16; save the adapter in one of these"
            raise AdapterError(f"{path}: {key} has dtype {dtype}; {expected}")
        bits = np.frombuffer(entry["data"], BITS[dtype]).reshape(entry["shape"])
        tensors[key] = Tensor(dtype, bits)
    return tensors


def serialise(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file: the length of a JSON header, the header, the bytes of the tensors.

    Wider dtypes come first, then names in order, as the safetensors library writes them, so that
    every tensor is aligned and the same adapter gives the same file.

    >>> content = serialise({"x": Tensor("BF16", np.array([[1, 2]], "<u2"))}, {})
    >>> safetensors.deserialize(content)[0][1]["shape"]
    [1, 2]
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    blobs, offset = [], 0
    for key in sorted(tensors, key=lambda key: (-BITS[tensors[key].dtype].itemsize, key)):
        dtype, bits = tensors[key]
        blob = bits.tobytes()
        end = offset + len(blob)
        shape = list(bits.shape)
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        blobs.append(blob)
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *blobs])


def place(
    tensors: Mapping[str, Tensor], layout: Layout, *, kind: Kind, rank: int, path: Path
) -> dict[Slot, Tensor]:
    """Tensors by their place, in PEFT's orientation, each with its partners and of its shape.

    Args:
        tensors: name -> tensor, as they stand in the file.
        layout: whose names and orientation they have.
        kind: what the config says the adapter is; "dora" has magnitudes and "lora" has none.
        rank: what the config says.
        path: the file, for messages.

    Raises:
        AdapterError: a key is unknown or missing, or a shape or dtype is wrong.
    """
    placed = {}
    for key, tensor in tensors.items():
        slot = layout.slot(key)
        if slot is None:
            raise AdapterError(f"{path}: {key} {_why_unknown(key, layout)}")
        if slot.part not in PARTS[kind]:
            raise AdapterError(
                f"{path}: {key} belongs to DoRA, but adapter_config.json says plain LoRA; "
                "correct whichever of the two is wrong"
            )
        placed[slot] = layout.turned(tensor)
    if not placed:
        raise AdapterError(f"{path} holds no tensors; save the adapter again")
    for slot in list(placed):
        for part in PARTS[kind]:
            partner = slot._replace(part=part)
            if partner not in placed:
                raise missing(path, layout, [partner])
    _check_forms(placed, layout, rank, path)
    return placed


def _check_forms(placed: Mapping[Slot, Tensor], layout: Layout, rank: int, path: Path) -> None:
    first = next(slot for slot in placed if slot.part == "a")
    for slot, tensor in placed.items():
        shape = tensor.bits.shape
        wide: tuple[int | None, ...] = {"a": (rank, None), "b": (None, rank), "m": (None,)}[
            slot.part
        ]
        fits = len(shape) == len(wide) and all(
            size > 0 and expected in (None, size)
            for size, expected in zip(shape, wide, strict=True)
        )
        if not fits:
            described = _shape(wide, layout)
            raise AdapterError(
                f"{path}: {layout.key(slot)} has shape {_shape(shape, layout)}, but at rank {rank} "
                f"(adapter_config.json) expected {described}; correct the rank or save the adapter "
                "again"
            )
        outputs = placed[slot._replace(part="b")].bits.shape[0]
        if slot.part == "m" and shape[0] != outputs:
            raise AdapterError(
                f"{path}: {layout.key(slot)} has {shape[0]} magnitudes for {outputs} outputs; "
                "save the adapter again"
            )
        if slot.part != "m" and tensor.dtype != placed[first].dtype:
            raise AdapterError(
                f"{path}: {layout.key(slot)} has dtype {tensor.dtype}, but {layout.key(first)} has "
                f"{placed[first].dtype}; save the adapter in one dtype"
            )


def _shape(shape: tuple[int | None, ...], layout: Layout) -> str:
    """A shape as it stands in the file, * for any size."""
    sizes = reversed(shape) if layout.transposed else shape
    return "[" + ", ".join("*" if size is None else str(size) for size in sizes) + "]"


def check_places(
    placed: Collection[Slot], expected: Collection[Slot], layout: Layout, path: Path
) -> None:
    """The file holds what it must and nothing else.

    Raises:
        AdapterError: a key is missing or unexpected; it is named.
    """
    if absent := sorted(set(expected) - set(placed)):
        raise missing(path, layout, absent)
    if extra := sorted(set(placed) - set(expected)):
        raise AdapterError(
            f"{path}: {layout.key(extra[0])}{_and_others(extra)} is in the file, but "
            "adapter_config.json (with the model, if one was given) has no adapter there; "
            "correct the config or remove the key"
        )


def missing(path: Path, layout: Layout, absent: list[Slot]) -> AdapterError:
    """The error for keys that are not in the file."""
    hint = "save the adapter again; a missing tensor would be loaded as an untrained one"
    return AdapterError(f"{path}: {layout.key(absent[0])}{_and_others(absent)} is missing; {hint}")


def _and_others(slots: list[Slot]) -> str:
    return f" (and {len(slots) - 1} more)" if len(slots) > 1 else ""


def _why_unknown(key: str, layout: Layout) -> str:
    ends = ", ".join(layout.parts.values())
    expected = f"expected {layout.prefix}model.layers.N.MODULE. and one of {ends}"
    if _STACKED & set(key.split(".")):
        return f"is an adapter of a mixture of experts, which cannot be converted; {MERGE}"
    if "lora" not in key and key.rsplit(".", 1)[-1] in ("weight", "bias"):
        return (
            "is a whole tensor of the model (modules_to_save, a bias or an embedding) and has no "
            f"counterpart in the other library's adapters; {MERGE}"
        )
    return f"is not a key of {layout.adapter} on a layer's linear module; {expected}"

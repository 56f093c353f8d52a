"""Merge a trained adapter into its base: one plain transformers model.

    python -m sctom.merge --adapter RUN/model --out FOLDER [--base PATH] [--dtype bfloat16]

Everything is computed on the CPU in float32 and rounded once, at the end, which takes four bytes of
memory for every weight. The merged model must compute what base and adapter compute together, and
what is written must compute what was to be written; otherwise nothing appears under --out.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sctom.assets import resolve
from sctom.callbacks.checkpoint import publish, settle
from sctom.fit import EXPECTED_ERRORS, quiet
from sctom.modules.adapters import ADAPTER_CONFIG, check_adapter
from sctom.modules.backbone import Backbone, save_backbone
from sctom.modules.merge import (
    TOLERANCE,
    Difference,
    MergeError,
    difference,
    merge_adapter,
    next_logps,
)
from sctom.modules.quantize import DTYPES


@dataclass(frozen=True)
class Merged:
    """What was merged, and how log-probabilities changed on the way."""

    base: str
    """The base that was merged into."""
    dtype: str
    """Dtype of the weights written."""
    adapter: Difference
    """From the base to base + adapter: what there was to merge."""
    merging: Difference
    """From base + adapter to merged, both in float32."""
    rounding: Difference
    """From merged in float32 to what was written."""


def merge(
    adapter: str | Path,
    out: str | Path,
    *,
    base: str | None = None,
    dtype: str | None = None,
    force: bool = False,
) -> Merged:
    """Write the model that an adapter and its base make together.

    An adapter that was trained on 4-bit weights is merged into the unquantised base. The result is
    then close to what was trained, not equal (docs/qlora.md).

    Args:
        adapter: folder of the adapter, as a run saves it.
        out: folder to write; it appears when it is complete.
        base: the unquantised base; None takes the one the adapter names.
        dtype: dtype of the weights written; None takes that of the base's files.
        force: replace the saved model at `out`; a folder with anything but a model is never
            replaced.

    Raises:
        MergeError: `out` is taken, the adapter names no base or changes nothing, or the merged
            model does not compute what base and adapter do. Nothing is written then.
        ValueError: a file cannot be read, or the adapter is not of the base.
        FileNotFoundError: adapter or base is not there.
    """
    adapter, out = resolve(adapter), Path(out)
    named = check_adapter(adapter).get("base_model_name_or_path")
    backbone = _backbone(adapter, base, named)
    _check_sources(out, (adapter, resolve(backbone.path)))
    _check_out(out, force=force)
    model, tokenizer = _load(backbone), _tokenizer(backbone)
    dtype = dtype or _stored_dtype(backbone)
    with model.disable_adapter():  # type: ignore[operator]
        alone = next_logps(model)
    together = next_logps(model)
    model = merge_adapter(model)
    exact = next_logps(model)
    if not (merging := difference(together, exact)).largest <= TOLERANCE:
        raise MergeError(
            f"merged and unmerged log-probabilities differ by {merging}, more than {TOLERANCE:g}; "
            "use base and adapter without merging"
        )
    if torch.equal(alone, together) and _same_weights(model, backbone):
        raise MergeError(
            f"{adapter} changes no weight of {backbone.path}: it was not trained, or was not saved "
            "after it was; without training, the base is the merged model"
        )
    for parameter in model.parameters():  # never buffers: rotary frequencies stay in float32
        parameter.data = parameter.data.to(DTYPES[dtype])
    written = next_logps(model)
    _write(model, tokenizer, out, expected=written)
    return Merged(
        backbone.path, dtype, difference(alone, together), merging, difference(exact, written)
    )


def _backbone(adapter: Path, base: str | None, named: Any) -> Backbone:
    """The adapter on the base that is given, else on the one it names, which must be there."""
    from transformers import AutoConfig

    if base is None and not (isinstance(named, str) and named):
        raise MergeError(f"{adapter / ADAPTER_CONFIG} names no base model; pass --base")
    backbone = Backbone(base or named, adapter=str(adapter), attention="eager")
    try:
        AutoConfig.from_pretrained(backbone.location)
    except (OSError, ValueError) as error:  # transformers raises either for an empty folder
        whose = "" if base else f", which {adapter / ADAPTER_CONFIG} names"
        raise FileNotFoundError(
            f"the base {backbone.path}{whose}, cannot be read: {error}; "
            "pass the folder of the unquantised base as --base"
        ) from error
    return backbone


def _check_sources(out: Path, sources: Sequence[Path]) -> None:
    """Check that nothing of what is merged lies where the result goes, or the other way round."""
    place = out.resolve()
    for source in (folder.resolve() for folder in sources if folder.is_dir()):
        files = [path.resolve() for path in source.iterdir()]  # of which some may be links
        if place == source:
            problem = "is what would be merged"
        elif place.is_relative_to(source):
            problem = f"lies inside {source}, which would be merged"
        elif any(path.is_relative_to(place) for path in (source, *files)):
            problem = f"holds {source}, which would be merged"
        else:
            continue
        raise MergeError(f"--out {out} {problem}; choose another folder")


def _check_out(out: Path, *, force: bool) -> None:
    """Check that `out` is free, or holds a saved model and nothing else."""
    if out.is_symlink():
        raise MergeError(f"--out {out} is a symbolic link; give the folder that it points to")
    if settle(out):
        print(f"{out}: finished replacing it, which an earlier merge was killed at")
    if not out.exists():
        return
    if not force:
        raise MergeError(f"--out {out} exists; choose another folder, or pass --force")
    if not (out / "config.json").is_file() or not any(out.glob("*.safetensors")):
        raise MergeError(f"--out {out} holds no model, so it is not replaced; remove it yourself")
    if folders := sorted(path.name for path in out.iterdir() if path.is_dir()):
        raise MergeError(
            f"--out {out} holds not only a model but also the folder {folders[0]}, so it is not "
            "replaced; remove it yourself"
        )


def _load(backbone: Backbone) -> nn.Module:
    with warnings.catch_warnings():  # merging gives the head a weight of its own
        warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")
        return backbone.load_model()


def _same_weights(model: nn.Module, backbone: Backbone) -> bool:
    """Whether a merged model is the base; its log-probabilities tell of the probe's tokens only."""
    base = Backbone(backbone.path, attention="eager").load_model().state_dict()
    return all(torch.equal(value, base[name]) for name, value in model.state_dict().items())


def _tokenizer(backbone: Backbone) -> Any:
    """The tokenizer beside the adapter, which a run puts there; else the base's."""
    from transformers import AutoTokenizer

    if (Path(str(backbone.adapter)) / "tokenizer_config.json").exists():
        return AutoTokenizer.from_pretrained(backbone.adapter)
    return AutoTokenizer.from_pretrained(backbone.location)


def _stored_dtype(backbone: Backbone) -> str:
    from transformers import AutoConfig

    stored = str(AutoConfig.from_pretrained(backbone.location).dtype).removeprefix("torch.")
    return stored if stored in DTYPES else "float32"


def _write(model: Any, tokenizer: Any, out: Path, *, expected: Tensor) -> None:
    """Write beside `out`, read again, compare, and only then give it its name."""
    from transformers import AutoModelForCausalLM

    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        save_backbone(model, tokenizer, partial)
        again = AutoModelForCausalLM.from_pretrained(
            partial, dtype=model.dtype, attn_implementation="eager"
        )
        gap = difference(expected, next_logps(again))
        if not gap.largest <= TOLERANCE:
            raise MergeError(f"what was written computes something else: it differs by {gap}")
        publish(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def report(merged: Merged, out: Path) -> str:
    """What was done, in words."""
    lines = [
        f"{out}: {merged.base} with its adapter merged, in {merged.dtype}",
        f"  the adapter changes log-probabilities by {merged.adapter}",
        f"  merged and unmerged differ by {merged.merging} (limit {TOLERANCE:g})",
        f"  rounding to {merged.dtype} changes them by {merged.rounding}",
    ]
    if merged.rounding.mean > merged.adapter.mean:
        lines.append("  rounding hides the adapter: pass --dtype float32, or do not merge")
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m sctom.merge",
        description="Merge a trained adapter into its unquantised base.",
    )
    parser.add_argument("--adapter", required=True, type=Path, help="folder of the adapter")
    parser.add_argument("--out", required=True, type=Path, help="folder to write")
    parser.add_argument("--base", help="the unquantised base (default: as the adapter names it)")
    parser.add_argument(
        "--dtype", choices=tuple(DTYPES), help="of the weights written (default: as the base's)"
    )
    parser.add_argument("--force", action="store_true", help="replace the saved model at --out")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    arguments = build_parser().parse_args(argv)
    quiet()
    try:
        merged = merge(
            arguments.adapter,
            arguments.out,
            base=arguments.base,
            dtype=arguments.dtype,
            force=arguments.force,
        )
    except EXPECTED_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    print(report(merged, arguments.out))


if __name__ == "__main__":
    main()

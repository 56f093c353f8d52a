"""Which models can be run on packed rows: measured on the model itself, not guessed from its name.

Packed rows (see `sctom.rollout.packing`) are exact for a decoder whose tokens meet in attention
only, if its attention can be exchanged and asks for nothing a layout does not compute. A model for
which that fails is run on padded rows, with a notice that says why.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn

from sctom.rollout.attention import UnsupportedAttentionError, let_layouts_attend, run_packed
from sctom.rollout.causal import causal_model
from sctom.rollout.packing import Packed, pack


@dataclass(frozen=True)
class _Finding:
    reason: str | None
    """Why the model has to be run on padded rows, whatever their length."""
    most: int = sys.maxsize
    """The most tokens a sequence may have."""
    beyond: str = ""
    """Why no more."""


_FOUND: WeakKeyDictionary[nn.Module, tuple[str, _Finding]] = WeakKeyDictionary()
"""With the attention that the model had."""
_TOLD: WeakSet[nn.Module] = WeakSet()


def why_plain(model: nn.Module, longest: int) -> str | None:
    """Why sequences have to be run on padded rows; None where packed rows give the same.

    The first call for a model runs it on a few tokens both ways.

    Args:
        model: a causal language model, with or without adapters.
        longest: tokens of the longest sequence that will be run.
    """
    causal = causal_model(model)
    if causal not in _FOUND or _FOUND[causal][0] != causal.config._attn_implementation:
        found = _look(causal)
        _FOUND[causal] = causal.config._attn_implementation, found
    _, found = _FOUND[causal]
    if found.reason is None and longest > found.most:
        return f"{found.beyond}, and sequences of {longest} tokens may come"
    return found.reason


def shares_prefixes(model: nn.Module, longest: int) -> bool:
    """Whether packed rows can be used; where they cannot, says why, once for each model.

    Args:
        model: see `why_plain`.
        longest: see `why_plain`.
    """
    reason = why_plain(model, longest)
    if reason is None:
        return True
    if causal_model(model) not in _TOLD:
        _TOLD.add(causal_model(model))
        _say(f"{type(causal_model(model)).__name__} runs on padded rows, which is slower: {reason}")
    return False


@torch.no_grad()
def _look(causal: nn.Module) -> _Finding:
    if (reason := let_layouts_attend(causal)) is not None:
        return _Finding(reason)
    modes = [(layer, layer.training) for layer in causal.modules()]
    causal.eval()  # dropout would set the two ways apart
    try:
        return _compare(causal)
    except UnsupportedAttentionError as error:
        return _Finding(str(error))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
        return _Finding(f"on packed rows its code fails with {type(error).__name__}: {error}")
    finally:
        for layer, training in modes:
            layer.training = training


def _compare(causal: nn.Module) -> _Finding:
    """Run a few tokens both ways."""
    device = next(causal.parameters()).device
    sequences = [([1, 2, 3], [4, 5, 6]), ([1, 2, 3], [7, 8]), ([2, 5], [3, 1, 2, 4])]
    row = pack(sequences, device, whole=True)
    packed = _logits(causal, row)[row.sources]
    plain = torch.cat([_plain_logits(causal, *sequence, device) for sequence in sequences])
    gap, spread = (packed - plain).abs(), float(plain.std())
    exact = plain.dtype in (torch.float32, torch.float64) and computes_wide(causal)
    found = float(gap.max() if exact else gap.mean(-1).max())
    limit = (1e-4 if exact else 0.1) * spread
    if not math.isfinite(found):
        return _Finding("its logits on a few tokens are not finite")
    if not found <= limit:
        return _Finding(
            f"its logits on packed rows differ by {found:.2g} from those on padded ones (limit "
            f"{limit:.2g}): its tokens meet elsewhere than in attention"
        )
    counted = _Counted(row)
    try:
        run_packed(causal, row.ids, row.positions, counted)
    except UnsupportedAttentionError as error:
        if error.window is None:
            raise
        return _Finding(None, error.window, f"it attends to the last {error.window} tokens only")
    if max(counted.calls.values()) > 1:
        return _Finding("it attends several times in one layer, and decoding keeps one set of keys")
    if kinds := set(getattr(causal.config, "layer_types", None) or []) - {"full_attention"}:
        return _Finding(f"some of its layers are of the kinds {', '.join(sorted(kinds))}")
    return _rotary_limit(causal.config)


class _Counted:
    """A layout that counts its calls, and whose longest sequence exceeds every window."""

    longest = sys.maxsize

    def __init__(self, row: Packed) -> None:
        self.calls: Counter[int] = Counter()
        self._row = row

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float
    ) -> Tensor:
        """See `sctom.rollout.attention.Layout`."""
        self.calls[layer] += 1
        return self._row.attend(layer, query, key, value, scale=scale, dropout=dropout)


def _rotary_limit(config: Any) -> _Finding:
    """Rotary embeddings that depend on the longest position of a batch, from some length on."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    kind = (settings or {}).get("rope_type")
    if kind not in ("dynamic", "longrope"):
        return _Finding(None)
    most = (settings or {}).get("original_max_position_embeddings")
    most = most or getattr(config, "original_max_position_embeddings", None)
    most = most or config.max_position_embeddings
    return _Finding(
        None, most, f"beyond {most} tokens its {kind} rotary embedding depends on the whole batch"
    )


def computes_wide(causal: nn.Module) -> bool:
    """Whether a model computes in float32 or wider: by its weights, and by autocast."""
    device = next(causal.parameters()).device.type
    wide = all(p.dtype in (torch.float32, torch.float64) for p in causal.parameters())
    return wide and not torch.is_autocast_enabled(device)


def _logits(causal: nn.Module, row: Packed) -> Tensor:
    logits: Tensor = run_packed(causal, row.ids, row.positions, row).logits[0]
    return logits.float()


def _plain_logits(
    causal: nn.Module, prefix: list[int], continuation: list[int], device: torch.device
) -> Tensor:
    """Logits of the tokens that predict a continuation, of the sequence run alone."""
    ids = torch.tensor([prefix + continuation], device=device)
    logits: Tensor = causal(input_ids=ids, use_cache=False).logits[0]
    return logits[len(prefix) - 1 : -1].float()


@rank_zero_only
def _say(line: str) -> None:
    print(line, flush=True)

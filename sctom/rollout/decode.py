"""Sampling with packed rows: each prompt is run once, and a step is one row of one token each.

Saved against a padded batch with a cache: the prompts' keys and values exist once for a group and
not once for each of its completions, nothing is padded, rows that have ended cost nothing in the
linear layers, and the keys and values of completions take the room they need and not that of the
limit. Exact because everything in a decoder but attention treats each token alone, given its
position, and attention over two sets of keys is one softmax over the scores of both.

In attention rows lie in slots [P, K, G], G for each of the P prompts that still has rows, so that
the rows of one prompt meet its keys in one product. Slots are made anew when the largest number of
rows of a prompt falls or a prompt has none left; those that are empty meanwhile repeat some row,
and nothing looks at what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from sctom.batch import Prompt
from sctom.rollout.attention import run_packed
from sctom.rollout.base import Sampling
from sctom.rollout.causal import causal_model
from sctom.rollout.draw import next_tokens
from sctom.rollout.drawn import Drawn
from sctom.rollout.fused import fused_layers
from sctom.seeds import Keys

_PREFILL_TOKENS = 4096
"""Prompt tokens in one pass, or one prompt if it is longer: bounds what activations take."""

_ROUNDED = 64
"""Prefill rows are filled up to a multiple of this: oneDNN keeps something for each new shape."""

_CHUNK = 64
"""Tokens of each completion that room is made for at a time."""


def padded_rows(rows: int) -> int:
    """The number of rows a step is filled up to, of which there are at most 8 per power of two.

    The number of rows falls from step to step, and oneDNN keeps about half a MiB for every number
    a layer's weight has been multiplied with.

    >>> [padded_rows(rows) for rows in (1, 2, 7, 8, 9, 16, 17, 100, 129)]
    [2, 2, 8, 8, 10, 16, 20, 112, 160]
    """
    step = max(2, (1 << (rows - 1).bit_length()) // 8)
    return -(-rows // step) * step


def decode_packed(
    model: nn.Module, prompts: Sequence[Prompt], keys: Keys, sampling: Sampling, drawn: Drawn
) -> None:
    """Draw completions until all have ended or reached the limit.

    Args:
        model: a causal language model for which `sctom.rollout.sharing` found packed rows exact.
        prompts: P prompts.
        keys: [B] the key of each completion, prompt by prompt.
        sampling: how they are drawn.
        drawn: takes the tokens.
    """
    with fused_layers(model):
        _decode(causal_model(model), prompts, keys, sampling, drawn)


def _decode(
    causal: nn.Module, prompts: Sequence[Prompt], keys: Keys, sampling: Sampling, drawn: Drawn
) -> None:
    device = drawn.alive.device
    group_size = len(keys) // len(prompts)
    lengths = [len(prompt.ids) for prompt in prompts]
    rows = _Rows(lengths, group_size, sampling.max_new_tokens, device)
    logits = torch.cat(list(_prefill(causal, prompts, rows, device)))
    logits = logits.repeat_interleave(group_size, 0)
    positions = torch.tensor(lengths, device=device).repeat_interleave(group_size)
    for step in range(sampling.max_new_tokens):
        tokens, logps = next_tokens(logits, keys[drawn.alive_on_cpu], step, sampling)
        going_on = drawn.add(tokens, logps)
        if not len(drawn.alive):
            break
        if going_on is not None:
            tokens, positions = tokens[going_on], positions[going_on]
            rows.keep(going_on)
        rows.advance()
        filler = (0, padded_rows(len(tokens)) - len(tokens))
        ids, places = pad(tokens, filler), pad(positions, filler)
        logits = run_packed(causal, ids, places, rows, logits_to_keep=0).logits[0, : len(tokens)]
        positions = positions + 1


def _prefill(
    causal: nn.Module, prompts: Sequence[Prompt], rows: _Rows, device: torch.device
) -> Iterator[Tensor]:
    """Run each prompt once; gives the logits [p, V] that follow those of each pass."""
    first = 0
    while first < len(prompts):
        end, total = first, 0
        while end < len(prompts) and (
            end == first or total + len(prompts[end].ids) <= _PREFILL_TOKENS
        ):
            total += len(prompts[end].ids)
            end += 1
        passed = [prompt.ids for prompt in prompts[first:end]]
        filler = [0] * (-total % _ROUNDED)
        ids = torch.tensor([token for prompt in passed for token in prompt] + filler, device=device)
        positions = torch.cat([torch.arange(len(prompt)) for prompt in [*passed, filler]])
        ends = torch.tensor([len(prompt) for prompt in passed]).cumsum(0)
        layout = _Prompts(rows, first, [len(prompt) for prompt in passed])
        yield run_packed(
            causal, ids, positions.to(device), layout, logits_to_keep=(ends - 1).to(device)
        ).logits[0]
        first = end


@dataclass
class _Layer:
    """Keys and values of one layer: P prompts, K heads, G slots."""

    prompt_key: Tensor
    """[P, K, L, D], 0 beyond the end of a prompt."""
    prompt_value: Tensor
    """[P, K, L, E]"""
    key: Tensor
    """[P K G, C, D]; C is the room for tokens, 0 where there is none yet."""
    value: Tensor
    """[P K G, C, E]"""


class _Places(NamedTuple):
    """Where rows lie in the slots of layers with K heads; all of these layers share it."""

    row: Tensor
    """[P K G] the row (times K, plus the head) in each slot; some row where there is none."""
    slot: Tensor
    """[n K] the slot of each head of each row."""
    packed: Tensor
    """[N K] the same for the packed row, which is filled up with some slot."""
    mask: Tensor
    """[P K, 1, L] -inf beyond the end of a prompt, in the dtype of the scores."""


@dataclass(frozen=True)
class _Prompts:
    """The layout of a prefill pass: prompts one behind the other, each attending to itself."""

    rows: _Rows
    first: int
    """Number of the first prompt."""
    lengths: list[int]

    @property
    def longest(self) -> int:
        return self.rows.longest

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float
    ) -> Tensor:
        """See `sctom.rollout.attention.Layout`."""
        kept = self.rows.layer(layer, key, value)
        attended = query.new_zeros(*query.shape[:2], value.shape[2])
        start = 0
        for number, length in enumerate(self.lengths, self.first):
            q, k, v = (t[start : start + length].transpose(0, 1) for t in (query, key, value))
            kept.prompt_key[number, :, :length] = k
            kept.prompt_value[number, :, :length] = v
            out = scaled_dot_product_attention(
                q[None], k[None], v[None], is_causal=True, scale=scale, enable_gqa=True
            )
            attended[start : start + length] = out[0].transpose(0, 1)
            start += length
        return attended


class _Rows:
    """The rows that go on: their keys and values, and the layout of a step.

    Args:
        lengths: tokens of each prompt.
        group_size: completions of each.
        limit: tokens a completion may have.
        device: where the model is.
    """

    def __init__(
        self, lengths: Sequence[int], group_size: int, limit: int, device: torch.device
    ) -> None:
        self.longest = max(lengths) + limit
        self._lengths: NDArray[np.int64] = np.array(lengths)
        self._layers: dict[int, _Layer] = {}
        self._limit = limit
        self._filled, self._room = 0, 0
        self._groups, self._size = len(lengths), group_size
        self._slots: NDArray[np.int64] = np.arange(len(lengths) * group_size)
        self._device = device
        self._known: dict[tuple[int, torch.dtype], _Places] = {}

    def _places(self, heads: int, dtype: torch.dtype) -> _Places:
        """Where the rows lie, made once until that changes."""
        if (heads, dtype) not in self._known:
            group, place = np.divmod(self._slots, self._size)
            slot = (group[:, None] * heads + np.arange(heads)) * self._size + place[:, None]
            row = np.zeros(self._groups * heads * self._size, dtype=np.int64)
            row[slot] = np.arange(slot.size).reshape(slot.shape)
            filler = [(0, padded_rows(len(slot)) - len(slot)), (0, 0)]
            mask = np.arange(self._lengths.max()) >= np.repeat(self._lengths, heads)[:, None, None]
            self._known[heads, dtype] = _Places(
                torch.from_numpy(row).to(self._device),
                torch.from_numpy(slot.ravel()).to(self._device),
                torch.from_numpy(np.pad(slot, filler).ravel()).to(self._device),
                torch.from_numpy(np.where(mask, -np.inf, 0.0)).to(self._device, dtype),
            )
        return self._known[heads, dtype]

    def layer(self, number: int, key: Tensor, value: Tensor) -> _Layer:
        """The keys and values of a layer, made for those of its first pass, [N, K, D] each."""
        if number not in self._layers:
            groups, heads, longest = self._groups, key.shape[1], int(self._lengths.max())
            self._layers[number] = _Layer(
                key.new_zeros(groups, heads, longest, key.shape[2]),
                value.new_zeros(groups, heads, longest, value.shape[2]),
                key.new_zeros(groups * heads * self._size, 0, key.shape[2]),
                value.new_zeros(groups * heads * self._size, 0, value.shape[2]),
            )
        return self._layers[number]

    def keep(self, going_on: Tensor) -> None:
        """Leave out the rows that are not among these, given as indices."""
        self._slots = self._slots[going_on.cpu().numpy()]
        counts = np.bincount(self._slots // self._size, minlength=self._groups)
        if counts.max() < self._size or not counts.all():
            self._repack(counts)
        self._known.clear()

    def _repack(self, counts: NDArray[np.int64]) -> None:
        """As few slots as the rows that are left need; rows stay in order."""
        (left,) = counts.nonzero()
        size = int(counts.max())
        starts = np.repeat(np.cumsum(counts[left]) - counts[left], counts[left])
        place = np.arange(len(self._slots)) - starts
        slots = np.repeat(np.arange(len(left)), counts[left]) * size + place
        old = np.zeros(len(left) * size, dtype=np.int64)  # whose place each slot takes
        old[slots] = self._slots
        group, place = np.divmod(old.reshape(len(left), 1, size), self._size)
        self._lengths = self._lengths[left]
        longest = int(self._lengths.max())
        stays = torch.from_numpy(left).to(self._device)
        for kept in self._layers.values():
            heads = kept.prompt_key.shape[1]
            moved = (group * heads + np.arange(heads)[:, None]) * self._size + place
            source = torch.from_numpy(moved.ravel()).to(self._device)
            kept.key, kept.value = (t.index_select(0, source) for t in (kept.key, kept.value))
            if len(left) < self._groups:
                kept.prompt_key = kept.prompt_key[stays, :, :longest]
                kept.prompt_value = kept.prompt_value[stays, :, :longest]
        self._groups, self._size, self._slots = len(left), size, slots

    def advance(self) -> None:
        """Make room for the next token of each row."""
        self._filled += 1
        if self._filled <= self._room:
            return
        room = min(_CHUNK, self._limit - self._room)
        self._room += room
        for kept in self._layers.values():
            kept.key = pad(kept.key, (0, 0, 0, room))
            kept.value = pad(kept.value, (0, 0, 0, room))

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float
    ) -> Tensor:
        """See `sctom.rollout.attention.Layout`.

        Here P prompts of L tokens, K heads of keys that serve R query heads each, G slots, C tokens
        of completions. Tokens beyond those of the rows fill the packed row up and get the result of
        some row.
        """
        kept, rows, heads = self._layers[layer], len(self._slots), key.shape[1]
        places = self._places(heads, query.dtype)
        end = self._filled
        for behind, new in ((kept.key, key), (kept.value, value)):
            new = new[:rows].reshape(rows * heads, -1).to(behind.dtype)
            behind[:, end - 1].index_copy_(0, places.slot, new)
        slots = query[:rows].reshape(rows * heads, -1).index_select(0, places.row)
        by_row = slots.view(len(slots), -1, query.shape[2])  # [PKG, R, D]
        own_key, own_value = kept.key[:, :end], kept.value[:, :end]  # [PKG, C, D]
        prompt_key, prompt_value = kept.prompt_key.flatten(0, 1), kept.prompt_value.flatten(0, 1)
        by_prompt = slots.view(len(prompt_key), -1, query.shape[2])  # [PK, GR, D]
        on_prompt = torch.baddbmm(places.mask, by_prompt, prompt_key.mT, alpha=scale)  # [PK, GR, L]
        on_own = torch.baddbmm(by_row.new_empty(()), by_row, own_key.mT, beta=0, alpha=scale)
        length = prompt_key.shape[1]
        scores = torch.cat([on_prompt, on_own.view(*on_prompt.shape[:2], end)], -1)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype)
        of_prompt = torch.bmm(weights[..., :length], prompt_value).view(*by_row.shape[:2], -1)
        own_weights = weights.view(*by_row.shape[:2], -1)[..., length:]
        attended = torch.baddbmm(of_prompt, own_weights, own_value)  # [PKG, R, E]
        out = attended.view(len(attended), -1).index_select(0, places.packed)
        return out.view(len(query), query.shape[1], -1)

"""Sampling with packed rows: each prompt is run once, and a step is one row of one token each.

Saved against a padded batch with a cache: the prompts' keys and values exist once for a group and
not once for each of its completions, nothing is padded, rows that have ended cost nothing in the
linear layers, and the keys and values of completions take the room they need and not that of the
limit. Exact because everything in a decoder but attention treats each token alone, given its
position, and attention over two sets of keys is one softmax over the scores of both.

In attention rows lie in slots [P, K, G], G for each of the P prompts that still has rows, so that
the rows of one prompt meet its keys in one product. Slots are made anew when the largest number of
rows of a prompt falls or a prompt has none left; those that are empty meanwhile compute on zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    causal = causal_model(model)
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
    """Keys and values of one layer."""

    prompt_key: Tensor
    """[P, K, L, D], 0 beyond the end of a prompt."""
    prompt_value: Tensor
    """[P, K, L, E]"""
    key: Tensor
    """[P, K, G, C, D]; C is the room for tokens, 0 where there is none yet."""
    value: Tensor
    """[P, K, G, C, E]"""


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
        self._look()

    def _look(self) -> None:
        """Tensors that all layers share, from the slots and the lengths of the prompts."""
        self._full = len(self._slots) == self._groups * self._size
        group, place = np.divmod(self._slots, self._size)
        self._group = torch.from_numpy(group).to(self._device)
        self._place = torch.from_numpy(place).to(self._device)
        beyond = np.arange(self._lengths.max()) >= self._lengths[:, None]
        mask = torch.zeros(beyond.shape).masked_fill_(torch.from_numpy(beyond), -torch.inf)
        self._mask = mask[:, None, None].to(self._device)  # [P, 1, 1, L]

    def layer(self, number: int, key: Tensor, value: Tensor) -> _Layer:
        """The keys and values of a layer, made for those of its first pass, [N, K, D] each."""
        if number not in self._layers:
            groups, longest = len(self._lengths), int(self._lengths.max())
            self._layers[number] = _Layer(
                key.new_zeros(groups, key.shape[1], longest, key.shape[2]),
                value.new_zeros(groups, value.shape[1], longest, value.shape[2]),
                key.new_zeros(groups, key.shape[1], self._size, 0, key.shape[2]),
                value.new_zeros(groups, value.shape[1], self._size, 0, value.shape[2]),
            )
        return self._layers[number]

    def keep(self, going_on: Tensor) -> None:
        """Leave out the rows that are not among these, given as indices."""
        self._slots = self._slots[going_on.cpu().numpy()]
        counts = np.bincount(self._slots // self._size, minlength=self._groups)
        if counts.max() < self._size or not counts.all():
            self._repack(counts)
        self._look()

    def _repack(self, counts: NDArray[np.int64]) -> None:
        """As few slots as the rows that are left need; rows stay in order."""
        old = torch.from_numpy(self._slots).to(self._device)
        (left,) = counts.nonzero()
        size = int(counts.max())
        starts = np.repeat(np.cumsum(counts[left]) - counts[left], counts[left])
        place = np.arange(len(self._slots)) - starts
        self._slots = np.repeat(np.arange(len(left)), counts[left]) * size + place
        new = torch.from_numpy(self._slots).to(self._device)
        self._lengths = self._lengths[left]
        longest = int(self._lengths.max())
        stays = torch.from_numpy(left).to(self._device)
        for kept in self._layers.values():
            if len(left) < self._groups:
                kept.prompt_key = kept.prompt_key[stays, :, :longest]
                kept.prompt_value = kept.prompt_value[stays, :, :longest]
            kept.key = self._moved(kept.key, old, new, len(left), size)
            kept.value = self._moved(kept.value, old, new, len(left), size)
        self._groups, self._size = len(left), size

    def _moved(self, kept: Tensor, old: Tensor, new: Tensor, groups: int, size: int) -> Tensor:
        moved = kept.new_zeros(groups, kept.shape[1], size, *kept.shape[3:])
        picked = kept[old // self._size, :, old % self._size, : self._filled]
        moved[new // size, :, new % size, : self._filled] = picked
        return moved

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
        of completions. Tokens beyond those of the rows fill the packed row up and attend to
        nothing.
        """
        kept, rows, filled = self._layers[layer], len(self._slots), len(query)
        self._append(kept.key, key[:rows])
        self._append(kept.value, value[:rows])
        by_head = query[:rows].view(rows, key.shape[1], -1, query.shape[2])
        slots = self._in_slots(by_head)  # [P, K, G, R, D]
        by_row = slots.flatten(0, 2)
        own_key, own_value = (
            t.flatten(0, 2)[:, : self._filled] for t in (kept.key, kept.value)
        )  # [PKG, C, D]
        by_prompt = slots.flatten(2, 3).flatten(0, 1)
        prompt_key, prompt_value = kept.prompt_key.flatten(0, 1), kept.prompt_value.flatten(0, 1)
        mask = self._mask.to(query.dtype).expand(-1, key.shape[1], -1, -1).flatten(0, 1)
        on_prompt = torch.baddbmm(mask, by_prompt, prompt_key.mT, alpha=scale)  # [PK, GR, L]
        on_own = torch.baddbmm(by_row.new_zeros(()), by_row, own_key.mT, beta=0, alpha=scale)
        length = prompt_key.shape[1]
        scores = torch.cat([on_prompt, on_own.view(*on_prompt.shape[:2], -1)], -1)
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype)
        of_prompt = torch.bmm(weights[..., :length], prompt_value).view(*by_row.shape[:2], -1)
        own_weights = weights.view(*by_row.shape[:2], -1)[..., length:]
        attended = torch.baddbmm(of_prompt, own_weights, own_value)
        out = self._out_of_slots(attended.view(*slots.shape[:4], -1)).flatten(1, 2)
        return out if rows == filled else pad(out, (0, 0, 0, 0, 0, filled - rows))

    def _append(self, kept: Tensor, new: Tensor) -> None:
        """Put [n, K, D] behind what is kept, [P, K, G, C, D]."""
        last = kept[..., self._filled - 1, :]
        if self._full:
            last.copy_(new.view(self._groups, self._size, *new.shape[1:]).transpose(1, 2))
        else:
            last[self._group, :, self._place] = new.to(kept.dtype)

    def _in_slots(self, rows: Tensor) -> Tensor:
        """[n, K, R, D] -> [P, K, G, R, D]; 0 where there is no row."""
        if self._full:
            slots = rows.view(self._groups, self._size, *rows.shape[1:])
            return slots.transpose(1, 2).contiguous()
        slots = rows.new_zeros(self._groups, rows.shape[1], self._size, *rows.shape[2:])
        slots[self._group, :, self._place] = rows
        return slots

    def _out_of_slots(self, slots: Tensor) -> Tensor:
        """[P, K, G, R, D] -> [n, K, R, D]."""
        if self._full:
            return slots.transpose(1, 2).flatten(0, 1)
        return slots[self._group, :, self._place]

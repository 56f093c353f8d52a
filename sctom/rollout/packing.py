"""Sequences that share prefixes as one packed row: no padding, and each prefix once.

Padded, G completions of C tokens behind a prompt of P cost G (P + C) tokens, and more where lengths
differ; packed they cost P + G C. Exact because of how a decoder is made: everything but attention
treats each token alone, given its position, and a prefix does not look at what comes behind it. So
its hidden states, keys and values are the same for all sequences that start with it, and gradients
that reach them from several continuations add up as they would from several copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True)
class Bundle:
    """Continuations of one prefix that are about as long as each other, side by side in the row."""

    rows: int
    """Continuations."""
    longest: int
    """Tokens of the longest of them, as far as they are in the packed row."""
    gather: Tensor
    """[rows * longest] place in the packed row of each token; any place beyond a row's end."""
    real: Tensor
    """[n] which of those are tokens of a continuation, in the order of the packed row."""
    visible: Tensor
    """[longest, prefix + longest] True where a continuation's token attends."""

    def side_by_side(self, packed: Tensor) -> Tensor:
        """The continuations [rows, K, longest, D] of a packed row [1, K, N, D]."""
        picked = packed[0].index_select(1, self.gather)
        return picked.view(len(picked), self.rows, self.longest, -1).transpose(0, 1)

    def behind(self, prefix: Tensor, packed: Tensor) -> Tensor:
        """Each of them behind the prefix [1, K, P, D]: [rows, K, P + longest, D]."""
        return torch.cat([prefix.expand(self.rows, -1, -1, -1), self.side_by_side(packed)], 2)

    def lengths(self) -> Tensor:
        """[rows] tokens of each continuation that are in the packed row."""
        return (self.real // self.longest).bincount(minlength=self.rows)


@dataclass(frozen=True)
class Group:
    """A prefix and behind it its continuations, the longest first."""

    start: int
    """Place of the first token of the prefix."""
    prefix: int
    """Tokens of the prefix."""
    bundles: list[Bundle]
    """All continuations with a token in the row: attention pads them to the longest of a bundle."""


@dataclass(frozen=True)
class Packed:
    """A packed row and the layout of its attention; made by `pack`."""

    ids: Tensor
    """[N] token ids."""
    positions: Tensor
    """[N] position of each token in its sequence."""
    groups: list[Group]
    sources: Tensor
    """Place of the token whose hidden state predicts each token of the continuations.

    One behind the other in the order in which the sequences were given.
    """
    lengths: list[int]
    """Tokens of each continuation, in that order."""
    last: Tensor | None
    """[B] place of the last token of each sequence; None where it is not in the row."""
    longest: int
    """Tokens of the longest sequence."""
    tail: int = field(default=0)
    """Tokens at the end that belong to no sequence."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float, dropout: float
    ) -> Tensor:
        """See `sctom.rollout.attention.Layout`."""
        query, key, value = (t.transpose(0, 1).unsqueeze(0) for t in (query, key, value))
        sdpa = partial(
            scaled_dot_product_attention, scale=scale, dropout_p=dropout, enable_gqa=True
        )
        parts = []
        for group in self.groups:
            prefix = slice(group.start, group.start + group.prefix)
            q, k, v = (t[:, :, prefix] for t in (query, key, value))
            parts.append(sdpa(q, k, v, is_causal=True)[0])
            for bundle in group.bundles:
                parts.append(_continuations(bundle, query, key, value, k, v, sdpa))
        if self.tail:
            parts.append(query.new_zeros(query.shape[1], self.tail, query.shape[3]))
        return torch.cat(parts, 1).transpose(0, 1)


def _continuations(
    bundle: Bundle,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prefix_key: Tensor,
    prefix_value: Tensor,
    sdpa: Callable[..., Tensor],
) -> Tensor:
    """Attention of continuations to their prefix and to themselves, [H, n, D]."""
    attended = sdpa(
        bundle.side_by_side(query),
        bundle.behind(prefix_key, key),
        bundle.behind(prefix_value, value),
        attn_mask=bundle.visible,
    )
    return attended.transpose(0, 1).flatten(1, 2).index_select(1, bundle.real)


def pack(
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
    device: torch.device | str = "cpu",
    *,
    whole: bool = False,
    multiple: int = 1,
) -> Packed:
    """Put sequences into one row, those with the same prefix behind one copy of it.

    Args:
        sequences: (prefix, continuation) of each; neither is empty. Prefixes are compared by their
            tokens.
        device: where the tensors go.
        whole: also put in the last token of each continuation, for what reads the hidden state of
            the last token (a reward model). Predicting tokens does not need it.
        multiple: the row's length is rounded up to a multiple of this with tokens that nothing
            attends to, so that fewer different shapes occur.

    Raises:
        ValueError: a prefix or continuation is empty.

    >>> row = pack([([1, 2], [3, 4, 5]), ([7], [8]), ([1, 2], [6])])
    >>> row.ids.tolist(), row.positions.tolist()  # 5, 6 and 8 predict nothing
    ([1, 2, 3, 4, 7], [0, 1, 2, 3, 0])
    >>> row.sources.tolist()  # of 3, 4, 5; of 8; of 6
    [1, 2, 3, 4, 1]
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for number, (prefix, continuation) in enumerate(sequences):
        if not len(prefix) or not len(continuation):
            raise ValueError(
                f"sequence {number} has a prefix of {len(prefix)} and a continuation of "
                f"{len(continuation)} tokens; both need at least one"
            )
        members.setdefault(tuple(prefix), []).append(number)
    ids: list[int] = []
    positions: list[int] = []
    groups: list[Group] = []
    starts = [0] * len(sequences)
    heads = [0] * len(sequences)
    kept = [len(continuation) - (not whole) for _, continuation in sequences]
    for shared, numbers in members.items():
        first = len(ids)
        ids += shared
        positions += range(len(shared))
        numbers.sort(key=lambda number: -kept[number])
        for number in numbers:
            starts[number], heads[number] = len(ids), first + len(shared) - 1
            ids += sequences[number][1][: kept[number]]
            positions += range(len(shared), len(shared) + kept[number])
        spans = [(starts[number], kept[number]) for number in numbers]
        bundles = list(_bundles(len(shared), spans, device))
        groups.append(Group(first, len(shared), bundles))
    tail = -len(ids) % multiple
    sources = [
        place
        for number, (_, continuation) in enumerate(sequences)
        for place in [heads[number], *range(starts[number], starts[number] + len(continuation) - 1)]
    ]
    ends = [start + length - 1 for start, length in zip(starts, kept, strict=True)]
    return Packed(
        ids=torch.tensor(ids + [0] * tail, device=device),
        positions=torch.tensor(positions + [0] * tail, device=device),
        groups=groups,
        sources=torch.tensor(sources, device=device),
        lengths=[len(continuation) for _, continuation in sequences],
        last=torch.tensor(ends, device=device) if whole else None,
        longest=max(len(prefix) + len(continuation) for prefix, continuation in sequences),
        tail=tail,
    )


def _bundles(
    prefix: int, spans: Sequence[tuple[int, int]], device: torch.device | str
) -> Iterator[Bundle]:
    """Cut rows (start, length), the longest first, where lengths fall below half of the first's."""
    begin = 0
    for end in range(1, len(spans) + 1):
        longest = spans[begin][1]
        if longest and (end == len(spans) or 2 * spans[end][1] < longest):
            yield _bundle(prefix, spans[begin:end], device)
            begin = end


def _bundle(prefix: int, spans: Sequence[tuple[int, int]], device: torch.device | str) -> Bundle:
    """The indices of one bundle, made once for all layers."""
    longest = spans[0][1]
    first = torch.tensor([begin for begin, _ in spans]).unsqueeze(1)
    count = torch.tensor([length for _, length in spans]).unsqueeze(1)
    place = torch.arange(longest)
    inside = place < count
    gather = torch.where(inside, first + place, first)
    visible = torch.ones(longest, prefix + longest, dtype=torch.bool).tril(prefix)
    return Bundle(
        rows=len(spans),
        longest=longest,
        gather=gather.flatten().to(device),
        real=inside.flatten().nonzero().squeeze(1).to(device),
        visible=visible.to(device),
    )

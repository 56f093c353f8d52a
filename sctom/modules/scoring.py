"""From rows to log-probabilities: collating a micro-batch and scoring it with a model.

The rows of a micro-batch are one packed row, each prompt once (`sctom.rollout.packing`), and the
head sees only the tokens that predict a completion's tokens, a tile at a time
(`sctom.losses.linear_token_logps`). Both are exact; models that cannot be run so are measured out
and run on padded rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sctom.batch import Row
from sctom.losses import linear_token_logps, token_logps
from sctom.rollout.attention import run_packed
from sctom.rollout.causal import causal_model, decoder, head, hidden_states, is_plain_linear, pad
from sctom.rollout.packing import Packed, pack
from sctom.rollout.sharing import shares_prefixes


@dataclass
class Padded:
    """Token sequences as rows of one length L, padded on the right."""

    input_ids: Tensor
    """[B, L]"""
    attention_mask: Tensor
    """[B, L] 1 on real tokens, from the lengths."""
    position_ids: Tensor
    """[B, L] 0 at the first token of a row."""
    sources: Tensor
    """[B, T] index into L of the token whose hidden state predicts each scored token."""

    def inputs(self) -> dict[str, Tensor]:
        """The arguments of a model."""
        return {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "position_ids": self.position_ids,
        }


@dataclass
class MicroBatch:
    """Rows as tensors: B rows, T completion tokens of the longest row."""

    sequences: list[tuple[list[int], list[int]]]
    """Prompt and completion of each row as token ids."""
    targets: Tensor
    """[B, T] the completion tokens; 0 beyond their end."""
    real: Tensor
    """[B, T] True on completion tokens, up to and including the stop token."""
    mask: Tensor
    """[B, T] 1.0 on real tokens of rows that count, else 0."""
    advantages: Tensor
    """[B], or [B, T] where every token has its own."""
    sampler_logps: Tensor | None
    """[B, T], 0 beyond the end; None where a row has none."""
    old_logps: Tensor | None
    """[B, T], 0 beyond the end; None when the policy that sampled is the one being trained."""
    ref_logps: Tensor | None
    """[B, T], 0 beyond the end; None without a reference."""
    old_values: Tensor | None
    """[B, T] values when the rollout was made, 0 beyond the end; None without a value head."""
    returns: Tensor | None
    """[B, T] what values are trained towards, 0 beyond the end; None without a value head."""


def _ragged(values: Sequence[Tensor | None], like: Tensor) -> Tensor | None:
    """Right-pad per-row vectors to the shape of `like`; None if any row has none."""
    out = torch.zeros_like(like)
    for i, v in enumerate(values):
        if v is None:
            return None
        out[i, : len(v)] = v
    return out


def collate(rows: Sequence[Row], device: torch.device) -> MicroBatch:
    """Make tensors of rows."""
    targets, real, _ = pad([r.ids for r in rows], 0, side="right")
    mask = real.float() * torch.tensor([[float(r.counted)] for r in rows])
    given = {
        name: _ragged([getattr(r, name) for r in rows], mask)
        for name in ("sampler_logps", "old_logps", "ref_logps", "old_values", "returns")
    }
    advantages = _ragged([r.advantages for r in rows], mask)
    if advantages is None:
        advantages = torch.tensor([r.advantage for r in rows], dtype=torch.float32)
    return MicroBatch(
        sequences=[(r.prompt.ids, r.ids) for r in rows],
        targets=targets.to(device),
        real=real.bool().to(device),
        mask=mask.to(device),
        advantages=advantages.to(device),
        **{name: None if t is None else t.to(device) for name, t in given.items()},
    )


def pad_sequences(sequences: Sequence[tuple[list[int], list[int]]], device: torch.device) -> Padded:
    """Padded rows of prompts and completions, whose sources are those of the completions."""
    ids, attention, positions = pad([p + c for p, c in sequences], 0, side="right")
    starts = torch.tensor([len(prompt) - 1 for prompt, _ in sequences]).unsqueeze(1)
    longest = max(len(completion) for _, completion in sequences)
    sources = (starts + torch.arange(longest)).clamp_max(ids.shape[1] - 1)
    return Padded(*(t.to(device) for t in (ids, attention, positions, sources)))


class Scorer:
    """Log-probabilities of completions under a model, at one temperature, always on full support.

    Where the head is a bare linear layer and the model adds nothing after it, the logits are never
    held for all tokens at once. Whether that is so is measured once for each model, on the first
    batch, not guessed from the architecture.

    Args:
        temperature: divides the logits, as the sampler does.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self._head_alone: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

    def __call__(self, model: nn.Module, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Score a micro-batch.

        Returns:
            Log-probabilities [B, T] of the completion tokens (0 beyond their end where rows are
            packed, else whatever), and the entropy [B, T] of the distribution each was drawn from,
            without gradient.
        """
        return self._of(model, batch, _lay_out(model, batch))

    def with_values(
        self, model: nn.Module, batch: MicroBatch, value_head: nn.Module
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score a micro-batch and predict its values, in one forward pass.

        Args:
            model: the model.
            batch: the micro-batch.
            value_head: hidden states [..., H] -> values [...].

        Returns:
            As `__call__`, and the value [B, T] before each token: that of the hidden state which
            predicts it.
        """
        layout = _lay_out(model, batch)
        with _watched(decoder(model)) as seen:
            logps, entropy = self._of(model, batch, layout)
        return logps, entropy, _values(value_head, seen[-1], layout, batch)

    def values(self, model: nn.Module, batch: MicroBatch, value_head: nn.Module) -> Tensor:
        """The values of `with_values` alone: next-token logits are not computed."""
        layout = _lay_out(model, batch)
        if isinstance(layout, Padded):
            hidden = hidden_states(model, **layout.inputs())
        else:
            hidden = _run_packed_decoder(model, layout)
        return _values(value_head, hidden, layout, batch)

    def _of(
        self, model: nn.Module, batch: MicroBatch, layout: Packed | Padded
    ) -> tuple[Tensor, Tensor]:
        if isinstance(layout, Padded):
            return self.padded(model, layout, batch.targets)
        logps, entropy = self.packed(model, layout, batch.targets[batch.real])
        return _unpacked(logps, batch.real), _unpacked(entropy, batch.real)

    def packed(self, model: nn.Module, row: Packed, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Score a packed row.

        Args:
            model: the model.
            row: N tokens are predicted by its sources.
            targets: [N] these tokens.

        Returns:
            As `__call__`, [N] each.
        """
        alone = self._looks_at_head(model, row.ids[: row.groups[0].prefix])
        if alone:
            predicting = _predicting(_run_packed_decoder(model, row), row)
        else:
            predicting = run_packed(
                causal_model(model), row.ids, row.positions, row, logits_to_keep=row.sources
            ).logits[0]
        return self._score(model, predicting, targets, alone)

    def padded(self, model: nn.Module, rows: Padded, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Score padded rows.

        Args:
            model: the model.
            rows: B rows.
            targets: [B, T] the tokens that their sources predict.

        Returns:
            As `__call__`, with whatever where a row has no token.
        """
        alone = self._looks_at_head(model, rows.input_ids[0, rows.attention_mask[0].bool()])
        if alone:
            outputs = hidden_states(model, **rows.inputs())
        else:
            outputs = causal_model(model)(**rows.inputs(), use_cache=False).logits
        return self._score(model, _predicting(outputs, rows), targets, alone)

    def _score(
        self, model: nn.Module, outputs: Tensor, targets: Tensor, alone: bool
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies from hidden states, or from logits [..., V]."""
        if alone:
            weight = head(model).weight
            assert isinstance(weight, Tensor)
            return linear_token_logps(
                outputs, weight, targets, temperature=self.temperature, return_entropy=True
            )
        flat = outputs.reshape(1, -1, outputs.shape[-1])
        logps = token_logps(flat, targets.reshape(1, -1), temperature=self.temperature)
        with torch.no_grad():
            shares = torch.log_softmax(flat.detach().float() / self.temperature, dim=-1)
            entropy = -(shares.exp() * shares).sum(-1)
        return logps.view(targets.shape), entropy.view(targets.shape)

    def _looks_at_head(self, model: nn.Module, ids: Tensor) -> bool:
        """Whether the head is alone, found once for each model; the sequence [L] is tried."""
        causal = causal_model(model)
        if causal not in self._head_alone:
            self._head_alone[causal] = _head_gives_the_logits(model, ids)
        return self._head_alone[causal] and is_plain_linear(head(model))


def _lay_out(model: nn.Module, batch: MicroBatch) -> Packed | Padded:
    """A micro-batch as one packed row where the model can be run so, else as padded rows."""
    longest = max(len(prompt) + len(completion) for prompt, completion in batch.sequences)
    if shares_prefixes(model, longest):
        return pack(batch.sequences, batch.targets.device)
    return pad_sequences(batch.sequences, batch.targets.device)


def _run_packed_decoder(model: nn.Module, row: Packed) -> Tensor:
    """Hidden states [1, L, H] of a packed row."""
    hidden: Tensor = run_packed(decoder(model), row.ids, row.positions, row).last_hidden_state
    return hidden


def _predicting(outputs: Tensor, layout: Packed | Padded) -> Tensor:
    """What predicts the scored tokens, of a model's outputs [B, L, ...]: [N, ...] or [B, T, ...].

    N tokens one behind the other where rows are packed.
    """
    if isinstance(layout, Padded):
        index = layout.sources.unsqueeze(-1).expand(-1, -1, outputs.shape[-1])
        return outputs.gather(1, index)
    return outputs[0].index_select(0, layout.sources)


def _values(
    value_head: nn.Module, hidden: Tensor, layout: Packed | Padded, batch: MicroBatch
) -> Tensor:
    """Values [B, T] from hidden states [B, L, H]."""
    values: Tensor = value_head(_predicting(hidden, layout))
    return values if isinstance(layout, Padded) else _unpacked(values, batch.real)


@contextmanager
def _watched(part: nn.Module) -> Iterator[list[Tensor]]:
    """The hidden states [B, L, H] that a decoder gives meanwhile, one for each time it runs."""
    seen: list[Tensor] = []
    hook = part.register_forward_hook(lambda *call: seen.append(call[-1].last_hidden_state))
    try:
        yield seen
    finally:
        hook.remove()


@torch.no_grad()
def _head_gives_the_logits(model: nn.Module, ids: Tensor) -> bool:
    """Whether head(hidden) equals the model's logits on a sequence [L].

    False with soft-capping or logit scaling.
    """
    if not is_plain_linear(head(model)) or decoder(model) is causal_model(model):
        return False
    training = model.training
    model.eval()  # dropout would tell the two apart, and draw
    alone = head(model)(hidden_states(model, input_ids=ids[None])).float()
    whole = causal_model(model)(input_ids=ids[None], use_cache=False).logits.float()
    model.train(training)
    return torch.allclose(alone, whole, rtol=1e-3, atol=1e-3)


def _unpacked(values: Tensor, real: Tensor) -> Tensor:
    """Values of real tokens, one behind the other, as [B, T] with 0 elsewhere."""
    return values.new_zeros(real.shape).masked_scatter(real, values)

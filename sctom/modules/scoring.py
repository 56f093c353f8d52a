"""From rows to log-probabilities: collating a micro-batch and scoring it with a model.

The rows of a micro-batch are one packed row, each prompt once (`sctom.rollout.packing`), and the
head sees only the tokens that predict a completion's tokens, a tile at a time
(`sctom.losses.linear_token_logps`). Both are exact; models that cannot be run so are measured out
and run on padded rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sctom.batch import Row
from sctom.losses import linear_token_logps, token_logps
from sctom.rollout.attention import run_packed
from sctom.rollout.causal import causal_model, decoder, head, hidden_states, is_plain_linear, pad
from sctom.rollout.packing import pack
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
    """[B]"""
    sampler_logps: Tensor | None
    """[B, T], 0 beyond the end; None where a row has none."""
    old_logps: Tensor | None
    """[B, T], 0 beyond the end; None when the policy that sampled is the one being trained."""
    ref_logps: Tensor | None
    """[B, T], 0 beyond the end; None without a reference."""


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
        for name in ("sampler_logps", "old_logps", "ref_logps")
    }
    return MicroBatch(
        sequences=[(r.prompt.ids, r.ids) for r in rows],
        targets=targets.to(device),
        real=real.bool().to(device),
        mask=mask.to(device),
        advantages=torch.tensor([r.advantage for r in rows], dtype=torch.float32, device=device),
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
        device = batch.targets.device
        longest = max(len(prompt) + len(completion) for prompt, completion in batch.sequences)
        if not shares_prefixes(model, longest):
            return self.padded(model, pad_sequences(batch.sequences, device), batch.targets)
        row = pack(batch.sequences, device)
        alone = self._looks_at_head(model, row.ids[: len(batch.sequences[0][0])])
        module = causal_model(model)
        if alone:
            hidden = run_packed(decoder(model), row.ids, row.positions, row).last_hidden_state[0]
            predicting = hidden.index_select(0, row.sources)
        else:
            predicting = run_packed(
                module, row.ids, row.positions, row, logits_to_keep=row.sources
            ).logits[0]
        logps, entropy = self._score(model, predicting, batch.targets[batch.real], alone)
        return _unpacked(logps, batch.real), _unpacked(entropy, batch.real)

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
        index = rows.sources.unsqueeze(-1).expand(-1, -1, outputs.shape[-1])
        return self._score(model, outputs.gather(1, index), targets, alone)

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

"""From rows to log-probabilities: collating a micro-batch and scoring it with a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sctom.batch import Row
from sctom.losses import linear_token_logps, token_logps
from sctom.rollout.causal import causal_model, head, hidden_states, is_plain_linear, pad


@dataclass
class MicroBatch:
    """Rows as tensors.

    B rows, T completion tokens of the longest row, L tokens of the longest whole sequence.
    """

    input_ids: Tensor
    """[B, L] prompt and completion, padded on the right."""
    attention_mask: Tensor
    """[B, L] 1 on real tokens, from the lengths."""
    position_ids: Tensor
    """[B, L] 0 at the first token of the prompt."""
    sources: Tensor
    """[B, T] index into L of the token whose hidden state predicts each completion token."""
    targets: Tensor
    """[B, T] the completion tokens; 0 where masked."""
    mask: Tensor
    """[B, T] 1.0 on sampled tokens up to and including the stop token; 0 on rows not counted."""
    advantages: Tensor
    """[B]"""
    old_logps: Tensor | None
    """[B, T], 0 where masked; None when the policy that sampled is the one being trained."""
    ref_logps: Tensor | None
    """[B, T], 0 where masked; None without a reference."""


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
    ids, attention, positions = pad([r.prompt.ids + r.ids for r in rows], 0, side="right")
    targets, counted, _ = pad([r.ids for r in rows], 0, side="right")
    starts = torch.tensor([len(r.prompt.ids) - 1 for r in rows]).unsqueeze(1)
    sources = (starts + torch.arange(targets.shape[1])).clamp_max(ids.shape[1] - 1)
    mask = counted.float() * torch.tensor([[float(r.counted)] for r in rows])
    old = _ragged([r.old_logps for r in rows], mask)
    ref = _ragged([r.ref_logps for r in rows], mask)
    advantages = torch.tensor([r.advantage for r in rows], dtype=torch.float32)
    return MicroBatch(
        ids.to(device),
        attention.to(device),
        positions.to(device),
        sources.to(device),
        targets.to(device),
        mask.to(device),
        advantages.to(device),
        None if old is None else old.to(device),
        None if ref is None else ref.to(device),
    )


class Scorer:
    """Log-probabilities of completions under a model, at one temperature, always on full support.

    Where the head is a bare linear layer and the model adds nothing after it, the logits are never
    held for all tokens at once. Whether that is so is measured once, on the first batch, not
    guessed from the architecture.

    Args:
        temperature: divides the logits, as the sampler does.
    """

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self._head_alone: bool | None = None

    def __call__(self, model: nn.Module, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Score a micro-batch.

        Returns:
            Log-probabilities [B, T] of the completion tokens (whatever where masked), and the
            entropy [B, T] of the distribution each was drawn from, without gradient.
        """
        if self._head_alone is None:
            self._head_alone = self._head_gives_the_logits(model, batch)
        inputs = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "position_ids": batch.position_ids,
        }
        if self._head_alone:
            hidden = hidden_states(model, **inputs)
            index = batch.sources.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
            weight = head(model).weight
            assert isinstance(weight, Tensor)
            return linear_token_logps(
                hidden.gather(1, index),
                weight,
                batch.targets,
                temperature=self.temperature,
                return_entropy=True,
            )
        logits = causal_model(model)(**inputs, use_cache=False).logits
        index = batch.sources.unsqueeze(-1).expand(-1, -1, logits.shape[-1])
        logits = logits.gather(1, index)
        logps = token_logps(logits, batch.targets, temperature=self.temperature)
        with torch.no_grad():
            shares = torch.log_softmax(logits.detach().float() / self.temperature, dim=-1)
            entropy = -(shares.exp() * shares).sum(-1)
        return logps, entropy

    @staticmethod
    @torch.no_grad()
    def _head_gives_the_logits(model: nn.Module, batch: MicroBatch) -> bool:
        """Whether head(hidden) equals the model's logits.

        False with soft-capping or logit scaling.
        """
        if not is_plain_linear(head(model)):
            return False
        one = {
            "input_ids": batch.input_ids[:1],
            "attention_mask": batch.attention_mask[:1],
            "position_ids": batch.position_ids[:1],
        }
        training = model.training
        model.eval()  # dropout would tell the two apart, and draw
        alone = head(model)(hidden_states(model, **one)).float()
        whole = causal_model(model)(**one, use_cache=False).logits.float()
        model.train(training)
        keep = batch.attention_mask[:1].bool()
        return torch.allclose(alone[keep], whole[keep], rtol=1e-3, atol=1e-3)

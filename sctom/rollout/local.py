"""The plain local sampler.

Hugging Face modules, a key-value cache, one addressed uniform per token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from sctom.batch import Prompt
from sctom.losses import token_logps
from sctom.rollout.base import Sample, Sampling
from sctom.rollout.causal import causal_model, next_logits, pad
from sctom.seeds import Keys, keys_for, uniforms


def kept_probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities [B, V] after temperature, top-k, top-p and min-p, in this order.

    Dropped tokens get 0. Kept ones are not renormalised; `draw` scales the uniform instead.
    """
    probabilities = torch.softmax(logits.float() / sampling.temperature, dim=-1)
    if sampling.full_support:
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k:
        keep[:, sampling.top_k :] = False
    if sampling.top_p < 1.0:
        kept = ordered * keep
        before = (
            kept.cumsum(-1) - kept
        )  # mass ahead of this token: it is needed while that is short of top_p
        keep &= before < sampling.top_p * kept.sum(-1, keepdim=True)
    if sampling.min_p > 0.0:
        keep &= ordered >= sampling.min_p * ordered[:, :1]
    keep[:, 0] = True
    return torch.zeros_like(probabilities).scatter(-1, order, ordered * keep)


def draw(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Invert the cumulative distribution.

    The token drawn is the first whose cumulative mass exceeds uniform * total.

    Args:
        probabilities: [B, V], not necessarily summing to 1; zeros are never drawn.
        uniform: [B] in (0, 1), float64.

    >>> draw(torch.tensor([[0.2, 0.0, 0.8]]), torch.tensor([0.2001], dtype=torch.float64)).tolist()
    [2]
    """
    cumulative = probabilities.double().cumsum(-1)
    target = uniform.unsqueeze(-1) * cumulative[:, -1:]
    token = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    last = probabilities.shape[-1] - 1 - (probabilities.flip(-1) > 0).int().argmax(-1)
    return torch.minimum(token, last)


class LocalSampler:
    """Samples with the trained model itself, in this process.

    Each prompt is run once and its keys and values are repeated for its group; finished rows leave
    the batch.

    Args:
        max_rows: completions sampled at once; more are done in turn. Changes memory, not results.
    """

    def __init__(self, max_rows: int = 256) -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows must be at least 1 but is {max_rows}")
        self.max_rows = max_rows

    @torch.no_grad()
    def sample(
        self,
        model: nn.Module,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        sampling: Sampling,
        stop_ids: frozenset[int],
        address: tuple[int, ...],
    ) -> list[Sample]:
        """See `Sampler.sample`."""
        step = max(1, self.max_rows // group_size)
        samples: list[Sample] = []
        for start in range(0, len(prompts), step):
            chunk = prompts[start : start + step]
            samples += _decode(model, chunk, group_size, sampling, stop_ids, address)
        return samples


def _prefill(
    model: nn.Module, prompts: Sequence[Prompt], group_size: int
) -> tuple[DynamicCache, Tensor, Tensor, Tensor]:
    """Run each prompt once.

    -> cache, logits, attention mask, next position; repeated per sample.
    """
    device = next(model.parameters()).device
    ids, mask, positions = pad([p.ids for p in prompts], 0, side="left", device=device)
    cache = DynamicCache(config=causal_model(model).config)
    logits = next_logits(
        model, input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache
    )
    cache.batch_repeat_interleave(group_size)
    last = logits.repeat_interleave(group_size, 0)
    following = mask.sum(-1).repeat_interleave(group_size, 0)
    return cache, last, mask.repeat_interleave(group_size, 0), following


def _next_tokens(
    logits: Tensor, keys: Keys, position: int, sampling: Sampling
) -> tuple[Tensor, Tensor]:
    if sampling.temperature == 0.0:
        tokens = logits.argmax(-1)
    else:
        uniform = torch.from_numpy(uniforms(keys, position)).to(logits.device)
        tokens = draw(kept_probabilities(logits, sampling), uniform)
    scored = token_logps(
        logits.unsqueeze(1), tokens.unsqueeze(1), temperature=sampling.temperature or 1.0
    )
    return tokens, scored.squeeze(1)


def _decode(
    model: nn.Module,
    prompts: Sequence[Prompt],
    group_size: int,
    sampling: Sampling,
    stop_ids: frozenset[int],
    address: tuple[int, ...],
) -> list[Sample]:
    rows = len(prompts) * group_size
    cache, logits, mask, position = _prefill(model, prompts, group_size)
    indices = np.repeat([p.index for p in prompts], group_size)
    keys = keys_for(*address, indices, np.tile(np.arange(group_size), len(prompts)))
    stops = torch.tensor(sorted(stop_ids), device=logits.device)
    ids: list[list[int]] = [[] for _ in range(rows)]
    logps: list[list[float]] = [[] for _ in range(rows)]
    truncated = [True] * rows
    alive = np.arange(rows)
    for step in range(sampling.max_new_tokens):
        tokens, scored = _next_tokens(logits, keys[alive], step, sampling)
        for row, token, logp in zip(alive, tokens.tolist(), scored.tolist(), strict=True):
            ids[row].append(token)
            logps[row].append(logp)
        stopped = torch.isin(tokens, stops)
        for row in alive[stopped.cpu().numpy()]:
            truncated[row] = False
        if bool(stopped.any()):
            keep = (~stopped).nonzero().squeeze(-1)
            alive = alive[keep.cpu().numpy()]
            if not len(alive):
                break
            cache.batch_select_indices(keep)
            tokens, mask, position = tokens[keep], mask[keep], position[keep]
        if step + 1 == sampling.max_new_tokens:
            break
        mask = torch.cat([mask, mask.new_ones(len(alive), 1)], dim=-1)
        logits = next_logits(
            model,
            input_ids=tokens.unsqueeze(-1),
            attention_mask=mask,
            position_ids=position.unsqueeze(-1),
            cache=cache,
        )
        position = position + 1
    return [Sample(ids[row], torch.tensor(logps[row]), truncated[row]) for row in range(rows)]

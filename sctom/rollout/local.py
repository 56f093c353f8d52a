"""The local sampler: draws with the trained model itself, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import RLock
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from sctom.batch import Prompt
from sctom.rollout.base import Finished, Sample, Sampling
from sctom.rollout.causal import causal_model
from sctom.rollout.decode import decode_packed
from sctom.rollout.drawn import Drawn
from sctom.rollout.linears import merged_linears, wide_head
from sctom.rollout.norms import fused_norms
from sctom.rollout.plain import decode_plain
from sctom.rollout.sharing import shares_prefixes
from sctom.seeds import keys_for

_LOCKS: WeakKeyDictionary[nn.Module, AbstractContextManager[bool]] = WeakKeyDictionary()
"""One for each model: what is sampled in one thread changes its layers for the time."""


class LocalSampler:
    """Samples with the trained model itself, in this process.

    Each prompt is run once for its group, finished rows leave the batch (`sctom.rollout.decode`),
    and for the time of sampling the linear layers compute with a copy of their weights that has the
    adapters merged and is laid out for the processor (`sctom.rollout.linears`); the weights that
    are trained are not touched. Models for which packed rows are not exact are sampled by a plain
    loop, with a notice.

    Args:
        max_rows: completions sampled at once; more are done in turn, in whole groups. Changes
            memory, not results.
        merge: compute with copies of the weights; null does so on CPU only, since elsewhere the
            second copy costs memory that is scarcer.
    """

    def __init__(self, max_rows: int = 256, merge: bool | None = None) -> None:
        if max_rows < 1:
            raise ValueError(f"max_rows must be at least 1 but is {max_rows}")
        self.max_rows = max_rows
        self.merge = merge

    def sample(
        self,
        model: nn.Module,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        sampling: Sampling,
        stop_ids: frozenset[int],
        address: tuple[int, ...],
        finished: Finished | None = None,
    ) -> list[Sample]:
        """See `Sampler.sample`."""
        for prompt in prompts:
            if not prompt.ids:
                raise ValueError(f"prompt {prompt.index} has no tokens, so nothing can follow it")
        longest = max((len(prompt.ids) for prompt in prompts), default=0) + sampling.max_new_tokens
        decode = decode_packed if shares_prefixes(model, longest) else decode_plain
        groups: list[list[Sample]] = [[] for _ in prompts]
        at_once = max(1, self.max_rows // group_size)
        with self._prepared(model, rows=max(1, min(at_once, len(prompts)) * group_size)):
            for start in range(0, len(prompts), at_once):
                chunk = prompts[start : start + at_once]

                def complete(group: int, samples: list[Sample], start: int = start) -> None:
                    groups[start + group] = samples
                    if finished is not None:
                        finished(start + group, samples)

                drawn = Drawn(
                    len(chunk),
                    group_size,
                    limit=sampling.max_new_tokens,
                    stop_ids=stop_ids,
                    complete=complete,
                    device=next(model.parameters()).device,
                )
                indices = np.repeat([prompt.index for prompt in chunk], group_size)
                keys = keys_for(*address, indices, np.tile(np.arange(group_size), len(chunk)))
                decode(model, chunk, keys, sampling, drawn)
        return [sample for group in groups for sample in group]

    @contextmanager
    def _prepared(self, model: nn.Module, *, rows: int) -> Iterator[None]:
        """The model as it samples fastest, for about so many tokens at a time."""
        on_cpu = next(model.parameters()).device.type == "cpu"
        with ExitStack() as stack:
            stack.enter_context(_LOCKS.setdefault(causal_model(model), RLock()))
            # tensors of inference mode do not tell that they were changed, which linears must know
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            if on_cpu if self.merge is None else self.merge:
                stack.enter_context(merged_linears(model, rows=rows))
            stack.enter_context(wide_head(model))
            stack.enter_context(fused_norms(model))
            yield

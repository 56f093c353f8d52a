"""SFTModule: supervised fine-tuning on the assistant's turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from sctom.data.dialogues import Dialogue, DialogueBatch
from sctom.losses import nll_loss, token_logps, token_mean
from sctom.modules.backbone import Backbone
from sctom.modules.schedule import ScheduleName
from sctom.modules.scoring import Padded, Scorer
from sctom.modules.supervised import SupervisedModule
from sctom.rollout.attention import run_packed
from sctom.rollout.causal import causal_model, pad
from sctom.rollout.packing import Packed, pack
from sctom.rollout.sharing import shares_prefixes


class SFTModule(SupervisedModule):
    """Trains a language model to say what the assistant says in given dialogues.

        loss = -(sum over learned tokens of log p(token | all before it)) / learned tokens

    where both run over the whole optimiser step, so that each learned token of it weighs the same,
    however it is cut: `accumulate_grad_batches: 4` with a batch of 2 gives the gradient of one
    batch of 8, and so do two processes. (Dividing each batch by its own tokens and averaging, as an
    accumulating trainer does when left alone, weighs the tokens of short batches more.)

    The dialogues of a batch are one packed row without padding, in which no dialogue attends to
    another and each one's positions begin at 0, where that is exact for the model
    (docs/fast_path.md); other models are run on padded rows, with a notice. Loss and gradient are
    the same.

    Logs, of each optimiser step's last batch: train/loss (of that batch), train/entropy,
    train/tokens (learned tokens of the step), train/learning_rate; on validation data val/loss and
    val/token_accuracy, the share of learned tokens that were the most likely ones.

    Args:
        backbone: the model.
        optimizer: optimiser of the trained weights.
        schedule: "constant", "linear" or "cosine" over the optimiser steps of the run.
        warmup_ratio: share of the steps over which the learning rate rises.
        seed: first part of the address of dropout; null takes seed_everything.
        packing: false runs padded rows whatever the model, to compare.
    """

    formula = "mean of -log p over the learned tokens of the optimiser step"

    def __init__(
        self,
        backbone: Backbone,
        optimizer: OptimizerCallable,
        *,
        schedule: ScheduleName = "cosine",
        warmup_ratio: float = 0.03,
        seed: int | None = None,
        packing: bool = True,
    ) -> None:
        super().__init__(
            backbone, optimizer, schedule=schedule, warmup_ratio=warmup_ratio, seed=seed
        )
        self.packing = packing
        self.scorer = Scorer(temperature=1.0)

    def training_step(self, batch: DialogueBatch, batch_idx: int) -> Tensor:
        """This batch's share of its optimiser step's loss."""
        self.seed_dropout(batch_idx)
        rows = self._lay_out(batch)
        logps, entropy = learned_logps(self.scorer, self.model, rows)
        losses = nll_loss(logps, rows.mask)
        self.tell(
            loss=token_mean(losses.detach(), rows.mask),
            entropy=token_mean(entropy, rows.mask),
            tokens=batch.step_tokens,
        )
        share = token_mean(losses, rows.mask, tokens=batch.step_tokens)
        return share * self.shares()  # step_tokens has counted them all

    def validation_step(self, batch: DialogueBatch, batch_idx: int) -> None:
        """Loss and accuracy per learned token, over all of them."""
        rows = self._lay_out(batch)
        logits = learned_logits(self.model, rows)
        losses = nll_loss(token_logps(logits, rows.targets), rows.mask)
        hits = (logits.argmax(-1) == rows.targets).float()
        numbers = {
            "val/loss": token_mean(losses, rows.mask),
            "val/token_accuracy": token_mean(hits, rows.mask),
        }
        self.log_dict(numbers, batch_size=batch.step_tokens, sync_dist=True)

    def _lay_out(self, batch: DialogueBatch) -> LaidOut:
        longest = max(len(dialogue.ids) for dialogue in batch.dialogues)
        packed = self.packing and shares_prefixes(self.model, longest)
        return (pack_dialogues if packed else pad_dialogues)(batch.dialogues, self.device)


@dataclass(frozen=True)
class LaidOut:
    """Dialogues as tensors: one packed row with n learned tokens, or B padded rows."""

    layout: Packed | Padded
    """Its sources are the tokens that predict the learned ones."""
    targets: Tensor
    """[1, n] or [B, T] the learned tokens, 0 where masked."""
    mask: Tensor
    """[1, n] or [B, T] 1.0 on learned tokens."""


def pack_dialogues(dialogues: Sequence[Dialogue], device: torch.device) -> LaidOut:
    """One row of all dialogues; those that begin alike share it.

    Dialogues with the same tokens before the first learned one share these; all others what they
    have in common, such as a system message: that is also one call of attention for many of them.

    Args:
        dialogues: at least one.
        device: where the tensors go.

    >>> one, other = Dialogue([5, 6, 7, 8, 9], [0, 0, 1, 0, 1]), Dialogue([5, 6, 3], [0, 0, 1])
    >>> rows = pack_dialogues([one, other], torch.device("cpu"))
    >>> rows.layout.ids.tolist(), rows.layout.sources.tolist(), rows.targets.tolist()
    ([5, 6, 7, 8], [1, 3, 1], [[7, 9, 3]])
    """
    cuts = list(zip(dialogues, _prefixes(dialogues), strict=True))
    row = pack([(one.ids[:cut], one.ids[cut:]) for one, cut in cuts], device)
    learned = [bool(counts) for one, cut in cuts for counts in one.mask[cut:]]
    sources = row.sources[torch.tensor(learned, device=device)]
    targets = torch.tensor([[one.ids[i] for one in dialogues for i in one.learned]], device=device)
    return LaidOut(replace(row, sources=sources), targets, torch.ones(targets.shape, device=device))


def _prefixes(dialogues: Sequence[Dialogue]) -> list[int]:
    """Tokens at the beginning of each dialogue that are shared, all of them before it is learned.

    A dialogue that shares none has its own.
    """
    before = [tuple(one.ids[: one.start]) for one in dialogues]
    times = Counter(before)
    others = [ids for ids in before if times[ids] == 1]
    same = (len(set(tokens)) == 1 for tokens in zip(*others, strict=False))
    common = sum(takewhile(bool, same))
    return [common if common and times[ids] == 1 else len(ids) for ids in before]


def pad_dialogues(dialogues: Sequence[Dialogue], device: torch.device) -> LaidOut:
    """Each dialogue as a row of its own, padded on the right.

    Args:
        dialogues: at least one.
        device: where the tensors go.

    >>> one, other = Dialogue([5, 6, 7, 8, 9], [0, 0, 1, 0, 1]), Dialogue([5, 6, 3], [0, 0, 1])
    >>> rows = pad_dialogues([one, other], torch.device("cpu"))
    >>> rows.layout.sources.tolist(), rows.targets.tolist(), rows.mask.tolist()
    ([[1, 3], [1, 0]], [[7, 9], [3, 0]], [[1.0, 1.0], [1.0, 0.0]])
    """
    ids, attention, positions = pad([one.ids for one in dialogues], 0, side="right", device=device)
    learned = [[one.ids[i] for i in one.learned] for one in dialogues]
    targets, mask, _ = pad(learned, 0, side="right", device=device)
    before = [[i - 1 for i in one.learned] for one in dialogues]
    sources, _, _ = pad(before, 0, side="right", device=device)
    return LaidOut(Padded(ids, attention, positions, sources), targets, mask.float())


def learned_logps(scorer: Scorer, model: nn.Module, rows: LaidOut) -> tuple[Tensor, Tensor]:
    """Log-probabilities, and entropies without gradient, in the shape of the targets."""
    if isinstance(rows.layout, Padded):
        return scorer.padded(model, rows.layout, rows.targets)
    logps, entropy = scorer.packed(model, rows.layout, rows.targets[0])
    return logps[None], entropy[None]


def learned_logits(model: nn.Module, rows: LaidOut) -> Tensor:
    """Logits [..., V] that predict the learned tokens, in the shape of the targets."""
    row, causal = rows.layout, causal_model(model)
    if isinstance(row, Padded):
        logits: Tensor = causal(**row.inputs(), use_cache=False).logits
        return logits.gather(1, row.sources.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
    logits = run_packed(causal, row.ids, row.positions, row, logits_to_keep=row.sources).logits
    return logits

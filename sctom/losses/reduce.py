"""From losses per token to one number, divided by counts of the whole optimiser step.

A micro-batch passes the counts of the step it belongs to; its result is then its share of the
step's loss, and the shares add up to what one large batch would give. DDP averages gradients over
ranks, so with counts over all ranks the loss is multiplied by the number of ranks. Without counts,
those of the batch at hand are used.

Rows that are masked throughout count as completions (as in TRL; verl and OpenRLHF leave them out),
so hiding truncated completions makes the remaining ones weigh no more.
"""

from __future__ import annotations

from torch import Tensor

from sctom.losses._shared import kept_tokens, row_mean, widen, zero_outside
from sctom.shapes import check_shapes


def _checked(losses: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    check_shapes(losses=(losses, "B T"), mask=(mask, "B T"))
    return widen(losses), kept_tokens(mask, losses)


def _divisor(name: str, count: float) -> float:
    """The count to divide by: 1 instead of 0, because then nothing is left in the sum."""
    if not count >= 0:
        raise ValueError(
            f"{name} must be at least 0 but is {count}; pass the count of the whole optimiser step"
        )
    return count or 1.0


def token_mean(losses: Tensor, mask: Tensor, *, tokens: float | None = None) -> Tensor:
    """Mean over tokens: every token weighs the same, so long completions weigh more.

        sum of unmasked losses / tokens

    DAPO (arXiv 2503.14476) eq. 8; MiniMax-M1 (2506.13585) eq. 4. With `tokens=None` it is TRL's
    "bnpo", which depends on the size of the micro-batch.

    Args:
        losses: [B, T] losses per token.
        mask: [B, T] 1 where the token counts.
        tokens: unmasked tokens of the optimiser step over all micro-batches and ranks; None: those
            of this batch.

    Returns:
        A scalar; 0, still differentiable, if everything is masked.

    Raises:
        ValueError: shapes disagree, or a negative count.

    >>> import torch
    >>> losses = torch.tensor([[1.0, 2.0], [6.0, 9.0]])
    >>> mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    >>> token_mean(losses, mask).item(), token_mean(losses, mask, tokens=6).item()
    (3.0, 1.5)
    """
    losses, keep = _checked(losses, mask)
    total = zero_outside(losses, keep).sum()
    if tokens is None:
        return total / keep.sum().clamp(min=1)
    return total / _divisor("tokens", tokens)


def sequence_mean(losses: Tensor, mask: Tensor, *, sequences: float | None = None) -> Tensor:
    """Mean over completions of the mean over their tokens: every completion weighs the same.

        sum over rows of (sum of unmasked losses / unmasked tokens of the row) / sequences

    GRPO (arXiv 2402.03300) eq. 3. A row masked throughout contributes 0 and still counts in B.

    Args:
        losses: [B, T] losses per token.
        mask: [B, T] 1 where the token counts.
        sequences: completions of the optimiser step over all micro-batches and ranks; None: the
            rows of this batch.

    Returns:
        A scalar; 0, still differentiable, if everything is masked.

    Raises:
        ValueError: shapes disagree, or a negative count.

    >>> import torch
    >>> losses = torch.tensor([[1.0, 2.0], [6.0, 9.0]])
    >>> mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    >>> sequence_mean(losses, mask).item()  # (1.5 + 6) / 2
    3.75
    """
    losses, keep = _checked(losses, mask)
    rows = losses.shape[0] if sequences is None else sequences
    return row_mean(losses, keep).sum() / _divisor("sequences", rows)


def fixed_length_mean(
    losses: Tensor, mask: Tensor, *, length: int, sequences: float | None = None
) -> Tensor:
    """Sum over tokens by a constant length, mean over completions: no weight depends on a length.

        sum of unmasked losses / (length x sequences)

    Dr.GRPO (arXiv 2503.20783). The paper's formula has no `length`; its code divides by the largest
    number of new tokens, as here and in TRL. verl's `seq-mean-token-sum-norm` does not divide by
    the number of completions.

    Args:
        losses: [B, T] losses per token.
        mask: [B, T] 1 where the token counts.
        length: largest number of new tokens a completion may have, the same for every batch. Not
            the padded width.
        sequences: completions of the optimiser step over all micro-batches and ranks; None: the
            rows of this batch.

    Returns:
        A scalar; 0, still differentiable, if everything is masked.

    Raises:
        ValueError: shapes disagree, a negative count, or a length below 1.

    >>> import torch
    >>> losses = torch.tensor([[1.0, 2.0], [6.0, 9.0]])
    >>> mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    >>> fixed_length_mean(losses, mask, length=3).item()  # (1 + 2 + 6) / (3 x 2)
    1.5
    """
    if not length >= 1:
        raise ValueError(
            f"length must be at least 1 but is {length}; pass the largest number of new tokens"
        )
    return sequence_sum(losses, mask, sequences=sequences) / length


def sequence_sum(losses: Tensor, mask: Tensor, *, sequences: float | None = None) -> Tensor:
    """Mean over completions of the sum over their tokens: each is one action, however long.

        sum of unmasked losses / sequences

    RLME (arXiv 2601.21268).

    Args:
        losses: [B, T] losses per token.
        mask: [B, T] 1 where the token counts.
        sequences: completions of the optimiser step over all micro-batches and ranks; None: the
            rows of this batch.

    Returns:
        A scalar; 0, still differentiable, if everything is masked.

    Raises:
        ValueError: shapes disagree, or a negative count.

    >>> import torch
    >>> losses = torch.tensor([[1.0, 2.0], [6.0, 9.0]])
    >>> mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    >>> sequence_sum(losses, mask).item()  # (3 + 6) / 2
    4.5
    """
    losses, keep = _checked(losses, mask)
    rows = losses.shape[0] if sequences is None else sequences
    return zero_outside(losses, keep).sum() / _divisor("sequences", rows)

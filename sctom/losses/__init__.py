"""Losses as pure functions of tensors, and the one place that reduces them.

Axes: P prompts, G completions per prompt, B = P * G rows, T completion tokens, V vocabulary, N
preference pairs. Losses are minimised, masks are 1 where a token counts, and everything is computed
in float32 or wider.
"""

from sctom.losses.advantages import (
    gae_advantages,
    group_advantages,
    leave_one_out_advantages,
    whiten,
)
from sctom.losses.correction import off_policy_sequence_mask, rollout_weights
from sctom.losses.kl import kl_k1, kl_k2, kl_k3, kl_penalty
from sctom.losses.likelihood import clipped_value_loss, linear_token_logps, nll_loss, token_logps
from sctom.losses.policy import cispo_loss, grpo_loss, reinforce_loss, sapo_loss
from sctom.losses.preference import (
    bradley_terry_loss,
    combine_safety_helpfulness,
    preference_margins,
    score_centering,
    tie_loss,
)
from sctom.losses.reduce import fixed_length_mean, sequence_mean, sequence_sum, token_mean
from sctom.losses.stats import (
    approx_kl,
    clamped_fraction,
    clip_fraction,
    effective_sample_size,
    weight_clip_fraction,
)

__all__ = [
    "approx_kl",
    "bradley_terry_loss",
    "cispo_loss",
    "clamped_fraction",
    "clip_fraction",
    "clipped_value_loss",
    "combine_safety_helpfulness",
    "effective_sample_size",
    "fixed_length_mean",
    "gae_advantages",
    "group_advantages",
    "grpo_loss",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_penalty",
    "leave_one_out_advantages",
    "linear_token_logps",
    "nll_loss",
    "off_policy_sequence_mask",
    "preference_margins",
    "reinforce_loss",
    "rollout_weights",
    "sapo_loss",
    "score_centering",
    "sequence_mean",
    "sequence_sum",
    "tie_loss",
    "token_logps",
    "token_mean",
    "weight_clip_fraction",
    "whiten",
]

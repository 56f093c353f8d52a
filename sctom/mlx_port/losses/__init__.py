"""`sctom.losses` on MLX: the same modules, functions, arguments and meaning.

`objective.bind(sctom.mlx_port.losses)` gives an objective these functions. Each docstring says
what differs from its torch twin, where the arguments are described. Derivatives of second order are
not supported by `token_logps` and `linear_token_logps`, and not tested for the others.
"""

from sctom.mlx_port.losses.advantages import (
    gae_advantages,
    group_advantages,
    leave_one_out_advantages,
    whiten,
)
from sctom.mlx_port.losses.correction import off_policy_sequence_mask, rollout_weights
from sctom.mlx_port.losses.kl import kl_k1, kl_k2, kl_k3, kl_penalty
from sctom.mlx_port.losses.likelihood import (
    clipped_value_loss,
    linear_token_logps,
    nll_loss,
    token_logps,
)
from sctom.mlx_port.losses.policy import cispo_loss, grpo_loss, reinforce_loss, sapo_loss
from sctom.mlx_port.losses.preference import (
    bradley_terry_loss,
    combine_safety_helpfulness,
    preference_margins,
    score_centering,
    tie_loss,
)
from sctom.mlx_port.losses.reduce import fixed_length_mean, sequence_mean, sequence_sum, token_mean
from sctom.mlx_port.losses.stats import (
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

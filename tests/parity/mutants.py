"""Mistakes to plant in the MLX losses; the parity cases of the named function must notice each.

A mistake is (where, old, new): in the body of the definition `where`, docstring aside, the text
`old` must occur exactly once and becomes `new`. It is tried on the cases of the function it is
listed under, so a mistake in a shared helper is listed under every function that must notice it.
"""

from __future__ import annotations

Mutant = tuple[str, str, str]

MASK_IGNORED = (
    "_shared.check_policy_inputs",
    "kept_tokens(mask, logps)",
    "kept_tokens(None, logps)",
)
OLD_DIFFERENTIATED = ("_shared.bounded_difference", "mx.stop_gradient(other_logps)", "other_logps")
NOT_CLAMPED = (
    "_shared.bounded_difference",
    "clamp(difference, -LOG_LIMIT, LOG_LIMIT)",
    "difference",
)
CLAMPED_AT_10 = (
    "_shared.bounded_difference",
    "-LOG_LIMIT, LOG_LIMIT",
    "-LOG_LIMIT / 2, LOG_LIMIT / 2",
)
CLAMP_DROPS_EDGE = ("_shared.bounded_difference", "return clamp(", "return mx.clip(")
NOT_WIDENED = ("_shared.widen", "values.astype(mx.float32)", "values")
A_DIFFERENTIATED = ("_shared.spread_advantages", "mx.stop_gradient(advantages)", "advantages")
SUM_FOR_MEAN = (
    "_shared.level_log_ratio",
    "row_mean(tokens, keep)[:, None]",
    "tokens.sum(axis=1, keepdims=True)",
)
SUM_NOT_CLAMPED = (
    "_shared.level_log_ratio",
    "clamp(tokens.sum(axis=1, keepdims=True), -LOG_LIMIT, LOG_LIMIT)",
    "tokens.sum(axis=1, keepdims=True)",
)
MEAN_OVER_PADDING = ("_shared.row_mean", "mx.maximum(keep.sum(axis=1), 1)", "values.shape[1]")
KL_MASK_IGNORED = ("kl._differences", "kept_tokens(mask, logps)", "kept_tokens(None, logps)")
OTHER_STD = ("advantages._divisor", 'std == "unbiased"', 'std == "biased"')
NO_DIVISION_GUARD = ("reduce._divisor", "count or 1.0", "count")
REWARD_DIFFERENTIATED = ("advantages._checked_rewards", "mx.stop_gradient(rewards)", "rewards")
NOT_SCALED = ("advantages._in_units", "mx.where(unit == 0, 1, unit)", "mx.ones_like(unit)")
UNIT_OF_ALL = ("advantages._in_units", "max(axis=axis, keepdims=True)", "max()")
MEAN_KEPT = ("advantages._centred", "values - mean", "values")

MUTANTS: dict[str, list[Mutant]] = {
    "grpo_loss": [
        ("policy.grpo_loss", "-minimum(", "minimum("),
        ("policy.grpo_loss", "-minimum(", "-mx.maximum("),
        ("policy.grpo_loss", "1 - clip_low, 1 + clip_high", "1 - clip_high, 1 + clip_low"),
        ("policy.grpo_loss", "clamp(ratio, 1 - clip", "mx.clip(ratio, 1 - clip"),
        ("policy.grpo_loss", "clamp(ratio, high=ratio_max)", "ratio"),
        ("policy.grpo_loss", "clamp(ratio, high=ratio_max)", "mx.minimum(ratio, ratio_max)"),
        MASK_IGNORED,
        OLD_DIFFERENTIATED,
        A_DIFFERENTIATED,
        NOT_CLAMPED,
        CLAMPED_AT_10,
        SUM_FOR_MEAN,
        SUM_NOT_CLAMPED,
        MEAN_OVER_PADDING,
        CLAMP_DROPS_EDGE,
        NOT_WIDENED,
    ],
    "cispo_loss": [
        ("policy.cispo_loss", "-weight * A", "weight * A"),
        ("policy.cispo_loss", "mx.stop_gradient(logps)", "logps"),
        ("policy.cispo_loss", "weight_min, weight_max)\n", "weight_min, 1 + weight_max)\n"),
        ("policy.cispo_loss", "weight_min, weight_max)\n", "0.0, weight_max)\n"),
        MASK_IGNORED,
        A_DIFFERENTIATED,
        SUM_FOR_MEAN,
        MEAN_OVER_PADDING,
    ],
    "sapo_loss": [
        ("policy.sapo_loss", "A > 0", "A < 0"),
        ("policy.sapo_loss", "-(4 / tau)", "(4 / tau)"),
        ("policy.sapo_loss", "-(4 / tau)", "-4"),
        ("policy.sapo_loss", "(ratio - 1)", "ratio"),
        MASK_IGNORED,
        OLD_DIFFERENTIATED,
        NOT_CLAMPED,
    ],
    "reinforce_loss": [
        ("policy.reinforce_loss", "-A *", "A *"),
        ("policy.reinforce_loss", "kept_tokens(mask, logps)", "kept_tokens(None, logps)"),
        ("policy.reinforce_loss", "-A *", "-mx.abs(A) *"),
        A_DIFFERENTIATED,
    ],
    "kl_k1": [
        ("kl.kl_k1", "return _diff", "return -_diff"),
        KL_MASK_IGNORED,
        OLD_DIFFERENTIATED,
        NOT_CLAMPED,
        CLAMP_DROPS_EDGE,
        NOT_WIDENED,
    ],
    "kl_k2": [
        ("kl.kl_k2", " / 2", ""),
        ("kl.kl_k2", "mx.square", "mx.abs"),
        KL_MASK_IGNORED,
        OLD_DIFFERENTIATED,
        CLAMPED_AT_10,
        CLAMP_DROPS_EDGE,
    ],
    "kl_k3": [
        ("kl.kl_k3", "d = -_diff", "d = _diff"),
        ("kl.kl_k3", "mx.expm1(d) - d", "mx.expm1(d)"),
        ("kl.kl_k3", "mx.expm1(d) - d", "mx.exp(d) - d"),
        KL_MASK_IGNORED,
        OLD_DIFFERENTIATED,
        NOT_CLAMPED,
        CLAMP_DROPS_EDGE,
    ],
    "kl_penalty": [
        ("kl.kl_penalty", "mx.where(beyond, mx.stop_gradient(weight), weight)", "weight"),
        ("kl.kl_penalty", "return weight * penalty", "return penalty"),
        ("kl.kl_penalty", 'estimator == "k2"', 'estimator == "k1"'),
        ("kl.kl_penalty", "if not weighted", "if weighted"),
        ("kl.kl_penalty", "kept_tokens(mask, logps)", "kept_tokens(None, logps)"),
        ("kl.kl_penalty", "weight * penalty", "mx.stop_gradient(weight) * penalty"),
        KL_MASK_IGNORED,
        OLD_DIFFERENTIATED,
        NOT_WIDENED,
        ("kl.kl_penalty", "logps = widen(logps)", "pass"),
    ],
    "rollout_weights": [
        ("correction.rollout_weights", 'endswith("truncate")', 'endswith("mask")'),
        ("correction.rollout_weights", "mx.stop_gradient(old_logps)", "old_logps"),
        ("correction.rollout_weights", 'else "product"', 'else "geometric"'),
        ("correction.rollout_weights", "clamp(weights, lowest, ", "clamp(weights, 0.0, "),
        ("correction.rollout_weights", "(weights < lowest) | ", ""),
        ("correction.rollout_weights", "return zero_outside(weights, keep)", "return weights"),
        OLD_DIFFERENTIATED,
    ],
    "off_policy_sequence_mask": [
        (
            "correction.off_policy_sequence_mask",
            "widen(old_logps) - widen(logps)",
            "widen(logps) - widen(old_logps)",
        ),
        ("correction.off_policy_sequence_mask", "drop > delta", "drop >= delta"),
        ("correction.off_policy_sequence_mask", "keep) < 0", "keep) <= 0"),
        ("correction.off_policy_sequence_mask", "1 - (bad", "0 + (bad"),
        ("correction.off_policy_sequence_mask", "kept_tokens(mask,", "kept_tokens(None,"),
        MEAN_OVER_PADDING,
    ],
    "clip_fraction": [
        ("stats.clip_fraction", "ratio < 1 - clip_low", "ratio < 1 - clip_high"),
        ("stats.clip_fraction", "ratio > 1 + clip_high", "ratio >= 1 + clip_high"),
        ("stats.clip_fraction", "ratio < 1 - clip_low", "ratio <= 1 - clip_low"),
        ("stats.clip_fraction", "A != 0", "A > 0"),
        ("stats.clip_fraction", "ratio > ratio_max", "ratio >= ratio_max"),
        ("stats._share", "keep.any(axis=1).sum()", "keep.shape[0]"),
        ("stats._share", "mx.maximum(keep.sum(), 1)", "keep.size"),
        MASK_IGNORED,
    ],
    "weight_clip_fraction": [
        ("stats.weight_clip_fraction", " | (weight < weight_min)", ""),
        ("stats.weight_clip_fraction", "weight > weight_max", "weight >= weight_max"),
        ("stats.weight_clip_fraction", "weight < weight_min", "weight <= weight_min"),
        ("stats._share", "mx.maximum(keep.sum(), 1)", "keep.size"),
        SUM_FOR_MEAN,
        MASK_IGNORED,
    ],
    "clamped_fraction": [
        ("stats.clamped_fraction", "> LOG_LIMIT", ">= LOG_LIMIT"),
        (
            "stats.clamped_fraction",
            "mx.abs(widen(logps) - widen(old_logps))",
            "widen(logps) - widen(old_logps)",
        ),
        ("stats._share", "zero_outside(counted, keep).sum()", "counted.sum()"),
        MASK_IGNORED,
    ],
    "approx_kl": [
        ("stats.approx_kl", "- log_ratio", "+ log_ratio"),
        ("stats.approx_kl", "mx.maximum(keep.sum(), 1)", "keep.size"),
        ("stats.approx_kl", "mx.stop_gradient(logps)", "logps"),
        ("stats.approx_kl", "mx.expm1(", "mx.exp("),
        NOT_CLAMPED,
    ],
    "effective_sample_size": [
        ("stats.effective_sample_size", "counted.sum() *", "counted.size *"),
        ("stats.effective_sample_size", "mx.square(weight.sum())", "weight.sum()"),
        (
            "stats.effective_sample_size",
            "zero_outside(mx.exp(log_weight), counted)",
            "mx.exp(log_weight)",
        ),
        ("stats.effective_sample_size", "mx.stop_gradient(logps)", "logps"),
        SUM_FOR_MEAN,
        SUM_NOT_CLAMPED,
    ],
    "group_advantages": [
        OTHER_STD,
        (
            "advantages.group_advantages",
            "std, axis=1) + eps / unit",
            "std, axis=1) + eps",
        ),
        (
            "advantages.group_advantages",
            "std, axis=None) + eps / unit",
            "std, axis=None) + eps",
        ),
        ("advantages.group_advantages", "<= tolerance", "< tolerance"),
        (
            "advantages.group_advantages",
            "_centred(known, valid, axis=1)",
            "_centred(known, valid, axis=None)",
        ),
        (
            "advantages.group_advantages",
            "_centred(known, valid, axis=None)",
            "_centred(known, valid, axis=1)",
        ),
        (
            "advantages.group_advantages",
            "centred = _centred(known, valid, axis=1)",
            "centred = -_centred(known, valid, axis=1)",
        ),
        ("advantages._checked_rewards", "~mx.isnan(wide)", "mx.isfinite(wide[:1])"),
        REWARD_DIFFERENTIATED,
        MEAN_KEPT,
        NOT_WIDENED,
        NOT_SCALED,
        UNIT_OF_ALL,
    ],
    "leave_one_out_advantages": [
        ("advantages.leave_one_out_advantages", "mx.maximum(count - 1, 1)", "mx.maximum(count, 1)"),
        ("advantages.leave_one_out_advantages", "_centred(known", "-_centred(known"),
        ("advantages.leave_one_out_advantages", "axis=1) * (count", "axis=None) * (count"),
        REWARD_DIFFERENTIATED,
        MEAN_KEPT,
    ],
    "gae_advantages": [
        ("advantages.gae_advantages", "gamma * lam", "gamma"),
        ("advantages.gae_advantages", " - V[:, t]", " + V[:, t]"),
        ("advantages.gae_advantages", "mx.where(keep[:, t], V[:, t], next_value)", "V[:, t]"),
        (
            "advantages.gae_advantages",
            "mx.where(keep[:, t], advantage, next_advantage)",
            "advantage",
        ),
        (
            "advantages.gae_advantages",
            "return advantages, advantages + V",
            "return advantages, advantages",
        ),
        ("advantages.gae_advantages", "mx.stop_gradient(values)", "values"),
        ("advantages.gae_advantages", "kept_tokens(mask, values)", "kept_tokens(None, values)"),
    ],
    "whiten": [
        ("advantages.whiten", "variance + eps / unit / unit", "variance + eps / unit"),
        ("advantages.whiten", "_centred(widen(values)", "_centred(mx.stop_gradient(widen(values))"),
        ("advantages.whiten", "_divisor(keep.sum(), std)", "_divisor(keep.size, std)"),
        ("advantages.whiten", "kept_tokens(mask, values)", "kept_tokens(None, values)"),
        OTHER_STD,
        MEAN_KEPT,
        NOT_WIDENED,
        NOT_SCALED,
        ("advantages.whiten", "math.sqrt(eps)", "0.0"),
    ],
    "bradley_terry_loss": [
        ("preference.bradley_terry_loss", "- _margin_like", "+ _margin_like"),
        ("preference.bradley_terry_loss", "loss = -_log", "loss = _log"),
        ("preference.bradley_terry_loss", "_log_sigmoid(-z)", "_log_sigmoid(z)"),
        ("preference.bradley_terry_loss", "(1 - label_smoothing) * loss", "loss"),
        ("preference._margin_like", "mx.stop_gradient(margin)", "margin"),
        ("preference._log_sigmoid", "-mx.logaddexp(-z, 0.0)", "mx.log(mx.sigmoid(z))"),
        NOT_WIDENED,
    ],
    "tie_loss": [
        ("preference.tie_loss", "(difference - math.log(theta))", "(difference + math.log(theta))"),
        (
            "preference.tie_loss",
            "(-difference - math.log(theta))",
            "(difference - math.log(theta))",
        ),
        ("preference.tie_loss", "(theta - 1) * (theta + 1)", "theta"),
        ("preference.tie_loss", "tie, first_wins)", "first_wins, tie)"),
        ("preference._log_sigmoid", "-mx.logaddexp(-z, 0.0)", "mx.log(mx.sigmoid(z))"),
    ],
    "preference_margins": [
        ("preference.preference_margins", 'scale == "small"', 'scale == "large"'),
        ("preference.preference_margins", "return wide / _TOP", "return -wide / _TOP"),
        ("preference.preference_margins", "wide / _TOP_GRADE", "wide / (_TOP_GRADE + 1)"),
    ],
    "score_centering": [
        ("preference.score_centering", "(chosen) + widen", "(chosen) - widen"),
        ("preference.score_centering", "mx.square", "mx.abs"),
        ("preference.score_centering", "widen(rejected)", "mx.stop_gradient(widen(rejected))"),
    ],
    "combine_safety_helpfulness": [
        ("preference.combine_safety_helpfulness", ") < threshold", ") > threshold"),
        ("preference.combine_safety_helpfulness", "mx.sigmoid(wide)", "wide"),
        ("preference.combine_safety_helpfulness", "!= 0) |", "!= 0) &"),
        ("preference.combine_safety_helpfulness", "return whiten(", "return ("),
        (
            "preference.combine_safety_helpfulness",
            "by_safety, wide,",
            "by_safety, mx.sigmoid(wide),",
        ),
    ],
    "token_mean": [
        ("reduce.token_mean", "mx.maximum(keep.sum(), 1)", "keep.size"),
        ("reduce.token_mean", "zero_outside(losses, keep).sum()", "losses.sum()"),
        ("reduce.token_mean", '_divisor("tokens", tokens)', "mx.maximum(keep.sum(), 1)"),
        NO_DIVISION_GUARD,
        NOT_WIDENED,
    ],
    "sequence_mean": [
        MEAN_OVER_PADDING,
        ("reduce.sequence_mean", "_rows(keep) if", "mx.maximum(keep.any(axis=1).sum(), 1) if"),
        ("reduce.sequence_mean", "if sequences is None else sequences", ""),
        ("reduce._checked", "kept_tokens(mask, losses)", "kept_tokens(None, losses)"),
        NO_DIVISION_GUARD,
    ],
    "sequence_sum": [
        ("reduce.sequence_sum", "zero_outside(losses, keep).sum()", "losses.sum()"),
        ("reduce.sequence_sum", "zero_outside(losses, keep).sum()", "row_mean(losses, keep).sum()"),
        ("reduce.sequence_sum", "_rows(keep) if", "losses.shape[1] if"),
        NO_DIVISION_GUARD,
    ],
    "fixed_length_mean": [
        ("reduce.fixed_length_mean", " / length", " / losses.shape[1]"),
        ("reduce.fixed_length_mean", " / length", ""),
        ("reduce.fixed_length_mean", "sequences=sequences", "sequences=None"),
        ("reduce._checked", "kept_tokens(mask, losses)", "kept_tokens(None, losses)"),
    ],
    "token_logps": [
        ("likelihood._token_scorer", "widen(logits) / temperature", "widen(logits)"),
        ("likelihood._token_scorer", " - z.max(axis=-1, keepdims=True)", ""),
        ("likelihood._token_scorer", "picked - mx.log", "picked + mx.log"),
        ("likelihood._token_scorer", " - p\n", " + p\n"),
        ("likelihood._token_scorer", "upstream[row, rows] / temperature", "upstream[row, rows]"),
        ("likelihood._weighted", "upstream[:, None] == 0", "False"),
        ("likelihood._checked_ids", "ids.astype(mx.int64)", "ids"),
        NOT_WIDENED,
    ],
    "linear_token_logps": [
        ("likelihood._exponentials", "picked - mx.log(total)", "picked + mx.log(total)"),
        ("likelihood._linear_scorer", "part.astype(dtype) / temperature", "part.astype(dtype)"),
        ("likelihood._linear_scorer", "(derivative / temperature)", "(derivative)"),
        ("likelihood._linear_scorer", "derivative = weight", "derivative = -weight"),
        ("likelihood._linear_scorer", "sum(axis=1) - logps", "sum(axis=1) + logps"),
        ("likelihood._linear_scorer", "/ total", "/ total.sum()"),
        ("likelihood._weighted", "upstream[:, None] == 0", "False"),
        ("likelihood._weight_gradient", "alpha=-1.0", "alpha=1.0"),
        ("likelihood._weight_gradient", ".at[ids].add(", ".at[ids].maximum("),
        (
            "likelihood._weight_gradient",
            "hidden.astype(dtype) / temperature",
            "hidden.astype(dtype)",
        ),
        ("likelihood._weight_gradient", "mx.where(pull == 0, 0.0, ", "mx.where(False, 0.0, "),
        ("likelihood.linear_token_logps", "math.nan, logps.reshape", "math.nan, -logps.reshape"),
    ],
    "nll_loss": [
        ("likelihood.nll_loss", "-widen(logps)", "widen(logps)"),
        ("likelihood.nll_loss", "kept_tokens(mask, logps)", "kept_tokens(None, logps)"),
        ("likelihood.nll_loss", "-widen(logps)", "-mx.stop_gradient(widen(logps))"),
        NOT_WIDENED,
    ],
    "clipped_value_loss": [
        ("likelihood.clipped_value_loss", "0.5 * maximum(", "0.5 * mx.minimum("),
        ("likelihood.clipped_value_loss", "0.5 * maximum(", "maximum("),
        ("likelihood.clipped_value_loss", "V_old - clip, V_old + clip", "R - clip, R + clip"),
        ("likelihood.clipped_value_loss", "clamp(V, ", "mx.clip(V, "),
        ("likelihood.clipped_value_loss", "mx.stop_gradient(old_values)", "old_values"),
        ("likelihood.clipped_value_loss", "mx.stop_gradient(returns)", "returns"),
        ("likelihood.clipped_value_loss", "kept_tokens(mask, values)", "kept_tokens(None, values)"),
        ("likelihood.clipped_value_loss", "0.5 * maximum(", "0.5 * mx.maximum("),
        ("_shared.clamp", "values, math.nan)", "values, values)"),
    ],
}

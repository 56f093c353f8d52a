"""Calls that both frameworks must refuse, with the same words. Numpy only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from parity.case import F32, Case, policy_arguments

NAN, INF = float("nan"), float("inf")
THREE = np.array([0.5, -0.25, 2.0], dtype=F32)
ROWS = np.ones((2, 3), dtype=F32)
LOGITS = np.zeros((2, 3, 5), dtype=F32)
IDS = np.array([[0, 1, 2], [3, 4, 0]], dtype=np.int32)

POLICY = policy_arguments(1, 4, 7)
KL = {"logps": ROWS, "ref_logps": ROWS, "mask": ROWS}
PAIR = {"chosen": THREE, "rejected": THREE}
SCORES = {"helpfulness": THREE, "safety": THREE, "is_safety": np.zeros(3, dtype=bool)}
HEAD = {"hidden": LOGITS, "weight": np.zeros((4, 5), F32), "ids": np.minimum(IDS, 3)}

GOOD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo_loss": (POLICY, {}),
    "cispo_loss": (POLICY, {}),
    "sapo_loss": (POLICY, {}),
    "reinforce_loss": ({k: POLICY[k] for k in ("logps", "advantages", "mask")}, {}),
    "kl_k1": (KL, {}),
    "kl_k2": (KL, {}),
    "kl_k3": (KL, {}),
    "kl_penalty": ({**KL, "old_logps": ROWS}, {}),
    "rollout_weights": ({"old_logps": ROWS, "rollout_logps": ROWS, "mask": ROWS}, {}),
    "off_policy_sequence_mask": (POLICY, {"delta": 0.5}),
    "clip_fraction": (POLICY, {}),
    "weight_clip_fraction": ({k: POLICY[k] for k in ("logps", "old_logps", "mask")}, {}),
    "clamped_fraction": ({k: POLICY[k] for k in ("logps", "old_logps", "mask")}, {}),
    "approx_kl": ({k: POLICY[k] for k in ("logps", "old_logps", "mask")}, {}),
    "effective_sample_size": ({k: POLICY[k] for k in ("logps", "old_logps", "mask")}, {}),
    "group_advantages": ({"rewards": ROWS}, {}),
    "leave_one_out_advantages": ({"rewards": ROWS}, {}),
    "gae_advantages": ({"rewards": ROWS, "values": ROWS, "mask": ROWS}, {}),
    "whiten": ({"values": ROWS, "mask": ROWS}, {}),
    "bradley_terry_loss": (PAIR, {}),
    "tie_loss": ({"first": THREE, "second": THREE, "tied": THREE > 0}, {"theta": 2.0}),
    "preference_margins": ({"grades": np.array([3, 1, 0], dtype=np.int32)}, {}),
    "score_centering": (PAIR, {}),
    "combine_safety_helpfulness": (SCORES, {}),
    "token_logps": ({"logits": LOGITS, "ids": IDS}, {}),
    "linear_token_logps": (HEAD, {}),
    "nll_loss": ({"logps": ROWS, "mask": ROWS}, {}),
    "clipped_value_loss": (
        {"values": ROWS, "old_values": ROWS, "returns": ROWS, "mask": ROWS},
        {},
    ),
    "token_mean": ({"losses": ROWS, "mask": ROWS}, {}),
    "sequence_mean": ({"losses": ROWS, "mask": ROWS}, {}),
    "sequence_sum": ({"losses": ROWS, "mask": ROWS}, {}),
    "fixed_length_mean": ({"losses": ROWS, "mask": ROWS}, {"length": 4}),
}
"""A call of every function that is accepted."""

LEVEL = {"level": "tokens"}
TEMPERATURES = [{"temperature": t} for t in (0.0, -1.0, INF, NAN)]
COUNTS = [{"sequences": c} for c in (-1, NAN)]

BAD_SETTINGS: dict[str, list[dict[str, Any]]] = {
    "grpo_loss": [LEVEL, {"clip_low": -0.1}, {"clip_high": NAN}, {"ratio_max": 0.0}],
    "cispo_loss": [
        LEVEL,
        {"weight_max": 0.9},
        {"weight_min": -0.1},
        {"weight_min": 3.0, "weight_max": 2.0},
    ],
    "sapo_loss": [{"temperature_pos": 0.0}, {"temperature_neg": -1.0}, {"temperature_pos": 1e300}],
    "kl_penalty": [{"estimator": "k4"}],
    "rollout_weights": [
        {"mode": "token"},
        {"weight_min": -1.0},
        {"weight_min": 4.0},
        {"weight_max": -1.0},
    ],
    "clip_fraction": [LEVEL],
    "weight_clip_fraction": [LEVEL],
    "effective_sample_size": [LEVEL],
    "group_advantages": [
        {"scale": "groups"},
        {"std": "ddof"},
        *({key: bad} for key in ("eps", "tolerance") for bad in (-1e-4, NAN, INF)),
    ],
    "whiten": [{"std": "unbias"}, {"eps": -1e-8}, {"eps": NAN}],
    "bradley_terry_loss": [{"label_smoothing": 0.5}, {"label_smoothing": -0.1}],
    "tie_loss": [{"theta": 1.0}, {"theta": INF}],
    "preference_margins": [{"scale": "medium"}],
    "combine_safety_helpfulness": [{"threshold": -0.1}, {"threshold": 1.5}],
    "token_logps": TEMPERATURES,
    "linear_token_logps": [*TEMPERATURES, {"tile": 0}],
    "clipped_value_loss": [{"clip": 0.0}, {"clip": NAN}],
    "token_mean": [{"tokens": -1}],
    "sequence_mean": COUNTS,
    "sequence_sum": COUNTS,
    "fixed_length_mean": [*COUNTS, {"length": 0}, {"length": -2}],
}

BAD_ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "group_advantages": [{"rewards": np.array([[0.0, INF], [-INF, 1.0]], dtype=F32)}],
    "leave_one_out_advantages": [{"rewards": np.array([[0.0, 1.0], [-INF, NAN]], dtype=F32)}],
    "bradley_terry_loss": [{"margin": np.zeros(4, F32)}, {"margin": np.zeros((3, 1), F32)}],
    "preference_margins": [
        {"grades": np.array([0, 4, -1], dtype=np.int32)},
        {"grades": np.array([0.5, 1.0], dtype=F32)},
        {"grades": np.array([1.0, NAN], dtype=F32)},
    ],
    "combine_safety_helpfulness": [
        {"safety": np.array([0.5, NAN, NAN], dtype=F32)},
        {"helpfulness": np.array([0.5, 0.25, INF], dtype=F32)},
    ],
    "token_logps": [
        {"ids": IDS.astype(F32)},
        {"ids": np.where(IDS == 3, -100, IDS)},
        {"ids": IDS + 1},
        {"ids": (IDS + 1).astype(np.uint8)},
        {"ids": (IDS + 1).astype(np.uint64) << np.uint64(62)},
    ],
    "linear_token_logps": [
        {"ids": HEAD["ids"].astype(F32)},
        {"ids": IDS},
        {"hidden": np.zeros((2, 3, 4), F32)},
        {"hidden": np.zeros((6, 5), F32)},
    ],
}


def accepted_call(name: str) -> Case:
    """A call of the function that must pass, so that what a bad call changes is what is refused."""
    return Case("good", *GOOD[name])


def bad_calls(name: str) -> Iterator[Case]:
    """Bad settings and values, and for every array a wrong number of axes and a wrong size."""
    good = accepted_call(name)
    for settings in BAD_SETTINGS.get(name, []):
        yield good.set(**settings)
    for i, arguments in enumerate(BAD_ARGUMENTS.get(name, [])):
        yield good.with_(f"bad value {i}", **arguments)
    arrays = {k: v for k, v in good.arguments.items() if isinstance(v, np.ndarray)}
    for key, value in arrays.items():
        if len(arrays) > 1:  # a size is only wrong beside another
            yield good.with_(f"{key} too short", **{key: value[..., :-1]})
        if name != "whiten" or key == "mask":  # whiten takes any number of axes
            yield good.with_(f"{key} with an axis more", **{key: value[None]})

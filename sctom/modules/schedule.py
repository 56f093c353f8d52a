"""The learning rate as a function of the update's number.

So there is no scheduler state to restore.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sctom.modules.policy import PolicyModule

ScheduleName = Literal["constant", "linear", "cosine"]


def learning_rate_factor(
    name: ScheduleName, update: int, *, total: int, warmup_ratio: float = 0.0, floor: float = 0.0
) -> float:
    """What the configured learning rate is multiplied by for update number `update` (from 0).

    Warm-up rises linearly over ceil(warmup_ratio * total) updates, the first of them above 0; then
    the rate is constant, falls linearly to the floor, or follows half a cosine to it at `total`.

    Args:
        name: "constant", "linear" or "cosine".
        update: its number.
        total: updates of the run.
        warmup_ratio: share of them over which the rate rises.
        floor: what a falling rate ends at, as a share of the configured one.

    >>> [round(learning_rate_factor("linear", u, total=4, warmup_ratio=0.5), 2) for u in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    >>> [round(learning_rate_factor("cosine", u, total=2, floor=0.1), 2) for u in range(3)]
    [1.0, 0.55, 0.1]
    """
    warmup = math.ceil(warmup_ratio * total)
    if update < warmup:
        return (update + 1) / warmup
    done = min((update - warmup) / max(total - warmup, 1), 1.0)
    if name == "constant":
        return 1.0
    if name == "linear":
        return floor + (1.0 - floor) * (1.0 - done)
    if name == "cosine":
        return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))
    raise ValueError(f"schedule must be constant, linear or cosine but is {name!r}")


def set_learning_rates(module: PolicyModule, optimizer: Any) -> None:
    """Give the optimiser the rates of the coming update: the configured ones times the factor."""
    factor = learning_rate_factor(
        module.schedule,
        module.progress.updates,
        total=module.total_updates(),
        warmup_ratio=module.warmup_ratio,
    )
    for group, settings in zip(optimizer.param_groups, module.configured, strict=True):
        group["lr"] = settings["lr"] * factor

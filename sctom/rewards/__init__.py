"""Rewards: text in, number out. No torch, no mlx; what needs a model gets a scorer passed in."""

from sctom.rewards.base import (
    Reward,
    RewardError,
    RewardResults,
    check_rewards,
    combine,
    completion_text,
    run_rewards,
)
from sctom.rewards.confidence import Brier, ConfidenceTarget, LogScore, Ternary
from sctom.rewards.function import FunctionReward
from sctom.rewards.selfaware import (
    IDK_PATTERNS,
    SelfAware,
    is_idk_response,
    selfaware_reward_func,
    selfaware_reward_func_mlx,
)
from sctom.rewards.selfaware_strict import SelfAwareStrict

__all__ = [
    "IDK_PATTERNS",
    "Brier",
    "ConfidenceTarget",
    "FunctionReward",
    "LogScore",
    "Reward",
    "RewardError",
    "RewardResults",
    "SelfAware",
    "SelfAwareStrict",
    "Ternary",
    "check_rewards",
    "combine",
    "completion_text",
    "is_idk_response",
    "run_rewards",
    "selfaware_reward_func",
    "selfaware_reward_func_mlx",
]

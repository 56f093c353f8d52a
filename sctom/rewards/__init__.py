"""Rewards: text in, number out. No torch, no mlx; what needs a model gets a scorer passed in."""

from sctom.rewards.base import (
    Failure,
    Reward,
    RewardError,
    check_rewards,
    combine,
    completion_text,
    normalize_then_sum,
)
from sctom.rewards.confidence import Brier, ConfidenceTarget, LogScore, Ternary
from sctom.rewards.function import FunctionReward
from sctom.rewards.health import RewardHealth
from sctom.rewards.run import RewardResults, RunningRewards, run_rewards, start_rewards
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
    "Failure",
    "FunctionReward",
    "LogScore",
    "Reward",
    "RewardError",
    "RewardHealth",
    "RewardResults",
    "RunningRewards",
    "SelfAware",
    "SelfAwareStrict",
    "Ternary",
    "check_rewards",
    "combine",
    "completion_text",
    "is_idk_response",
    "normalize_then_sum",
    "run_rewards",
    "selfaware_reward_func",
    "selfaware_reward_func_mlx",
    "start_rewards",
]

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
from sctom.rewards.code import CodeReward, code_reward
from sctom.rewards.confidence import Brier, ConfidenceTarget, LogScore, Ternary
from sctom.rewards.formats import ThinkFormatReward, think_format_reward
from sctom.rewards.function import FunctionReward
from sctom.rewards.google import GoogleReward
from sctom.rewards.health import RewardHealth
from sctom.rewards.http_reward import HttpReward
from sctom.rewards.judge import ChatEndpoint, CheckedJudge, Judge, JudgeError
from sctom.rewards.judge_reward import JudgeReward
from sctom.rewards.lengths import (
    RepetitionPenalty,
    SoftOverlongPunishment,
    get_repetition_penalty_reward,
    get_soft_overlong_punishment,
)
from sctom.rewards.math_answers import (
    accuracy_reward,
    get_cosine_scaled_reward,
    reasoning_accuracy_reward,
)
from sctom.rewards.math_rewards import (
    AccuracyReward,
    CosineScaledReward,
    ReasoningAccuracyReward,
)
from sctom.rewards.refusal import NoFalseRefusal, is_refusal
from sctom.rewards.run import RewardResults, RunningRewards, run_rewards, settled, start_rewards
from sctom.rewards.selfaware import (
    IDK_PATTERNS,
    SelfAware,
    is_idk_response,
    selfaware_reward_func,
    selfaware_reward_func_mlx,
)
from sctom.rewards.selfaware_strict import SelfAwareStrict
from sctom.rewards.workers import Deadline, Workers, shared_workers

__all__ = [
    "IDK_PATTERNS",
    "AccuracyReward",
    "Brier",
    "ChatEndpoint",
    "CheckedJudge",
    "CodeReward",
    "ConfidenceTarget",
    "CosineScaledReward",
    "Deadline",
    "Failure",
    "FunctionReward",
    "GoogleReward",
    "HttpReward",
    "Judge",
    "JudgeError",
    "JudgeReward",
    "LogScore",
    "NoFalseRefusal",
    "ReasoningAccuracyReward",
    "RepetitionPenalty",
    "Reward",
    "RewardError",
    "RewardHealth",
    "RewardResults",
    "RunningRewards",
    "SelfAware",
    "SelfAwareStrict",
    "SoftOverlongPunishment",
    "Ternary",
    "ThinkFormatReward",
    "Workers",
    "accuracy_reward",
    "check_rewards",
    "code_reward",
    "combine",
    "completion_text",
    "get_cosine_scaled_reward",
    "get_repetition_penalty_reward",
    "get_soft_overlong_punishment",
    "is_idk_response",
    "is_refusal",
    "normalize_then_sum",
    "reasoning_accuracy_reward",
    "run_rewards",
    "selfaware_reward_func",
    "selfaware_reward_func_mlx",
    "settled",
    "shared_workers",
    "start_rewards",
    "think_format_reward",
]

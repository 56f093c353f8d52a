"""LightningModules and what they are made of."""

from sctom.modules.backbone import Backbone
from sctom.modules.learned_reward import LearnedReward, SafetyHelpfulness
from sctom.modules.local_judge import LocalJudge
from sctom.modules.policy import PolicyModule
from sctom.modules.reward_model import RewardModelModule
from sctom.modules.sft import SFTModule

__all__ = [
    "Backbone",
    "LearnedReward",
    "LocalJudge",
    "PolicyModule",
    "RewardModelModule",
    "SFTModule",
    "SafetyHelpfulness",
]

"""Google's reinforcement-tuning rewards: its configs, its examples, and what they mean here."""

from sctom.rewards.google.config import read_config
from sctom.rewards.google.example import example_from_messages, messages_from_example
from sctom.rewards.google.outcome import Detail
from sctom.rewards.google.reward import GoogleReward
from sctom.rewards.google.validate_request import answer

__all__ = [
    "Detail",
    "GoogleReward",
    "answer",
    "example_from_messages",
    "messages_from_example",
    "read_config",
]

"""Confidence-aware rewards: stated confidence (Brier, LogScore), and knowing when to answer.

confidence_text     reads a stated confidence
confidence_base     judges completions and logs what they did
confidence_scores   Brier, LogScore: best where the stated confidence is the true one
confidence_ternary  Ternary, ConfidenceTarget: best where one answers when sure enough
"""

from __future__ import annotations

from sctom.rewards.confidence_base import ConfidenceReward
from sctom.rewards.confidence_scores import Brier, LogScore
from sctom.rewards.confidence_ternary import ConfidenceTarget, Ternary, target_statement
from sctom.rewards.confidence_text import stated_confidence, without_confidence

__all__ = [
    "Brier",
    "ConfidenceReward",
    "ConfidenceTarget",
    "LogScore",
    "Ternary",
    "stated_confidence",
    "target_statement",
    "without_confidence",
]

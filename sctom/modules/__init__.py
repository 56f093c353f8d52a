"""LightningModules and what they are made of."""

from sctom.modules.backbone import Backbone
from sctom.modules.local_judge import LocalJudge
from sctom.modules.policy import PolicyModule
from sctom.modules.sft import SFTModule

__all__ = ["Backbone", "LocalJudge", "PolicyModule", "SFTModule"]

"""LightningModules and what they are made of."""

from sctom.modules.backbone import Backbone
from sctom.modules.policy import PolicyModule
from sctom.modules.sft import SFTModule

__all__ = ["Backbone", "PolicyModule", "SFTModule"]

"""LightningModules and what they are made of."""

from sctom.modules.backbone import Backbone
from sctom.modules.policy import PolicyModule

__all__ = ["Backbone", "PolicyModule"]

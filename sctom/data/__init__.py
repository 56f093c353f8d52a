"""LightningDataModules over the readers."""

from sctom.data.prompts import PromptData

__all__ = ["PromptData"]

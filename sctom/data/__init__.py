"""LightningDataModules over the readers."""

from sctom.data.dialogues import DialogueData
from sctom.data.order import PromptOrder, Shuffled, SolveRate
from sctom.data.pairs import PreferenceData
from sctom.data.prompts import PromptData

__all__ = [
    "DialogueData",
    "PreferenceData",
    "PromptData",
    "PromptOrder",
    "Shuffled",
    "SolveRate",
]

"""Lightning callbacks."""

from sctom.callbacks.banner import Banner
from sctom.callbacks.checkpoint import IterationCheckpoint
from sctom.callbacks.completions import CompletionsTable
from sctom.callbacks.metrics_file import MetricsFile
from sctom.callbacks.progress import RichProgress
from sctom.callbacks.reward_eval import RewardModelEval
from sctom.callbacks.selfaware_eval import SelfAwareEval
from sctom.callbacks.throughput import Throughput

__all__ = [
    "Banner",
    "CompletionsTable",
    "IterationCheckpoint",
    "MetricsFile",
    "RewardModelEval",
    "RichProgress",
    "SelfAwareEval",
    "Throughput",
]

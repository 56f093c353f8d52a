"""Samplers behind one small interface."""

from sctom.rollout.base import Finished, Sample, Sampler, Sampling
from sctom.rollout.local import LocalSampler

__all__ = ["Finished", "LocalSampler", "Sample", "Sampler", "Sampling"]

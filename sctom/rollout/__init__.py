"""Samplers behind one small interface."""

from sctom.rollout.base import Sample, Sampler, Sampling
from sctom.rollout.local import LocalSampler

__all__ = ["LocalSampler", "Sample", "Sampler", "Sampling"]

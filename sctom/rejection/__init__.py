"""Rejection sampling: many completions of each prompt, of which the best are learned from."""

from sctom.rejection.select import Above, BestOf, Select, TopFraction

__all__ = ["Above", "BestOf", "Select", "TopFraction"]

"""Several samples of one question as one answer and its confidence: how many of them agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from sctom.rewards.reading.words import normalise


@dataclass(frozen=True)
class Vote:
    """What the samples of one question come to."""

    answer: str
    """The first sample of those that agree most; an abstention where `abstained`."""
    confidence: float
    """The share of the samples that agree with it."""
    abstained: bool
    """More samples abstain than give any one answer."""
    idk: float
    """The share of the samples that abstain: P(IDK)."""


def same_words(text: str) -> str:
    """What a text says, but for case, accents, spaces and the marks at its ends.

    >>> same_words(" Bogotá. ") == same_words("bogota")
    True
    """
    return normalise(text).strip(" .,;:!?\"'")


def vote(
    samples: Sequence[str],
    *,
    key: Callable[[str], Hashable] = same_words,
    abstains: Callable[[str], bool] | None = None,
) -> Vote:
    """Let the samples of one question vote.

        answer = the one with the most samples        confidence = its samples / all samples

    Self-consistency: Wang et al., arXiv 2203.11171, for the vote; Xiong et al., "Can LLMs express
    their uncertainty?", arXiv 2306.13063, for the share as a confidence. Where we differ:
    abstentions, of which the papers have none, vote together, whatever their words, and count among
    all samples. Of answers with as many samples, the one that came first wins.

    Args:
        samples: k texts, at least one, drawn at a temperature above 0.
        key: two samples agree if this makes the same of them; give the reading of the task, such as
            the final number of a calculation.
        abstains: whether a sample is an abstention; None: none is.

    Raises:
        ValueError: there is no sample.

    >>> vote(["Seoul", "Busan", "seoul.", "I don't know."], abstains=lambda text: "know" in text)
    Vote(answer='Seoul', confidence=0.5, abstained=False, idk=0.25)
    """
    if not samples:
        raise ValueError("there are no samples to vote; draw at least one for every question")
    silent = [abstains is not None and abstains(text) for text in samples]
    votes = [None if quiet else key(text) for text, quiet in zip(samples, silent, strict=True)]
    winner, most = Counter(votes).most_common(1)[0]  # the first of equals
    place = votes.index(winner)
    return Vote(
        answer=samples[place],
        confidence=most / len(samples),
        abstained=silent[place],
        idk=sum(silent) / len(samples),
    )

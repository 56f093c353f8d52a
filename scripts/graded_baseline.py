"""What can be read off the answers of a set of pairs without understanding them.

    python -m sctom.prepare graded --out runs/graded
    python scripts/graded_baseline.py runs/graded

Fits a logistic regression on the differences of word counts of the two answers (and of their pairs
of neighbouring words, and of their lengths), on train.jsonl, and prints its accuracy on test.jsonl,
with Wilson's 95% interval, for each grade. Needs scikit-learn (extra `sandbox-libraries`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, vstack
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from sctom.preferences import GRADES, Pair, read_preferences

Differences = Callable[[Sequence[Pair]], Any]  # a sparse matrix, one row for each pair


def words(train: Sequence[Pair], longest: int) -> Differences:
    """Differences of counts of the words, and of runs of up to `longest` words, seen in train."""
    counter = CountVectorizer(token_pattern=r"\S+", ngram_range=(1, longest))
    counter.fit([text for pair in train for text in (pair.chosen, pair.rejected)])

    def differences(pairs: Sequence[Pair]) -> Any:
        chosen = counter.transform([pair.chosen for pair in pairs])
        rejected = counter.transform([pair.rejected for pair in pairs])
        return (chosen - rejected).astype(np.float64)

    return differences


def lengths(pairs: Sequence[Pair]) -> Any:
    """Differences of the number of words."""
    return csr_matrix([[float(len(p.chosen.split()) - len(p.rejected.split()))] for p in pairs])


def right(train: Sequence[Pair], test: Sequence[Pair], features: Differences) -> list[float]:
    """1 for each test pair whose chosen answer the fit prefers, 0.5 where it has no preference."""
    seen = features(train)
    fit = LogisticRegression(fit_intercept=False, max_iter=1000)  # swapped answers, opposite odds
    fit.fit(vstack([seen, -seen]), np.repeat([1, 0], len(train)))
    return [0.5 if abs(z) < 1e-9 else float(z > 0) for z in fit.decision_function(features(test))]


def interval(hits: Sequence[float]) -> str:
    """A share of hits with Wilson's 95% interval, in percent."""
    n, z = len(hits), 1.96
    if not n:
        return "-"
    share = sum(hits) / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return f"{share:.1%} [{middle - half:.1%}, {middle + half:.1%}]"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="of train.jsonl and test.jsonl")
    folder = parser.parse_args().folder
    train, test = (read_preferences(folder / f"{name}.jsonl") for name in ("train", "test"))
    kinds = {"length": lengths, "words": words(train, 1), "words and neighbours": words(train, 2)}
    print("| what is read | all | " + " | ".join(GRADES) + " |")
    print("|---|" + "---|" * (1 + len(GRADES)))
    for name, features in kinds.items():
        hits = right(train, test, features)
        by_grade = [
            [hit for hit, pair in zip(hits, test, strict=True) if pair.grade == grade]
            for grade in range(len(GRADES))
        ]
        print(f"| {name} | " + " | ".join(interval(each) for each in (hits, *by_grade)) + " |")


if __name__ == "__main__":
    main()

"""What the runs of the study came to: numbers from their folders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from sctom.assets import resolve
from sctom.callbacks.common import read_records
from sctom.readers import Row, read_jsonl
from sctom.rewards.selfaware import SelfAware, outcome
from sctom.tasks.selfaware import prompt_row

LAST = 15  # iterations whose completions the table of the training counts
Results = Mapping[str, Sequence["Run"]]
"""Variant -> its finished runs, one a seed."""


@dataclass(frozen=True)
class Group:
    """The completions of one question in one iteration."""

    kind: str
    """Of the person asked about: known, half, unknown."""
    completions: list[tuple[str, float]]
    """What each did (correct, abstained, wrong), and its advantage."""


@dataclass
class Run:
    """The folder of a finished run."""

    folder: Path

    @cached_property
    def table(self) -> dict[str, Any]:
        """The evaluations before and after."""
        table: dict[str, Any] = json.loads((self.folder / "table.json").read_text())
        return table

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The numbers of every iteration."""
        return read_records(self.folder / "metrics.jsonl")

    @cached_property
    def curve(self) -> list[tuple[int, float, float]]:
        """Updates, tokens and validation reward of every evaluation."""
        tokens = {m["iteration"]: m["num_tokens"] for m in self.metrics} | {0: 0.0}
        evaluations = read_records(self.folder / "evaluations.jsonl")
        return [
            (e["iteration"], tokens[e["iteration"]], e["metrics"]["reward"]) for e in evaluations
        ]

    def after(self, metric: str) -> float | None:
        """A metric of the last evaluation."""
        value: float | None = self.table["after"]["metrics"].get(metric)
        return value

    def before(self, metric: str) -> float | None:
        """A metric of the evaluation before training."""
        value: float | None = self.table["before"]["metrics"].get(metric)
        return value

    def mean(self, metric: str) -> float:
        """A metric of training, mean over the run."""
        return mean(self.metrics, metric)

    def completions(self, last: int | None = None) -> Iterator[tuple[dict[str, Any], Row]]:
        """Every completion of the run, or of its last iterations, with the row of its question."""
        config = yaml.safe_load((self.folder / "config.yaml").read_text())
        train = resolve(config["data"]["init_args"]["train"])
        rows = [prompt_row(row, str(train)) for row in read_jsonl(train)]
        paths = sorted((self.folder / "completions").glob("*.jsonl"))
        for path in paths if last is None else paths[-last:]:
            for record in read_records(path):
                yield record, rows[record["prompt_index"]]

    @cached_property
    def groups(self) -> list[Group]:
        """The groups of the last iterations."""
        groups: list[Group] = []
        for record, row in self.completions(LAST):
            if record["sample"] == 0:
                groups.append(Group(row["kind"], []))
            expected, unanswerable = row["expected_answer"], row["is_unanswerable"]
            did = outcome(record["completion"], expected, unanswerable)
            groups[-1].completions.append((did, record["advantage"]))
        return groups

    def share(self, kind: str, did: str) -> float | None:
        """Completions about people of a kind that were correct, abstained or wrong."""
        every = [name for g in self.groups if g.kind == kind for name, _ in g.completions]
        return every.count(did) / len(every) if every else None

    def worth(self) -> float | None:
        """What abstaining instead of being wrong is worth, if right instead of wrong is worth 1.

        Both are mean differences of advantages, over all pairs of completions of one answerable
        question. By the rewards alone it is (-0.5 - -1) / (1 - -1) = 0.25.
        """
        gaps: dict[str, list[float]] = {"abstained": [], "correct": []}
        for group in self.groups:
            if group.kind == "unknown":
                continue
            for did, advantage in group.completions:
                if did in gaps:
                    gaps[did] += [advantage - a for name, a in group.completions if name == "wrong"]
        if not all(gaps.values()):
            return None
        return fmean(gaps["abstained"]) / fmean(gaps["correct"])

    def judged_differently(self) -> tuple[int, int]:
        """Completions to which `SelfAware` gives another reward than the run did, and all."""
        judge, different, every = SelfAware(), 0, 0
        for record, row in self.completions():
            reward = judge(
                [record["completion"]], [row["expected_answer"]], [row["is_unanswerable"]]
            )
            different += reward[0] != record["reward"]
            every += 1
        return different, every


def mean(metrics: Sequence[dict[str, Any]], name: str) -> float:
    """Mean of a metric over the iterations that have it."""
    return fmean(m[name] for m in metrics if name in m)

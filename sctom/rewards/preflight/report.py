"""The outcome of a pre-flight check, for people and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sctom.rewards.preflight.calls import Scored
from sctom.rewards.preflight.findings import Finding
from sctom.rewards.preflight.summary import Summary, totals


@dataclass(frozen=True)
class Report:
    """What was tried, what came of it, and what it means."""

    source: str
    """What the rewards were called with, in words."""
    scored: Sequence[Scored]
    sizes: Sequence[int]
    """Completions of each group."""
    findings: Sequence[Finding]
    strict: bool = False
    """Warnings count as failures."""
    notes: Sequence[str] = ()
    """What the rewards run on."""

    @property
    def status(self) -> int:
        """The exit status: 1 where a finding makes training pointless or stops it."""
        fatal = {"failure", "warning"} if self.strict else {"failure"}
        return int(any(finding.level in fatal for finding in self.findings))

    @property
    def summaries(self) -> dict[str, Summary]:
        """Of each reward, and of the total."""
        each = {one.reward.name: Summary.of(one.values, one.troubles) for one in self.scored}
        return {**each, "total": Summary.of(totals(self.scored, self.sizes))}

    def as_json(self) -> dict[str, Any]:
        """For machines; a number that there is not is null."""
        rewards = {}
        for name, summary in self.summaries.items():
            numbers = asdict(summary)
            rewards[name] = {
                key: None if isinstance(number, float) and math.isnan(number) else number
                for key, number in numbers.items()
            }
        for one in self.scored:
            rewards[one.reward.name] |= {
                "weight": one.reward.weight,
                "p50_seconds": quantile(one.seconds, 0.5),
                "p95_seconds": quantile(one.seconds, 0.95),
                "examples": _examples(one),
            }
        return {
            "status": self.status,
            "source": self.source,
            "rewards": rewards,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def write(self, path: str | Path) -> None:
        """Write it as JSON."""
        text = json.dumps(self.as_json(), indent=2, ensure_ascii=False, allow_nan=False)
        Path(path).write_text(text + "\n")

    def print(self, console: Console) -> None:
        """Print a table of the rewards, an example of each kind of trouble, and the findings."""
        for note in self.notes:
            console.print(Text(note))
        console.print(Text(f"rewards of {self.source}"))
        console.print(self._table())
        for one in self.scored:
            for example in _examples(one):
                console.print(Text(f"{one.reward.name}: {example['error']}", style="bold"))
                for key in ("prompt", "completion", "debug"):
                    if example[key] or key == "completion":
                        console.print(Text(f"  {key}: {example[key]!r:.300}"))
        for finding in self.findings:
            mark = Text(f"{finding.level}: {finding.code}: ", style=_STYLES[finding.level])
            about = f"{finding.reward}: " if finding.reward else ""
            console.print(mark + Text(about + finding.message))
        console.print(Text(self._verdict()))

    def _verdict(self) -> str:
        counts = [
            f"{n} {level}{'s' * (n != 1)}"
            for level in ("failure", "warning")
            if (n := sum(finding.level == level for finding in self.findings))
        ]
        if not counts:
            return "nothing found: a run can start"
        end = "mend this before a run" if self.status else "a run can start"
        return f"{' and '.join(counts)}: {end}"

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for head in (*_HEADS, *_TIMES):
            first = head == "reward"
            table.add_column(head, justify="left" if first else "right", no_wrap=not first)
        by_name = {one.reward.name: one for one in self.scored}
        for name, summary in self.summaries.items():
            one = by_name.get(name)
            table.add_row(
                name,
                "" if one is None else f"{one.reward.weight:g}",
                str(summary.count),
                f"{summary.mean:.3g}",
                f"{summary.std:.3g}",
                f"{summary.low:.3g}",
                f"{summary.high:.3g}",
                f"{summary.zeros:.0%}",
                f"{summary.ones:.0%}",
                str(summary.abstained),
                str(summary.errors),
                *(_milliseconds(one, share) for share in (0.5, 0.95)),
            )
        return table


def _milliseconds(one: Scored | None, share: float) -> str:
    return f"{1000 * quantile(one.seconds, share):.3g}" if one is not None and one.seconds else ""


_STYLES = {"failure": "bold red", "warning": "bold yellow"}
_HEADS = ("reward", "weight", "n", "mean", "std", "min", "max", "0s", "1s", "none", "err")
_TIMES = ("p50 ms", "p95 ms")


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that a share of all do not exceed; NaN is never one of them.

    >>> quantile([3.0, 1.0, 2.0], 0.5)
    2.0
    """
    if not values:
        return 0.0
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _examples(one: Scored) -> list[dict[str, Any]]:
    """The first completion of each kind of trouble."""
    first: dict[str, int] = {}
    for row, trouble in one.troubles.items():
        first.setdefault(trouble.code, row)
    return [
        {
            "error": one.troubles[row].message,
            "prompt": str(one.cases[row].prompt[-1]["content"]),
            "completion": one.cases[row].completion,
            "debug": one.debug.get(row, {}),
        }
        for row in first.values()
    ]

"""What choosing brought, in numbers and as a picture."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from sctom.callbacks.common import Record, atomic_write, show
from sctom.rejection.select import Group
from sctom.selection import best_of_n_kl_bound, max_and_median

SUMMARY, PICTURE = "summary.json", "best_of_n.png"


class Numbers:
    """Every sample without its text.

    Args:
        per_prompt: samples of each prompt.
    """

    def __init__(self, per_prompt: int) -> None:
        self.per_prompt = per_prompt
        self.values: dict[str, list[float | None]] = {}
        """Reward -> value of each sample, prompt by prompt."""
        self.tokens = 0
        self.truncated: list[list[bool]] = []
        self.groups: list[Group] = []
        self.totals: list[list[float]] = []
        """The weighted sums; NaN: none."""
        self.exact_duplicates = 0
        self.duplicates = 0
        self._blank: list[list[bool]] = []

    def add(self, group: Sequence[Record]) -> None:
        """Take in the samples of a prompt."""
        texts = [record["text"] for record in group]
        keys = [_key(" ".join(text.split())) for text in texts]
        self.groups.append(Group(group[0]["prompt"], [], keys))
        for record in group:
            for name, value in record["rewards"].items():
                self.values.setdefault(name, []).append(value)
            self.tokens += record["tokens"]
        self.truncated.append([record["truncated"] for record in group])
        self._blank.append([not text.strip() for text in texts])
        self.exact_duplicates += len(texts) - len(set(texts))
        self.duplicates += len(keys) - len(set(keys))

    def settle(self, totals: Sequence[float], keep_truncated: bool) -> None:
        """Enter the weighted sums: a sample that may not be kept has none for choosing.

        Args:
            totals: of all samples.
            keep_truncated: whether those that were cut off may be kept.
        """
        size = self.per_prompt
        for number, group in enumerate(self.groups):
            mine = [float(total) for total in totals[number * size : (number + 1) * size]]
            self.totals.append(mine)
            cut, blank = self.truncated[number], self._blank[number]
            for i, total in enumerate(mine):
                usable = not blank[i] and (keep_truncated or not cut[i])
                group.rewards.append(total if usable else math.nan)


def _key(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]


@dataclass
class Summary:
    """What choosing brought. Rewards are weighted sums; a mean of nothing is None."""

    prompts: int
    samples: int
    kept: int
    acceptance_rate: float
    """Kept of all samples."""
    prompts_without: int
    """Prompts of which no sample was kept."""
    unscored: int
    """Samples without a reward."""
    truncated: int
    """Samples that max_new_tokens cut off."""
    reward_all: float | None
    reward_kept: float | None
    reward_random: float | None
    """Of as many samples of each prompt, chosen by chance."""
    exact_duplicates: float
    """Share of samples whose text an earlier sample of the prompt has."""
    duplicates: float
    """The same, white space aside."""
    kl_bound: float
    """The most that the best of K differs from the policy, in nats."""
    curve: list[dict[str, float]]
    """What the best of n is expected to score, and the median sample, for n = 1 to K."""
    temperatures: list[dict[str, float | None]]
    """Mean and expected best reward at each temperature."""
    tokens: int
    tokens_per_second: float | None = field(default=None)
    """Not in the file, which is the same whenever it is made."""

    @classmethod
    def read(cls, folder: Path) -> Summary:
        """The summary of a finished run."""
        return cls(**json.loads((folder / SUMMARY).read_bytes()))

    def lines(self) -> list[tuple[str, str]]:
        """For the console."""
        lines: list[tuple[str, str]] = [
            ("prompts, samples", f"{self.prompts:,}, {self.samples:,}"),
            ("kept", f"{self.kept:,} ({self.acceptance_rate:.1%} of the samples)"),
            ("prompts with none kept", f"{self.prompts_without:,}"),
            ("reward of all", show(self.reward_all, ".3f")),
            ("reward of as many by chance", show(self.reward_random, ".3f")),
            ("reward of kept", show(self.reward_kept, ".3f")),
            ("duplicates", f"{self.duplicates:.1%} (exact: {self.exact_duplicates:.1%})"),
            ("cut off, without a reward", f"{self.truncated:,}, {self.unscored:,}"),
            ("KL(best of K, policy)", f"at most {self.kl_bound:.2f} nats"),
        ]
        if self.curve:
            best = self.curve[-1]
            lines.append((f"expected best of {best['n']:.0f}", show(best["max"], ".3f")))
        if len(self.temperatures) > 1:
            lines += [
                (
                    f"at temperature {row['temperature']:g}",
                    f"mean {show(row['mean'], '.3f')}, best {show(row['best'], '.3f')}",
                )
                for row in self.temperatures
            ]
        if self.tokens_per_second:
            lines.append(("tokens/s", f"{self.tokens_per_second:,.0f}"))
        return lines


def table_of(lines: Sequence[tuple[str, str]]) -> Table:
    """Words and numbers side by side."""
    table = Table("", "", show_header=False)
    for line in lines:
        table.add_row(*line)
    return table


def summarise(
    numbers: Numbers,
    chosen: Sequence[Sequence[int]],
    baseline: Sequence[Sequence[int]],
    temperatures: Sequence[float],
) -> Summary:
    """The summary of a run.

    Args:
        numbers: every sample.
        chosen: places of the kept ones of each prompt.
        baseline: places of those chosen by chance.
        temperatures: of the samples of a prompt, in equal parts.
    """
    totals = numbers.totals
    everything = [total for group in totals for total in group]
    scored = [total for total in everything if not math.isnan(total)]
    kept = [group[i] for group, places in zip(totals, chosen, strict=True) for i in places]
    luck = [group[i] for group, places in zip(totals, baseline, strict=True) for i in places]
    whole = [group for group in totals if not any(map(math.isnan, group))]
    return Summary(
        prompts=len(totals),
        samples=len(everything),
        kept=len(kept),
        acceptance_rate=len(kept) / len(everything),
        prompts_without=sum(not places for places in chosen),
        unscored=len(everything) - len(scored),
        truncated=sum(sum(cut) for cut in numbers.truncated),
        reward_all=_mean(scored),
        reward_kept=_mean(kept),
        reward_random=_mean(luck),
        exact_duplicates=numbers.exact_duplicates / len(everything),
        duplicates=numbers.duplicates / len(everything),
        kl_bound=best_of_n_kl_bound(numbers.per_prompt),
        curve=max_and_median(whole),
        temperatures=_by_temperature(totals, temperatures),
        tokens=numbers.tokens,
    )


def _by_temperature(
    totals: Sequence[Sequence[float]], temperatures: Sequence[float]
) -> list[dict[str, float | None]]:
    size = len(totals[0]) // len(temperatures)
    rows: list[dict[str, float | None]] = []
    for number, temperature in enumerate(temperatures):
        parts = [group[number * size : (number + 1) * size] for group in totals]
        whole = [part for part in parts if not any(map(math.isnan, part))]
        rows.append(
            {
                "temperature": temperature,
                "mean": _mean([total for part in whole for total in part]),
                "best": _mean([max(part) for part in whole]),
            }
        )
    return rows


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def write_summary(folder: Path, summary: Summary) -> list[str]:
    """Write the numbers and the picture; returns the names of what belongs to the run's result."""
    content: dict[str, Any] = asdict(summary)
    del content["tokens_per_second"]
    atomic_write(folder / SUMMARY, json.dumps(content, indent=2) + "\n")
    if not summary.curve:
        return [SUMMARY]
    atomic_write(folder / PICTURE, picture(summary))
    return [SUMMARY, PICTURE]


def picture(summary: Summary) -> bytes:
    """Best and median of n samples over n, as PNG (Llama 2, Figure 7)."""
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    counts = [point["n"] for point in summary.curve]
    best = [point["max"] for point in summary.curve]
    middle = [point["median"] for point in summary.curve]
    axes.fill_between(counts, middle, best, color="#D55E00", alpha=0.15, linewidth=0)
    axes.plot(counts, best, color="#D55E00", marker="o", markersize=3)
    axes.plot(counts, middle, color="#0072B2")
    axes.annotate(
        "best of n",
        (counts[-1], best[-1]),
        (-4, 4),
        ha="right",
        color="#D55E00",
        textcoords="offset points",
    )
    axes.annotate(
        "median",
        (counts[-1], middle[-1]),
        (-4, 4),
        ha="right",
        color="#0072B2",
        textcoords="offset points",
    )
    axes.set(xlabel="samples of a prompt, n", ylabel="reward")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()

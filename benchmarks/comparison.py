"""From the steps of two engines to medians, ratios and whether the targets hold. No timing here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.measure import spread

Run = Mapping[str, Any]
"""What one process of one side measured: engine, steps, peak_mib, loaded_mib, stall."""

OURS = "sctom"
PHASES = ("generate", "reference", "forward", "backward", "optimiser")
SPEED_TARGETS = {"tiny": 5.0, "smollm2": 4.5}
GENERATION_TARGET, GRADIENT_TARGET = 4.0, 6.0


@dataclass(frozen=True)
class Summary:
    """Medians over the measured steps of the rounds that were kept."""

    name: str
    engine: str
    steps: int
    seconds: dict[str, float]
    """Of the whole step and of its phases; `rest` is the part of a step that no phase covers."""
    tokens: float
    """Completion tokens of a step."""
    step_rate: float
    """Completion tokens per second of the whole step."""
    generate_rate: float
    """Completion tokens per second of sampling."""
    gradient_rate: float
    """Completion tokens per second of forward and backward pass."""
    peak_mib: float
    """Largest memory above the loaded model in any round."""
    step_spread: float
    """Interquartile range over median of `step_rate` between steps."""
    round_spread: float
    """Difference between the fastest and the slowest round over the median."""


def disturbed(runs: Mapping[str, Run], max_stall: float) -> bool:
    """Whether in any process of a round threads waited for a core for too large a share."""
    return any(run["stall"] is not None and run["stall"] > max_stall for run in runs.values())


def kept_rounds(rounds: Sequence[Mapping[str, Run]], max_stall: float) -> list[Mapping[str, Run]]:
    """The rounds that were not disturbed; all of them if none was quiet."""
    return [runs for runs in rounds if not disturbed(runs, max_stall)] or list(rounds)


def summarise(name: str, runs: Sequence[Run]) -> Summary:
    """Medians over the steps of all runs of one side.

    Args:
        name: of the side.
        runs: at least one, with at least one step.
    """
    steps = [step for run in runs for step in run["steps"]]
    rates = [step["tokens"] / step["step"] for step in steps]
    by_round = [median(s["tokens"] / s["step"] for s in run["steps"]) for run in runs]
    seconds = {phase: median(s.get(phase, 0.0) for s in steps) for phase in ("step", *PHASES)}
    seconds["rest"] = median(s["step"] - sum(s.get(p, 0.0) for p in PHASES) for s in steps)
    return Summary(
        name=name,
        engine=runs[0]["engine"],
        steps=len(steps),
        seconds=seconds,
        tokens=median(s["tokens"] for s in steps),
        step_rate=median(rates),
        generate_rate=median(s["tokens"] / s["generate"] for s in steps),
        gradient_rate=median(s["tokens"] / (s["forward"] + s["backward"]) for s in steps),
        peak_mib=max(run["peak_mib"] for run in runs),
        step_spread=spread(rates),
        round_spread=(max(by_round) - min(by_round)) / median(by_round),
    )


@dataclass(frozen=True)
class Target:
    """One thing that must hold."""

    what: str
    wanted: str
    found: str
    holds: bool


def targets(ours: Summary, peers: Mapping[int, Summary], *, model: str, rows: int) -> list[Target]:
    """Speed against the fastest of the peers, memory against each of them.

    Args:
        ours: our side.
        peers: by the number of completions in one of their micro-batches.
        model: "tiny" or "smollm2"; the wanted speed depends on it.
        rows: completions of a step; a peer that has them all in one micro-batch is the one whose
            memory must be five times ours.
    """
    if not peers:
        return []
    speeds = (
        ("step, tokens/s", "step_rate", SPEED_TARGETS[model]),
        ("generation, tokens/s", "generate_rate", GENERATION_TARGET),
        ("forward + backward, tokens/s", "gradient_rate", GRADIENT_TARGET),
    )
    found = []
    for what, name, wanted in speeds:
        ratio = getattr(ours, name) / max(getattr(peer, name) for peer in peers.values())
        found.append(Target(what, f"at least {wanted:g} x", f"{ratio:.2f} x", ratio >= wanted))
    for micro_batch, peer in sorted(peers.items(), reverse=True):
        share = 5 if micro_batch == rows else 3
        ratio = peer.peak_mib / ours.peak_mib
        what = f"memory, against micro-batches of {micro_batch}"
        found.append(Target(what, f"at most 1/{share}", f"1/{ratio:.2f}", ratio >= share))
    return found


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers.

    >>> print(table(["", "s"], [["step", "1.0"]]), end="")
    |  | s |
    | --- | ---: |
    | step | 1.0 |
    """
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def comparison_table(ours: Summary, peers: Sequence[Summary]) -> str:
    """Medians of all sides, and beside each peer how many times better ours is.

    Phases are compared per completion token, since the lengths that are drawn differ.
    """
    header = ["", *[peer.name for peer in peers], ours.name, *[f"vs {p.name}" for p in peers]]
    rows = [
        _line("step, tokens/s", [p.step_rate for p in peers], ours.step_rate, 1, rising=True),
        _line(
            "generation, tokens/s",
            [p.generate_rate for p in peers],
            ours.generate_rate,
            1,
            rising=True,
        ),
        _line(
            "forward + backward, tokens/s",
            [p.gradient_rate for p in peers],
            ours.gradient_rate,
            1,
            rising=True,
        ),
    ]
    for phase in ("step", *PHASES, "rest"):
        theirs = [1000 * peer.seconds[phase] / peer.tokens for peer in peers]
        mine = 1000 * ours.seconds[phase] / ours.tokens
        rows.append(_line(f"{phase}, ms per token", theirs, mine, 3, rising=False))
    memory = [peer.peak_mib for peer in peers]
    rows.append(_line("memory above the model, MiB", memory, ours.peak_mib, 0, rising=False))
    rows.append(
        [
            "completion tokens of a step",
            *[f"{s.tokens:.0f}" for s in (*peers, ours)],
            *[""] * len(peers),
        ]
    )
    return table(header, rows)


def _line(
    what: str, theirs: Sequence[float], mine: float, digits: int, *, rising: bool
) -> list[str]:
    ratios = [ratio(mine, other) if rising else ratio(other, mine) for other in theirs]
    return [what, *[f"{value:,.{digits}f}" for value in (*theirs, mine)], *ratios]


def ratio(above: float, below: float) -> str:
    """How many times as much, or nothing where that means nothing.

    >>> ratio(3.0, 2.0), ratio(3.0, 0.0), ratio(0.0, 2.0)
    ('1.50', '', '')
    """
    return f"{above / below:.2f}" if above > 0 and below > 0 else ""


def targets_table(found: Sequence[Target]) -> str:
    """What was wanted, what was found, and whether it holds."""
    rows = [[t.what, t.wanted, t.found, "yes" if t.holds else "NO"] for t in found]
    return table(["target", "wanted", "found", "holds"], rows)


def noise(sides: Sequence[Summary], kept: int, measured: int) -> str:
    """How far the numbers can be trusted, in a sentence or two."""
    parts = [
        f"{side.name} {side.step_spread:.0%} between steps, {side.round_spread:.0%} between rounds"
        for side in sides
    ]
    return (
        f"Spread of tokens/s: {'; '.join(parts)}. {kept} of {measured} rounds kept, "
        f"{sides[0].steps} steps a side."
    )

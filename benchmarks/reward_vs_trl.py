"""Training a reward model beside TRL's, in one run: speed, peak memory, and what is learned.

    python -m benchmarks.reward_vs_trl --model tiny --json runs/bench/reward-tiny.json
    python -m benchmarks.reward_vs_trl --quick

Measured: pairs per second of an optimiser step, milliseconds of its phases (forward, backward,
optimiser, rest), and the largest memory of the process above what it holds when training starts.
Each side of each round is a process of its own; rounds alternate in order; a round in which threads
waited for a core is discarded as long as another is left, and the result says how many were kept.
Same model, adapters, pairs, order, loss and optimiser on both sides, and the same first weights of
adapters and head (`benchmarks.pairs`). TRL runs once with all pairs of a step in one batch, which
is how it is used and what the targets compare with, and once with a pair at a time, accumulated, as
ours does: that alone saves it much of the padding and of the memory.

What is learned is compared on many steps with short pairs, once: the loss of every step, and the
accuracy on pairs held out. Starting from the same weights on the same batches, both must agree up
to rounding and what the optimiser makes of it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import comparison, measure, pairs, workload
from benchmarks.comparison import OURS, Run, Target
from benchmarks.measure import spread
from benchmarks.pairs import PairWork
from benchmarks.processes import Round, measure_rounds

PACKAGES = ("torch", "transformers", "peft", "lightning")
PHASES = ("forward", "backward", "optimiser")
PAIRS = {"tiny": 8, "smollm2": 4}
"""Pairs of a step: with 8 of them at once TRL would need about 24 GiB for SmolLM2."""
LEARNING = {"tiny": (60, 128), "smollm2": (20, 64)}
"""Steps of the comparison of what is learned, and pairs held out."""
SPEED_TARGET, MEMORY_TARGET = 3.0, 4.0
FIRST_LOSS, ACCURACY = 1e-5, 0.03
"""How far the first loss may differ, relative to it, and the accuracy on pairs held out."""


@dataclass(frozen=True)
class Summary:
    """Medians over the measured steps of the rounds that were kept."""

    name: str
    rate: float
    """Pairs per second."""
    seconds: dict[str, float]
    """Of a step and of its phases; `rest` is the part that no phase covers."""
    tokens: float
    """Positions computed in a step, padding included."""
    peak_mib: float
    """Largest memory above the loaded model in any round."""
    step_spread: float
    """Interquartile range over median of the rate between steps."""
    round_spread: float
    """Difference between the fastest and the slowest round over the median."""


def summarise(name: str, runs: Sequence[Run], per_step: int) -> Summary:
    """Medians over the steps of all runs of one side.

    The steps of a run differ in what they hold, and all runs have the same steps. So the rate of a
    run is that of all its steps together.

    Args:
        name: of the side.
        runs: at least one, with at least one step.
        per_step: pairs of a step.
    """
    rates = [per_step * len(run["steps"]) / sum(s["step"] for s in run["steps"]) for run in runs]
    steps = [step for run in runs for step in run["steps"]]
    seconds = {phase: median(step[phase] for step in steps) for phase in ("step", *PHASES)}
    seconds["rest"] = median(s["step"] - sum(s[phase] for phase in PHASES) for s in steps)
    return Summary(
        name=name,
        rate=median(rates),
        seconds=seconds,
        tokens=sum(step["tokens"] for step in steps) / len(steps),
        peak_mib=max(run["peak_mib"] for run in runs),
        step_spread=spread([per_step / step["step"] for step in steps]),
        round_spread=(max(rates) - min(rates)) / median(rates),
    )


def peer_name(micro_batch: int) -> str:
    """The column of TRL with so many pairs in a batch."""
    return f"TRL, {micro_batch} pairs" if micro_batch > 1 else "TRL, 1 pair"


def sides_of(work: PairWork, micro_batches: Sequence[int]) -> dict[str, tuple[str, PairWork]]:
    """Name -> (side, its work)."""
    peers = {peer_name(m): ("reward_trl", replace(work, micro_batch=m)) for m in micro_batches}
    return {**peers, OURS: ("reward_ours", work)}


def _brief(run: Run) -> str:
    seconds = median(step["step"] for step in run["steps"])
    stall = "unknown" if run["stall"] is None else f"{run['stall']:.0%}"
    return (
        f"{seconds:.2f} s a step, {run['peak_mib']:.0f} MiB above the model, losses "
        f"{run['losses'][0]:.6f} to {run['losses'][-1]:.6f}, {stall} of the time waiting for a core"
    )


def learn(work: PairWork, folder: Path) -> tuple[Round, dict[str, str]]:
    """What both sides learn from the same short pairs, or nothing and what a side said that failed.

    Args:
        work: short pairs, some of them held out.
        folder: a new one for the pairs.
    """

    def told(run: Run) -> str:
        return f"accuracy {pairs.accuracy(run['held_out']):.1%} on pairs held out"

    data = pairs.write_pairs(work, folder)
    (learned,), failed = measure_rounds(sides_of(work, [work.pairs]), data, 1, told)
    return {} if failed else learned, {f"{name}, learning": failed[name] for name in failed}


def speed_table(ours: Summary, peers: Sequence[Summary], per_step: int) -> str:
    """Medians of all sides, and beside each peer how many times better ours is."""
    header = ["", *[peer.name for peer in peers], ours.name, *[f"vs {p.name}" for p in peers]]

    def line(what: str, values: Sequence[float], digits: int, ratios: Sequence[str]) -> list[str]:
        return [what, *[f"{value:,.{digits}f}" for value in values], *ratios]

    sides = [*peers, ours]
    rows = [
        line(
            "pairs/s",
            [side.rate for side in sides],
            3,
            [comparison.ratio(ours.rate, peer.rate) for peer in peers],
        )
    ]
    for phase in ("step", *PHASES, "rest"):
        taken = [1000 * side.seconds[phase] / per_step for side in sides]
        ratios = [comparison.ratio(peer, taken[-1]) for peer in taken[:-1]]
        rows.append(line(f"{phase}, ms per pair", taken, 1, ratios))
    for what, name in (
        ("memory above the model, MiB", "peak_mib"),
        ("tokens computed in a step", "tokens"),
    ):
        values = [getattr(side, name) for side in sides]
        ratios = [comparison.ratio(value, values[-1]) for value in values[:-1]]
        rows.append(line(what, values, 0, ratios))
    return comparison.table(header, rows)


def learning_table(learned: Mapping[str, Run]) -> str:
    """First and last loss, and accuracy on pairs held out."""
    header = ["", *learned]
    losses = [run["losses"] for run in learned.values()]
    last = [sum(own[-10:]) / len(own[-10:]) for own in losses]
    rows = [
        ["loss of the first step", *[f"{own[0]:.7f}" for own in losses]],
        ["mean loss of the last 10 steps", *[f"{value:.4f}" for value in last]],
        [
            f"accuracy on {len(learned[OURS]['held_out'])} pairs held out",
            *[f"{pairs.accuracy(run['held_out']):.1%}" for run in learned.values()],
        ],
    ]
    return comparison.table(header, rows)


def differences(learned: Mapping[str, Run]) -> tuple[float, float, float]:
    """Between ours and the peer: first loss (relative), largest of any loss, accuracy."""
    (peer,) = [run for name, run in learned.items() if name != OURS]
    ours = learned[OURS]
    first = abs(ours["losses"][0] / peer["losses"][0] - 1)
    largest = max(abs(a - b) for a, b in zip(ours["losses"], peer["losses"], strict=True))
    gap = pairs.accuracy(ours["held_out"]) - pairs.accuracy(peer["held_out"])
    return first, largest, gap


def targets(ours: Summary, whole: Summary | None, learned: Mapping[str, Run]) -> list[Target]:
    """Speed and memory beside the peer that takes whole batches, and the same learned.

    Args:
        ours: our side.
        whole: that peer, if it was measured.
        learned: what `learn` returns, or nothing.
    """
    found = []
    if whole is not None:
        speed, memory = ours.rate / whole.rate, whole.peak_mib / ours.peak_mib
        wanted = f"at least {SPEED_TARGET:g} x"
        found.append(Target("pairs/s", wanted, f"{speed:.2f} x", speed >= SPEED_TARGET))
        holds = memory >= MEMORY_TARGET
        wanted = f"at most 1/{MEMORY_TARGET:g}"
        found.append(Target("memory above the model", wanted, f"1/{memory:.2f}", holds))
    if learned:
        first, _, gap = differences(learned)
        found += [
            Target("first loss", f"within {FIRST_LOSS:g}", f"{first:.1g}", first <= FIRST_LOSS),
            Target("accuracy", f"within {ACCURACY:.0%}", f"{gap:+.1%}", abs(gap) <= ACCURACY),
        ]
    return found


def report(record: dict[str, Any]) -> str:
    """The whole result as Markdown."""
    work = PairWork.from_json(json.dumps(record["work"]))
    rounds: list[Round] = record["rounds"]
    kept = comparison.kept_rounds(rounds, record["max_stall"])
    quiet = sum(not comparison.disturbed(runs, record["max_stall"]) for runs in rounds)
    peers: dict[int, Summary] = {}
    for micro_batch in record["trl_micro"]:
        if (name := peer_name(micro_batch)) in kept[0]:
            peers[micro_batch] = summarise(name, [runs[name] for runs in kept], work.pairs)
    ours = summarise(OURS, [runs[OURS] for runs in kept], work.pairs)
    low, high = work.prompt_tokens
    middle, limit = work.answer_tokens
    lines = [
        f"{work.model}, {work.pairs} pairs a step: prompts of {low} to {high} tokens, answers "
        f"log-normal with a median of {middle} under a limit of {limit:,}; LoRA, float32. "
        + measure.provenance(record, work.threads)
        + "\n",
        speed_table(ours, list(peers.values()), work.pairs),
        _noise([*peers.values(), ours], len(kept), len(rounds), work.steps),
    ]
    if not quiet:
        lines.append(
            "\n**WARNING: disturbed**: no round was quiet, so all were kept. Measure again with "
            "nothing else running."
        )
    lines += [
        f"{name} did not finish: {said.splitlines()[0]}" for name, said in record["failed"].items()
    ]
    if learned := record["learned"]:
        lines += ["", _learning(record["learning"], learned), learning_table(learned)]
    if not record["quick"] and (found := targets(ours, peers.get(work.pairs), learned)):
        lines += ["", comparison.targets_table(found)]
    return "\n".join(lines).rstrip() + "\n"


def _noise(sides: Sequence[Summary], kept: int, measured: int, steps: int) -> str:
    parts = [
        f"{side.name} {side.step_spread:.0%} between steps, {side.round_spread:.0%} between rounds"
        for side in sides
    ]
    return (
        f"Spread of pairs/s: {'; '.join(parts)} (steps differ in what they hold; all sides have "
        f"the same). {kept} of {measured} rounds kept, {kept * steps} steps a side."
    )


def _learning(settings: dict[str, Any], learned: Mapping[str, Run]) -> str:
    work = PairWork.from_json(json.dumps(settings))
    _, largest, _ = differences(learned)
    return (
        f"What is learned in {work.steps} steps of {work.pairs} short pairs; no loss of a step "
        f"differs by more than {largest:.1g}:\n"
    )


def block_name(work: PairWork) -> str:
    """The place of the result in docs/performance.md."""
    return f"reward-{work.model}"


def arguments_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=workload.MODELS, default="tiny")
    parser.add_argument("--steps", type=int, default=5, help="measured steps of a process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, help="of a step; default: 8 for tiny, 4 for smollm2")
    parser.add_argument("--micro-batch", type=int, default=1, help="pairs, of our side")
    parser.add_argument("--trl-micro", type=int, nargs="*", help="default: all pairs, and 1")
    parser.add_argument("--learning-steps", type=int, help="0 leaves that comparison out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--max-stall", type=float, default=measure.MAX_STALL, help="above it, a round is discarded"
    )
    parser.add_argument("--quick", action="store_true", help="one short step, one round")
    parser.add_argument("--json", type=Path, help="where the result is written")
    options = parser.parse_args(arguments)
    if options.pairs is None:
        options.pairs = PAIRS[options.model]
    if options.trl_micro is None:
        options.trl_micro = [options.pairs, 1]
    if options.learning_steps is None:
        options.learning_steps = LEARNING[options.model][0]
    if options.quick:
        options.steps = options.rounds = 1
        options.learning_steps = min(2, options.learning_steps)
    return options


def work_of(options: argparse.Namespace) -> PairWork:
    """What our side does."""
    work = PairWork(
        model=options.model,
        steps=options.steps,
        pairs=options.pairs,
        micro_batch=options.micro_batch,
        threads=options.threads,
    )
    return replace(work, answer_tokens=(30, 80)) if options.quick else work


def main() -> None:
    """Measure, print, write."""
    options = arguments_of()
    work = work_of(options)
    held_out = 8 if options.quick else LEARNING[options.model][1]
    learning = pairs.short(work, steps=options.learning_steps, held_out=held_out)
    if options.trl_micro:
        measure.require_trl("reward_vs_trl")
    with tempfile.TemporaryDirectory() as folder:
        data = pairs.write_pairs(work, Path(folder) / "speed")
        sides = sides_of(work, options.trl_micro)
        rounds, failed = measure_rounds(sides, data, options.rounds, _brief)
        learned: Round = {}
        if options.learning_steps and options.trl_micro:
            learned, unlearned = learn(learning, Path(folder) / "learning")
            failed |= unlearned
    record = {
        "benchmark": "reward_vs_trl",
        "quick": options.quick,
        "machine": measure.machine(),
        "versions": measure.versions(*PACKAGES, *(["trl"] if options.trl_micro else [])),
        "work": asdict(work),
        "trl_micro": options.trl_micro,
        "max_stall": options.max_stall,
        "rounds": rounds,
        "failed": failed,
        "learning": asdict(learning),
        "learned": learned,
    }
    text = report(record)
    print(f"\n{text}")
    if options.json:
        measure.write_record(options.json, record, {block_name(work): text})


if __name__ == "__main__":
    main()

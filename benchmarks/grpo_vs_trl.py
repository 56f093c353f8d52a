"""A whole GRPO step beside TRL's, in one run: speed of every phase, and peak memory.

    python -m benchmarks.grpo_vs_trl --model tiny --beta 0.04 --json runs/bench/grpo-tiny-kl.json
    python -m benchmarks.grpo_vs_trl --quick

Measured: completion tokens per second of the step and of generation, seconds of every phase
(generate, reference, forward, backward, optimiser, rest), and the largest memory of the process
above what it holds when training starts. Each side of each round is a process of its own; rounds
alternate in order; a round in which threads waited for a core is discarded as long as another is
left, and the result says how many were kept. Same model, prompts, stop rule, reward, loss and
optimiser on both sides (`benchmarks.workload`); TRL runs once with all completions in one
micro-batch and once with micro-batches of 8 (SmolLM2: only so), and speed is compared with
the faster of the two.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks import comparison, measure, workload
from benchmarks.comparison import OURS, Run, Summary
from benchmarks.processes import Round, measure_rounds
from benchmarks.workload import Work

PACKAGES = ("torch", "transformers", "peft", "lightning")
TRL_MICRO = {"tiny": (32, 8), "smollm2": (8,)}
"""With 32 rows at once SmolLM2 takes about four times the memory it takes with 8."""


def peer_name(micro_batch: int) -> str:
    """The column of TRL with micro-batches of this size."""
    return f"TRL, {micro_batch} rows"


def sides_of(work: Work, micro_batches: Sequence[int]) -> dict[str, tuple[str, Work]]:
    """Name -> (side, its work)."""
    peers = {peer_name(m): ("trl", replace(work, micro_batch=m)) for m in micro_batches}
    return {**peers, OURS: ("ours", work)}


def _brief(run: Run) -> str:
    summary = comparison.summarise("", [run])
    stall = "unknown" if run["stall"] is None else f"{run['stall']:.0%}"
    return (
        f"{summary.seconds['step']:.2f} s a step, {summary.step_rate:.0f} tokens/s, "
        f"{summary.peak_mib:.0f} MiB above the model, {stall} of the time waiting for a core"
    )


def report(record: dict[str, Any]) -> str:
    """The whole result as Markdown."""
    work = Work.from_json(json.dumps(record["work"]))
    rounds: list[Round] = record["rounds"]
    kept = comparison.kept_rounds(rounds, record["max_stall"])
    quiet = sum(not comparison.disturbed(runs, record["max_stall"]) for runs in rounds)
    peers: dict[int, Summary] = {}
    for micro_batch in record["trl_micro"]:
        if (name := peer_name(micro_batch)) in kept[0]:
            peers[micro_batch] = comparison.summarise(name, [runs[name] for runs in kept])
    ours = comparison.summarise(OURS, [runs[OURS] for runs in kept])
    lines = [
        f"{work.model}, beta {work.beta:g}, {'bfloat16' if work.bf16 else 'float32'}, "
        f"{work.prompts} prompts of {work.prompt_tokens[0]} to {work.prompt_tokens[1]} tokens x "
        f"{work.group_size} completions of up to {work.max_new}. "
        + measure.provenance(record, work.threads)
        + "\n",
        comparison.comparison_table(ours, list(peers.values())),
        comparison.noise([*peers.values(), ours], len(kept), len(rounds)),
    ]
    if not quiet:
        lines.append(
            "\n**WARNING: disturbed**: no round was quiet, so all were kept. Measure again with "
            "nothing else running."
        )
    lines += [
        f"{name} did not finish: {said.splitlines()[0]}" for name, said in record["failed"].items()
    ]
    if peers and not work.bf16 and not record["quick"]:
        found = comparison.targets(ours, peers, model=work.model, rows=work.rows)
        lines += ["", comparison.targets_table(found)]
    return "\n".join(lines).rstrip() + "\n"


def block_name(work: Work) -> str:
    """The place of the result in docs/performance.md."""
    return f"grpo-{work.model}-{'kl' if work.beta else 'plain'}{'-bf16' if work.bf16 else ''}"


def arguments_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=workload.MODELS, default="tiny")
    parser.add_argument("--beta", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=5, help="measured steps of a process")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--trl-micro", type=int, nargs="*", help="default: 32 and 8 for tiny, 8 for smollm2"
    )
    parser.add_argument("--bf16", action="store_true", help="both sides in bfloat16")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--max-new", type=int, default=workload.LENGTH_LIMIT)
    parser.add_argument("--prompt-tokens", type=int, nargs=2, default=[100, 300])
    parser.add_argument("--micro-batch", type=int, default=8, help="of our side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--max-stall", type=float, default=measure.MAX_STALL, help="above it, a round is discarded"
    )
    parser.add_argument("--quick", action="store_true", help="one short step, one round")
    parser.add_argument("--json", type=Path, help="where the result is written")
    options = parser.parse_args(arguments)
    if options.trl_micro is None:
        options.trl_micro = list(TRL_MICRO[options.model])
    if options.quick:
        options.rounds = 1
    return options


def work_of(options: argparse.Namespace) -> Work:
    """What our side does."""
    low, high = options.prompt_tokens
    work = Work(
        model=options.model,
        beta=options.beta,
        steps=options.steps,
        prompts=options.prompts,
        group_size=options.group_size,
        max_new=options.max_new,
        prompt_tokens=(low, high),
        micro_batch=options.micro_batch,
        bf16=options.bf16,
        threads=options.threads,
    )
    return workload.quick(work) if options.quick else work


def main() -> None:
    """Measure, print, write."""
    options = arguments_of()
    work = work_of(options)
    micro_batches = options.trl_micro[-1:] if options.quick else options.trl_micro
    if micro_batches:
        measure.require_trl("grpo_vs_trl")
    with tempfile.TemporaryDirectory() as folder:
        prompts = workload.write_prompts(work, Path(folder) / "prompts.jsonl")
        sides = sides_of(work, micro_batches)
        rounds, failed = measure_rounds(sides, prompts, options.rounds, _brief)
    record = {
        "benchmark": "grpo_vs_trl",
        "quick": options.quick,
        "machine": measure.machine(),
        "versions": measure.versions(*PACKAGES, *(["trl"] if micro_batches else [])),
        "work": asdict(work),
        "trl_micro": micro_batches,
        "max_stall": options.max_stall,
        "rounds": rounds,
        "failed": failed,
    }
    text = report(record)
    print(f"\n{text}")
    if options.json:
        measure.write_record(options.json, record, {block_name(work): text})


if __name__ == "__main__":
    main()

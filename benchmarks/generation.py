"""Sampling alone: `generate` of Hugging Face beside ours, and ours beside the machine's limits.

    python -m benchmarks.generation --model tiny --json runs/bench/generation-tiny.json
    python -m benchmarks.generation --quick

Measured: completion tokens per second of both on the same prompts with the same adapters and stop
rule, in rounds that alternate in order, each time with the memory above the loaded models; then,
for 1, 8, 32 and 64 rows, a decode step of ours beside the time in which the machine could read the
weights and keys and values once, or do the products (`benchmarks.limits`), and the shares of a
step's time by kind of operation.

Hugging Face's side is `generate` through unchanged modules, each prompt repeated for its group,
which is what a trainer without a sampler of its own does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import GenerationConfig

from benchmarks import limits, measure, workload
from benchmarks.comparison import ratio, table
from benchmarks.workload import Work
from sctom.batch import Prompt
from sctom.data.template import render_prompt
from sctom.modules import Backbone
from sctom.modules.backbone import stop_ids
from sctom.rollout import LocalSampler, Sampling
from sctom.rollout.causal import pad

ROWS = (1, 8, 32, 64)
HF, OURS = "HF generate", "sctom"


def load(work: Work) -> tuple[Any, Any]:
    """The policy with its adapters, and the tokenizer."""
    return Backbone(
        str(workload.model_folder(work)),
        lora_rank=workload.LORA_RANK,
        lora_alpha=workload.LORA_ALPHA,
        attention="sdpa",
        dtype="bfloat16" if work.bf16 else "float32",
    ).load()


def prompts_of(work: Work, tokenizer: Any) -> list[list[Prompt]]:
    """The prompts of each step, as the sampler takes them."""
    with TemporaryDirectory() as folder:
        dialogues = workload.read_prompts(workload.write_prompts(work, Path(folder) / "prompts"))
    prompts = [Prompt(i, render_prompt(tokenizer, d), d) for i, d in enumerate(dialogues)]
    return [prompts[i : i + work.prompts] for i in range(0, len(prompts), work.prompts)]


@torch.no_grad()
def hf_generate(model: Any, tokenizer: Any, prompts: Sequence[Prompt], work: Work) -> list[int]:
    """Lengths of completions sampled by `generate`, each prompt repeated for its group."""
    repeated = [prompt.ids for prompt in prompts for _ in range(work.group_size)]
    ids, mask, _ = pad(repeated, tokenizer.pad_token_id, side="left")
    stops = sorted(stop_ids(model, tokenizer))
    untyped: Any = GenerationConfig
    settings = untyped(
        max_new_tokens=work.max_new,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=stops,
        pad_token_id=tokenizer.pad_token_id,
    )
    output = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
    completions = output[:, ids.shape[1] :]
    ended = torch.isin(completions, torch.tensor(stops))
    first = torch.where(ended.any(1), ended.int().argmax(1) + 1, completions.shape[1])
    return [int(length) for length in first]


def our_sampler(model: Any, tokenizer: Any, prompts: Sequence[Prompt], work: Work) -> list[int]:
    """Lengths of completions sampled by `LocalSampler`."""
    samples = LocalSampler().sample(
        model,
        prompts,
        group_size=work.group_size,
        sampling=Sampling(max_new_tokens=work.max_new),
        stop_ids=stop_ids(model, tokenizer),
        address=(work.seed,),
    )
    return [len(sample.ids) for sample in samples]


def compare(work: Work) -> dict[str, list[dict[str, Any]]]:
    """Sample every step's prompts with both engines, each with a model of its own."""
    sides: dict[str, tuple[Callable[..., list[int]], Any]] = {}
    for name, function in ((HF, hf_generate), (OURS, our_sampler)):
        model, tokenizer = load(work)
        sides[name] = (function, model)
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    torch.manual_seed(work.seed)
    for number, prompts in enumerate(prompts_of(work, tokenizer)):
        for name in list(sides) if number % 2 == 0 else list(reversed(sides)):
            function, model = sides[name]
            memory = measure.Memory()
            memory.start()
            stall, started = measure.Stall(), time.perf_counter()
            lengths = function(model, tokenizer, prompts, work)
            seconds = time.perf_counter() - started
            if number >= work.warmup:
                measured[name].append(
                    {
                        "seconds": seconds,
                        "tokens": sum(lengths),
                        "peak_mib": memory.peak_mib(),
                        "stall": stall.share(),
                    }
                )
    return measured


def comparison_table(measured: dict[str, list[dict[str, Any]]]) -> str:
    """Tokens per second and memory of both."""
    names = {n: measure.mark(n, [run["stall"] for run in runs]) for n, runs in measured.items()}
    rates = {n: [run["tokens"] / run["seconds"] for run in runs] for n, runs in measured.items()}
    peaks = {name: max(run["peak_mib"] for run in runs) for name, runs in measured.items()}
    hf, ours = median(rates[HF]), median(rates[OURS])
    rows = [
        ["tokens/s", f"{hf:,.1f}", f"{ours:,.1f}", ratio(ours, hf)],
        ["spread between steps", *[f"{measure.spread(rates[n]):.0%}" for n in (HF, OURS)], ""],
        [
            "memory above the model, MiB",
            *[f"{peaks[name]:,.0f}" for name in (HF, OURS)],
            ratio(peaks[HF], peaks[OURS]),
        ],
    ]
    return table(["", names[HF], names[OURS], "ratio"], rows)


def report(record: dict[str, Any], work: Work) -> str:
    """The whole result as Markdown."""
    stalls = [run["stall"] for runs in record["measured"].values() for run in runs]
    stalls += [entry["stall"] for entry in record["limits"]["rows"]]
    place = f"{measure.provenance(record, work.threads)} {measure.waited(stalls)}"
    lines = [
        f"{work.model}, {work.prompts} prompts of {work.prompt_tokens[0]} to "
        f"{work.prompt_tokens[1]} tokens x {work.group_size} completions of up to {work.max_new}, "
        f"{work.steps} steps. {place}\n",
        comparison_table(record["measured"]),
        limits.report(record["limits"]),
    ]
    if warning := measure.warning(stalls):
        lines.insert(1, f"{warning}\n")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", choices=workload.MODELS, default="tiny")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--quick", action="store_true", help="one short step, two sizes of batch")
    parser.add_argument("--json", type=Path, help="where the result is written")
    options = parser.parse_args()
    measure.prepare_process(options.threads)
    work = Work(
        model=options.model, steps=options.steps, threads=options.threads, bf16=options.bf16
    )
    rows = options.rows
    if options.quick:
        work, rows = replace(workload.quick(work), prompts=2), rows[:2]
    record: dict[str, Any] = {
        "benchmark": "generation",
        "quick": options.quick,
        "machine": measure.machine(),
        "versions": measure.versions("torch", "transformers", "peft"),
        "work": asdict(work),
        "measured": compare(work),
    }
    model, _ = load(work)
    record["limits"] = limits.measure_limits(
        model, rows, steps=8 if options.quick else 32, repeats=1 if options.quick else 3
    )
    text = report(record, work)
    print(text)
    if options.json:
        name = f"generation-{work.model}{'-bf16' if work.bf16 else ''}"
        measure.write_record(options.json, record, {name: text})


if __name__ == "__main__":
    main()

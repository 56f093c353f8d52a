"""The log-prob head alone: `linear_token_logps` beside the unfused head and TRL's chunked one.

    python -m benchmarks.head --json runs/bench/head.json
    python -m benchmarks.head --quick

Measured: seconds and peak memory of the log-probabilities of 1,600 tokens from hidden states, for
three vocabularies, float32 and bfloat16; with a frozen head (gradient of the hidden states), with a
trained one (of the weight too) and without a gradient. Memory is that of the process above what it
held before the call, less the gradients asked for, which every way has to make.

Each way runs in a process of its own, which answers one request at a time, so that they alternate
call by call and never run together. Ratios are medians over such rounds, each round of calls side
by side. In bfloat16 the three do not compute the same: sctom multiplies in float32 all the same,
the others in bfloat16. TRL's gives the entropy too; so does sctom's, in the same call.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from benchmarks import measure
from benchmarks.comparison import table
from sctom.losses import linear_token_logps

WIDTHS = {8192: 384, 49152: 576, 151936: 896}
"""Hidden sizes of models with such vocabularies: a tiny one, SmolLM2-135M, Qwen2.5-0.5B."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODES = ("frozen", "trained", "no gradient")
UNFUSED, FUSED, TRL = "unfused", "sctom", "TRL"

Head = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(hidden [N, H], weight [V, H], ids [N]) -> log-probabilities [N]."""


@dataclass(frozen=True)
class Case:
    """What is computed: sizes, dtype of hidden states and weight, and which gradients."""

    vocabulary: int
    rows: int
    dtype: str
    mode: str


def unfused_head(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """All logits, their log-softmax, and of that the entries asked for."""
    return (hidden @ weight.T).float().log_softmax(-1).gather(1, ids[:, None]).squeeze(1)


def fused_head(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """Ours, with the entropies."""
    return linear_token_logps(hidden, weight, ids, return_entropy=True)[0]


def trl_head(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """TRL's, with the entropies, in chunks of the size that its trainer takes."""
    from trl.kernels import ChunkedLogProbFunction

    outputs = ("log_probs", "entropy")
    logps: Tensor = ChunkedLogProbFunction.apply(  # type: ignore[no-untyped-call]
        hidden, weight, None, ids, 1.0, 32768, None, 1.0, outputs
    )[0]
    return logps


HEADS: dict[str, Head] = {UNFUSED: unfused_head, FUSED: fused_head, TRL: trl_head}


class Call:
    """One head on one case, to be called again and again."""

    def __init__(self, head: Head, case: Case) -> None:
        torch.manual_seed(0)
        dtype, width = DTYPES[case.dtype], WIDTHS[case.vocabulary]
        self.head, self.differentiated = head, case.mode != "no gradient"
        self.weight = torch.randn(case.vocabulary, width).mul_(0.05).to(dtype)
        self.hidden = torch.randn(case.rows, width).to(dtype)
        self.ids = torch.randint(0, case.vocabulary, (case.rows,))
        self.upstream = torch.randn(case.rows) / case.rows
        self.leaves = [self.hidden] if self.differentiated else []
        self.leaves += [self.weight] if case.mode == "trained" else []
        for leaf in self.leaves:
            leaf.requires_grad_()

    def __call__(self) -> float:
        """Seconds of one pass, forward and backward if there is a gradient to take."""
        started = time.perf_counter()
        with torch.set_grad_enabled(self.differentiated):
            logps = self.head(self.hidden, self.weight, self.ids)
            if self.differentiated:
                torch.autograd.grad(logps, self.leaves, self.upstream)
        return time.perf_counter() - started

    def peak_mib(self) -> float:
        """Peak memory of one pass, less the gradients."""
        memory = measure.Memory()
        memory.start()
        self()
        return memory.peak_mib() - sum(leaf.nbytes for leaf in self.leaves) / 2**20


def serve(requests: Connection, name: str, threads: int) -> None:
    """Answer a case with its peak memory, "run" with the seconds of a call, None with the end."""
    measure.prepare_process(threads)
    call: Call | None = None
    while (request := requests.recv()) is not None:
        if isinstance(request, Case):
            call = None  # before the next tensors are made
            call = Call(HEADS[name], request)
            call()  # libraries load, kernels are generated
            requests.send(call.peak_mib())
        else:
            assert call is not None
            requests.send(call())


class Workers:
    """A process for each head."""

    def __init__(self, names: Sequence[str], threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes: dict[str, Connection] = {}
        for name in names:
            self.pipes[name], other = context.Pipe()
            context.Process(target=serve, args=(other, name, threads), daemon=True).start()
            other.close()  # so that a process that dies ends our waiting

    def ask(self, name: str, request: Case | str) -> float:
        """Send a request and wait for the answer."""
        self.pipes[name].send(request)
        answer: float = self.pipes[name].recv()
        return answer

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes.values():
            pipe.send(None)


def measure_case(workers: Workers, case: Case, repeats: int) -> dict[str, Any]:
    """Peak memory and seconds of every head, in rounds that alternate in order."""
    names = list(workers.pipes)
    peaks = {name: workers.ask(name, case) for name in names}
    stall = measure.Stall()
    rounds = []
    for number in range(repeats):
        order = names if number % 2 == 0 else names[::-1]
        rounds.append({name: workers.ask(name, "run") for name in order})
    return asdict(case) | {"peak_mib": peaks, "rounds": rounds, "stall": stall.share()}


def relative(result: dict[str, Any], name: str, base: str) -> float:
    """Median over the rounds of the time of one head over that of another."""
    ratios: list[float] = [s[name] / s[base] for s in result["rounds"]]
    return median(ratios)


def row(result: dict[str, Any]) -> list[str]:
    """A line of the table."""
    peaks, rounds = result["peak_mib"], result["rounds"]
    with_trl, mode = TRL in peaks, result["mode"]
    seconds = {name: f"{median(s[name] for s in rounds):.2f}" for name in peaks}
    noise = measure.spread([s[FUSED] / s[UNFUSED] for s in rounds])
    return [
        measure.mark(f"{result['vocabulary']:,}, {result['dtype']}, {mode}", [result["stall"]]),
        *[seconds.get(name, "-") for name in HEADS],
        f"{relative(result, FUSED, UNFUSED):.2f}",
        f"{relative(result, FUSED, TRL):.2f}" if with_trl else "-",
        f"{noise:.0%}",
        "-" if result["stall"] is None else f"{result['stall']:.0%}",
        *[f"{peaks[name]:,.0f}" if name in peaks else "-" for name in HEADS],
    ]


def results_table(results: Sequence[dict[str, Any]]) -> str:
    """Seconds, ratios, noise (spread of the first ratio; time in wait for a core) and memory."""
    header = ["vocabulary, dtype, head", *[f"{name}, s" for name in HEADS]]
    header += ["sctom / unfused", "sctom / TRL", "spread", "stall"]
    header += [f"{name}, MiB" for name in HEADS]
    return table(header, [row(result) for result in results])


def report(record: dict[str, Any]) -> str:
    """The whole result as Markdown."""
    results = record["results"]
    stalls = [result["stall"] for result in results]
    lines = [
        f"{record['rows']:,} tokens, medians of {record['repeats']} rounds. "
        f"{measure.provenance(record, record['threads'])} {measure.waited(stalls)}\n"
    ]
    if warning := measure.warning(stalls):
        lines.append(f"{warning}\n")
    return "\n".join([*lines, results_table(results)])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the smallest vocabulary, 256 rows")
    parser.add_argument("--vocabulary", type=int, nargs="+", choices=WIDTHS, default=list(WIDTHS))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--rows", type=int, default=1600, help="tokens whose log-prob is taken")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of calls side by side")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    options = parser.parse_args()
    if options.quick:
        options.vocabulary, options.rows = [min(WIDTHS)], 256
    return options


def main() -> None:
    """Command line."""
    options = arguments()
    names = [UNFUSED, FUSED, TRL]
    if find_spec("trl") is None:
        names.remove(TRL)
        print("TRL is missing here (benchmarks/README.md says how to get it): its head is left out")
    packages = ("torch", "trl") if TRL in names else ("torch",)
    record: dict[str, Any] = {
        "benchmark": "head",
        "quick": options.quick,
        "machine": measure.machine(),
        "versions": measure.versions(*packages),
        "threads": options.threads,
        "rows": options.rows,
        "repeats": options.repeats,
    }
    print(measure.provenance(record, options.threads), flush=True)
    workers, results = Workers(names, options.threads), []
    for vocabulary in options.vocabulary:
        for dtype in options.dtype:
            for mode in options.mode:
                case = Case(vocabulary, options.rows, dtype, mode)
                results.append(measure_case(workers, case, options.repeats))
                print(" | ".join(row(results[-1])), flush=True)
    workers.close()
    record["results"] = results
    text = report(record)
    print(f"\n{text}")
    if options.json:
        measure.write_record(options.json, record, {"head": text})


if __name__ == "__main__":
    main()

"""A decode step beside what the machine could do at best, and where its time goes.

A step reads every weight once for all rows, the keys and values of the prompt once for its group,
and those of each completion for itself; it does two operations per weight and row. So it cannot be
shorter than

    max(bytes / bandwidth, operations / rate)

with the bandwidth at which this machine reads as many bytes again and again, and the rate of its
fastest large product, plain or with a packed weight, both measured here. Weights are those of the
linear layers and the head, with adapters merged; the embedding is looked up, not read.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.comparison import table
from benchmarks.measure import Stall, best_seconds, mark
from sctom.batch import Prompt
from sctom.packed_linear import PackedLinear
from sctom.rollout import LocalSampler, Sampling
from sctom.rollout.causal import causal_model

PROMPT_TOKENS = 200
NEVER = frozenset({2**31 - 1})
"""A stop rule that ends no completion: a token that no vocabulary has."""

KINDS = {  # kind -> parts of the names of its operations; the first kind that fits counts
    "attention": ("attention", "bmm"),
    "linear layers": ("addmm", "linear", "aten::mm", "aten::matmul", "mkldnn"),
    "softmax and drawing": (
        *("softmax", "cumsum", "searchsorted", "logsumexp", "isin", "argmax", "sort", "amax"),
        *("aten::exp_", "aten::sum"),
    ),
    "moving data": ("index", "copy", "aten::cat", "gather", "clone", "fill", "zero"),
}
OTHER, PYTHON = "norms, rotary, elementwise", "Python and dispatch"


@dataclass(frozen=True)
class Size:
    """What a decode step of a model moves and computes."""

    weight_bytes: int
    """Of all linear layers and the head."""
    weights: int
    """Their number."""
    kv_bytes: int
    """Keys and values of one token over all layers."""
    attention_operations: int
    """For one query and one key over all layers: product with the key and with the value."""

    def step_bytes(self, rows: int, prompt: int, generated: float) -> float:
        """Read in a step of rows that share one prompt and have so many tokens of their own."""
        return self.weight_bytes + self.kv_bytes * (prompt + rows * generated)

    def step_operations(self, rows: int, prompt: int, generated: float) -> float:
        """Floating-point operations of the same step."""
        attention = self.attention_operations * (prompt + generated)
        return rows * (2.0 * self.weights + attention)


def size_of(model: nn.Module) -> Size:
    """Count the weights of a causal model, without adapters."""
    causal = causal_model(model)
    config = causal.config
    named = [(n, m) for n, m in causal.named_modules() if isinstance(m, nn.Linear)]
    weights = [m.weight for n, m in named if "lora_" not in n]
    element = weights[0].element_size()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Size(
        weight_bytes=sum(w.numel() * w.element_size() for w in weights),
        weights=sum(w.numel() for w in weights),
        kv_bytes=2 * config.num_hidden_layers * config.num_key_value_heads * width * element,
        attention_operations=4 * config.num_hidden_layers * config.num_attention_heads * width,
    )


def read_bandwidth(size: int) -> float:
    """Bytes per second at which a float32 tensor of so many bytes is read again and again."""
    numbers = torch.ones(max(1, size // 4))
    return size / best_seconds(numbers.sum)


def product_rate(dtype: torch.dtype, *, width: int = 2048, rows: int = 256) -> float:
    """Operations per second of a large product, the faster of a plain and a packed weight."""
    weight, value = torch.randn(width, width).to(dtype), torch.randn(rows, width).to(dtype)
    packed = PackedLinear(weight, rows=rows)
    products = (lambda: nn.functional.linear(value, weight), lambda: packed(value))
    seconds = min(best_seconds(product, repeats=20) for product in products)
    return 2.0 * rows * width * width / seconds


def sample(model: nn.Module, rows: int, length: int) -> None:
    """Draw completions of exactly this length from one prompt."""
    vocabulary = causal_model(model).config.vocab_size
    prompt = Prompt(0, [i % vocabulary for i in range(10, 10 + PROMPT_TOKENS)], [])
    samples = LocalSampler().sample(
        model,
        [prompt],
        group_size=rows,
        sampling=Sampling(max_new_tokens=length),
        stop_ids=NEVER,
        address=(0,),
    )
    assert all(len(s.ids) == length for s in samples)


def seconds_per_step(
    model: nn.Module, rows: int, *, steps: int, first: int = 4, repeats: int = 3
) -> float:
    """Of decoding alone: the difference between two lengths, divided by the steps between them."""
    short = best_seconds(lambda: sample(model, rows, first), repeats=repeats)
    long = best_seconds(lambda: sample(model, rows, first + steps), repeats=repeats)
    return (long - short) / steps


def where_time_goes(model: nn.Module, rows: int, *, steps: int, first: int = 4) -> dict[str, float]:
    """Shares of a decode step by kind of operation, under the profiler.

    Time between operations counts as Python and dispatch; the profiler adds to it.
    """
    kinds, wall = _profiled(model, rows, first + steps)
    before, wall_before = _profiled(model, rows, first)
    spent = {kind: kinds[kind] - before.get(kind, 0.0) for kind in kinds}
    total = wall - wall_before
    spent[PYTHON] = total - sum(spent.values())
    return {kind: max(0.0, seconds / total) for kind, seconds in spent.items()}


def _profiled(model: nn.Module, rows: int, length: int) -> tuple[dict[str, float], float]:
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        started = time.perf_counter()
        sample(model, rows, length)
        wall = time.perf_counter() - started
    seconds: defaultdict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        seconds[kind_of(event.key)] += event.self_cpu_time_total / 1e6
    return dict(seconds), wall


def kind_of(operation: str) -> str:
    """The kind of an operation of torch.

    >>> kind_of("aten::addmm"), kind_of("aten::mul")
    ('linear layers', 'norms, rotary, elementwise')
    """
    kinds = (kind for kind, parts in KINDS.items() if any(part in operation for part in parts))
    return next(kinds, OTHER)


def measure_limits(
    model: Any, rows: Sequence[int], *, steps: int, repeats: int = 3
) -> dict[str, Any]:
    """Limits of the machine, and a decode step at each number of rows beside them.

    Args:
        model: a causal language model, with or without adapters.
        rows: numbers of completions decoded at once.
        steps: decode steps that are timed.
        repeats: times each length is sampled; the shortest time counts.
    """
    weight: Tensor = causal_model(model).get_output_embeddings().weight
    size = size_of(model)
    bandwidth, rate = read_bandwidth(size.weight_bytes), product_rate(weight.dtype)
    record: dict[str, Any] = {
        "bandwidth": bandwidth,
        "far_bandwidth": read_bandwidth(2**30),
        "rate": rate,
        "weight_bytes": size.weight_bytes,
        "balance_rows": rate * size.weight_bytes / (2.0 * size.weights * bandwidth),
        "rows": [],
    }
    model.eval()
    for count in rows:
        generated, stall = 4 + steps / 2, Stall()
        seconds = seconds_per_step(model, count, steps=steps, repeats=repeats)
        record["rows"].append(
            {
                "rows": count,
                "seconds": seconds,
                "stall": stall.share(),
                "bytes": size.step_bytes(count, PROMPT_TOKENS, generated),
                "operations": size.step_operations(count, PROMPT_TOKENS, generated),
                "shares": where_time_goes(model, count, steps=steps),
            }
        )
    return record


def report(record: dict[str, Any]) -> str:
    """The limits and the fractions of them as Markdown."""
    near, far = record["bandwidth"] / 1e9, record["far_bandwidth"] / 1e9
    weights, rate = record["weight_bytes"] / 1e6, record["rate"] / 1e9
    lines = [
        f"Limits of this machine: it reads {near:.0f} GB/s over the {weights:.0f} MB of these "
        f"weights ({far:.0f} GB/s over 1 GiB) and does {rate:.0f} GFLOP/s; from "
        f"{record['balance_rows']:.0f} rows on, computing is the limit.\n",
        table(
            ["rows", "ms a step", "tokens/s", "MB read", "limit, ms", "limited by", "reached"],
            [_limit_row(entry, record["bandwidth"], record["rate"]) for entry in record["rows"]],
        ),
        "Shares of a decode step under the profiler, which makes Python look longer:\n",
    ]
    kinds = list(dict.fromkeys(kind for entry in record["rows"] for kind in entry["shares"]))
    kinds.sort(key=lambda kind: -max(e["shares"].get(kind, 0.0) for e in record["rows"]))
    rows = [
        [kind, *[f"{entry['shares'].get(kind, 0.0):.0%}" for entry in record["rows"]]]
        for kind in kinds
    ]
    lines.append(table(["", *[f"{entry['rows']} rows" for entry in record["rows"]]], rows))
    return "\n".join(lines)


def _limit_row(entry: dict[str, Any], bandwidth: float, rate: float) -> list[str]:
    reading, computing = entry["bytes"] / bandwidth, entry["operations"] / rate
    limit = max(reading, computing)
    return [
        mark(str(entry["rows"]), [entry["stall"]]),
        f"{1000 * entry['seconds']:.2f}",
        f"{entry['rows'] / entry['seconds']:,.0f}",
        f"{entry['bytes'] / 1e6:.0f}",
        f"{1000 * limit:.2f}",
        "reading" if reading >= computing else "computing",
        f"{limit / entry['seconds']:.0%}",
    ]

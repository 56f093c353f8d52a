"""How often a model refuses what it should not: false refusals on harmless prompts.

    python -m sctom.refusals --model PATH [--adapter FOLDER] [--out FOLDER]

Prints the rates with their 95% intervals. With --out it also writes refusals.json (the same
numbers) and answers.jsonl (every answer and what it was taken for: read some of them).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import get_console
from rich.progress import Progress
from rich.table import Table

from sctom.callbacks.common import Record, atomic_write, to_lines
from sctom.commands import errors_told
from sctom.fit import quiet
from sctom.modules.answers import Answerer, answer
from sctom.modules.backbone import Backbone
from sctom.modules.reward_metrics import wilson_interval
from sctom.readers import Message
from sctom.rewards.refusal import response_kind
from sctom.rollout.base import Sampling
from sctom.tasks.refusal import PROMPTS, Refusals, count_refusals, read_prompts

NUMBERS_FILE = "refusals.json"
ANSWERS_FILE = "answers.jsonl"
COLUMNS = ("kind", "trigger")

Counts = dict[str, dict[str, Refusals]]


def evaluate(
    backbone: Backbone,
    prompts: str | Path = PROMPTS,
    out: str | Path | None = None,
    *,
    system: str | None = None,
    max_new_tokens: int = 96,
) -> Counts:
    """Let a model answer the prompts, by its most likely tokens, and count what it refuses.

    Args:
        backbone: the model.
        prompts: JSONL file, see `read_prompts`.
        out: folder to write to; what it has of an earlier evaluation is replaced.
        system: a system message in front of every prompt.
        max_new_tokens: longest answer. A refusal is found in its first 300 characters, so a longer
            answer than about 100 tokens changes nothing.

    Returns:
        "kind" and "trigger" -> value -> counts.

    Raises:
        FileNotFoundError: there is no such file or model.
        ValueError: a row of the file is faulty, or the model cannot be asked.
    """
    rows = read_prompts(prompts)
    sampling = Sampling(max_new_tokens=max_new_tokens, temperature=0.0)
    first = [] if system is None else [{"role": "system", "content": system}]
    texts = _ask(backbone, [[*first, *row["messages"]] for row in rows], sampling)
    counts = {column: count_refusals(rows, texts, column) for column in COLUMNS}
    if out is not None:
        numbers = {
            "model": backbone.path,
            "adapter": backbone.adapter,
            "system": system,
            "max_new_tokens": max_new_tokens,
            **{column: {k: _numbers(c) for k, c in counts[column].items()} for column in COLUMNS},
        }
        atomic_write(Path(out) / NUMBERS_FILE, json.dumps(numbers, indent=1) + "\n")
        records = [
            {**row, "answer": text, "response": response_kind(text)}
            for row, text in zip(rows, texts, strict=True)
        ]
        atomic_write(Path(out) / ANSWERS_FILE, to_lines(records))
    return counts


def _ask(
    backbone: Backbone, conversations: Sequence[Sequence[Message]], sampling: Sampling
) -> list[str]:
    answerer = Answerer.load(backbone, backbone.load_tokenizer(), sampling)
    with Progress(console=get_console(), transient=True) as bar:
        task = bar.add_task("answering prompts", total=len(conversations))
        answers = answer(answerer, conversations, finished=lambda: bar.advance(task))
    return [each.text for each in answers]


def _numbers(counts: Refusals) -> Record:
    low, high = wilson_interval(counts.refused, counts.prompts)
    return {
        "prompts": counts.prompts,
        "refused": counts.refused,
        "unable": counts.unable,
        "rate": counts.rate,
        "interval": [low, high],
    }


def refusal_table(counts: Mapping[str, Mapping[str, Refusals]]) -> Table:
    """Rates of each kind, and of each trigger word that was refused at least once.

    Args:
        counts: as `evaluate` gives them.
    """
    table = Table("prompts", title="false refusals")
    for heading in ("number", "refused", "rate", "95% interval", "unable"):
        table.add_column(heading, justify="right")
    for kind, found in counts["kind"].items():
        table.add_row(kind if kind != "adversarial" else f"{kind} (no mistake)", *_cells(found))
    refused = {word: found for word, found in counts["trigger"].items() if found.refused}
    if refused:
        table.add_section()
    for word, found in sorted(refused.items(), key=lambda item: -item[1].rate):
        table.add_row(f'"{word}"', *_cells(found))
    return table


def _cells(counts: Refusals) -> list[str]:
    low, high = wilson_interval(counts.refused, counts.prompts)
    return [
        str(counts.prompts),
        str(counts.refused),
        f"{counts.rate:.1%}",
        f"{low:.1%} to {high:.1%}",
        str(counts.unable),
    ]


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m sctom.refusals",
        description="Count the harmless prompts that a model refuses.",
    )
    parser.add_argument("--model", required=True, help="folder of the model, such as RUN/model")
    parser.add_argument("--adapter", help="folder of an adapter to it")
    parser.add_argument("--prompts", default=PROMPTS, help=f"JSONL file (default {PROMPTS})")
    parser.add_argument("--out", type=Path, help="folder for numbers and answers")
    parser.add_argument("--system", help="a system message in front of every prompt")
    parser.add_argument(
        "--max_new_tokens", type=int, default=96, help="longest answer (default 96)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    given = build_parser().parse_args(argv)
    quiet()
    with errors_told():
        backbone = Backbone(given.model, adapter=given.adapter)
        counts = evaluate(
            backbone,
            given.prompts,
            given.out,
            system=given.system,
            max_new_tokens=given.max_new_tokens,
        )
    get_console().print(refusal_table(counts))
    if given.out is not None:
        print(f"{given.out}: numbers and answers")


if __name__ == "__main__":
    main()

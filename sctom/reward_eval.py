"""Evaluate a saved reward model on pairs of answers.

    python -m sctom.reward_eval --model RUN/model --pairs FILE [--out FOLDER]

Prints the table. With --out it also writes evaluation.json (every number, and what the figures
show), scored.jsonl (the scores of every pair, by its line in the file) and the figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich import get_console
from rich.progress import Progress

from sctom.assets import resolve
from sctom.callbacks.common import Record, atomic_write, to_lines
from sctom.callbacks.reward_report import reward_table, write_evaluation
from sctom.checks import check_numbers
from sctom.commands import errors_told
from sctom.fit import quiet
from sctom.modules.quantize import default_device
from sctom.modules.reward_evaluation import RewardEvaluation, check_evaluation, evaluate_scores
from sctom.modules.reward_head import load_reward_model, saved_backbone
from sctom.modules.reward_metrics import ScoredPair
from sctom.modules.reward_scoring import score_pairs
from sctom.preferences import GRADES, Pair, read_preferences
from sctom.readers import DataError

SCORED_FILE = "scored.jsonl"


def evaluate(
    model: str | Path,
    pairs: str | Path,
    out: str | Path | None = None,
    *,
    bins: int = 10,
    threshold: float = 0.15,
    wanted_precision: float = 0.9,
    batch_tokens: int = 8192,
    max_tokens: int | None = None,
) -> RewardEvaluation:
    """Evaluate a saved reward model on a file of pairs.

    Args:
        model: folder of the model, as a run saves it.
        pairs: JSONL file, see `read_preferences`.
        out: folder to write to; what it has of an earlier evaluation is replaced.
        bins: see `evaluate_scores`.
        threshold: see `evaluate_scores`.
        wanted_precision: see `evaluate_scores`.
        batch_tokens: see `score_pairs`.
        max_tokens: see `score_pairs`.

    Raises:
        FileNotFoundError: there is no such file, or no reward model with a trained head.
        ValueError: a setting is out of its range, the file is empty or a row of it faulty, a pair
            is too long, or a score is not finite.
    """
    check_evaluation("reward_eval", bins, threshold, wanted_precision)
    limits = {"batch_tokens": batch_tokens, "max_tokens": 1 if max_tokens is None else max_tokens}
    check_numbers("reward_eval", {k: (v, "at least 1", 1, sys.maxsize) for k, v in limits.items()})
    saved_backbone(resolve(model))  # refuses other folders before anything slow
    file = resolve(pairs)
    rows = read_preferences(file)
    if not rows:
        raise DataError(f"{file} holds no pairs; an evaluation needs at least one")
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)  # while nothing is lost if that fails
    scored = _score(resolve(model), file, rows, batch_tokens, max_tokens)
    evaluation = evaluate_scores(
        scored, bins=bins, threshold=threshold, wanted_precision=wanted_precision
    )
    if out is not None:
        write_evaluation(evaluation, Path(out))
        records = [_record(line, pair) for line, pair in enumerate(scored, start=1)]
        atomic_write(Path(out) / SCORED_FILE, to_lines(records))
    return evaluation


def _score(
    folder: Path, file: Path, pairs: Sequence[Pair], batch_tokens: int, max_tokens: int | None
) -> list[ScoredPair]:
    device = default_device()
    model, tokenizer = load_reward_model(folder, device)
    with Progress(console=get_console(), transient=True) as bar:
        task = bar.add_task("scoring answers", total=None)
        return score_pairs(
            model.to(device),
            tokenizer,
            pairs,
            batch_tokens=batch_tokens,
            max_tokens=max_tokens,
            place=str(file),
            progress=lambda done, answers: bar.update(task, completed=done, total=answers),
        )


def _record(line: int, pair: ScoredPair) -> Record:
    grade = None if pair.grade is None else GRADES[pair.grade]
    return {"line": line, **asdict(pair), "grade": grade}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m sctom.reward_eval",
        description="Evaluate a saved reward model on pairs of answers.",
    )
    parser.add_argument("--model", required=True, help="folder of the model, such as RUN/model")
    parser.add_argument("--pairs", required=True, help="JSONL file of pairs")
    parser.add_argument("--out", type=Path, help="folder for numbers, scores and figures")
    settings: tuple[tuple[str, type, float | None, str], ...] = (
        ("bins", int, 10, "bins of the calibration error (default 10)"),
        ("threshold", float, 0.15, "sigmoid of a score below which it is unsafe (default 0.15)"),
        ("wanted_precision", float, 0.9, 'of "unsafe", to find a threshold for (default 0.9)'),
        ("batch_tokens", int, 8192, "most tokens of one forward pass (default 8192)"),
        ("max_tokens", int, None, "a longer answer is an error (default: the model's most)"),
    )
    for name, kind, default, said in settings:
        parser.add_argument(f"--{name}", type=kind, default=default, help=said)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    arguments = build_parser().parse_args(argv)
    quiet()
    with errors_told():
        evaluation = evaluate(**vars(arguments))
    get_console().print(reward_table(evaluation))
    if arguments.out is not None:
        print(f"{arguments.out}: numbers, scores and figures")


if __name__ == "__main__":
    main()

"""Do margins help, does one reward model serve two aims, and what does a small one learn from HH?

    python scripts/reward_study.py graded                      margins none, small and large
    python scripts/reward_study.py conflicting                 one mixed model, or two and a rule
    python scripts/reward_study.py hh --source FILE [...]      SmolLM2-135M on Anthropic's pairs

Prepares the pairs, trains on them with every seed, scores the held-out ones, and writes
runs/reward-study/NAME/results.json, the tables of docs/learned_rewards.md and the picture. Finished
runs are not repeated and killed ones go on where they were, so a command may be given again. Start
it in the root of the repository.

    --report       runs nothing and writes the tables of what there is
    --epochs 1 2   of hh: validation pairs decide which model scores the test pairs
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import reward_tables
import yaml
from reward_pictures import draw_grades
from rich.console import Console
from study_runs import Job, Runner
from study_tables import fill

from sctom.modules.reward_head import HEAD_FILE
from sctom.readers import read_jsonl
from sctom.tasks.graded import prepare_graded
from sctom.tasks.hh import prepare_hh
from sctom.tasks.tinyworld import make_world
from sctom.writers import write

MARGINS = ("none", "small", "large")
TRAINED_ON = {"mixed": "train.jsonl", "helpful": "train-helpful.jsonl", "safe": "train-safe.jsonl"}
"""Model of the conflicting study -> its pairs."""
CONFLICTING_PAIRS = {"train.jsonl": 8000, "valid.jsonl": 400, "test.jsonl": 2000}
"""Half of them of each objective: each of the two models gets as many as the graded study has."""
LONGEST = 1500
"""Characters of a training pair of HH, prompt and both answers; longer ones cost a third of the
time and are left out. Held-out pairs have any length."""


def prepare(name: str, sources: Sequence[Path], folder: Path) -> None:
    """Write the pairs of a study: train, valid and test, and what else it trains on."""
    if name == "hh":
        prepared = prepare_hh(sources)
        kept = [row for row in prepared.files["train.jsonl"] if characters(row) <= LONGEST]
        prepared.files["train.jsonl"] = kept
        prepared.counts["train.jsonl"] = {}
    elif name == "graded":
        prepared = prepare_graded(make_world(0))
    else:
        prepared = prepare_graded(
            make_world(0), objectives=("helpful", "safe"), pairs=CONFLICTING_PAIRS
        )
        for objective in ("helpful", "safe"):
            rows = [row for row in prepared.files["train.jsonl"] if row["source"] == objective]
            prepared.files[TRAINED_ON[objective]] = rows
    write(prepared, folder, force=True)


def characters(row: Mapping[str, Any]) -> int:
    """Length of a pair.

    >>> characters({"prompt": [{"role": "user", "content": "Why?"}], "chosen": "a", "rejected": ""})
    5
    """
    turns = [turn["content"] for turn in row["prompt"]]
    return sum(map(len, [*turns, row["chosen"], row["rejected"]]))


def training(name: str, folder: Path, seed: int, train: Path, options: Sequence[str]) -> Job:
    """A run of the study's config on a file of pairs."""
    config = Path("configs/study") / f"reward_{name}.yaml"
    content = yaml.safe_load(config.read_text())
    command = ["-m", "sctom.fit", "--config", str(config), "--seed_everything", str(seed)]
    command += ["--run_dir", str(folder), "--data.train", str(train)]
    command += ["--data.val", str(train.with_name("valid.jsonl")), *options]
    batches = math.ceil(len(read_jsonl(train)) / content["data"]["init_args"]["batch_size"])
    epochs = int(options[-1]) if "--trainer.max_epochs" in options else 1
    return Job(
        f"{name} {folder.parent.name} {folder.name}",
        [command],
        folder,
        folder / "model" / HEAD_FILE,
        iterations=batches * epochs,
        stamp={"command": command, "config": content},
    )


def scoring(trained: Job, pairs: Path) -> Job:
    """The scores of a trained model for a file of pairs."""
    out = trained.folder / pairs.stem
    command = ["-m", "sctom.reward_eval", "--model", str(trained.folder / "model")]
    command += ["--pairs", str(pairs), "--out", str(out), "--batch_tokens", "2048"]
    return Job(
        f"{trained.name}: {pairs.stem}",
        [command],
        out,
        out / "scored.jsonl",
        needs=[trained],
        stamp={"command": command, "needs": [trained.stamp]},
    )


def jobs_for(name: str, seeds: Sequence[int], out: Path, epochs: Sequence[int] = (1,)) -> list[Job]:
    """The runs of a study, each before what scores with it."""
    data = out / name / "data"
    jobs: list[Job] = []
    for seed in seeds:
        for kind, (file, options) in variants(name, epochs).items():
            folder = out / name / kind / f"seed-{seed}"
            trained = training(name, folder, seed, data / file, options)
            held_out = "valid.jsonl" if name == "hh" else "test.jsonl"
            jobs += [trained, scoring(trained, data / held_out)]
    return jobs


def variants(name: str, epochs: Sequence[int] = (1,)) -> dict[str, tuple[str, list[str]]]:
    """What a study trains: kind -> its file of pairs, and options.

    >>> variants("graded")["large"]
    ('train.jsonl', ['--data.margin', 'large'])
    """
    if name == "graded":
        return {margin: ("train.jsonl", ["--data.margin", margin]) for margin in MARGINS}
    if name == "conflicting":
        return {kind: (file, []) for kind, file in TRAINED_ON.items()}
    return {f"epochs-{n}": ("train.jsonl", ["--trainer.max_epochs", str(n)]) for n in epochs}


def run(jobs: Sequence[Job], limit: int, console: Console) -> None:
    """Run what is not done.

    Raises:
        SystemExit: with what went wrong.
    """
    runner = Runner(limit, console)
    runner.run(jobs)
    if runner.failed:
        sys.exit("\n".join(f"{name}: {said}" for name, said in runner.failed.items()))


def finished(jobs: Sequence[Job]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Kind -> seed -> the scored pairs, of the jobs that have scored something."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for job in reward_tables.scored_jobs(jobs):
        kind, seed = job.folder.parts[-3:-1]
        found.setdefault(kind, {})[seed] = read_jsonl(job.result)
    return found


def best_epochs(jobs: Sequence[Job]) -> list[Job]:
    """The jobs that score the test pairs of HH: for each seed, with what was best on validation."""
    by_seed: dict[str, list[Job]] = {}
    for job in reward_tables.scored_jobs(jobs):
        if job.folder.name == "valid":
            by_seed.setdefault(job.folder.parent.name, []).append(job)
    chosen = []
    for scored in by_seed.values():
        best = max(scored, key=lambda job: reward_tables.accuracy(read_jsonl(job.result)))
        data = Path(best.needs[0].folder.parents[1]) / "data"
        chosen.append(scoring(best.needs[0], data / "test.jsonl"))
    return chosen


def tables(name: str, jobs: Sequence[Job], data: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """The tables of a study by their names on the page, and its numbers."""
    if name == "hh":
        return reward_tables.hh(data, jobs)
    if name == "graded":
        return reward_tables.graded(finished(jobs), data, jobs)
    return reward_tables.conflicting(finished(jobs), data)


def write_report(name: str, jobs: Sequence[Job], out: Path, docs: Path) -> None:
    """Print the tables, and write them, the numbers and the picture."""
    made, numbers = tables(name, jobs, out / name / "data")
    print(*made.values(), sep="\n\n")
    (out / name / "results.json").write_text(json.dumps(numbers, indent=1) + "\n")
    page = docs / "learned_rewards.md"
    page.write_text(fill(page.read_text(), made))
    if name == "graded":
        draw_grades(numbers["margins"], numbers["pairs"], docs / "img" / "margins.png")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=("graded", "conflicting", "hh"))
    parser.add_argument("--source", type=Path, nargs="+", default=[], help="files of HH")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 1 2 3, and 1 for hh")
    parser.add_argument("--epochs", type=int, nargs="+", default=[1], help="of hh")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one core each")
    parser.add_argument("--out", type=Path, default=Path("runs/reward-study"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--report", action="store_true", help="run nothing, write the tables")
    arguments = parser.parse_args()
    name, out = arguments.study, arguments.out
    if name == "hh" and not arguments.source:
        parser.error("hh needs --source, JSONL files of https://github.com/anthropics/hh-rlhf")
    prepare(name, arguments.source, out / name / "data")
    seeds = arguments.seeds or ((1,) if name == "hh" else (1, 2, 3))
    jobs = jobs_for(name, seeds, out, arguments.epochs)
    if not arguments.report:
        run(jobs, arguments.jobs, Console())
    if name == "hh":
        tests = best_epochs(jobs)
        if not arguments.report:
            run(tests, arguments.jobs, Console())
        jobs += tests
    write_report(name, jobs, out, arguments.docs)


if __name__ == "__main__":
    main()

"""The numbers of a run in rounds: as rounds.json, as tables for a terminal, and as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from sctom.callbacks.common import atomic_write, show
from sctom.iterate.comparisons import SUMMARY_FILE
from sctom.iterate.configs import folder_of, reward_stage
from sctom.iterate.evaluating import EVALUATION_FILE
from sctom.iterate.manifest import MANIFEST_FILE
from sctom.iterate.selecting import SELECTION_FILE
from sctom.iterate.settings import HELPFULNESS, SAFETY, Settings
from sctom.iterate.training import write_json
from sctom.preferences import GRADES
from sctom.rejection.summary import SUMMARY

NUMBERS_FILE, PAGE_FILE = "rounds.json", "page.html"
ACCURACY = "reward_model/accuracy"

Numbers = dict[str, Any]


def collect_numbers(settings: Settings) -> Numbers:
    """Every number of the rounds that have been compared so far.

    Returns:
        "rewards", the names of the reward models; "judges"; "rounds", for each its comparisons,
        labels, the accuracy of its reward models, what it sampled and selected, and what its reward
        models and the judges say of every model so far; "models", the last of these; "students";
        "seconds" of each stage.
    """
    rounds = []
    for number in range(1, settings.rounds + 1):
        compared = _read(settings, f"{number}/compare", EVALUATION_FILE)
        if compared is None:
            break
        rounds.append(
            {
                "round": number,
                "collected": _read(settings, f"{number}/collect", SUMMARY_FILE),
                "labelled": _read(settings, f"{number}/label", SUMMARY_FILE),
                "accuracy": {
                    name: _accuracies(_read(settings, reward_stage(number, name), EVALUATION_FILE))
                    for name in settings.reward_names
                },
                "sampled": _read(settings, f"{number}/sample", SUMMARY),
                "selected": _read(settings, f"{number}/select", SELECTION_FILE),
                "models": compared,
            }
        )
    manifest = json.loads((Path(settings.run_dir) / MANIFEST_FILE).read_bytes())
    return {
        "rewards": list(settings.reward_names),
        "judges": [judge.name for judge in settings.evaluate.judges],
        "rounds": rounds,
        "models": rounds[-1]["models"] if rounds else {},
        "students": _read(settings, "students/compare", EVALUATION_FILE) or {},
        "seconds": {name: entry.get("seconds") for name, entry in manifest["stages"].items()},
    }


def _read(settings: Settings, stage: str, file: str) -> Any:
    path = Path(folder_of(settings, stage), file)
    return json.loads(path.read_bytes()) if path.exists() else None


def _accuracies(evaluation: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Of the pairs of all rounds and of each: accuracy, its interval, by grade, and the pairs."""
    names = {
        ACCURACY: "accuracy",
        f"{ACCURACY}_low": "low",
        f"{ACCURACY}_high": "high",
        "reward_model/pairs": "pairs",
        **{f"{ACCURACY}/{word.replace(' ', '_')}": word for word in GRADES},
    }
    return {
        batch: {short: numbers[name] for name, short in names.items() if name in numbers}
        for batch, numbers in evaluation.items()
    }


def write_report(settings: Settings) -> Numbers:
    """Write RUN/rounds.json and RUN/page.html."""
    from sctom.iterate.page import page  # brings in matplotlib

    numbers = collect_numbers(settings)
    write_json(Path(settings.run_dir) / NUMBERS_FILE, numbers)
    if numbers["rounds"]:
        atomic_write(Path(settings.run_dir) / PAGE_FILE, page(numbers))
    return numbers


def score_columns(numbers: Numbers) -> list[tuple[str, str, str]]:
    """What is shown of each model: (heading, reward, which prompts).

    A reward model of helpfulness is asked about prompts that are not about safety, one of safety
    about the others, and a judge about both.
    """
    columns = []
    for name in numbers["rewards"]:
        part = name if name in (HELPFULNESS, SAFETY) else "all"
        columns.append((f"{name} model", name, part))
    two = len(numbers["rewards"]) == 2
    for name in numbers["judges"]:
        columns.append((f"{name}, all", name, "all"))
        if two:
            columns += [(f"{name}, {part}", name, part) for part in (HELPFULNESS, SAFETY)]
    return columns


def rounds_table(numbers: Numbers) -> Group:
    """The comparison of the models, and what the rounds learned from."""
    return Group(_models(numbers), *([_learning(numbers)] if numbers["rounds"] else []))


def _models(numbers: Numbers) -> Table:
    last = len(numbers["rounds"])
    table = Table(title=f"Mean score on held-out prompts, by the reward models of round {last}")
    table.add_column("model", no_wrap=True)
    columns = score_columns(numbers)
    for heading, _, _ in columns:
        table.add_column(heading, justify="right", overflow="fold")
    for name, scores in (numbers["models"] | numbers["students"]).items():
        cells = [show(scores.get(reward, {}).get(part), "+.3f") for _, reward, part in columns]
        table.add_row(name, *cells)
    return table


def learning_columns(numbers: Numbers) -> list[str]:
    """Headings of `learning_rows`."""
    models = [f"accuracy of {name}" for name in numbers["rewards"]]
    judged = numbers["judges"][:1] or ["reward"]
    parts = [f"{judged[0]}: {part}" for part in ("all", "random", "kept")]
    return ["round", "pairs", "negligibly better", *models, "learned from", *parts]


def learning_rows(numbers: Numbers) -> list[list[str]]:
    """What each round learned from: pairs, the accuracy on held-out ones, and what was selected."""
    judged = (numbers["judges"][:1] or ["reward"])[0]
    rows = []
    for entry in numbers["rounds"]:
        labelled, selected = entry["labelled"], entry["selected"]
        accuracy = [entry["accuracy"][n].get("all", {}).get("accuracy") for n in numbers["rewards"]]
        means = [selected["means"][part].get(judged) for part in ("all", "random", "kept")]
        rows.append(
            [
                str(entry["round"]),
                str(labelled["pairs"]),
                show(labelled["negligible"], ".0%"),
                *(show(value, ".0%") for value in accuracy),
                str(selected["kept"]),
                *(show(value, "+.3f") for value in means),
            ]
        )
    return rows


def _learning(numbers: Numbers) -> Table:
    table = Table(title="What the rounds learned from")
    for heading in learning_columns(numbers):
        table.add_column(heading, justify="right", overflow="fold")
    for row in learning_rows(numbers):
        table.add_row(*row)
    return table

"""The tables of docs/learned_rewards.md, from the scores of held-out pairs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from graded_baseline import interval, lengths, right, words
from study_runs import Job

from sctom.modules import SafetyHelpfulness
from sctom.preferences import GRADES, Pair, read_preferences
from sctom.rewards import FunctionReward, run_rewards
from sctom.tasks.tinyworld import PROFILE

Scored = Sequence[Mapping[str, Any]]
"""Rows of scored.jsonl: raw scores `chosen` and `rejected`, and what is known of the pair."""
Kinds = Mapping[str, Mapping[str, Scored]]
"""Kind of model -> seed -> its scores."""
Tables = tuple[dict[str, str], dict[str, Any]]
"""Name on the page -> table, and the numbers in them."""

LLAMA2 = {
    "significantly better": (79.1, 80.4, 80.7),
    "better": (66.9, 67.3, 67.5),
    "slightly better": (59.8, 60.4, 60.5),
    "negligibly better": (54.5, 55.0, 54.3),
    "all": (62.5, 63.0, 62.9),
}
"""arXiv 2307.09288, Table 28: accuracy without a margin, with the small and with the large one."""
FORMS = {
    "standard deviation of the scores": "score/std",
    "bimodality of the scores": "score/bimodality",
    "calibration error (ECE)": "ece",
}
"""Words -> metric."""
PARTS = ("helpful", "safe, worded so", "safe, worded as helpful", "all")
THRESHOLD = 0.15


def accuracy(rows: Scored) -> float:
    """Share of the pairs whose chosen answer has the higher score.

    >>> accuracy([{"chosen": 1.0, "rejected": 0.5}, {"chosen": 0.0, "rejected": 0.0}])
    0.5
    """
    return fmean(row["chosen"] > row["rejected"] for row in rows)


def spread(values: Sequence[float], *, unit: str = "%") -> str:
    """The mean in percent, and the lowest and the highest.

    >>> spread([0.5, 0.75]), spread([0.5]), spread([-0.01, 0.02], unit="")
    ('62.5% (50.0 to 75.0)', '50.0%', '0.5 (-1.0 to 2.0)')
    """
    mean = f"{100 * fmean(values):.1f}{unit}"
    if len(values) == 1:
        return mean
    return f"{mean} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is words.

    >>> print(markdown(["", "n"], [["a", "1"]]))
    |  | n |
    |---|---:|
    | a | 1 |
    """
    lines = [head, *rows]
    written = ["| " + " | ".join(line) + " |" for line in lines]
    written.insert(1, "|---|" + "---:|" * (len(head) - 1))
    return "\n".join(written)


def baselines(data: Path, parts: Mapping[str, Callable[[Pair], bool]]) -> dict[str, dict[str, str]]:
    """What can be told from the answers alone: kind of reading -> part -> accuracy, interval."""
    train, test = (read_preferences(data / f"{name}.jsonl") for name in ("train", "test"))
    found: dict[str, dict[str, str]] = {}
    for name, features in {"length alone": lengths, "words alone": words(train, 1)}.items():
        hits = right(train, test, features)
        found[name] = {
            part: interval([hit for hit, pair in zip(hits, test, strict=True) if inside(pair)])
            for part, inside in parts.items()
        }
    return found


def metrics(job: Job) -> dict[str, float]:
    """What `sctom.reward_eval` wrote beside the scores."""
    found = json.loads((job.folder / "evaluation.json").read_text())["metrics"]
    return {name.removeprefix("reward_model/"): value for name, value in found.items()}


def graded(kinds: Kinds, data: Path, jobs: Sequence[Job]) -> Tables:
    """Accuracy for each grade and margin, what margins change, and how far scores spread."""
    grades = [*reversed(GRADES), "all"]
    seeds = [seed for seed in kinds["none"] if all(seed in found for found in kinds.values())]
    shares = {
        margin: {grade: [_of_grade(found[s], grade) for s in seeds] for grade in grades}
        for margin, found in kinds.items()
    }
    counts = {g: sum(r["grade"] == g for r in kinds["none"][seeds[0]]) for g in GRADES}
    counts["all"] = sum(counts.values())
    read = baselines(data, {g: _grade_is(g) for g in grades})
    head = ["", "pairs", "words alone", *kinds, *(f"Llama 2, {margin}" for margin in kinds)]
    rows = [
        [
            grade,
            str(counts[grade]),
            read["words alone"][grade],
            *(spread(shares[margin][grade]) for margin in kinds),
            *(f"{value}%" for value in LLAMA2[grade]),
        ]
        for grade in grades
    ]
    changes = {
        margin: {
            grade: [new - old for new, old in zip(shares[margin][grade], before, strict=True)]
            for grade, before in shares["none"].items()
        }
        for margin in kinds
        if margin != "none"
    }
    changed = [
        [grade, *(spread(changes[margin][grade], unit="") for margin in changes)]
        for grade in grades
    ]
    done = {job.folder.parts[-3:-1]: metrics(job) for job in scored_jobs(jobs)}
    forms = {
        margin: {name: [done[margin, seed][name] for seed in seeds] for name in FORMS.values()}
        for margin in kinds
    }
    formed = [
        [words, *(f"{fmean(forms[margin][name]):.2f}" for margin in kinds)]
        for words, name in FORMS.items()
    ]
    return {
        "margins": markdown(head, rows),
        "changes": markdown(["points of accuracy", *(f"{m} - none" for m in changes)], changed),
        "scores": markdown(["", *kinds], formed),
    }, {"margins": shares, "pairs": counts, "seeds": seeds, "read": read, "scores": forms}


def scored_jobs(jobs: Sequence[Job]) -> list[Job]:
    """Those that have scored something."""
    return [job for job in jobs if job.result.name == "scored.jsonl" and job.done()]


def _of_grade(rows: Scored, grade: str) -> float:
    return accuracy([row for row in rows if grade in ("all", row["grade"])])


def _grade_is(grade: str) -> Callable[[Pair], bool]:
    return lambda pair: grade == "all" or (pair.grade is not None and GRADES[pair.grade] == grade)


def conflicting(kinds: Kinds, data: Path) -> Tables:
    """Accuracy on either aim of one mixed model, of two, and of the rule for the two."""
    pairs = read_preferences(data / "test.jsonl")
    seeds = [seed for seed in kinds["mixed"] if all(seed in found for found in kinds.values())]
    models: dict[str, list[Scored]] = {
        f"{kind} model": [found[seed] for seed in seeds] for kind, found in kinds.items()
    }
    for name, tagged in {"two models and the rule": True, "the rule without tags": False}.items():
        models[name] = [
            by_rule(kinds["helpful"][seed], kinds["safe"][seed], tagged=tagged) for seed in seeds
        ]
    inside = {part: _is_part(part) for part in PARTS}
    places = {part: [i for i, pair in enumerate(pairs) if inside[part](pair)] for part in PARTS}
    shares = {
        name: {
            part: [accuracy([rows[i] for i in places[part]]) for rows in by_seed] for part in PARTS
        }
        for name, by_seed in models.items()
    }
    agree = [fmean(not pairs[i].columns["flipped"] for i in places[part]) for part in PARTS]
    read = baselines(data, inside)["words alone"]
    rows = [
        *([name, *(spread(found[part]) for part in PARTS)] for name, found in shares.items()),
        ["words alone", *(read[part] for part in PARTS)],
        ["the true utility", *(f"{100 * share:.1f}%" for share in agree)],
    ]
    head = ["", *(f"{part} ({len(places[part])})" for part in PARTS)]
    numbers = {"accuracy": shares, "seeds": seeds, "utility": dict(zip(PARTS, agree, strict=True))}
    return {"conflicting": markdown(head, rows)}, numbers


def _is_part(part: str) -> Callable[[Pair], bool]:
    def inside(pair: Pair) -> bool:
        openly = pair.prompt[-1]["content"].startswith(PROFILE[0].split("{")[0])
        kind = "helpful"
        if pair.is_safety:
            kind = "safe, worded as helpful" if openly else "safe, worded so"
        return part in ("all", kind)

    return inside


def by_rule(helpful: Scored, safe: Scored, *, tagged: bool = True) -> Scored:
    """The scores that `SafetyHelpfulness` makes of those of two models, without whitening.

    Args:
        helpful: of the helpfulness model.
        safe: of the safety model, for the same pairs.
        tagged: whether prompts of safety pairs are known to be such.

    >>> high, low = {"chosen": 2.0, "rejected": 1.0}, {"chosen": -1.0, "rejected": -5.0}
    >>> by_rule([high | {"is_safety": False}], [low])[0]["rejected"]  # sigma(-5) < 0.15
    -5.0
    """

    def of(rows: Scored, name: str) -> FunctionReward:
        values = [row[side] for row in rows for side in ("chosen", "rejected")]
        return FunctionReward(lambda completions: values, name=name)

    rule = SafetyHelpfulness(of(helpful, "helpful"), of(safe, "safe"), threshold=THRESHOLD)
    tags = [tagged and row["is_safety"] for row in helpful for _ in range(2)]
    blank = [""] * len(tags)
    values = run_rewards([rule], blank, blank, [[0]] * len(tags), {"is_safety": tags}).values
    scores = values[rule.name]
    return [
        {**row, "chosen": scores[2 * i], "rejected": scores[2 * i + 1]}
        for i, row in enumerate(helpful)
    ]


def hh(data: Path, jobs: Sequence[Job]) -> Tables:
    """Accuracy on validation pairs for each length of training, and on test pairs of the best."""
    rows, numbers = [], {}
    for job in scored_jobs(jobs):
        name = " ".join(job.folder.parts[-3:])
        numbers[name] = values = metrics(job)
        low, high = values["accuracy_low"], values["accuracy_high"]
        share = f"{values['accuracy']:.1%} [{low:.1%}, {high:.1%}]"
        rest = (values["ece"], values["brier"], values["length/pearson"])
        rows.append([name, f"{values['pairs']}", share, *(f"{value:.3f}" for value in rest)])
    for name, found in baselines(data, {"all": lambda pair: True}).items():
        rows.append([f"{name}, test", "", found["all"], "", "", ""])
    head = ["", "pairs", "accuracy [95%]", "ECE", "Brier", "score and length"]
    return {"hh": markdown(head, rows)}, numbers

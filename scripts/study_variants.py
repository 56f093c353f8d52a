"""The variants of the study: what each changes in the recipe of configs/quickstart.yaml."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sctom.assets import resolve
from sctom.readers import read_jsonl
from sctom.seeds import permutation
from sctom.writers import Prepared, write

QUICKSTART = "configs/quickstart.yaml"
TRAIN = "sctom:tinyworld/train.jsonl"
BALANCE = 20  # first part of the address of the draws for the balance of the questions

SHARES = {"share-3": (58, 2198), "share-31": (944, 3032)}
"""Unanswerable questions of all: selfaware-v3, and SelfAware as it was published."""


@dataclass(frozen=True)
class Variant:
    """One way to train, run once a seed."""

    name: str
    family: str
    """Variants of a family are compared with each other, in one table."""
    words: str
    """What is different, for the table."""
    options: tuple[str, ...] = ()
    """Added to the command; {out} and {seed} are filled in."""
    config: str = QUICKSTART
    after: str | None = None
    """The variant whose model of the same seed it starts from."""
    prepare: str | None = None
    """A preparation it needs, of PREPARATIONS."""

    @property
    def iterations(self) -> int:
        """The length of a run."""
        given = dict(zip(self.options[::2], self.options[1::2], strict=True))
        recipe = yaml.safe_load(Path(self.config).read_text())
        return int(given.get("--data.iterations") or recipe["data"]["init_args"]["iterations"])


def rewards(name: str = "SelfAware", **settings: float) -> tuple[str, str]:
    """The option for a single reward.

    >>> rewards(abstained=-0.1)[1]
    '[{"class_path": "SelfAware", "init_args": {"abstained": -0.1}}]'
    """
    return "--model.rewards", json.dumps([{"class_path": name, "init_args": settings}])


PAIRS = ("--model.group_size", "2", "--data.prompts_per_iteration", "128")  # 256 completions too
UNSCALED = ("--model.objective.scale", "none")
CHEAP, DEAR = rewards(abstained=-0.1), rewards(abstained=-0.9)
OFTEN = ("--trainer.val_check_interval", "6")
START = ("--model.schedule", "constant", "--model.optimizer.lr", "7.5e-5", *OFTEN)
"""The mean of the quickstart's falling rate; at a constant one a short run begins a longer one."""
LATER = (
    *("--model.backbone.path", "{out}/g8/seed-{seed}/model"),
    *("--model.schedule", "constant", "--model.optimizer.lr", "3e-5"),
    *OFTEN,
    *PAIRS,
)
RESAMPLE = ("--model.zero_variance", "resample")

CONFIDENCE = {
    "brier": "Brier",
    "log": "LogScore",
    "ternary": "Ternary",
    "target": "ConfidenceTarget",
}

VARIANTS = (
    Variant("g8", "groups", "groups of 8, scaled (the quickstart)"),
    Variant("g8-none", "groups", "groups of 8, not scaled", UNSCALED),
    Variant("g2", "groups", "pairs, scaled", PAIRS),
    Variant("g2-none", "groups", "pairs, not scaled", PAIRS + UNSCALED),
    Variant("g8-cheap", "price", "groups of 8, scaled, -0.1", CHEAP),
    Variant("g8-dear", "price", "groups of 8, scaled, -0.9", DEAR),
    Variant("g2-cheap", "price", "pairs, scaled, -0.1", PAIRS + CHEAP),
    Variant("g2-dear", "price", "pairs, scaled, -0.9", PAIRS + DEAR),
    Variant("g2-none-cheap", "price", "pairs, not scaled, -0.1", PAIRS + UNSCALED + CHEAP),
    Variant("g2-none-dear", "price", "pairs, not scaled, -0.9", PAIRS + UNSCALED + DEAR),
    Variant("strict", "checks", "`SelfAwareStrict`", rewards("SelfAwareStrict")),
    *(
        Variant(
            name,
            "balance",
            f"{unanswerable / questions:.1%} unanswerable",
            ("--data.train", f"{{out}}/data/{name}/train.jsonl"),
        )
        for name, (unanswerable, questions) in SHARES.items()
    ),
    *(
        Variant(
            name,
            "confidence",
            f"`{reward}`",
            config=f"configs/study/confidence_{name}.yaml",
            prepare=None if name == "ternary" else "confidence",
        )
        for name, reward in CONFIDENCE.items()
    ),
    Variant("keep", "resampling", "keep", (*START, "--data.iterations", "120")),
    Variant("resample", "resampling", "resample", (*START, *RESAMPLE)),
    Variant(
        "keep-64",
        "resampling",
        "keep, twice the prompts",
        (*START, "--data.prompts_per_iteration", "64"),
    ),
    Variant("later-keep", "later", "keep", (*LATER, "--data.iterations", "160"), after="g8"),
    Variant("later-resample", "later", "resample", (*LATER, *RESAMPLE), after="g8"),
)


@dataclass(frozen=True)
class Preparation:
    """Commands that make what several variants start from."""

    commands: tuple[tuple[str, ...], ...]
    result: str
    """There when it has been done."""


CORPUS = "sctom.prepare tinyworld-confidence --out runs/tinyworld_confidence --force"
PREPARATIONS = {
    "confidence": Preparation(
        (
            ("-m", *CORPUS.split()),
            ("-m", "sctom.fit", "--config", "configs/tinyworld_confidence_sft.yaml"),
        ),
        "runs/tinyworld_confidence_sft/model",
    ),
}


def chosen(names: Sequence[str]) -> list[Variant]:
    """The variants of these names or families, with those they start from; all for no names.

    Raises:
        ValueError: a name is neither.

    >>> [variant.name for variant in chosen(["later-keep", "strict"])]
    ['g8', 'strict', 'later-keep']
    """
    known = {v.name for v in VARIANTS} | {v.family for v in VARIANTS}
    if unknown := sorted(set(names) - known):
        raise ValueError(f"no variant or family {', '.join(unknown)}; there are {sorted(known)}")
    wanted = {v.name for v in VARIANTS if not names or v.name in names or v.family in names}
    wanted |= {v.after for v in VARIANTS if v.name in wanted and v.after}
    return [v for v in VARIANTS if v.name in wanted]


def balanced(
    rows: Sequence[dict[str, Any]], unanswerable: int, questions: int
) -> list[dict[str, Any]]:
    """Questions with a given share of unanswerable ones, as many for every share.

    The number of questions is the largest that leaves room for a share of almost 0: that of the
    answerable ones, over 1 - the smallest share of SHARES. Known and half-known people keep their
    proportion. Which are taken is a permutation of each kind's rows; they stay in their order.

    Args:
        rows: with `answerable` and `kind`.
        unanswerable: the share's numerator.
        questions: and its denominator.

    Raises:
        ValueError: the rows do not suffice.
    """
    answerable = sum(row["answerable"] for row in rows)
    smallest = min(part / whole for part, whole in SHARES.values())
    size = int(answerable / (1 - smallest))
    without = round(size * unanswerable / questions)
    half = sum(row["kind"] == "half" for row in rows)
    quota = {"unknown": without, "half": round((size - without) * half / answerable)}
    quota["known"] = size - without - quota["half"]
    taken: set[int] = set()
    for number, (kind, count) in enumerate(quota.items()):
        places = [i for i, row in enumerate(rows) if row["kind"] == kind]
        if count > len(places):
            raise ValueError(
                f"{count} questions of kind {kind} are needed for {unanswerable} unanswerable in "
                f"{questions}, but there are {len(places)}; choose another share"
            )
        taken.update(places[i] for i in permutation(len(places), BALANCE, number)[:count])
    return [rows[i] for i in sorted(taken)]


def write_balanced(out: Path) -> None:
    """Write the training questions of every share to OUT/data/<name>/train.jsonl."""
    rows = read_jsonl(resolve(TRAIN))
    for name, (unanswerable, questions) in SHARES.items():
        part = balanced(rows, unanswerable, questions)
        count = sum(not row["answerable"] for row in part)
        prepared = Prepared(
            {"train.jsonl": part},
            {"train.jsonl": {"unanswerable": count}},
            manifest={"set": "tinyworld", "share": name},
            notes=[],
        )
        write(prepared, out / "data" / name, force=True)

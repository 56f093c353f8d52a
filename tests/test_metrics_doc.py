"""docs/metrics.md lists what runs log, no more and no less."""

from __future__ import annotations

import itertools
import json
import re
import sys
from pathlib import Path

import pytest

from sctom.fit import build, fit
from sctom.preferences import GRADES

ROOT = Path(__file__).parents[1]
SMALL = ["--data.iterations", "1", "--data.val_limit", "8", "--data.prompts_per_iteration", "2"]
RUNS = {  # config -> options that make it short
    "tiny/grpo.yaml": [*SMALL, "--trainer.callbacks+=Throughput"],
    "tiny/cispo.yaml": SMALL,
    "tiny/dapo.yaml": [*SMALL, "--model.rewards+=SelfAwareStrict"],
    "tiny/sft.yaml": ["--trainer.limit_train_batches", "2", "--trainer.limit_val_batches", "1"],
    "tiny/reward_model.yaml": [
        "--data.train=PAIRS",
        "--data.val=PAIRS",
        "--trainer.callbacks+=RewardModelEval",
        "--trainer.callbacks.threshold=1.0",
    ],
}
PAIRS = [  # every number of a reward model needs its kind of pair
    {"prompt": "Where?", "chosen": "Berlin", "rejected": words, "grade": grade, "source": "web"}
    | {"is_safety": True}
    for words, grade in zip(["Oslo", "in Rome", "a big city", "I know"], GRADES, strict=True)
]
POSITION = {"step", "iteration"}


def documented() -> set[str]:
    """The first column of the tables, {a,b} written out."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    keys: set[str] = set()
    for key in re.findall(r"^\| `([^`]+)` \|", text, re.M):
        parts = [part.split(",") for part in re.split(r"[{}]", key)]
        spelled = {"".join(choice) for choice in itertools.product(*parts)}
        assert not keys & spelled, f"{key} is there twice"
        keys |= spelled
    return keys


def matches(pattern: str, key: str) -> bool:
    """Whether a key is of a pattern such as rewards/<name>/mean."""
    return re.fullmatch(re.sub(r"<\w+>", r"\\w+", pattern), key) is not None


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Config -> the keys its run gave to the logger and wrote to its files."""
    found = {}
    for name, options in RUNS.items():
        folder = tmp_path_factory.mktemp("run")
        config = str(ROOT / "configs" / name)
        pairs = folder / "pairs.jsonl"
        pairs.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
        options = [option.replace("PAIRS", str(pairs)) for option in options]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                sys, "argv", ["fit", "--config", config, "--run_dir", str(folder), *options]
            )
            cli = build()
        fit(cli)
        keys = set(cli.trainer.callback_metrics)
        for file, prefix in (("metrics.jsonl", ""), ("evaluations.jsonl", "val/")):
            if (folder / file).exists():
                record = json.loads((folder / file).read_text().splitlines()[-1])
                keys |= {prefix + key for key in record.get("metrics", record)}
        found[name] = keys - POSITION
    return found


@pytest.mark.parametrize("name", RUNS)
def test_everything_logged_is_in_the_document(name, logged):
    assert len(logged[name]) >= 6
    patterns = documented()
    assert [key for key in sorted(logged[name]) if not any(matches(p, key) for p in patterns)] == []


def test_everything_in_the_document_is_logged(logged):
    keys = set().union(*logged.values())
    assert [p for p in sorted(documented()) if not any(matches(p, key) for key in keys)] == []

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sctom.prepare import main
from sctom.readers import read_jsonl
from sctom.rewards.google import GoogleReward, answer, example_from_messages
from tests.fitting import build_and_fit, edited

ROOT = Path(__file__).parents[3]
COMPOSITE = ROOT / "configs" / "google" / "tinyworld_composite.json"
TRAIN = ROOT / "sctom" / "assets" / "tinyworld" / "train.jsonl"


def line(row):
    """A row of the tiny world as Google's example line."""
    question, reply = row["messages"]
    references = {
        "expected_answer": reply["content"],
        "answerable": json.dumps(row["answerable"]),
    }
    return example_from_messages([question], references)


@pytest.mark.parametrize(
    ("answerable", "text", "value"),
    [
        ("true", "black", 1.0),
        ("true", "I don't know.", -0.5),
        ("true", "white", -1.0),
        ("false", "I don't know.", 1.0),
        ("false", "white", -1.0),
    ],
)
def test_the_composite_that_we_show(answerable, text, value):
    expected = "black" if answerable == "true" else "I don't know."
    references = {"expected_answer": expected, "answerable": answerable}
    example = example_from_messages("What colour does Zesusu prefer?", references)
    assert GoogleReward(str(COMPOSITE)).score(example, text)[0] == pytest.approx(value)


def test_the_request_that_we_show():
    path = COMPOSITE.with_name("validate_request.json")
    answered = answer(json.loads(path.read_text()))
    details = {"right": {"reward": 1.0}, "honest": {"reward": 1.0}}
    assert answered == {"overallReward": 1.0, "rewardInfoDetails": details}


def test_a_run_on_lines_of_google(config, monkeypatch, tmp_path):
    source = tmp_path / "lines.jsonl"
    source.write_text("".join(json.dumps(line(row)) + "\n" for row in read_jsonl(TRAIN)[:16]))
    main(["google", "--source", str(source), "--out", str(tmp_path / "data")])
    reward = {
        "class_path": "sctom.rewards.google.GoogleReward",
        "init_args": {"config": str(COMPOSITE)},
    }
    changes = {
        "model__init_args__rewards": [reward],
        "model__init_args__group_size": 2,
        "data__init_args__train": str(tmp_path / "data" / "train.jsonl"),
        "data__init_args__columns": "plain",
        "data__init_args__prompts_per_iteration": 2,
        "data__init_args__iterations": 1,
        "trainer__callbacks": [
            {"class_path": "IterationCheckpoint"},
            {"class_path": "MetricsFile"},
        ],
    }
    cli = build_and_fit(edited(config, **changes), monkeypatch)
    rows = cli.model.last_rollout.rows
    assert len(rows) == 4 and all(row.reward in (1.0, -0.5, -1.0) for row in rows)
    (metrics,) = map(json.loads, (config.parent / "run" / "metrics.jsonl").read_text().splitlines())
    right, honest = metrics["google_reward/right"], metrics["google_reward/honest"]
    assert metrics["reward"] == pytest.approx((2 * right + honest) / 3)
    assert metrics["google_reward/honest/failed"] == 0.0

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console

from sctom.callbacks import MetricsFile, RichProgress, SelfAwareEval
from sctom.callbacks.common import append_record, read_records
from sctom.callbacks.selfaware_eval import answer_metrics, answer_record
from sctom.rewards import SelfAware, SelfAwareStrict

pytestmark = [
    # Lightning 2.6 compares tree specs in a way that torch 2.13 deprecates.
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning"),
    # Lightning's word about no validation prompts, which is what one test is about.
    pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero:UserWarning"),
]

Fit = Callable[..., Any]
Shown = Callable[[Console], str]


class Kill(L.Callback):
    """Saves a checkpoint after one iteration and dies after a later one."""

    def __init__(self, path: Path, *, save: int, die: int) -> None:
        self.path, self.save, self.die = path, save, die

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *_: Any) -> None:
        if pl_module.progress.iteration == self.save:
            trainer.save_checkpoint(self.path)
        if pl_module.progress.iteration == self.die:
            raise RuntimeError("killed")


def evaluations(folder: Path) -> dict[int, dict[str, Any]]:
    return {r["iteration"]: r["metrics"] for r in read_records(folder / "evaluations.jsonl")}


def test_before_during_and_after(fit: Fit, console: Console, shown: Shown, tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, name="", version="csv")
    trainer, _ = fit([SelfAwareEval(), MetricsFile(), RichProgress()], logger=logger)
    found = evaluations(tmp_path)
    # two questions of each kind; Policy abstains from iteration 2 on and answers from 4 on
    assert list(found) == [0, 2, 4]
    assert [m["abstention_recall"] for m in found.values()] == [0.0, 1.0, 1.0]
    assert [m["accuracy_known"] for m in found.values()] == [0.0, 0.0, 1.0]
    assert [m["hallucination"] for m in found.values()] == [1.0, 0.5, 0.0]
    assert found[0]["mean_length"] == 4.0
    assert trainer.callback_metrics["val/accuracy_known"] == 1.0  # a checkpoint can monitor it
    with (tmp_path / "csv" / "metrics.csv").open(newline="") as file:
        logged = {row["step"]: row["val/accuracy_known"] for row in csv.DictReader(file)}
    assert logged == {"0": "0.0", "2": "0.0", "4": "1.0"}

    table = json.loads((tmp_path / "table.json").read_text())
    assert (table["before"]["iteration"], table["after"]["iteration"]) == (0, 4)
    assert table["change"]["accuracy_known"] == 1.0
    assert (
        "| accuracy on known | 0.0% | 100.0% | +100.0 points |"
        in (tmp_path / "table.md").read_text()
    )
    assert "SelfAware, before and after" in shown(console)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_last_iteration_is_evaluated_if_validation_missed_it(
    fit: Fit, make_data: Any, tmp_path: Path
) -> None:
    fit([SelfAwareEval()], make_data(iterations=5), val_check_interval=3)
    found = evaluations(tmp_path)
    assert list(found) == [0, 3, 5]
    assert found[5]["accuracy"] == 1.0
    assert found[5]["reward"] == 1.0


def test_no_final_evaluation_and_no_report_if_not_wanted(
    fit: Fit, make_data: Any, tmp_path: Path
) -> None:
    fit([SelfAwareEval(final=False, report=False)], make_data(iterations=5), val_check_interval=3)
    assert list(evaluations(tmp_path)) == [0, 3]
    assert not (tmp_path / "table.md").exists()


def test_a_resumed_run_keeps_before_and_drops_what_it_does_again(fit: Fit, tmp_path: Path) -> None:
    checkpoint = tmp_path / "half.ckpt"
    with pytest.raises(RuntimeError, match="killed"):
        fit([SelfAwareEval(), MetricsFile(), Kill(checkpoint, save=1, die=3)])
    assert list(evaluations(tmp_path)) == [0, 2]
    append_record(tmp_path / "evaluations.jsonl", {"iteration": 3, "metrics": {"accuracy": 99.0}})
    fit([SelfAwareEval(), MetricsFile()], checkpoint=str(checkpoint))
    found = evaluations(tmp_path)
    assert list(found) == [0, 2, 4]
    assert json.loads((tmp_path / "table.json").read_text())["before"]["iteration"] == 0
    lines = read_records(tmp_path / "metrics.jsonl")
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4]


def test_a_run_from_its_start_forgets_an_older_one(fit: Fit, tmp_path: Path) -> None:
    append_record(tmp_path / "evaluations.jsonl", {"iteration": 0, "metrics": {"accuracy": 99.0}})
    append_record(tmp_path / "evaluations.jsonl", {"iteration": 77, "metrics": {"accuracy": 99.0}})
    fit([SelfAwareEval()])
    assert list(evaluations(tmp_path)) == [0, 2, 4]
    assert evaluations(tmp_path)[0]["accuracy"] == 0.0


def test_no_validation_prompts_is_said_and_is_no_error(
    fit: Fit, make_data: Any, console: Console, shown: Shown, tmp_path: Path
) -> None:
    fit([SelfAwareEval(), MetricsFile()], make_data(questions=0), val_check_interval=None)
    assert "no validation completions, so there is no table" in shown(console)
    assert evaluations(tmp_path) == {}
    assert (tmp_path / "curves.png").exists()  # the training reward
    assert not (tmp_path / "table.md").exists()


def test_metrics_that_are_not_defined_are_null(fit: Fit, make_data: Any, tmp_path: Path) -> None:
    data = make_data()
    data.val_prompts = [p for p in data.val_prompts if not p.columns["answerable"]]
    fit([SelfAwareEval()], data)
    assert evaluations(tmp_path)[4]["accuracy"] is None
    assert "NaN" not in (tmp_path / "table.json").read_text()


def test_a_partial_evaluation_before_training_is_refused(fit: Fit) -> None:
    with pytest.raises(
        ValueError, match=r"would see 1 of 2 .* set trainer.num_sanity_val_steps: -1"
    ):
        fit([SelfAwareEval()], num_sanity_val_steps=1)


def test_no_evaluation_before_training_is_said(fit: Fit, console: Console, shown: Shown) -> None:
    fit([SelfAwareEval()], num_sanity_val_steps=0)
    assert "no evaluation before training" in shown(console)


def test_prompts_without_labels_are_refused_before_anything_is_sampled(
    fit: Fit, make_data: Any
) -> None:
    data = make_data()
    del data.val_prompts[2].columns["answerable"]
    with pytest.raises(ValueError, match=r"prompt 2 lacks answerable; set data.columns: selfaware"):
        fit([SelfAwareEval()], data)


def judged(row: Any, **settings: Any) -> tuple[float | None, float | None]:
    """Accuracy and over-refusal of one completion."""
    metrics = answer_metrics([answer_record(row)], **settings)
    return metrics["accuracy"], metrics["over_refusal"]


def test_detector_and_confidence(rollout: Any) -> None:
    row = rollout.rows[0]
    row.prompt.columns |= {"answers": ["Seoul", "Hanyang"]}
    row.text = "Hanyang"
    assert judged(row) == (0.0, 0.0)
    assert judged(row, detector="strict") == (1.0, 0.0)
    row.text = "Anything but Seoul. Confidence: 20%"
    assert judged(row) == (1.0, 0.0)
    assert judged(row, detector="strict") == (0.0, 0.0)
    assert judged(row, confident_at=0.3) == (0.0, 1.0)
    row.text = "capital of Korea? I don't know, say I."  # the question is in the record
    assert judged(row, detector="strict") == (0.0, 1.0)


def test_the_settings_of_a_strict_reward_are_those_of_the_detector(rollout: Any) -> None:
    row = rollout.rows[0]
    strict = SelfAwareStrict(phrases=["search me"], languages=["en"], max_words=3)
    row.text = "Search me."
    assert judged(row, detector="strict") == (0.0, 0.0)
    assert judged(row, detector="strict", strict=strict) == (0.0, 1.0)
    row.text = "모르겠습니다."
    assert judged(row, detector="strict") == (0.0, 1.0)
    assert judged(row, detector="strict", strict=strict) == (0.0, 0.0)
    row.text = "It is surely Seoul."
    assert judged(row, detector="strict") == (1.0, 0.0)
    assert judged(row, detector="strict", strict=strict) == (0.0, 0.0)


def test_evaluation_and_reward_agree(
    fit: Fit,
    console: Console,
    shown: Shown,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = SelfAwareStrict(max_words=3), SelfAwareStrict(max_words=5)
    seen: list[Any] = []

    def metrics(rows: Any, **settings: Any) -> dict[str, float | None]:
        seen.append(settings["strict"])
        return {"accuracy": 0.5}

    monkeypatch.setattr("sctom.callbacks.selfaware_eval.answer_metrics", metrics)
    advice = "SelfAwareEval judges by the 19 patterns, but the reward is SelfAwareStrict; set"
    fit([SelfAwareEval(report=False)])
    assert advice not in shown(console)
    rewards = [SelfAware(), first, second]
    fit([SelfAwareEval(report=False, detector="strict")], rewards=rewards)
    assert seen == [*[None] * 3, *[first] * 3]
    assert advice not in shown(console)
    fit([SelfAwareEval(report=False)], rewards=rewards)
    assert f"{advice} detector: strict" in shown(console)


def test_detector_and_confidence_are_settings_of_the_callback(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def metrics(rows: Any, **settings: Any) -> dict[str, float | None]:
        seen.append(settings)
        return {"accuracy": 0.5}

    monkeypatch.setattr("sctom.callbacks.selfaware_eval.answer_metrics", metrics)
    fit([SelfAwareEval(report=False)])
    fit([SelfAwareEval(report=False, detector="strict", confident_at=0.5)])
    assert seen == [
        *[{"detector": "patterns", "confident_at": None, "strict": None}] * 3,
        *[{"detector": "strict", "confident_at": 0.5, "strict": None}] * 3,
    ]
    assert [m["accuracy"] for m in evaluations(tmp_path).values()] == [0.5] * 3


def test_settings_that_cannot_be_used() -> None:
    with pytest.raises(ValueError, match=r"confident_at must be from 0 to 1, or null, not 50"):
        SelfAwareEval(confident_at=50)
    with pytest.raises(ValueError, match=r"detector must be patterns or strict, not 'loose'"):
        SelfAwareEval(detector="loose")

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from sctom.callbacks import MetricsFile
from sctom.callbacks.common import read_records


def iterate(
    callback: MetricsFile, trainer: SimpleNamespace, module: SimpleNamespace, *iterations: int
) -> None:
    for iteration in iterations:
        module.progress.iteration = iteration
        module.last_metrics = {"reward": float(iteration), "loss": float("nan")}
        callback.on_train_batch_end(trainer, module, None, None, 0)


def test_every_iteration_is_a_line_and_nan_is_null(
    trainer: SimpleNamespace, module: SimpleNamespace, tmp_path: Path
) -> None:
    iterate(MetricsFile(), trainer, module, 1, 2)
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"iteration": 1, "reward": 1.0, "loss": null}\n'
        '{"iteration": 2, "reward": 2.0, "loss": null}\n'
    )


def test_a_resumed_run_drops_the_lines_it_will_write_again(
    trainer: SimpleNamespace, module: SimpleNamespace, tmp_path: Path
) -> None:
    iterate(MetricsFile(), trainer, module, 1, 2, 3)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"iteration": 4, "rew')  # killed here
    module.progress.iteration = 2
    resumed = MetricsFile()
    resumed.on_train_start(trainer, module)
    iterate(resumed, trainer, module, 3, 4)
    assert [r["iteration"] for r in read_records(path)] == [1, 2, 3, 4]


def test_a_run_from_its_start_begins_an_empty_file(
    trainer: SimpleNamespace, module: SimpleNamespace, tmp_path: Path
) -> None:
    iterate(MetricsFile(), trainer, module, 1, 2)
    module.progress.iteration = 0
    MetricsFile().on_train_start(trainer, module)
    assert read_records(tmp_path / "metrics.jsonl") == []


def test_only_the_first_process_writes(
    trainer: SimpleNamespace, module: SimpleNamespace, tmp_path: Path
) -> None:
    trainer.is_global_zero = False
    MetricsFile().on_train_start(trainer, module)
    iterate(MetricsFile(), trainer, module, 1)
    assert list(tmp_path.iterdir()) == []

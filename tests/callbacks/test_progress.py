from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from sctom.callbacks import RichProgress

Shown = Callable[[Console], str]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("sctom.callbacks.progress.time.monotonic", lambda: clock.now)
    return clock


def run(
    callback: RichProgress,
    trainer: SimpleNamespace,
    module: SimpleNamespace,
    clock: SimpleNamespace,
    *,
    first: int,
    seconds: float,
) -> None:
    module.progress.iteration = first
    callback.on_train_start(trainer, module)
    for _ in range(first, trainer.datamodule.iterations):
        clock.now += seconds
        module.progress.iteration += 1
        callback.on_train_batch_end(trainer, module, None, None, 0)


def test_a_log_gets_plain_lines_with_the_time_left(
    trainer: SimpleNamespace,
    module: SimpleNamespace,
    console: Console,
    shown: Shown,
    clock: SimpleNamespace,
) -> None:
    trainer.datamodule.iterations = 5
    callback = RichProgress()
    run(callback, trainer, module, clock, first=2, seconds=60.0)  # resumed after iteration 2
    callback.on_train_end(trainer, module)
    numbers = "reward -0.250  kl -  length 4  sampling 1,234 tokens/s"
    assert shown(console).splitlines() == [
        f"iteration 3/5  {numbers}  0:01:00 left 0:02:00",
        f"iteration 4/5  {numbers}  0:02:00 left 0:01:00",
        f"iteration 5/5  {numbers}  0:03:00 left 0:00:00",
    ]


@pytest.mark.parametrize(
    ("settings", "iterations"),
    [
        ({"plain_seconds": 0.0}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"plain_seconds": 3.0}, [1, 4, 7, 9]),
        ({"plain_seconds": 0.0, "plain_every": 4}, [1, 4, 8, 9]),
    ],
)
def test_plain_lines_are_rationed_but_the_first_and_last_always_come(
    trainer: SimpleNamespace,
    module: SimpleNamespace,
    console: Console,
    shown: Shown,
    clock: SimpleNamespace,
    settings: dict[str, float],
    iterations: list[int],
) -> None:
    trainer.datamodule.iterations = 9
    run(RichProgress(**settings), trainer, module, clock, first=0, seconds=1.0)
    assert [
        int(line.split()[1].split("/")[0]) for line in shown(console).splitlines()
    ] == iterations


def test_a_terminal_gets_one_bar_and_no_lines(
    trainer: SimpleNamespace, module: SimpleNamespace, terminal: Console, shown: Shown
) -> None:
    clock = SimpleNamespace(now=0.0)
    callback = RichProgress()
    run(callback, trainer, module, clock, first=0, seconds=0.0)
    callback.on_train_end(trainer, module)
    text = shown(terminal)
    assert "\x1b[" in text
    assert "3/3" in text
    assert "reward -0.250" in text
    assert "iteration 3/3" not in text  # a plain line


def test_a_narrow_terminal_keeps_the_time_left(
    trainer: SimpleNamespace, module: SimpleNamespace, terminal: Console, shown: Shown
) -> None:
    terminal.width = 80
    callback = RichProgress()
    run(callback, trainer, module, SimpleNamespace(now=0.0), first=0, seconds=0.0)
    callback.on_train_end(trainer, module)
    assert "left 0:00:00" in shown(terminal)
    assert "reward -0.250" in shown(terminal)


def test_validation_is_shown_while_it_runs(
    trainer: SimpleNamespace, module: SimpleNamespace, terminal: Console, shown: Shown
) -> None:
    trainer.sanity_checking = True
    trainer.callback_metrics = {"val/reward": torch.tensor(0.25), "loss": torch.tensor(1.0)}
    callback = RichProgress()
    callback.on_validation_start(trainer, module)  # before on_train_start
    assert callback._bar is not None
    for index in range(2):
        callback.on_validation_batch_end(trainer, module, None, None, index)
    (task,) = callback._bar.tasks
    assert (task.completed, task.total) == (2, 2)
    callback.on_validation_end(trainer, module)
    assert callback._bar.tasks == []
    callback.teardown(trainer, module, "fit")
    assert "validation after iteration 1  reward 0.250\n" in shown(terminal).replace("\r", "")


def test_a_log_gets_one_line_per_validation(
    trainer: SimpleNamespace, module: SimpleNamespace, console: Console, shown: Shown
) -> None:
    trainer.callback_metrics = {"val/accuracy": torch.tensor(float("nan"))}
    callback = RichProgress()
    callback.on_validation_start(trainer, module)
    callback.on_validation_batch_end(trainer, module, None, None, 0)
    callback.on_validation_end(trainer, module)
    assert shown(console) == "validation after iteration 1  accuracy -\n"


def test_an_error_gives_the_terminal_back(
    trainer: SimpleNamespace, module: SimpleNamespace, terminal: Console
) -> None:
    callback = RichProgress()
    callback.on_train_start(trainer, module)
    assert terminal._live_stack
    callback.on_exception(trainer, module, KeyboardInterrupt())
    assert not terminal._live_stack


def test_other_processes_are_silent(
    trainer: SimpleNamespace,
    module: SimpleNamespace,
    console: Console,
    shown: Shown,
    clock: SimpleNamespace,
) -> None:
    trainer.is_global_zero = False
    callback = RichProgress()
    callback.on_validation_start(trainer, module)
    callback.on_validation_end(trainer, module)
    run(callback, trainer, module, clock, first=0, seconds=9.0)
    assert shown(console) == ""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from sctom.batch import Rollout, interleave
from sctom.callbacks import CompletionsTable
from sctom.callbacks.completions import (
    completion_records,
    completions_table,
    extremes,
)


def end_iteration(
    callback: CompletionsTable, trainer: SimpleNamespace, module: SimpleNamespace
) -> None:
    callback.on_train_batch_end(trainer, module, None, None, 0)


def test_all_completions_are_saved_in_full(
    trainer: SimpleNamespace, module: SimpleNamespace, console: Console, tmp_path: Path
) -> None:
    module.progress.iteration = 12
    module.last_rollout.rows[1].extra = {"parsed": [1, 2], "score": 0.5}
    end_iteration(CompletionsTable(every=0), trainer, module)
    (path,) = (tmp_path / "completions").iterdir()
    assert path.name == "iteration-000012.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[1] == {
        "iteration": 12,
        "prompt_index": 0,
        "sample": 1,
        "prompt": "capital of Korea?",
        "completion": "Seoul [bold]",
        "rewards": {"exact": 1.0, "judge": None},
        "reward": 1.0,
        "advantage": 0.7,
        "length": 5,
        "truncated": True,
        "counted": True,
        "extra": {"parsed": "[1, 2]", "score": 0.5},
    }
    assert lines[2]["completion"] == "many\n\x1b[31m"
    assert [line["reward"] for line in lines] == [-1.0, 1.0, -1.0, None]


def test_a_resumed_run_writes_the_same_file_again(
    trainer: SimpleNamespace, module: SimpleNamespace, console: Console, tmp_path: Path
) -> None:
    path = tmp_path / "completions" / "iteration-000001.jsonl"
    end_iteration(CompletionsTable(), trainer, module)
    first = path.read_bytes()
    path.write_bytes(first[:50])
    end_iteration(CompletionsTable(), trainer, module)
    assert path.read_bytes() == first


def test_saving_can_be_switched_off(
    trainer: SimpleNamespace, module: SimpleNamespace, console: Console, tmp_path: Path
) -> None:
    end_iteration(CompletionsTable(save=False), trainer, module)
    assert list(tmp_path.iterdir()) == []


def test_the_table_shows_text_as_text(
    trainer: SimpleNamespace,
    module: SimpleNamespace,
    console: Console,
    shown: Callable[[Console], str],
) -> None:
    end_iteration(CompletionsTable(), trainer, module)
    text = shown(console)
    assert "Seoul [bold] [truncated]" in text  # no markup
    assert "many\\n\\x1b[31m" in text  # no terminal escape
    assert "\x1b" not in text
    assert text.index("Seoul") < text.index("Busan")  # best first
    assert "+0.700" in text
    assert "exact 1.00" in text
    assert "judge -" in text  # abstained


def test_the_parts_of_a_reward_are_shown_if_there_are_several(rollout: Rollout) -> None:
    assert len(completions_table(rollout.rows, 1, 99).columns) == 5
    for row in rollout.rows:
        del row.rewards["judge"]
    assert len(completions_table(rollout.rows, 1, 99).columns) == 4


def test_how_often_and_how_much(
    trainer: SimpleNamespace,
    module: SimpleNamespace,
    console: Console,
    shown: Callable[[Console], str],
) -> None:
    callback = CompletionsTable(every=3, prompts=1, save=False)
    titles = []
    for module.progress.iteration in range(1, 8):
        before = len(shown(console))
        end_iteration(callback, trainer, module)
        if len(shown(console)) > before:
            titles.append(module.progress.iteration)
    assert titles == [1, 3, 6]
    assert "capital" in shown(console)
    assert "stars" not in shown(console)  # the second prompt


def test_best_and_worst_of_a_group(rollout: Rollout) -> None:
    spread, one_valid = rollout.groups()
    assert [row.text for row in extremes(spread)] == ["Seoul [bold]", "Busan"]
    assert [row.reward for row in extremes(one_valid)] == [-1.0]
    none = [row for row in one_valid if row.sample == 1] * 2
    assert extremes(none) == none[:1]


def test_the_file_does_not_depend_on_the_number_of_processes(rollout: Rollout) -> None:
    whole = completion_records(rollout, 1)
    parts = [completion_records(Rollout(group, 2), 1) for group in rollout.groups()]
    assert interleave(parts, 2) == whole


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"CompletionsTable\.prompts must be at least 1 but is 0"):
        CompletionsTable(prompts=0)

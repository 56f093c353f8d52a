from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import yaml

import sctom.losses
from sctom.batch import Prompt, Row
from sctom.objectives import GRPO

SCRIPT = Path(__file__).parents[2] / "scripts" / "prompt_signal.py"


def test_signal_and_counts_by_hand():
    def row(text, unanswerable, reward, length):
        columns = {"expected_answer": "Seoul", "is_unanswerable": unanswerable}
        return Row(Prompt(0, [1], [], columns), 0, [1] * length, text, False, reward=reward)

    rows = [  # groups of two: different rewards, equal rewards, one without a reward
        *(row("Seoul", False, 1.0, 1), row("I don't know.", False, -0.5, 2)),
        *(row("Busan", False, -1.0, 3), row("Daegu", False, -1.0, 4)),
        *(row("I cannot say.", True, 1.0, 5), row("Seoul", True, float("nan"), 6)),
    ]
    module = SimpleNamespace(group_size=2, bound=GRPO().bind(sctom.losses))
    assert runpy.run_path(str(SCRIPT))["summary"](module, rows) == [
        "1 of 3 (33%)",
        "1 correct, 1 abstained, 2 wrong",
        "1 abstained, 1 wrong",
        "3.5",  # 21 / 6
    ]


def test_the_same_questions_under_both_prompts(
    tmp_path, tiny_model, tiny_prompts, monkeypatch, capsys
):
    arguments = {
        "backbone": {"class_path": "Backbone", "init_args": {"path": str(tiny_model)}},
        "objective": {"class_path": "GRPO"},
        "rewards": [{"class_path": "SelfAware"}],
        "optimizer": {"class_path": "torch.optim.AdamW"},
        "sampling": {"max_new_tokens": 4},
    }
    shots = [{"role": "user", "content": "one ?"}, {"role": "assistant", "content": "red"}]
    data = {"train": str(tiny_prompts), "columns": "selfaware", "system": "yes", "shots": shots}
    config = tmp_path / "config.yaml"
    parts = {
        "run_dir": str(tmp_path / "run"),
        "model": {"class_path": "PolicyModule", "init_args": arguments},
        "data": {"class_path": "PromptData", "init_args": data},
        "trainer": {"accelerator": "cpu"},
    }
    config.write_text(yaml.safe_dump(parts))
    options = ["--config", str(config), "--prompts", "6", "--group_size", "4"]
    monkeypatch.setattr(sys, "argv", ["prompt_signal.py", *options])
    runpy.run_path(str(SCRIPT), run_name="__main__")

    lines = capsys.readouterr().out.splitlines()[-4:]
    assert lines[0] == "| prompt | groups with signal | answerable | unanswerable | mean length |"
    assert lines[2].startswith("| config's |") and lines[3].startswith("| data's own |")
    totals = []
    for line in lines[2:]:
        signal, groups = map(int, re.search(r"(\d+) of (\d+)", line).groups())
        assert 0 <= signal <= groups == 6
        answerable, unanswerable = line.split(" | ")[2:4]
        totals.append(
            [sum(map(int, re.findall(r"\d+", cell))) for cell in (answerable, unanswerable)]
        )
    assert totals[0] == totals[1]  # the same questions, whatever came back
    assert sum(totals[0]) == 6 * 4 and min(totals[0]) > 0
    assert lines[2].split(" | ")[1:] != lines[3].split(" | ")[1:]  # under different prompts
    assert not (tmp_path / "run").exists()

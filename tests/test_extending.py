"""docs/extending.md and docs/rewards.md: what they show works as they show it."""

from __future__ import annotations

import dataclasses
import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import sctom.losses
from sctom.fit import build, fit
from sctom.modules.backbone import trainable
from sctom.objectives import GRPO, Totals
from sctom.rewards import IDK_PATTERNS, SelfAware, SelfAwareStrict
from sctom.rewards.reading.abstention import Abstentions
from sctom.rewards.reading.matching import holds_answer

ROOT = Path(__file__).parents[1]
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
REWARDS = (ROOT / "docs" / "rewards.md").read_text()


# --- the files of docs/extending.md ---------------------------------------------------------------


def files() -> dict[str, str]:
    """File name -> its block: a line that starts with the name in backticks, then the block."""
    blocks = re.findall(r"^`([\w.]+)`[^\n]*\n\n```\w+\n(.*?)^```", EXTENDING, re.M | re.S)
    assert len(blocks) == EXTENDING.count("\n```") / 2, "a block without the name of its file"
    return dict(blocks)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with those files, as the folder a run is started from."""
    for name, text in files().items():
        (tmp_path / name).write_text(text)
        monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m` does
    yield tmp_path
    for name in files():
        sys.modules.pop(Path(name).stem, None)


@pytest.fixture
def base(folder, tiny_model, tiny_prompts) -> Path:
    """A config in the place of configs/quickstart.yaml."""
    path = folder / "base.yaml"
    arguments = {
        "backbone": {"class_path": "Backbone", "init_args": {"path": str(tiny_model)}},
        "objective": {"class_path": "GRPO", "init_args": {"clip_high": 0.3}},
        "rewards": [{"class_path": "SelfAware"}],
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.01}},
        "group_size": 4,
        "sampling": {"max_new_tokens": 4},
        "self_check": False,
    }
    data = {"train": str(tiny_prompts), "prompts_per_iteration": 3, "columns": "selfaware"}
    parts = {
        "run_dir": str(folder / "run"),
        "model": {"class_path": "PolicyModule", "init_args": arguments},
        "data": {"class_path": "PromptData", "init_args": {**data, "iterations": 2}},
        "trainer": {"accelerator": "cpu", "logger": False, "enable_checkpointing": False},
    }
    path.write_text(yaml.safe_dump(parts))
    return path


def trained(monkeypatch, *configs: str):
    """The module after the run that the document's command starts."""
    options = [word for config in configs for word in ("--config", config)]
    monkeypatch.setattr(sys, "argv", ["fit", *options])
    cli = build()
    fit(cli)
    return cli.model


def test_the_document_has_the_files_it_speaks_of():
    assert list(files()) == [
        "my_objective.py",
        "my_objective.yaml",
        "my_rewards.py",
        "my_rewards.yaml",
        "my_order.py",
        "my_order.yaml",
        "my_sampler.py",
        "my_sampler.yaml",
    ]


def test_a_sampler_of_ones_own_draws_what_ours_draws(base, monkeypatch):
    module = trained(monkeypatch, "base.yaml", "my_sampler.yaml")
    assert type(module.sampler).__module__ == "my_sampler"
    own = [(row.ids, row.truncated) for row in module.last_rollout.rows]
    ours = trained(monkeypatch, "base.yaml").last_rollout.rows
    assert own == [(row.ids, row.truncated) for row in ours]


def test_an_order_of_ones_own_is_asked(base, monkeypatch):
    module = trained(monkeypatch, "base.yaml", "my_order.yaml")
    prompts = module.trainer.datamodule.train_prompts
    lengths = sorted(len(prompt.ids) for prompt in prompts)
    asked = [len(row.prompt.ids) for row in module.last_rollout.rows[::4]]
    assert asked == lengths[3:6]  # iteration 1, three prompts each


def test_an_objective_of_ones_own_trains(base, monkeypatch):
    module = trained(monkeypatch, "base.yaml", "my_objective.yaml")
    assert type(module.objective).__module__ == "my_objective"
    assert module.objective.arguments() == {"stiffness": 0.5}  # and no clip_high left over
    assert module.progress.iteration == 2 and module.progress.updates == 4
    assert module.progress.skipped == 0
    before = dict(trainable(module.backbone.load_model()))
    assert any(not torch.equal(p, before[name]) for name, p in trainable(module.model))


def test_its_settings_are_checked(base, monkeypatch, capsys):
    text = (base.parent / "my_objective.yaml").read_text()
    (base.parent / "misspelt.yaml").write_text(text.replace("stiffness", "stifness"))
    with pytest.raises(SystemExit):
        trained(monkeypatch, "base.yaml", "misspelt.yaml")
    assert "stifness" in capsys.readouterr().err


def test_python_m_finds_it_in_the_folder_it_is_started_from(base):
    command = [sys.executable, "-m", "sctom.fit", "--config", "base.yaml"]
    command += ["--config", "my_objective.yaml", "--print_config"]
    done = subprocess.run(command, cwd=base.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["model"]["init_args"]["objective"] == {
        "class_path": "my_objective.MyObjective",
        "init_args": {"stiffness": 0.5},
    }


def test_its_gradient_does_not_depend_on_the_micro_batches(folder):
    from my_objective import MyObjective

    bound = MyObjective(stiffness=0.5).bind(sctom.losses)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([5, 1, 3, 0])
    old_logps, drift = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64) / 4
    mask = (torch.arange(5) < lengths[:, None]).double()
    advantages = bound.advantages(torch.tensor([[1.0, 0.0], [2.0, 0.5]])).flatten()
    totals = Totals(tokens=float(mask.sum()), sequences=4, length=5)

    def gradient(*parts: list[int]) -> torch.Tensor:
        logps = torch.where(mask > 0, old_logps + drift, torch.nan).requires_grad_()
        for rows in parts:
            losses = bound.loss(logps[rows], old_logps[rows], advantages[rows], mask[rows])
            bound.reduce(losses, mask[rows], totals).backward()
        return logps.grad

    whole = gradient([0, 1, 2, 3])
    # d/dlogp of -exp(d) A + stiffness / 2 d^2 is -exp(d) A + stiffness d; divided by 9 tokens
    expected = (-drift.exp() * advantages[:, None] + 0.5 * drift) * mask / 9
    torch.testing.assert_close(whole, expected)
    for parts in (([0, 1], [2, 3]), ([3], [1], [0], [2])):
        torch.testing.assert_close(gradient(*parts), whole)


def test_advantages_of_ones_own_through_bind():
    def signs(rewards):
        return torch.sign(rewards - rewards.mean(1, keepdim=True))

    class Signs(GRPO):
        def bind(self, backend):
            return dataclasses.replace(super().bind(backend), advantages=signs)

    rewards = torch.tensor([[3.0, 1.0, 1.0]])
    assert Signs().bind(sctom.losses).advantages(rewards).tolist() == [[1.0, -1.0, -1.0]]


def test_rewards_of_ones_own_train(base, monkeypatch):
    module = trained(monkeypatch, "base.yaml", "my_rewards.yaml")
    groups = module.last_rollout.rows
    assert [row.prompt.columns["answerable"] for row in groups].count(False) > 0
    for row in groups:
        words = len(row.text.split())
        judged = None if row.prompt.columns["answerable"] else float("i don't know" in row.text)
        asked_back = -1.0 if row.text.endswith("?") else 0.0
        brevity = min(1.0, 1.0 - 0.1 * (words - 4))
        assert row.rewards == {
            "brevity": brevity,
            "no_question_back": asked_back,
            "judge": judged,
        }
        assert row.reward == pytest.approx(0.5 * brevity + asked_back + 2.0 * (judged or 0.0))
    assert module.last_metrics["brevity/words"] == pytest.approx(
        sum(len(row.text.split()) for row in groups) / len(groups)
    )


# --- docs/rewards.md ------------------------------------------------------------------------------


def section(heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", REWARDS, re.M | re.S)
    assert found, f"docs/rewards.md has no section {heading!r}"
    return found[1]


def table(heading: str) -> list[list[str]]:
    """The rows of a section's table, without its head."""
    lines = [line for line in section(heading).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


@pytest.mark.parametrize("page", ["rewards.md", "reward_library.md"])
def test_the_examples_of_the_pages_on_rewards_run(page):
    results = doctest.testfile(str(ROOT / "docs" / page), module_relative=False)
    assert results.attempted >= 5 and results.failed == 0


def test_the_table_of_values_is_the_default():
    settings = {setting: float(value) for _, _, value, setting in table("The SelfAware reward")}
    assert len(settings) == 5
    named = {name.strip("`"): value for name, value in settings.items()}
    assert SelfAware(**named).table == SelfAware().table


def test_the_patterns_are_listed_in_their_order():
    assert re.findall(r"^ *\d+\. `(.+)`$", section("The 19 patterns"), re.M) == list(IDK_PATTERNS)


QUESTION = "Which one is meant?"


def traps() -> list[list[str]]:
    return table("Traps of the definition")


def test_there_are_traps():
    assert len(traps()) >= 20


@pytest.mark.parametrize("row", traps(), ids=lambda row: row[2])
def test_every_trap_has_the_value_that_is_told(row):
    _, expected, completion, value, strict, _ = row
    unanswerable = expected == "(unanswerable)"
    answer = "I don't know." if unanswerable else code(expected)
    assert SelfAware()([code(completion)], [answer], [unanswerable]) == [float(value)]
    answerable = not unanswerable and answer != "Nobody can tell."
    given = [[QUESTION], [code(completion)], [answerable], [answer]]
    if strict == "refused":
        with pytest.raises(ValueError, match="blank"):
            SelfAwareStrict()(*given)
    else:
        assert SelfAwareStrict()(*given) == [float(strict)]


def code(cell: str) -> str:
    """The text between the backticks of a cell."""
    found = re.fullmatch(r"(`+)(.*)\1", cell)
    assert found, f"{cell!r} is not in backticks"
    return found[2]


# --- docs/rewards.md: the strict reward -----------------------------------------------------------

TABLES = re.split(r"\n\n", section("The strict reward"))


def strict_table(head: str) -> list[list[str]]:
    """The rows of the table of the strict reward that has this head."""
    [found] = [block.splitlines() for block in TABLES if block.startswith(f"| {head} |")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in found[2:]]


def test_the_strict_values_are_the_defaults():
    rows = strict_table("question | response | value | setting")
    assert {code(name): float(value) for *_, value, name in rows} == SelfAwareStrict().table


@pytest.mark.parametrize("row", strict_table("rule | right | not right"), ids=lambda row: row[0])
def test_every_rule_of_the_strict_reward_has_its_examples(row):
    for cell, right in zip(row[1:], (True, False), strict=True):
        expected, completion = cell.strip("`").split("`: `")
        assert holds_answer(completion, [expected]) is right


@pytest.mark.parametrize("row", strict_table("completion | stance | why"), ids=lambda row: row[0])
def test_every_stance_is_the_one_that_is_told(row):
    assert Abstentions().read(code(row[0])).stance == row[1]

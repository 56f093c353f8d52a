"""`python -m sctom.rounds`: whole runs of a random model, killed and not, and what is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sctom.commands import parse
from sctom.iterate.manifest import Manifest
from sctom.iterate.plan import Plan
from sctom.iterate.run import _begin, check
from sctom.iterate.settings import Settings
from sctom.preferences import read_preferences
from sctom.readers import read_jsonl
from sctom.rounds import WAITING, main
from tests.iterate.small import ADAM, PPO, rounds_config

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder whose modules can be imported, as they are where a run is started."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "small_rewards", raising=False)
    return tmp_path


def rounds(config: Path, *options: str) -> Path:
    main(["--config", str(config), *options])
    return Path(yaml.safe_load(config.read_text())["run_dir"])


def leaves(config: Path, capsys, *options: str) -> tuple[int, str]:
    """The exit status of a run that must fail, and what it said."""
    with pytest.raises(SystemExit) as leaving:
        rounds(config, *options)
    captured = capsys.readouterr()
    return leaving.value.code, re.sub(r"\s+", " ", captured.err + captured.out)


# whole runs ---------------------------------------------------------------------------------------


def test_two_rounds_and_ppo(folder, tiny_model, capsys):
    config = rounds_config(
        folder,
        tiny_model,
        rounds=2,
        ppo={**PPO, "from_round": 2},
        students=[{"name": "small", "model": {"optimizer": ADAM}}],
    )
    run_dir = rounds(config)
    numbers = json.loads((run_dir / "rounds.json").read_text())
    assert list(numbers["models"]) == ["base", "V1", "V2", "V2 + PPO"]
    assert list(numbers["students"]) == ["small, before", "small"]
    assert set(numbers["models"]["V1"]) == {"judge", "helpfulness", "safety"}
    page = (run_dir / "page.html").read_text()
    assert page.count("<svg") == 3 and "V2 + PPO" in page and "src=" not in page
    assert_disjoint(run_dir)
    assert_chained(run_dir, tiny_model)
    digest = Manifest(run_dir).digest()
    capsys.readouterr()
    rounds(config, "--resume", "auto")  # a finished run has nothing to do
    said = capsys.readouterr().out
    assert said.count("finished before") == 28 and "starting" not in said
    assert Manifest(run_dir).digest() == digest
    assert digest in re.sub(r"\s", "", said)


def assert_disjoint(run_dir: Path) -> None:
    """No prompt is used twice, whatever for."""
    shares = sorted((run_dir / "rounds").glob("*/prompts/*.jsonl"))
    assert [f"{path.parts[-3]}/{path.stem}" for path in shares] == [
        "0/evaluation",
        "1/collect",
        "1/sample",
        "2/collect",
        "2/ppo",
        "2/sample",
    ]
    asked = [json.dumps(row["messages"][0]) for path in shares for row in read_jsonl(path)]
    assert len(asked) == len(set(asked)) == 4 + 6 + 6 + 6 + 4 + 6


def assert_chained(run_dir: Path, base: Path) -> None:
    """Each stage is made of the right ones."""
    stages = Manifest(run_dir).stages
    inputs = {name: list(entry["inputs"]) for name, entry in stages.items()}
    made = "RUN/rounds"
    # round 1 asks the base model only; round 2 V1 and, as the one before it, the base model
    assert [path for path in inputs["1/collect"] if "prompts" not in path] == [str(base)]
    assert inputs["2/collect"][1:] == [f"{made}/1/sft/model", str(base)]
    # reward models learn from the pairs of all rounds so far
    assert inputs["2/reward_safety"][:2] == [
        f"{made}/1/label/pairs.jsonl",
        f"{made}/2/label/pairs.jsonl",
    ]
    assert {f"{made}/{n}/sample/samples.jsonl" for n in (1, 2)} < set(inputs["2/select"])
    # V2 is fine-tuned from the base model, and PPO goes on from there
    assert inputs["2/sft"] == [f"{made}/2/select/kept.jsonl", str(base)]
    assert inputs["2/ppo"][1] == f"{made}/2/sft/model"
    models = stages["2/compare"]["config"]["models"]
    assert models["V2 + PPO"] == f"{made}/2/evaluate_ppo/completions.jsonl"
    pairs = read_preferences(run_dir / "rounds" / "2" / "label" / "pairs.jsonl")
    assert {(pair.source, pair.columns["round"]) for pair in pairs} == {("round 2", 2)}
    kept = read_jsonl(run_dir / "rounds" / "2" / "select" / "kept.jsonl")
    assert {row["round"] for row in kept} == {1, 2}


def test_one_reward_model_adapters_and_the_last_pool(folder, tiny_model):
    config = rounds_config(
        folder,
        tiny_model,
        rounds=2,
        reward_models__two=False,
        prompts__is_safety=None,
        sft__backbone={"lora_rank": 2},
        sample__pool="last",
    )
    run_dir = rounds(config)
    stages = Manifest(run_dir).stages
    assert "1/reward" in stages and "1/reward_safety" not in stages
    assert (run_dir / "rounds" / "2" / "sft" / "model" / "adapter_model.safetensors").exists()
    asked = stages["2/sample"]["config"]["backbone"]
    assert asked["path"] == str(tiny_model)
    assert asked["adapter"] == "RUN/rounds/1/sft/model"
    kept = read_jsonl(run_dir / "rounds" / "2" / "select" / "kept.jsonl")
    assert {row["round"] for row in kept} == {2}


def test_a_run_stops_for_labels_and_goes_on(folder, tiny_model, capsys):
    labels = folder / "labels-{round}.jsonl"
    labeller = {"class_path": "FileLabeller", "init_args": {"path": str(labels)}}
    config = rounds_config(folder, tiny_model, collect__labeller=labeller)
    status, said = leaves(config, capsys)
    assert status == WAITING and "save them as" in said and "--resume auto" in said
    run_dir = Path(yaml.safe_load(config.read_text())["run_dir"])
    asked = read_jsonl(run_dir / "rounds" / "1" / "collect" / "to_label.jsonl")
    given = [{**row, "better": "a", "grade": "better"} for row in asked]
    path = folder / "labels-1.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    rounds(config, "--resume", "auto")
    pairs = read_jsonl(run_dir / "rounds" / "1" / "label" / "pairs.jsonl")
    held = read_jsonl(run_dir / "rounds" / "1" / "label" / "held_out.jsonl")
    assert sorted(row["chosen"] for row in [*pairs, *held]) == sorted(row["a"] for row in asked)
    path.write_text(path.read_text().replace('"better": "a"', '"better": "b"', 1))
    status, said = leaves(config, capsys, "--resume", "auto")
    assert status == 1 and "1/label was begun with another" in said and "labels-1.jsonl" in said


# killed -------------------------------------------------------------------------------------------


def in_forks(config: Path, run_dir: Path, *moments: object) -> str:
    """Run a config, killed at some moments; returns its digest."""
    command = [sys.executable, "-m", "tests.iterate.killing", str(config), str(run_dir)]
    path = os.pathsep.join([str(config.parent), str(ROOT)])
    ended = subprocess.run(
        [*command, *map(str, moments)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return Manifest(run_dir).digest()


def test_killed_while_it_trains(folder, tiny_model):
    config = rounds_config(folder, tiny_model, reward_models__two=False, prompts__is_safety=None)
    # after some checkpoints: the writes of a checkpoint are the file and its folder
    killed = in_forks(config, folder / "killed", "1/reward", 4, "1/sft", 4)
    assert killed == Manifest(rounds(config)).digest()


@pytest.mark.slow
def test_killed_in_every_stage(folder, tiny_model):
    config = rounds_config(folder, tiny_model, ppo=PPO)
    moments = [
        ("0/prompts", 1),
        ("0/evaluate", 1),
        ("1/prompts", 2),
        ("1/collect", 2),
        ("1/label", 2),
        ("1/reward_helpfulness", 5),
        ("1/reward_safety", 3),
        ("1/sample", 2),
        ("1/select", 1),
        ("1/select", 0),
        ("1/sft", 0),
        ("1/sft", 6),
        ("1/evaluate", 2),
        ("1/ppo", 4),
        ("1/ppo", 7),
        ("1/evaluate_ppo", 1),
        ("1/compare", 1),
    ]
    killed = in_forks(config, folder / "killed", *(part for moment in moments for part in moment))
    whole = in_forks(config, folder / "whole")
    assert killed == whole
    assert set(Manifest(folder / "killed").stages) == {stage for stage, _ in moments}


# the config that ships ----------------------------------------------------------------------------


def test_the_example_is_accepted(tmp_path):
    path = ROOT / "configs" / "llama2_rounds.yaml"
    assert "--config configs/llama2_rounds.yaml" in path.read_text()
    settings, plain, _ = parse(
        Settings,
        "sctom.rounds",
        "Rounds",
        ["--config", str(path), "--run_dir", str(tmp_path / "run")],
    )
    check(settings)
    assert settings.has_ppo(5) and not settings.has_ppo(4)
    # 675 prompts are all there are
    assert sum(settings.shares().values()) - settings.evaluate.prompts == 675
    stages = [stage.name for stage in Plan(settings, plain).stages()]
    assert len(stages) == len(set(stages)) == 54


# refused before the first stage -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rounds": 0}, "config.rounds must be at least 1 but is 0"),
        ({"rounds": 9}, "different prompts, but 112 are needed"),  # 4 + 9 (6 + 6)
        ({"sample__count": 1}, "sample.count must be at least 2"),
        ({"sample__pool": "some"}, "sample.pool"),
        ({"sample__temperature": 0.0}, "sample.temperature must be above 0"),
        ({"collect__held_out": 1.0}, "collect.held_out must be at least 0 and below 1"),
        ({"collect__variants": [{"temperature": 2.0}] * 2}, "collect.variants are the same model"),
        ({"prompts__is_safety": None}, "prompts.is_safety names no column"),
        ({"prompts__is_safety": "kind"}, "prompts.jsonl:1: the column 'kind'"),
        ({"prompts__file": "nowhere.jsonl"}, "nowhere.jsonl does not exist"),
        ({"prompts__columns": "plain"}, "the column 'is_unanswerable'"),
        ({"prompts__max_tokens": 3}, "tokens, but the limit is 3"),
        ({"backbone": {}}, "backbone.path is missing"),
        ({"backbone": {"path": "no/where/model"}}, "no/where/model is neither a folder"),
        ({"backbone": {"path": "x", "lora_rnak": 3}}, "lora_rnak"),
        ({"sft__data": {"train": "x.jsonl"}}, "sft.data.train is 'x.jsonl', but the round decides"),
        ({"sft__data": {"bach_size": 3}}, "did you mean 'batch_size'? (--help"),
        ({"reward_models__model": {"optimizer": ADAM, "centring": 1}}, "did you mean 'centering'?"),
        ({"ppo": {**PPO, "model": {**PPO["model"], "group_size": 1}}}, "set group_size to 2"),
        ({"ppo": {**PPO, "prompts": 1}}, "prompts_per_iteration is 2, but data.train has 1"),
        ({"sampel": {"count": 3}}, "did you mean 'sample.count'?"),
        ({"collect__labeller__init_args__equal": "tie"}, "has no tie_theta to learn from ties"),
        ({"collect__labeller__init_args__thresholds": [1.0]}, "three rising gaps"),
        ({"evaluate__judges": [{"class_path": "SelfAwareStrict", "init_args": {"name": "safety"}}]},
         "'safety' is the name of a reward model"),
        ({"start": {"dialogues": "nowhere.jsonl"}}, "nowhere.jsonl does not exist"),
        ({"students": [{"name": "a b"}]}, "students: 'a b' must be a name"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "-".join(value),
)  # fmt: skip
def test_refused_before_the_first_stage(folder, tiny_model, capsys, changes, expected):
    config = rounds_config(folder, tiny_model, **changes)
    _, said = leaves(config, capsys)
    assert expected in said
    assert not (folder / "run").exists()


def test_a_run_is_not_gone_on_with_by_accident(folder, tiny_model, capsys):
    config = rounds_config(folder, tiny_model)
    (folder / "run").mkdir()
    (folder / "run" / "manifest.json").write_text('{"stages": {}}')
    status, said = leaves(config, capsys)
    assert status == 1 and "already holds a run; use --resume auto" in said
    other = str(folder / "other")
    status, said = leaves(config, capsys, "--resume", "must", "--run_dir", other)
    assert status == 1 and "other holds no run to go on with" in said
    _begin(folder / "run", "fresh")
    assert (folder / "run.old-1" / "manifest.json").exists() and not (folder / "run").exists()

"""A killed run, resumed, ends with the weights of an uninterrupted one, bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from sctom.callbacks.checkpoint import checkpoints
from sctom.rundir import RunDirError, decide

ITERATIONS = 8


def write_config(
    folder: Path, model: Path, prompts: Path, *, data: dict | None = None, **settings
) -> Path:
    arguments = {
        "backbone": {
            "class_path": "Backbone",
            "init_args": {"path": str(model), "lora_rank": 4, "lora_dropout": 0.1},
        },
        "objective": {"class_path": "GRPO"},
        "rewards": [
            {"class_path": "FunctionReward", "init_args": {"path": "distinct_tokens.reward"}}
        ],
        "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 0.01}},
        "group_size": 4,
        "passes": 2,
        "minibatch_size": 6,
        "sampling": {"max_new_tokens": 6},
        "reference": "initial",
        "beta": 0.05,
        "schedule": "cosine",
        "warmup_ratio": 0.2,
        **settings,
    }
    config = {
        "seed_everything": 5,
        "model": {"class_path": "PolicyModule", "init_args": arguments},
        "data": {
            "class_path": "PromptData",
            "init_args": {
                "train": str(prompts),
                "prompts_per_iteration": 3,
                "iterations": ITERATIONS,
                "columns": "selfaware",
                **(data or {}),
            },
        },
        "trainer": {
            "accelerator": "cpu",
            "callbacks": [{"class_path": "IterationCheckpoint", "init_args": {"every": 1}}],
        },
    }
    (folder / "distinct_tokens.py").write_text(
        "def reward(completion_ids, **columns):\n"
        "    return [float(len(set(ids))) for ids in completion_ids]\n"
        "def sparse(completion_ids, answerable, **columns):\n"
        "    pairs = zip(completion_ids, answerable)\n"
        "    return [float(len(set(ids))) * known for ids, known in pairs]\n"
    )
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def start(config: Path, run_dir: Path, resume: str, *options: str) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "sctom.fit",
        "--config",
        str(config),
        "--run_dir",
        str(run_dir),
        "--resume",
        resume,
    ]
    return subprocess.Popen(
        [*command, *options],
        cwd=config.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(config.parent), "OMP_NUM_THREADS": "1"},
    )


def finish(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def final_weights(run_dir: Path) -> dict[str, torch.Tensor]:
    iteration, path = checkpoints(run_dir)[-1]
    assert iteration == ITERATIONS
    return torch.load(path, weights_only=True)["state_dict"]


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys() and len(a) > 0
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.fixture(scope="module")
def config(tmp_path_factory, tiny_model, tiny_prompts) -> Path:
    return write_config(tmp_path_factory.mktemp("resume"), tiny_model, tiny_prompts)


@pytest.fixture(scope="module")
def uninterrupted(config) -> Path:
    run_dir = config.parent / "whole"
    finish(start(config, run_dir, "error"))
    return run_dir


KILL = """
import os, signal, sys
place, count = {place!r}, {count}
import sctom.modules.policy as policy, sctom.callbacks.checkpoint as checkpoint
def killing(owner, name):
    original = getattr(owner, name)
    seen = [0]
    def wrapped(*args, **kwargs):
        seen[0] += 1
        if seen[0] == count:
            if place == "half a save":
                with open(args[0], "r+b") as file:
                    file.truncate(os.path.getsize(args[0]) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)
    setattr(owner, name, wrapped)
{{"sampling": lambda: killing(policy.PolicyModule, "complete"),
  "reward": lambda: killing(policy.PolicyModule, "start_rewards"),
  "loss": lambda: killing(policy.PolicyModule, "loss"),
  "after the optimiser step": lambda: killing(policy.FiniteGuard, "record"),
  "half a save": lambda: killing(checkpoint, "publish"),
  "after the rename": lambda: killing(checkpoint, "checkpoints")}}[place]()
sys.argv = ["fit"] + {argv!r}
from sctom.fit import main
main()
"""


@pytest.mark.parametrize(
    ("place", "count"),
    [
        ("sampling", 4),
        ("reward", 12),
        ("loss", 9),
        ("after the optimiser step", 10),
        ("half a save", 1),
        ("half a save", 5),
        ("after the rename", 6),
    ],
)
def test_killed_at_a_place_and_resumed(config, uninterrupted, tmp_path, place, count):
    """kill -9 inside sampling, scoring, an update, and while a checkpoint is half written."""
    run_dir = tmp_path / "run"
    argv = ["--config", str(config), "--run_dir", str(run_dir), "--resume", "auto"]
    killed = subprocess.run(
        [sys.executable, "-c", KILL.format(place=place, count=count, argv=argv)],
        cwd=config.parent,
        env={**os.environ, "PYTHONPATH": str(config.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    found = checkpoints(run_dir)
    assert not found or found[-1][0] < ITERATIONS
    output = finish(start(config, run_dir, "auto"))
    assert ("resuming" in output) == bool(found)
    assert_equal(final_weights(run_dir), final_weights(uninterrupted))


@pytest.fixture(scope="module")
def choosy_config(tmp_path_factory, tiny_model, tiny_prompts) -> Path:
    """Groups without signal are replaced, prompts are chosen by how often they were solved."""
    return write_config(
        tmp_path_factory.mktemp("choosy"),
        tiny_model,
        tiny_prompts,
        rewards=[{"class_path": "FunctionReward", "init_args": {"path": "distinct_tokens.sparse"}}],
        zero_variance="resample",
        truncated="mask",
        data={"order": {"class_path": "SolveRate", "init_args": {"solved_at": 4.0}}},
    )


def test_resampling_and_a_curriculum_resume_exactly(choosy_config, tmp_path):
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    finish(start(choosy_config, whole, "error"))
    argv = ["--config", str(choosy_config), "--run_dir", str(run_dir), "--resume", "auto"]
    for place, count in (("sampling", 9), ("after the optimiser step", 3)):
        killed = subprocess.run(
            [sys.executable, "-c", KILL.format(place=place, count=count, argv=argv)],
            cwd=choosy_config.parent,
            env={**os.environ, "PYTHONPATH": str(choosy_config.parent), "OMP_NUM_THREADS": "1"},
            capture_output=True,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        assert 0 < checkpoints(run_dir)[-1][0] < ITERATIONS
    finish(start(choosy_config, run_dir, "must"))
    assert_equal(final_weights(run_dir), final_weights(whole))
    parts = [torch.load(checkpoints(f)[-1][1], weights_only=True) for f in (run_dir, whole)]
    assert parts[0]["progress"] == parts[1]["progress"]
    assert parts[0]["PromptData"] == parts[1]["PromptData"]
    assert len(parts[0]["PromptData"]["visited"]) > 3  # the curriculum has something to go by


def test_ppo_killed_between_two_minibatches_resumes_exactly(tmp_path, tiny_model, tiny_prompts):
    objective = {"class_path": "PPO", "init_args": {"value_trains_policy": True}}
    config = write_config(
        tmp_path, tiny_model, tiny_prompts, objective=objective, kl_in="reward", kl_estimator="k1"
    )
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    finish(start(config, whole, "error"))
    argv = ["--config", str(config), "--run_dir", str(run_dir), "--resume", "auto"]
    killed = subprocess.run(  # in the third of the four updates of iteration 4
        [sys.executable, "-c", KILL.format(place="loss", count=15, argv=argv)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert checkpoints(run_dir)[-1][0] == 3
    finish(start(config, run_dir, "must"))
    assert_equal(final_weights(run_dir), final_weights(whole))
    assert final_weights(whole)["value_head.weight"].any()
    heads = [(folder / "model" / "value_head.safetensors") for folder in (run_dir, whole)]
    assert heads[0].read_bytes() == heads[1].read_bytes()


@pytest.mark.slow
def test_killed_at_random_moments_and_resumed(config, uninterrupted, tmp_path):
    moments = random.Random(0)
    kills = 0
    for attempt in range(20):
        run_dir = tmp_path / f"run-{attempt}"
        for _ in range(2):
            process = start(config, run_dir, "auto")
            deadline = time.monotonic() + moments.uniform(2.0, 8.0)
            while time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.01)
            kills += process.poll() is None
            process.kill()
            process.communicate()
        finish(start(config, run_dir, "auto"))
        assert_equal(final_weights(run_dir), final_weights(uninterrupted))
        if kills >= 8:
            break
    assert kills >= 8


@pytest.mark.slow
def test_a_reward_model_killed_and_resumed(tmp_path, graded_pairs):
    source = Path(__file__).parents[1] / "configs" / "tiny" / "reward_model.yaml"
    content = yaml.safe_load(source.read_text())
    content["data"]["init_args"] |= {
        "train": str(graded_pairs / "train.jsonl"),  # 64 pairs: a batch of 8 in each iteration
        "val": str(graded_pairs / "valid.jsonl"),
        "batch_size": 8,
    }
    content["trainer"]["callbacks"][-1]["init_args"]["every"] = 2
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(content))
    whole, run_dir = tmp_path / "whole", tmp_path / "run"
    finish(start(config, whole, "error"))
    argv = ["--config", str(config), "--run_dir", str(run_dir), "--resume", "auto"]
    killed = subprocess.run(
        [sys.executable, "-c", KILL.format(place="half a save", count=3, argv=argv)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert checkpoints(run_dir)[-1][0] == 4
    finish(start(config, run_dir, "must"))
    assert_equal(final_weights(run_dir), final_weights(whole))
    assert "model.head.weight" in final_weights(run_dir)
    files = [(folder / "metrics.jsonl").read_text() for folder in (run_dir, whole)]
    assert files[0] == files[1]


def test_a_resumed_run_obeys_its_config(config, tmp_path):
    run_dir = tmp_path / "run"
    finish(start(config, run_dir, "error", "--data.iterations", "2"))
    before = torch.load(checkpoints(run_dir)[-1][1], weights_only=True)
    finish(start(config, run_dir, "must", "--model.optimizer.lr", "0", "--model.group_size", "2"))
    after = torch.load(checkpoints(run_dir)[-1][1], weights_only=True)
    assert after["progress"]["iteration"] == ITERATIONS
    assert_equal(before["state_dict"], after["state_dict"])  # a learning rate of 0 moves nothing
    updates = after["progress"]["updates"] - before["progress"]["updates"]
    assert (
        updates == 6 * 2
    )  # 3 prompts x 2 completions fill one minibatch of 6, twice per iteration


def test_checkpoint_of_another_model_is_refused(config, tmp_path, tiny_model):
    run_dir = tmp_path / "run"
    finish(start(config, run_dir, "error", "--data.iterations", "1"))
    process = start(config, run_dir, "must", "--model.backbone.lora_rank", "2")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "checkpoint is of another model" in output and "Traceback" not in output


def test_resume_never_starts_from_scratch_unasked(tmp_path):
    run_dir = tmp_path / "run"
    assert decide(run_dir, "auto").checkpoint is None
    assert "starting a new run" in decide(run_dir, "error").message
    with pytest.raises(RunDirError, match="no checkpoint to go on from"):
        decide(run_dir, "must")
    folder = run_dir / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "iteration-000003.tmp").write_text("half")
    assert decide(run_dir, "auto").checkpoint is None
    for n in (2, 10):
        content = {"state_dict": {}, "fingerprint": "", "loops": {}}
        torch.save(content, folder / f"iteration-{n:06d}.ckpt")
    assert decide(run_dir, "auto").checkpoint == folder / "iteration-000010.ckpt"
    with pytest.raises(RunDirError, match="already holds a run at iteration 10"):
        decide(run_dir, "error")
    start = decide(run_dir, "fresh")
    assert start.checkpoint is None and not run_dir.exists()
    assert (tmp_path / "run.old-1" / "checkpoints" / "iteration-000010.ckpt").exists()


def test_prompts_of_an_iteration_do_not_depend_on_where_a_run_began():
    from sctom.batch import Prompt
    from sctom.data.order import Shuffled
    from sctom.data.prompts import PromptLoader

    order = Shuffled()
    order.start([Prompt(i, [i], []) for i in range(7)], seed=3)
    whole = [[p.index for p in batch] for batch in PromptLoader(order, 4, 10)]
    later = PromptLoader(order, 4, 10)
    later.load_state_dict({"position": 6})
    assert [[p.index for p in batch] for batch in later] == whole[6:]
    flat = [i for batch in whole for i in batch]
    assert all(
        sorted(flat[k : k + 7]) == list(range(7)) for k in range(0, 35, 7)
    )  # every epoch asks each once
    halves = [PromptLoader(order, 4, 10, rank=r, world_size=2) for r in range(2)]
    for batch, a, b in zip(whole, *halves, strict=True):
        assert sorted(batch) == sorted(p.index for p in a + b)


def test_the_config_of_each_part_is_kept(config, tmp_path):
    run_dir = tmp_path / "run"
    finish(start(config, run_dir, "error", "--data.iterations", "1"))
    finish(start(config, run_dir, "must", "--data.iterations", "2"))
    first = yaml.safe_load((run_dir / "config-1.yaml").read_text())
    second = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert first["data"]["init_args"]["iterations"] == 1
    assert second["data"]["init_args"]["iterations"] == 2
    assert json.loads((run_dir / "model" / "adapter_config.json").read_text())["r"] == 4

"""The command line: what it refuses, what it says about it, and what a run leaves behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from sctom.callbacks.checkpoint import checkpoints
from sctom.rundir import locked
from tests.fitting import build_and_fit, edited, run


def refused(config: Path, monkeypatch, capsys, *options: str) -> str:
    """Run something that must fail before training; returns what it said."""
    with pytest.raises(SystemExit) as leaving:
        run(config, monkeypatch, *options)
    assert leaving.value.code in (1, 2)
    run_dir = Path(yaml.safe_load(config.read_text())["run_dir"])
    assert not checkpoints(run_dir)
    return re.sub(r"\s+", " ", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("place", "nearest"),
    [
        ("model__init_args__group_sise", "group_size"),
        ("model__init_args__objective__init_args", "clip_high"),
        ("data__init_args__iteration", "iterations"),
        ("trainer__max_epoch", "max_epochs"),
        ("seed_everythin", "seed_everything"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(config, monkeypatch, capsys, place, nearest):
    value = {"clip_hihg": 0.3} if place.endswith("init_args") else 3
    said = refused(edited(config, **{place: value}), monkeypatch, capsys)
    assert f"did you mean '{nearest}'?" in said


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model.objective", "CISPPO"], "did you mean 'CISPO'?"),
        (["--model.beta", "0.1"], "beta is 0.1 but reference is none"),
        (["--model.group_size", "1"], "set group_size to 2 or more"),
        (["--model.group_size", "four"], "Expected a <class 'int'>"),
        (["--model.minibatch_size", "5"], "set model.minibatch_size to one of 1, 2, 3, 4, 6, 12"),
        (["--data.max_prompt_tokens", "5"], "12 tokens, but the limit is 5"),
        (["--data.prompts_per_iteration", "0"], "prompts_per_iteration must be at least 1"),
        (["--resume", "must"], "no checkpoint to go on from"),
        (["--model.max_skips", "0"], "max_skips must be at least 1"),
    ],
)
def test_settings_that_do_not_fit(config, monkeypatch, capsys, options, expected):
    assert expected in refused(config, monkeypatch, capsys, *options)


def test_missing_files(config, monkeypatch, capsys, tiny_model, tiny_prompts):
    said = refused(
        config, monkeypatch, capsys, "--data.train", str(tiny_prompts.with_name("promts.jsonl"))
    )
    assert "promts.jsonl does not exist" in said and "prompts.jsonl" in said
    said = refused(config, monkeypatch, capsys, "--model.backbone.path", str(tiny_model) + "x")
    assert f"did you mean {tiny_model}" in said
    said = refused(config, monkeypatch, capsys, "--model.backbone.adapter", "nowhere/at/all")
    assert "model.backbone.adapter: nowhere/at/all" in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"messages": [{"role": "user", "content": "one"}, '
            '{"role": "assistant", "content": "red"}]}\n'
            '{"messages": [,\n',
            "bad.jsonl:2",
        ),
        ("", "holds no rows"),
        ('{"messages": [{"role": "robot", "content": "one"}]}\n', "bad.jsonl:1"),
        ('{"question": "one"}\n', "bad.jsonl:1"),
    ],
)
def test_malformed_data_names_file_and_line(config, monkeypatch, capsys, tmp_path, text, expected):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    assert expected in refused(config, monkeypatch, capsys, "--data.train", str(path))


def test_a_reward_that_needs_a_column_the_data_lacks(config, monkeypatch, capsys):
    said = refused(config, monkeypatch, capsys, "--data.columns", "plain")
    assert "needs the column 'expected_answer'" in said


def copied_model(source: Path, target: Path) -> Path:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_a_tokenizer_without_chat_template(config, monkeypatch, capsys, tiny_model, tmp_path):
    plain = copied_model(tiny_model, tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    said = refused(config, monkeypatch, capsys, "--model.backbone.path", str(plain))
    assert "no chat template" in said


def test_a_doubled_bos(config, monkeypatch, capsys, tiny_model, tmp_path):
    doubled = copied_model(tiny_model, tmp_path / "doubled")
    settings = json.loads((doubled / "tokenizer_config.json").read_text())
    (doubled / "tokenizer_config.json").write_text(
        json.dumps(settings | {"bos_token": "<|im_start|>"})
    )
    template = (doubled / "chat_template.jinja").read_text()
    (doubled / "chat_template.jinja").write_text("<|im_start|> <|im_start|> " + template)
    said = refused(config, monkeypatch, capsys, "--model.backbone.path", str(doubled))
    assert "begin with two '<|im_start|>'" in said


def test_a_stop_token_the_template_does_not_use_fails_the_self_check(
    config, monkeypatch, capsys, tiny_model, tmp_path
):
    deaf = copied_model(tiny_model, tmp_path / "deaf")
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((deaf / name).read_text())
        (deaf / name).write_text(json.dumps(settings | {"eos_token_id": 6}))
    settings = json.loads((deaf / "tokenizer_config.json").read_text())
    (deaf / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "user"}))
    said = refused(config, monkeypatch, capsys, "--model.backbone.path", str(deaf))
    assert "none of which is a stop token" in said


def test_the_self_check_comes_before_the_first_evaluation(
    config, monkeypatch, capsys, tiny_prompts
):
    from sctom.modules import PolicyModule, selfcheck

    evaluated = []
    monkeypatch.setattr(PolicyModule, "validation_step", lambda *a: evaluated.append(a))
    failing = selfcheck.Check("BOS", False, "planted")
    monkeypatch.setattr(selfcheck, "bos_check", lambda *a: failing)
    said = refused(config, monkeypatch, capsys, "--data.val", str(tiny_prompts))
    assert "BOS: planted" in said and not evaluated


def test_a_sampler_that_disagrees_fails_the_self_check(config, monkeypatch, capsys):
    from sctom.rollout import decode

    honest = decode.next_tokens

    def off(*arguments):
        tokens, logps = honest(*arguments)
        return tokens, logps - 0.1

    monkeypatch.setattr(decode, "next_tokens", off)
    said = refused(config, monkeypatch, capsys)
    assert "sampler and trainer disagree" in said


def test_a_reward_without_an_opinion_fails_the_self_check(config, monkeypatch, capsys, tmp_path):
    (tmp_path / "silent_reward.py").write_text(
        "def reward(completions, **columns):\n    return [None] * len(completions)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rewards = [{"class_path": "FunctionReward", "init_args": {"path": "silent_reward.reward"}}]
    said = refused(edited(config, model__init_args__rewards=rewards), monkeypatch, capsys)
    assert "every reward abstained" in said


def test_a_run_leaves_a_model_a_config_and_a_checkpoint(config, monkeypatch, tmp_path, tiny_model):
    run(config, monkeypatch)
    folder = tmp_path / "run"
    assert [n for n, _ in checkpoints(folder)] == [2]
    assert (folder / "model" / "adapter_model.safetensors").exists()
    assert list((folder / "tensorboard").glob("events*"))
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["model"]["init_args"]["objective"]["init_args"]["clip_high"] == 0.2
    from sctom.modules import Backbone

    reloaded = Backbone(str(tiny_model), adapter=str(folder / "model")).load_model()
    state = torch.load(checkpoints(folder)[-1][1], weights_only=True)["state_dict"]
    for name, parameter in reloaded.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter, state[f"model.{name}"])


def test_the_saved_config_runs_again(config, monkeypatch, tmp_path):
    run(config, monkeypatch)
    saved = tmp_path / "again.yaml"
    saved.write_text((tmp_path / "run" / "config.yaml").read_text())
    run(saved, monkeypatch, "--run_dir", str(tmp_path / "second"))
    first, second = (
        torch.load(checkpoints(tmp_path / n)[-1][1])["state_dict"] for n in ("run", "second")
    )
    assert all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.parametrize(
    "options",
    [
        [],
        [
            "--model.zero_variance=resample",
            "--model.truncated=mask",
            "--data.order=SolveRate",
            "--data.order.solved_at=3",
            "--data.iterations=4",
        ],
        ["--model.objective=PPO", "--model.kl_in=reward", "--model.truncated=mask"],
    ],
    ids=["plain", "resampling", "ppo"],
)
def test_two_processes_train_like_one(config, tmp_path, options):
    (tmp_path / "sparse.py").write_text(
        "def reward(completion_ids, answerable, **columns):\n"
        "    return [len(set(i)) * float(known) for i, known in zip(completion_ids, answerable)]\n"
    )
    rewards = [{"class_path": "FunctionReward", "init_args": {"path": "sparse.reward"}}]
    edited(config, model__init_args__rewards=rewards)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    weights = []
    for devices, minibatch in ((1, 4), (2, 2)):
        folder = tmp_path / f"on-{devices}"
        command = [
            sys.executable,
            "-m",
            "sctom.fit",
            "--config",
            str(config),
            "--run_dir",
            str(folder),
            "--data.prompts_per_iteration",
            "2",
            "--model.passes",
            "2",
            "--model.reference",
            "initial",
            "--model.beta",
            "0.1",
            "--model.minibatch_size",
            str(8 // devices),
            "--model.micro_batch_size",
            str(minibatch),
            "--trainer.devices",
            str(devices),
            "--trainer.strategy",
            "auto" if devices == 1 else "ddp",
            *options,
        ]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        weights.append(torch.load(checkpoints(folder)[-1][1], weights_only=True))
    for name, value in weights[0]["state_dict"].items():
        torch.testing.assert_close(weights[1]["state_dict"][name], value, rtol=1e-4, atol=1e-6)
    assert weights[0]["progress"] == weights[1]["progress"]
    assert weights[0].get("PromptData") == weights[1].get("PromptData")
    moved = [v for k, v in weights[0]["state_dict"].items() if "lora_B" in k]  # they start at 0
    assert all(float(value.abs().max()) > 1e-3 for value in moved)


# ---- what a hostile tester found --------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model.max_grad_norm", "-1"], "model.max_grad_norm must be null or above 0 but is -1"),
        (["--model.max_grad_norm", "0"], "model.max_grad_norm must be null or above 0 but is 0"),
        (["--model.warmup_ratio", "2"], "model.warmup_ratio must be from 0 to 1 but is 2"),
        (["--data.val_limit", "-3"], "data.val_limit must be at least 1 but is -3"),
        (["--model.backbone.lora_alpha", "0"], "lora_alpha must be null or above 0"),
        (["--model.objective.clip_low", "-0.1"], "model.objective GRPO:"),
        (["--trainer.max_steps", "3"], "trainer.max_steps does not fit a PolicyModule"),
        (["--trainer.gradient_clip_val", "1.0"], "set model.max_grad_norm"),
        (["--trainer.val_check_interval", "9"], "more than the 2 iterations of the run"),
    ],
)
def test_numbers_out_of_bounds(config, monkeypatch, capsys, options, expected):
    assert expected in refused(config, monkeypatch, capsys, *options)


@pytest.mark.parametrize("name", ["group_size", "kl_in", "reference", "warmup_ratio", "passes"])
def test_null_where_a_value_is_needed(config, monkeypatch, capsys, name):
    said = refused(config, monkeypatch, capsys, f"--model.{name}", "null")
    assert f"model.{name} must be" in said and "but is null" in said


def test_module_and_data_must_go_together(config, monkeypatch, capsys, tiny_prompts):
    other = {"class_path": "DialogueData", "init_args": {"train": str(tiny_prompts)}}
    said = refused(edited(config, data=other), monkeypatch, capsys)
    assert "PolicyModule trains on PromptData, but data is DialogueData" in said


def test_a_model_that_lacks_weights(config, monkeypatch, capsys, tiny_model, tmp_path):
    hollow = copied_model(tiny_model, tmp_path / "hollow")
    settings = json.loads((hollow / "config.json").read_text())
    (hollow / "config.json").write_text(json.dumps(settings | {"num_hidden_layers": 3}))
    said = refused(config, monkeypatch, capsys, "--model.backbone.path", str(hollow))
    assert "lacks 9 weights its config.json asks for" in said


def reward_file(folder: Path, body: str) -> list[dict]:
    (folder / "odd_reward.py").write_text(body)
    sys.modules.pop("odd_reward", None)
    return [{"class_path": "FunctionReward", "init_args": {"path": "odd_reward.reward"}}]


def test_a_reward_may_not_log_under_our_names(config, monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    rewards = reward_file(
        tmp_path,
        "def reward(completion_ids, log_metric, **columns):\n"
        "    log_metric('reward', 777)\n"
        "    return [float(len(ids)) for ids in completion_ids]\n",
    )
    said = refused(edited(config, model__init_args__rewards=rewards), monkeypatch, capsys)
    assert "choose another name, such as my_reward/reward" in said


def test_what_a_reward_does_to_its_lists_stays_with_it(config, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    odd = reward_file(
        tmp_path,
        "def reward(prompts, completions, completion_ids, **columns):\n"
        "    numbers = [float(len(ids)) for ids in completion_ids]\n"
        "    for p, c, i in zip(prompts, completions, completion_ids):\n"
        "        p.append({'role': 'user', 'content': 'hacked'}); c.clear(); i.clear()\n"
        "    return numbers\n",
    )
    rewards = [*odd, {"class_path": "SelfAware"}]
    cli = build_and_fit(edited(config, model__init_args__rewards=rewards), monkeypatch)
    assert all(len(row.prompt.messages) == 1 for row in cli.model.last_rollout.rows)


def test_a_column_only_some_rows_have_is_none_in_the_others(config, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    rewards = reward_file(
        tmp_path,
        "seen = []\n"
        "def reward(completion_ids, bonus):\n"
        "    seen.extend(bonus)\n"
        "    return [float(len(ids)) for ids in completion_ids]\n",
    )
    lines = [
        {"messages": [{"role": "user", "content": "one"}], **extra}
        for extra in ({}, {"bonus": 3}, {})
    ]
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    changes = {
        "model__init_args__rewards": rewards,
        "data__init_args__columns": "plain",
        "data__init_args__train": str(path),
    }
    build_and_fit(edited(config, **changes), monkeypatch)
    import odd_reward

    assert set(odd_reward.seen) == {None, 3}


def test_a_broken_newest_checkpoint_is_named(config, monkeypatch, capsys, tmp_path):
    run(config, monkeypatch, "--trainer.callbacks.init_args.every", "1")
    folder = tmp_path / "run"
    newest = checkpoints(folder)[-1][1]
    for content in (newest.read_bytes()[: newest.stat().st_size // 2], b"", b"junk"):
        newest.write_bytes(content)
        with pytest.raises(SystemExit):
            run(config, monkeypatch, "--resume", "auto", "--data.iterations", "3")
        said = capsys.readouterr().err
        assert f"{newest} is damaged" in said and "delete it to go on from iteration 1" in said


def test_a_complete_run_says_so(config, monkeypatch, capsys):
    run(config, monkeypatch)
    run(config, monkeypatch, "--resume", "auto")
    assert "it is complete: 2 iterations" in capsys.readouterr().out


def test_results_without_checkpoints_are_not_overwritten(config, monkeypatch, capsys, tmp_path):
    run(config, monkeypatch)
    for _, path in checkpoints(tmp_path / "run"):
        path.unlink()
    assert "already holds the results of a run" in refused(config, monkeypatch, capsys)


def test_another_optimiser_cannot_take_over(config, monkeypatch, capsys):
    run(config, monkeypatch)
    with pytest.raises(SystemExit):
        options = ("--resume", "auto", "--data.iterations", "3")
        run(
            config,
            monkeypatch,
            *options,
            "--model.optimizer",
            "torch.optim.SGD",
            "--model.optimizer.lr",
            "0.1",
        )
    assert "trained with AdamW, whose state SGD cannot take over" in capsys.readouterr().err


def test_a_reference_cannot_change_between_parts_of_a_run(
    config, monkeypatch, capsys, tiny_model, tmp_path
):
    model = copied_model(tiny_model, tmp_path / "model")
    options = (
        "--model.backbone.path", str(model), "--model.backbone.lora_rank", "0",
        "--model.reference", "initial", "--model.beta", "0.1",
    )  # fmt: skip
    run(config, monkeypatch, *options)
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    save_file(
        {k: v + 0.01 for k, v in weights.items()}, model / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(SystemExit):
        run(config, monkeypatch, *options, "--resume", "auto", "--data.iterations", "3")
    assert "no longer those that the config loads" in capsys.readouterr().err


def test_one_process_per_run_folder(config, monkeypatch, capsys, tmp_path):
    with locked(tmp_path / "run"):
        assert "another process is training" in refused(config, monkeypatch, capsys)


def test_a_terminated_run_does_not_end_well(config, tmp_path):
    command = [sys.executable, "-u", "-m", "sctom.fit", "--config", str(config)]
    process = subprocess.Popen(
        [*command, "--data.iterations", "100000"],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    while not checkpoints(tmp_path / "run"):
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "interrupted; the last checkpoint is of iteration" in said


def test_a_finished_run_is_not_set_aside_for_settings_that_are_refused(config, monkeypatch, capsys):
    run(config, monkeypatch)
    run_dir = Path(yaml.safe_load(config.read_text())["run_dir"])
    for options in (
        ["--data.order=SolveRate", "--data.order.prior=kin"],
        ["--model.minibatch_size=5"],
        ["--data.max_prompt_tokens=3"],
    ):
        with pytest.raises(SystemExit):
            run(config, monkeypatch, "--resume", "fresh", *options)
        assert "error" in capsys.readouterr().err
    assert checkpoints(run_dir) and not run_dir.with_name("run.old-1").exists()

"""Doing the stages of a run one after another, and what is looked at before the first of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sctom.assets import resolve
from sctom.data import DialogueData
from sctom.iterate.answers import prompt_data
from sctom.iterate.configs import ppo_config, reward_config, sft_config
from sctom.iterate.labels import UtilityLabeller
from sctom.iterate.manifest import MANIFEST_FILE, Manifest, Stage
from sctom.iterate.plan import Plan
from sctom.iterate.settings import Settings, check_settings
from sctom.iterate.shares import deal
from sctom.iterate.training import check_config
from sctom.modules import Backbone
from sctom.readers import DataError, Row
from sctom.rewards import check_rewards
from sctom.rundir import Resume, RunDirError, locked, set_aside


@dataclass(frozen=True)
class Told:
    """What a run says of a stage."""

    stage: Stage
    number: int
    """From 1."""
    of: int
    done: bool
    """Whether there was anything to do."""


def run(
    settings: Settings,
    plain: Mapping[str, Any],
    *,
    resume: Resume = "error",
    told: Callable[[Told], object] = lambda told: None,
) -> Manifest:
    """Run all stages that are not finished.

    Args:
        settings: of the run.
        plain: the same as the config has them.
        resume: what to do with a folder that holds a run, as `sctom.rundir.decide` has it.
        told: called after each stage.

    Raises:
        ValueError: a setting, a file or the run folder is not what it must be.
        WaitingForLabels: somebody has to write a file first.
    """
    check(settings)
    stages = Plan(settings, plain).stages()
    folder = Path(settings.run_dir)
    _begin(folder, resume)
    with locked(folder):
        manifest = Manifest(folder)
        for number, stage in enumerate(stages, start=1):
            told(Told(stage, number, len(stages), manifest.do(stage)))
    return manifest


def _begin(folder: Path, resume: Resume) -> None:
    holds_a_run = (folder / MANIFEST_FILE).exists()
    if resume == "error" and holds_a_run:
        raise RunDirError(
            f"{folder} already holds a run; use --resume auto to go on with it, --resume fresh to "
            "set it aside, or another --run_dir"
        )
    if resume == "must" and not holds_a_run:
        raise RunDirError(
            f"--resume must: {folder} holds no run to go on with; check run_dir, or use "
            "--resume auto"
        )
    if resume == "fresh" and holds_a_run:
        print(f"the old run is now {set_aside(folder)}", flush=True)


def check(settings: Settings) -> None:
    """Check everything that can be known before the first stage, without loading a weight.

    Raises:
        ValueError: a setting or a file is not what it must be.
        OSError: a file is missing.
        SystemExit: a stage that trains has a config that is refused; why has been printed.
    """
    check_settings(settings)
    for backbone in (settings.backbone, *(student.backbone for student in settings.students)):
        _backbone({**settings.backbone, **backbone}).check_paths(frozen=True)
    shares = deal(settings, settings.shares())
    columns = _check_prompts(settings)
    labeller = settings.collect.labeller
    labeller.check(columns)
    if settings.evaluate.judges:
        check_rewards(settings.evaluate.judges, columns)
    for judge in settings.evaluate.judges:
        if judge.name in settings.reward_names:
            raise ValueError(
                f"evaluate.judges: {judge.name!r} is the name of a reward model; give the judge "
                "another name"
            )
        judge.check()
    ties = isinstance(labeller, UtilityLabeller) and labeller.equal == "tie"
    if ties and settings.reward_models.model.get("tie_theta") is None:
        raise ValueError(
            "collect.labeller calls answers of equal utility a tie, but reward_models.model has no "
            "tie_theta to learn from ties with; set it to a number above 1, or equal to unsure"
        )
    if settings.start is not None:
        DialogueData(settings.start.dialogues).setup("fit")
    _check_fits(settings, shares)


def _backbone(arguments: Mapping[str, Any]) -> Backbone:
    if "path" not in arguments:
        raise ValueError("backbone.path is missing; name the base model")
    try:
        return Backbone(**arguments)
    except TypeError as error:
        raise ValueError(f"backbone: {str(error).removeprefix('Backbone.__init__() ')}") from error


def _check_prompts(settings: Settings) -> list[str]:
    """The columns of the prompts, once all of them are known to be fit."""
    prompts = settings.prompts
    tokenizer = _backbone(settings.backbone).load_tokenizer()
    columns: set[str] = set()
    for path in dict.fromkeys((prompts.file, prompts.evaluation_file)):
        if path is None:
            continue
        data = prompt_data(path, prompts)
        data.render(tokenizer)
        own = {name for prompt in data.train_prompts for name in prompt.columns}
        columns = own & columns if columns else own
        for prompt in data.train_prompts:
            tag = None if prompts.is_safety is None else prompt.columns.get(prompts.is_safety)
            if prompts.is_safety is not None and not isinstance(tag, bool):
                raise DataError(
                    f"{resolve(path)}:{prompt.index + 1}: the column {prompts.is_safety!r} "
                    f"(prompts.is_safety) must be true or false for every prompt, but is {tag!r}; "
                    f"there are the columns {', '.join(sorted(own))}"
                )
    return sorted(columns)


def _check_fits(settings: Settings, shares: Mapping[str, list[Row]]) -> None:
    """Build what every stage that trains is made of."""
    configs = {name: reward_config(settings, 1, name) for name in settings.reward_names}
    base = settings.backbone
    configs["sft"] = sft_config(settings, settings.sft, base, "kept.jsonl", 0)
    prompts = {}
    if settings.ppo is not None and settings.has_ppo(settings.rounds):
        configs["ppo"] = ppo_config(settings, settings.ppo.from_round, base)
        prompts["ppo"] = shares[f"{settings.ppo.from_round}/ppo"]
    if settings.start is not None:
        start = settings.start
        configs["start"] = sft_config(settings, start, base, start.dialogues, 0)
    for student in settings.students:
        backbone = {**base, **student.backbone}
        configs[student.name] = sft_config(settings, student, backbone, "kept.jsonl", 0)
    with tempfile.TemporaryDirectory() as folder:
        for name, config in configs.items():
            check_config(config, Path(folder), name, prompts.get(name))

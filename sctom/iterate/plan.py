"""The stages of a run in rounds, in their order: what each reads, makes and is decided by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from sctom.callbacks.common import atomic_write, to_lines
from sctom.iterate import comparisons, evaluating, selecting, training
from sctom.iterate.comparisons import ASKED_FILE, HELD_OUT_FILE, PAIRS_FILE, SUMMARY_FILE, Asked
from sctom.iterate.configs import (
    TRAIN_FILE,
    VALID_FILE,
    Arguments,
    folder_of,
    ppo_config,
    reward_config,
    reward_folders,
    reward_stage,
    sft_config,
    share_file,
    trained,
)
from sctom.iterate.evaluating import COMPLETIONS_FILE, EVALUATION_FILE
from sctom.iterate.manifest import Stage
from sctom.iterate.selecting import SAMPLED, SELECTION_FILE
from sctom.iterate.settings import (
    COLLECT,
    EVALUATE,
    HELPFULNESS,
    LABEL,
    MIX,
    ONE,
    SAFETY,
    SAMPLE,
    SELECT,
    Fit,
    Settings,
    Variant,
)
from sctom.iterate.shares import deal
from sctom.iterate.training import MODEL
from sctom.readers import DataError
from sctom.rejection.engine import KEPT
from sctom.rollout import Sampling
from sctom.seeds import seed_for

BASE, START = "base", "SFT-v1"
"""Names of the models before the first round."""


class Plan:
    """Makes the stages of a run.

    Args:
        settings: of the run.
        plain: the same as the config has them: values that JSON can hold.
    """

    def __init__(self, settings: Settings, plain: Mapping[str, Any]) -> None:
        self.settings = settings
        self.plain = plain
        self.base: Arguments = settings.backbone
        self.latest: Arguments = self.base
        self.previous: Arguments = self.base
        self.answers: dict[str, str] = {}
        """Model -> its answers to the held-out prompts."""

    def stages(self) -> list[Stage]:
        """All stages in their order."""
        self.latest = self.previous = self.base
        self.answers = {}
        stages = [self._prompts(0), self._evaluate(BASE, "0/evaluate", self.base)]
        if self.settings.start is not None:
            stages += self._start(self.settings.start, self.settings.start.dialogues)
        for number in range(1, self.settings.rounds + 1):
            stages += self._round(number)
        return stages + self._students()

    def _start(self, fit: Fit, dialogues: str) -> list[Stage]:
        sft = self._tune("0/sft", fit, self.base, dialogues, 0, 0)
        self.latest = trained(self.base, fit, self._model(sft))
        return [sft, self._evaluate(START, "0/evaluate_sft", self.latest)]

    def _round(self, number: int) -> list[Stage]:
        settings = self.settings
        stages = [self._prompts(number), self._collect(number), self._label(number)]
        stages += [self._reward(number, name) for name in settings.reward_names]
        stages += [self._sample(number), self._select(number)]
        sft = self._tune(f"{number}/sft", settings.sft, self.base, self._kept(number), number, 0)
        self.previous = self.latest
        self.latest = trained(self.base, settings.sft, self._model(sft))
        stages += [sft, self._evaluate(f"V{number}", f"{number}/evaluate", self.latest)]
        if settings.ppo is not None and settings.has_ppo(number):
            ppo = self._ppo(number)
            self.latest = trained(self.latest, settings.ppo, self._model(ppo))
            name = f"V{number} + PPO"
            stages += [ppo, self._evaluate(name, f"{number}/evaluate_ppo", self.latest)]
        return [*stages, self._compare(number, f"{number}/compare", dict(self.answers))]

    def _students(self) -> list[Stage]:
        """Smaller models on what the last round selected."""
        last = self.settings.rounds
        stages: list[Stage] = []
        answers: dict[str, str] = {}
        for place, student in enumerate(self.settings.students):
            stage = f"students/{student.name}"
            before = {**self.base, **student.backbone}
            sft = self._tune(stage, student, before, self._kept(last), last, 5 + place)
            after = trained(before, student, self._model(sft))
            name = f"{student.name}, before"
            stages += [
                self._evaluate(name, f"{stage}_before", before),
                sft,
                self._evaluate(student.name, f"{stage}_after", after),
            ]
            answers |= {each: self.answers.pop(each) for each in (name, student.name)}
        if answers:
            stages.append(self._compare(last, "students/compare", answers))
        return stages

    def _in(self, stage: str, file: str) -> str:
        return f"{folder_of(self.settings, stage)}/{file}"

    def _model(self, stage: Stage) -> str:
        return self._in(stage.name, MODEL)

    def _kept(self, number: int) -> str:
        return self._in(f"{number}/select", KEPT)

    def _sampling(self, temperature: float) -> Sampling:
        return Sampling(max_new_tokens=self.settings.max_new_tokens, temperature=temperature)

    def _reading(self) -> dict[str, Any]:
        """What decides how prompts are read and answers drawn."""
        prompts = self.settings.prompts
        return {
            "seed": self.settings.seed,
            "columns": prompts.columns,
            "is_safety": prompts.is_safety,
            "system": prompts.system,
        }

    def _prompts(self, number: int) -> Stage:
        """The prompts of a round; those of round 0 are the held-out ones."""
        settings = self.settings
        counts = {
            name: count
            for name, count in settings.shares().items()
            if int(name.partition("/")[0]) <= number
        }
        files = {
            name: f"{name.partition('/')[2]}.jsonl"
            for name in counts
            if name.startswith(f"{number}/")
        }

        def run(folder: Path) -> None:
            shares = deal(settings, counts)
            for name, file in files.items():
                atomic_write(folder / file, to_lines(shares[name]))

        sources = (settings.prompts.file, settings.prompts.evaluation_file)
        return Stage(
            f"{number}/prompts",
            {"seed": settings.seed, "counts": counts},
            [source for source in sources if source is not None],
            list(files.values()),
            run,
        )

    def _collect(self, number: int) -> Stage:
        settings = self.settings
        variants = [self._asked(variant) for variant in settings.collect.variants]
        prompts = share_file(settings, number, "collect")
        count = settings.collect.pairs_per_prompt
        asked = [asdict(variant) for variant in variants]
        return Stage(
            f"{number}/collect",
            self._reading() | {"variants": asked, "pairs_per_prompt": count},
            _different(prompts, *(_weights(variant.backbone) for variant in variants)),
            [ASKED_FILE, SUMMARY_FILE],
            partial(
                comparisons.collect,
                prompts_file=prompts,
                prompts=settings.prompts,
                variants=variants,
                pairs_per_prompt=count,
                address=(settings.seed, COLLECT, number),
            ),
        )

    def _asked(self, variant: Variant) -> Asked:
        models = {"latest": self.latest, "previous": self.previous, "base": self.base}
        return Asked(models[variant.model], self._sampling(variant.temperature))

    def _label(self, number: int) -> Stage:
        settings, labeller = self.settings, self.settings.collect.labeller
        asked = self._in(f"{number}/collect", ASKED_FILE)
        arguments: dict[str, Any] = {
            "is_safety": settings.prompts.is_safety,
            "held_out": settings.collect.held_out,
            "address": (settings.seed, LABEL, number),
        }
        return Stage(
            f"{number}/label",
            arguments | {"labeller": self.plain["collect"]["labeller"]},
            [asked, *map(str, labeller.files(number))],
            [PAIRS_FILE, HELD_OUT_FILE, SUMMARY_FILE],
            partial(
                comparisons.label,
                asked=Path(asked),
                labeller=labeller,
                round_number=number,
                **arguments,
            ),
        )

    def _reward(self, number: int, name: str) -> Stage:
        settings, models = self.settings, self.settings.reward_models
        config = reward_config(settings, number, name)
        is_safety = None if name == ONE else name == SAFETY
        mix = {HELPFULNESS: models.helpfulness_mix, SAFETY: models.safety_mix}.get(name, 0.0)
        address = (settings.seed, MIX, number, int(name == SAFETY))
        files = {
            file: [self._in(f"{n}/label", source) for n in range(1, number + 1)]
            for file, source in ((TRAIN_FILE, PAIRS_FILE), (VALID_FILE, HELD_OUT_FILE))
        }

        def run(folder: Path) -> None:
            for file, share in ((TRAIN_FILE, mix), (VALID_FILE, 0.0)):
                own = training.write_pairs(
                    folder / file,
                    [Path(path) for path in files[file]],
                    is_safety=is_safety,
                    mix=share,
                    address=address,
                )
                if not own and file == TRAIN_FILE:
                    raise DataError(
                        f"no pair of round 1 to {number} is for the reward model {name!r}; raise "
                        "collect.prompts, or set reward_models.two to false"
                    )
            training.train(folder, config)
            evaluating.evaluate_reward_model(folder, folder / MODEL, folder / VALID_FILE)

        return Stage(
            reward_stage(number, name),
            {"fit": config, "is_safety": is_safety, "mix": mix, "address": address},
            [*files[TRAIN_FILE], *files[VALID_FILE], _weights(self.base)],
            [MODEL, EVALUATION_FILE],
            run,
        )

    def _sample(self, number: int) -> Stage:
        settings, count, backbone = self.settings, self.settings.sample.count, self.latest
        sampling = self._sampling(settings.sample.temperature)
        prompts = share_file(settings, number, "sample")
        models = reward_folders(settings, number)
        rule = self._rule()
        seed = seed_for(settings.seed, SAMPLE, number) >> 1
        config = self._answering(backbone, count, sampling) | rule

        def run(folder: Path) -> None:
            selecting.sample(
                folder,
                config,
                prompts,
                settings.prompts,
                backbone,
                selecting.learned_reward(models, **rule),
                count=count,
                sampling=sampling,
                judges=settings.evaluate.judges,
                seed=seed,
            )

        inputs = _different(prompts, _weights(backbone), *models.values())
        return Stage(f"{number}/sample", config, inputs, SAMPLED, run)

    def _rule(self) -> dict[str, Any]:
        """How the reward models of a round make one reward."""
        threshold = self.settings.reward_models.threshold
        return {"is_safety": self.settings.prompts.is_safety, "threshold": threshold}

    def _answering(self, backbone: Arguments, count: int, sampling: Sampling) -> dict[str, Any]:
        return self._reading() | {
            "backbone": dict(backbone),
            "count": count,
            "sampling": asdict(sampling),
            "judges": self.plain["evaluate"]["judges"],
        }

    def _select(self, number: int) -> Stage:
        settings, sample = self.settings, self.settings.sample
        first = 1 if sample.pool == "all" else number
        samples = {
            n: (share_file(settings, n, "sample"), folder_of(settings, f"{n}/sample"))
            for n in range(first, number + 1)
        }
        models = reward_folders(settings, number)
        rule = self._rule()
        seed = seed_for(settings.seed, SELECT, number)

        def run(folder: Path) -> None:
            selecting.select(
                folder,
                {n: (Path(prompts), Path(place)) for n, (prompts, place) in samples.items()},
                settings.prompts,
                selecting.learned_reward(models, **rule),
                count=sample.count,
                fraction=sample.fraction,
                seed=seed,
            )

        read = [
            (prompts, *(f"{place}/{file}" for file in SAMPLED))
            for prompts, place in samples.values()
        ]
        return Stage(
            f"{number}/select",
            self._reading() | rule | {"count": sample.count, "fraction": sample.fraction},
            [*chain.from_iterable(read), *models.values()],
            [KEPT, SELECTION_FILE],
            run,
        )

    def _tune(
        self, stage: str, fit: Fit, backbone: Arguments, dialogues: str, *address: int
    ) -> Stage:
        config = sft_config(self.settings, fit, backbone, dialogues, *address)
        inputs = _different(dialogues, _weights(backbone))
        run = partial(training.train, config=config)
        return Stage(stage, {"fit": config}, inputs, [MODEL], run)

    def _ppo(self, number: int) -> Stage:
        config = ppo_config(self.settings, number, self.latest)
        inputs = [share_file(self.settings, number, "ppo"), _weights(self.latest)]
        inputs += reward_folders(self.settings, number).values()
        run = partial(training.train, config=config)
        return Stage(f"{number}/ppo", {"fit": config}, inputs, [MODEL], run)

    def _evaluate(self, model: str, stage: str, backbone: Arguments) -> Stage:
        settings, count = self.settings, self.settings.evaluate.samples
        sampling = self._sampling(settings.evaluate.temperature)
        prompts = share_file(settings, 0, "evaluation")
        self.answers[model] = self._in(stage, COMPLETIONS_FILE)
        return Stage(
            stage,
            self._answering(backbone, count, sampling),
            _different(prompts, _weights(backbone)),
            [COMPLETIONS_FILE],
            partial(
                evaluating.evaluate,
                prompts_file=prompts,
                prompts=settings.prompts,
                backbone=backbone,
                count=count,
                sampling=sampling,
                judges=settings.evaluate.judges,
                address=(settings.seed, EVALUATE),
            ),
        )

    def _compare(self, number: int, stage: str, answers: Mapping[str, str]) -> Stage:
        rewards = reward_folders(self.settings, number)
        return Stage(
            stage,
            {"models": dict(answers)},
            [*answers.values(), *rewards.values()],
            [EVALUATION_FILE],
            partial(
                evaluating.compare,
                models={name: Path(path) for name, path in answers.items()},
                rewards=rewards,
            ),
        )


def _weights(backbone: Arguments) -> str:
    """The folder of a model that has been trained in the run, or where one begins."""
    return str(backbone.get("adapter") or backbone["path"])


def _different(*paths: str) -> list[str]:
    return list(dict.fromkeys(paths))

"""The settings of a run in rounds, and what can be refused before its first stage."""

# mypy: disable-error-code="type-arg"

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sctom.checks import check_choices, check_numbers
from sctom.data.prompts import Columns
from sctom.iterate.labels import Labeller
from sctom.rewards import Reward

Plain = dict
"""Settings that are handed on as they are written; in a `dict[str, Any]` the parser would build
what looks like a class."""

Which = Literal["latest", "previous", "base"]
Pool = Literal["last", "all"]

HELPFULNESS, SAFETY, ONE = "helpfulness", "safety", "reward"

PROMPTS, COLLECT, LABEL, MIX, SAMPLE, SELECT, EVALUATE, TRAIN = range(8)
"""Second part of every address: what the draw is for."""


@dataclass(frozen=True)
class Prompts:
    """The prompts that are dealt out to the rounds.

    Args:
        file: JSONL file in the messages format ("sctom:..." for one that sctom ships).
        evaluation_file: file of the held-out prompts; null takes them from `file`, too.
        columns: see `PromptData`.
        is_safety: column that is true where a prompt is about safety; null: none is.
        system: see `PromptData`.
        max_tokens: a longer prompt is an error that names it.
    """

    file: str
    evaluation_file: str | None = None
    columns: Columns = "plain"
    is_safety: str | None = None
    system: str | None = None
    max_tokens: int = 1024


@dataclass(frozen=True)
class Variant:
    """A model that is asked, and how.

    Args:
        model: "latest", the newest one; "previous", the one before it; or "base".
        temperature: divides its logits.
    """

    model: Which = "latest"
    temperature: float = 1.0


@dataclass(frozen=True)
class Collect:
    """How answers are collected and compared.

    Args:
        labeller: says which answer is better.
        prompts: of each round.
        variants: the two that are compared (Llama 2, section 3.2.1: two variants of the model, with
            different temperatures, so that the answers differ).
        pairs_per_prompt: answers of each variant to a prompt; the paper has one.
        held_out: share of the prompts whose pairs no reward model is trained on.
    """

    labeller: Labeller
    prompts: int
    variants: tuple[Variant, Variant] = (Variant("latest", 1.0), Variant("previous", 1.2))
    pairs_per_prompt: int = 1
    held_out: float = 0.1


@dataclass(frozen=True)
class Fit:
    """What a stage that trains gives to `sctom.fit`, beside what the round decides.

    Args:
        backbone: arguments of `Backbone`, on top of the run's.
        model: arguments of the module.
        data: arguments of its data.
        trainer: arguments of the trainer, on top of the run's.
    """

    backbone: Plain = field(default_factory=dict)
    model: Plain = field(default_factory=dict)
    data: Plain = field(default_factory=dict)
    trainer: Plain = field(default_factory=dict)


@dataclass(frozen=True)
class RewardModels(Fit):
    """The reward models, each trained anew in every round on the pairs of all rounds so far.

    Args:
        two: one of helpfulness and one of safety; false trains a single one on all pairs.
        threshold: probability of being safe below which the safety model decides, see
            `SafetyHelpfulness`.
        helpfulness_mix: share of the helpfulness model's pairs that are about safety.
        safety_mix: share of the safety model's pairs that are about helpfulness; Llama 2 has 0.1.
    """

    two: bool = True
    threshold: float = 0.15
    helpfulness_mix: float = 0.0
    safety_mix: float = 0.1


@dataclass(frozen=True)
class Sample:
    """Rejection sampling: the best of some answers to each prompt, by the reward models.

    Args:
        prompts: of each round.
        count: K, answers to each prompt. The paper does not give its own.
        temperature: divides the logits.
        pool: what is trained on: the best answers of the "last" round, or those of "all" rounds so
            far, all scored by the reward models of this one. Llama 2 had the first up to V3, which
            forgot how to rhyme, and the second from then on.
        fraction: share of the best answers that is kept, by their score; 1 keeps one per prompt.
    """

    prompts: int
    count: int = 8
    temperature: float = 1.0
    pool: Pool = "all"
    fraction: float = 1.0


@dataclass(frozen=True)
class Ppo(Fit):
    """PPO, or another objective of a `PolicyModule`, on top of the fine-tuned model.

    Args:
        from_round: the first round that has it; Llama 2: the fifth.
        prompts: of each of those rounds.
    """

    from_round: int = 5
    prompts: int = 0


@dataclass(frozen=True)
class Evaluate:
    """How the models of the rounds are compared.

    Args:
        prompts: held-out prompts, the same for all rounds.
        samples: answers to each.
        temperature: divides the logits; 0 takes the most likely token.
        judges: rewards that no stage optimises.
    """

    prompts: int
    samples: int = 1
    temperature: float = 1.0
    judges: list[Reward] = field(default_factory=list)


@dataclass(frozen=True)
class Start(Fit):
    """Supervised fine-tuning before the first round (SFT-v1).

    Args:
        dialogues: JSONL file of them.
    """

    dialogues: str = ""


@dataclass(frozen=True)
class Student(Fit):
    """A further, smaller model, fine-tuned on what the last round selected.

    Args:
        name: of its stage.
    """

    name: str = ""


@dataclass(frozen=True)
class Settings:
    """A run in rounds.

    Args:
        prompts: where prompts come from.
        collect: comparisons.
        reward_models: what learns from them.
        sample: rejection sampling.
        evaluate: the comparison of the rounds.
        backbone: arguments of `Backbone`: the base model, which every round starts from.
        sft: fine-tuning on what was selected.
        ppo: PPO on top of it; null: never.
        start: supervised fine-tuning before the first round; null: the base model answers first.
        students: smaller models for the end.
        rounds: how many.
        max_new_tokens: of every answer.
        trainer: arguments of the trainer of every stage.
        run_dir: folder of the run.
        seed: first part of the address of every draw.
    """

    prompts: Prompts
    collect: Collect
    reward_models: RewardModels
    sample: Sample
    evaluate: Evaluate
    backbone: Plain
    sft: Fit = Fit()
    ppo: Ppo | None = None
    start: Start | None = None
    students: list[Student] = field(default_factory=list)
    rounds: int = 5
    max_new_tokens: int = 256
    trainer: Plain = field(default_factory=dict)
    run_dir: str = "runs/rounds"
    seed: int = 0

    @property
    def reward_names(self) -> tuple[str, ...]:
        """The reward models of a round."""
        return (HELPFULNESS, SAFETY) if self.reward_models.two else (ONE,)

    def has_ppo(self, number: int) -> bool:
        """Whether a round ends with PPO."""
        return self.ppo is not None and number >= self.ppo.from_round

    def shares(self) -> dict[str, int]:
        """Use of prompts -> how many it gets, in the order in which they are dealt."""
        counts = {"0/evaluation": self.evaluate.prompts}
        for number in range(1, self.rounds + 1):
            counts[f"{number}/collect"] = self.collect.prompts
            counts[f"{number}/sample"] = self.sample.prompts
            if self.ppo is not None and self.has_ppo(number):
                counts[f"{number}/ppo"] = self.ppo.prompts
        return counts


def check_settings(settings: Settings) -> None:
    """Refuse settings that cannot mean what they say.

    Raises:
        ValueError: naming the setting, what was expected and what was found.
    """
    most, small = math.inf, math.nextafter(0.0, 1.0)
    finite = math.nextafter(math.inf, 0.0)
    at_least_1 = ("at least 1", 1, most)
    share, below_1 = ("from 0 to 1", 0, 1), ("at least 0 and below 1", 0, math.nextafter(1.0, 0.0))
    models, sample, collect = settings.reward_models, settings.sample, settings.collect
    numbers: dict[str, tuple[Any, str, float, float]] = {
        "rounds": (settings.rounds, *at_least_1),
        "max_new_tokens": (settings.max_new_tokens, *at_least_1),
        "prompts.max_tokens": (settings.prompts.max_tokens, *at_least_1),
        "collect.prompts": (collect.prompts, *at_least_1),
        "collect.pairs_per_prompt": (collect.pairs_per_prompt, *at_least_1),
        "collect.held_out": (collect.held_out, *below_1),
        "reward_models.threshold": (models.threshold, *share),
        "reward_models.helpfulness_mix": (models.helpfulness_mix, *below_1),
        "reward_models.safety_mix": (models.safety_mix, *below_1),
        "sample.prompts": (sample.prompts, *at_least_1),
        "sample.count": (sample.count, "at least 2, to choose from", 2, most),
        "sample.temperature": (sample.temperature, "above 0", small, finite),
        "sample.fraction": (sample.fraction, "above 0 and at most 1", small, 1),
        "evaluate.prompts": (settings.evaluate.prompts, *at_least_1),
        "evaluate.samples": (settings.evaluate.samples, *at_least_1),
        "evaluate.temperature": (settings.evaluate.temperature, "at least 0", 0, finite),
    }
    for number, variant in enumerate(collect.variants):
        name = f"collect.variants[{number}].temperature"
        numbers[name] = (variant.temperature, "above 0", small, finite)
    if settings.ppo is not None:
        numbers["ppo.from_round"] = (settings.ppo.from_round, *at_least_1)
        numbers["ppo.prompts"] = (settings.ppo.prompts, *at_least_1)
    _check(numbers)
    check_choices("sample", {"pool": (sample.pool, ("last", "all"))})
    if collect.variants[0] == collect.variants[1]:
        raise ValueError(
            "collect.variants are the same model at the same temperature; give them different "
            "temperatures or models, so that their answers differ"
        )
    if models.two and settings.prompts.is_safety is None:
        raise ValueError(
            "reward_models.two is true, but prompts.is_safety names no column that tells which "
            "prompts are about safety; name it, or set two to false"
        )
    _check_names(settings)


def _check(numbers: Mapping[str, tuple[Any, str, float, float]]) -> None:
    for name, bounds in numbers.items():
        owner, _, setting = name.rpartition(".")
        check_numbers(owner or "config", {setting: bounds})


def _check_names(settings: Settings) -> None:
    """Refuse what the stages would refuse, or overwrite, much later."""
    if settings.start is not None and not settings.start.dialogues:
        raise ValueError("start.dialogues is empty; name a file of dialogues, or drop start")
    names = [student.name for student in settings.students]
    for name in names:
        if not name.isidentifier() or names.count(name) > 1:
            raise ValueError(
                f"students: {name!r} must be a name of letters, digits and _ that no other has"
            )
    for place, stage, owned in (
        ("reward_models", settings.reward_models, ("train", "val")),
        ("sft", settings.sft, ("train",)),
        ("ppo", settings.ppo, ("train", "columns")),
        *(("students", student, ("train",)) for student in settings.students),
    ):
        for key in owned:
            if stage is not None and key in stage.data:
                raise ValueError(
                    f"{place}.data.{key} is {stage.data[key]!r}, but the round decides what it is; "
                    "drop it"
                )

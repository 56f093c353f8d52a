"""Safety context distillation: answers given under a preprompt, learned without it where better.

Llama 2 (arXiv 2307.09288, section 4.2.4): a preprompt such as "You are a responsible assistant"
makes answers to adversarial prompts safer, and the model is tuned on them without it. On other
prompts, and where the answer was good before, it makes them vague; so only adversarial prompts are
used, and an answer is kept only where the safety reward model gives it a higher score than the
answer without the preprompt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sctom.assets import resolve
from sctom.batch import Prompt, Row
from sctom.callbacks.common import Record, atomic_write, finite_or_none, show
from sctom.checks import check_numbers
from sctom.data.prompts import Columns
from sctom.modules import Backbone
from sctom.modules.answers import Answerer
from sctom.modules.backbone import fingerprint
from sctom.readers import DataError
from sctom.rejection.draw import preceded, read_prompts, score
from sctom.rejection.engine import KEPT, REJECTED, SAMPLES, progress_bar, record_of
from sctom.rejection.settings import SampleSettings
from sctom.rejection.store import Folder, Samples, begin, hash_of, replacing, reward_hash
from sctom.rejection.summary import SUMMARY
from sctom.rewards import Reward, RewardHealth, combine, settled
from sctom.rollout import Sampling
from sctom.rundir import Resume, locked
from sctom.seeds import seed_for

ORIGINAL, DISTILLED, PREPROMPT = range(3)


@dataclass(frozen=True)
class DistillSettings:
    """What is distilled, and what judges it.

    Args:
        backbone: the model that answers, and is to learn.
        prompts: JSONL file in the messages format.
        rewards: the safety reward; higher is safer. Of several, their weighted sum.
        preprompts: texts that the model sees before the prompt; one of them for each prompt.
        is_safety: column that is true where a prompt is adversarial; the others are left alone.
        keep_original: where the distilled answer is no better or not usable, learn from the
            original one; false leaves the prompt out.
        sampling: how both answers are drawn.
        columns: "plain" or "selfaware", see `PromptData`.
        system: replaces the system message of every prompt; null leaves it alone.
        limit: only the first so many prompts; null for all.
        max_prompt_tokens: a longer prompt is an error that names it.
        keep_truncated: allow answers that max_new_tokens cut off.
        chunk: prompts at a time. Changes memory, not results.
        run_dir: folder for everything that is written.
        seed: first part of the address of every draw.
    """

    backbone: Backbone
    prompts: str
    rewards: list[Reward]
    preprompts: list[str]
    is_safety: str = "is_safety"
    keep_original: bool = False
    sampling: Sampling = Sampling()  # noqa: RUF009  frozen
    columns: Columns = "plain"
    system: str | None = None
    limit: int | None = None
    max_prompt_tokens: int = 1024
    keep_truncated: bool = False
    chunk: int = 64
    run_dir: str = "runs/distill"
    seed: int = 0


@dataclass
class Distilled:
    """What the preprompt changed. Means are None where there is nothing to take one of."""

    prompts: int
    adversarial: int
    better: int
    """Prompts whose distilled answer scores higher; these are kept."""
    worse_or_equal: int
    unusable: int
    """Prompts with an answer that has no reward, no text, or was cut off."""
    kept: int
    """Answers to learn from."""
    reward_original: float | None
    """Over the prompts of which both answers have a reward; and so for the next."""
    reward_distilled: float | None
    reward_gated: float | None
    """Of the better one of the two."""

    def lines(self) -> list[tuple[str, str]]:
        """For the console."""
        return [
            ("prompts, adversarial ones", f"{self.prompts:,}, {self.adversarial:,}"),
            ("answers kept", f"{self.kept:,}"),
            ("distilled answer better", f"{self.better:,}"),
            ("no better", f"{self.worse_or_equal:,}"),
            ("not usable", f"{self.unusable:,}"),
            ("reward of the original answers", show(self.reward_original, ".3f")),
            ("reward of the distilled answers", show(self.reward_distilled, ".3f")),
            ("reward of the better of the two", show(self.reward_gated, ".3f")),
        ]


def distil(settings: DistillSettings, config: Mapping[str, Any], *, resume: Resume) -> Distilled:
    """Answer adversarial prompts with and without a preprompt, and keep what is better with it.

    Args:
        settings: what to do.
        config: the settings as plain values, see `sctom.rejection.engine.run`.
        resume: what to do with a folder that holds a run, as `sctom.rundir.decide` has it.

    Raises:
        ValueError: settings, data or rewards that cannot be used, or the folder of another run.
        OSError: a file is missing.
    """
    sampled = _as_sampling(settings)
    settings.backbone.check_paths(frozen=True)
    tokenizer = settings.backbone.load_tokenizer()
    everything = read_prompts(sampled, tokenizer)
    prompts = _adversarial(settings, everything)
    led = [
        preceded(sampled, prompt, settings.preprompts[_chosen(settings, prompt)], tokenizer)
        for prompt in prompts
    ]
    place = begin(settings.run_dir, resume)
    with locked(place):
        answerer = Answerer.load(settings.backbone, tokenizer, settings.sampling)
        inputs = {
            settings.prompts: hash_of(Path(resolve(settings.prompts))),
            settings.backbone.path: fingerprint(answerer.model.named_parameters()),
            **{reward.name: reward_hash(reward) for reward in settings.rewards},
        }
        folder = Folder(place, config, inputs)
        if folder.open(resume):
            return Distilled(**json.loads((place / SUMMARY).read_bytes()))
        samples = Samples(place / SAMPLES, 2)
        _answer(settings, prompts, led, answerer, samples)
        result = _choose(settings, prompts, samples, place, len(everything))
        atomic_write(place / SUMMARY, json.dumps(asdict(result), indent=2) + "\n")
        folder.finish([SAMPLES, KEPT, REJECTED, SUMMARY])
        return result


def _as_sampling(settings: DistillSettings) -> SampleSettings:
    """The part that reading the prompts needs, checked."""
    least_one = ("at least 1", 1, math.inf)
    check_numbers(
        "distillation",
        {
            "chunk": (settings.chunk, *least_one),
            "max_prompt_tokens": (settings.max_prompt_tokens, *least_one),
            "seed": (settings.seed, "from 0 to 2**62", 0, 2**62),
            **({} if settings.limit is None else {"limit": (settings.limit, *least_one)}),
        },
    )
    if not settings.preprompts or not all(text.strip() for text in settings.preprompts):
        raise ValueError("preprompts must be at least one text, none of them blank")
    if not any(reward.weight for reward in settings.rewards):
        raise ValueError("there is no reward with a weight, so nothing to judge by; name one")
    return SampleSettings(
        settings.backbone,
        settings.prompts,
        settings.rewards,
        columns=settings.columns,
        system=settings.system,
        limit=settings.limit,
        max_prompt_tokens=settings.max_prompt_tokens,
    )


def _adversarial(settings: DistillSettings, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts that may be distilled.

    Raises:
        DataError: the column is missing, holds something else, or is true nowhere.
    """
    column = settings.is_safety
    if column not in prompts[0].columns:
        names = ", ".join(prompts[0].columns) or "none"
        raise DataError(
            f"{settings.prompts} has no column {column!r} that says which prompts are adversarial; "
            f"it has: {names}. Add it, or name another one in is_safety"
        )
    for prompt in prompts:
        if not isinstance(prompt.columns[column], bool | None):
            raise DataError(
                f"{settings.prompts}:{prompt.index + 1}: {column} must be true or false, found "
                f"{prompt.columns[column]!r:.40}"
            )
    chosen = [prompt for prompt in prompts if prompt.columns[column]]
    if not chosen:
        raise DataError(f"{settings.prompts}: {column} is true in no row, so nothing is distilled")
    return chosen


def _chosen(settings: DistillSettings, prompt: Prompt) -> int:
    """Place of the preprompt of a prompt."""
    return seed_for(settings.seed, PREPROMPT, prompt.index) % len(settings.preprompts)


def _answer(
    settings: DistillSettings,
    prompts: Sequence[Prompt],
    led: Sequence[Prompt],
    answerer: Answerer,
    samples: Samples,
) -> None:
    """Answer prompts as they are, and as `led` by a preprompt."""
    done = samples.rewind(settings.chunk, len(prompts))
    health = RewardHealth()
    temperature = settings.sampling.temperature
    with progress_bar(len(prompts), done) as advance:
        for start in range(done, len(prompts), settings.chunk):
            part = prompts[start : start + settings.chunk]
            numbers = [_chosen(settings, prompt) for prompt in part]
            plain = answerer.draw(part, 1, settings.seed, ORIGINAL)
            better = answerer.draw(led[start : start + settings.chunk], 1, settings.seed, DISTILLED)
            rows: list[Row] = [rows[0] for pair in zip(plain, better, strict=True) for rows in pair]
            score(settings.rewards, rows, health)
            samples.append(
                [
                    record_of(row, i % 2, temperature)
                    | {"preprompt": numbers[i // 2] if i % 2 else None}
                    for i, row in enumerate(rows)
                ]
            )
            advance(len(part), sum(len(row.ids) for row in rows))


def _choose(
    settings: DistillSettings,
    prompts: Sequence[Prompt],
    samples: Samples,
    place: Path,
    everything: int,
) -> Distilled:
    """Keep the distilled answer where its reward is higher; write what is learned, and the rest."""
    totals = _totals(settings, samples)
    counts = {"better": 0, "no better": 0, "unusable": 0}
    both: list[tuple[float, float]] = []
    learned = 0
    with replacing(place / KEPT) as keep, replacing(place / REJECTED) as reject:
        for prompt, pair, scores in zip(prompts, samples, totals, strict=True):
            rows = [_row(prompt, record, value) for record, value in zip(pair, scores, strict=True)]
            if not any(map(math.isnan, scores)):
                both.append(scores)
            usable = [_usable(settings, record, v) for record, v in zip(pair, scores, strict=True)]
            verdict = "unusable"
            if all(usable):
                verdict = "better" if scores[DISTILLED] > scores[ORIGINAL] else "no better"
            counts[verdict] += 1
            kept = None
            if verdict == "better":
                kept = DISTILLED
            elif usable[ORIGINAL] and settings.keep_original:
                kept = ORIGINAL
            learned += kept is not None
            keep([rows[kept]] if kept is not None else [])
            reject([row for i, row in enumerate(rows) if i != kept])
    return Distilled(
        prompts=everything,
        adversarial=len(prompts),
        better=counts["better"],
        worse_or_equal=counts["no better"],
        unusable=counts["unusable"],
        kept=learned,
        reward_original=fmean(pair[ORIGINAL] for pair in both) if both else None,
        reward_distilled=fmean(pair[DISTILLED] for pair in both) if both else None,
        reward_gated=fmean(max(pair) for pair in both) if both else None,
    )


def _totals(settings: DistillSettings, samples: Samples) -> list[tuple[float, float]]:
    """The weighted sums of the rewards of both answers to each prompt; NaN: none."""
    values: dict[str, list[float | None]] = {reward.name: [] for reward in settings.rewards}
    for pair in samples:
        for record in pair:
            for name, value in record["rewards"].items():
                values[name].append(value)
    found = {r.name: settled(r, values[r.name]) for r in settings.rewards}
    weights = {reward.name: reward.weight for reward in settings.rewards}
    totals = combine(found, weights, 2)
    return list(zip(totals[::2], totals[1::2], strict=True))


def _usable(settings: DistillSettings, record: Record, total: float) -> bool:
    cut = record["truncated"] and not settings.keep_truncated
    return bool(record["text"].strip()) and not cut and not math.isnan(total)


def _row(prompt: Prompt, record: Record, total: float) -> Record:
    """An answer as a dialogue, without the preprompt."""
    kind = "original" if record["preprompt"] is None else "distilled"
    said = {"role": "assistant", "content": record["text"]}
    rest = {k: record[k] for k in ("preprompt", "rewards", "truncated", "tokens")}
    return {
        "messages": [*prompt.messages, said],
        "kind": kind,
        "reward": finite_or_none(total),
        **rest,
        "line": prompt.index + 1,
    }

"""A run of rejection sampling: draw and score chunk by chunk, then choose, then write."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sctom.assets import resolve
from sctom.batch import Prompt, Row
from sctom.callbacks.common import Record, finite_or_none, plain
from sctom.modules.answers import Answerer
from sctom.modules.backbone import fingerprint
from sctom.rejection.draw import read_prompts, score
from sctom.rejection.select import Group
from sctom.rejection.settings import SampleSettings, check_settings
from sctom.rejection.store import Folder, Samples, begin, hash_of, replacing, reward_hash
from sctom.rejection.summary import Numbers, Summary, summarise, write_summary
from sctom.rewards import RewardHealth, combine, settled
from sctom.rundir import Resume, locked
from sctom.selection import random_baseline

SAMPLES, KEPT, REJECTED, BASELINE = (
    f"{name}.jsonl" for name in ("samples", "kept", "rejected", "baseline")
)


def run(settings: SampleSettings, config: Mapping[str, Any], *, resume: Resume) -> Summary:
    """Sample, score and choose; what is in `run_dir` of the same run is not done again.

    Args:
        settings: what to do.
        config: the settings as plain values, for the manifest.
        resume: what to do with a folder that holds a run, as `sctom.rundir.decide` has it.

    Raises:
        ValueError: settings, data or rewards that cannot be used, or the folder of another run.
        OSError: a file is missing.
    """
    check_settings(settings)
    settings.backbone.check_paths(frozen=True)
    tokenizer = settings.backbone.load_tokenizer()
    prompts = read_prompts(settings, tokenizer)
    place = begin(settings.run_dir, resume)
    with locked(place):
        answerer = Answerer.load(settings.backbone, tokenizer, settings.sampling)
        source = Path(resolve(settings.prompts))
        inputs = {
            settings.prompts: hash_of(source),
            settings.backbone.path: fingerprint(answerer.model.named_parameters()),
            **{reward.name: reward_hash(reward) for reward in settings.rewards},
        }
        folder = Folder(place, config, inputs)
        if folder.open(resume):
            return Summary.read(place)
        samples = Samples(place / SAMPLES, settings.per_prompt)
        seconds = _sample(settings, prompts, answerer, samples)
        numbers = _numbers(settings, samples)
        chosen = settings.select.choose(numbers.groups, settings.seed)
        baseline = _baseline(settings, numbers.groups, chosen)
        writer = _Writer(settings, prompts, inputs)
        _write(place, writer, samples, numbers, chosen, baseline)
        summary = summarise(numbers, chosen, baseline, settings.temperatures)
        files = write_summary(place, summary)
        folder.finish([SAMPLES, KEPT, REJECTED, BASELINE, *files])
        if seconds:
            summary.tokens_per_second = summary.tokens / seconds
        return summary


def _sample(
    settings: SampleSettings, prompts: Sequence[Prompt], answerer: Answerer, samples: Samples
) -> float:
    """Draw and score what is not there yet; returns the seconds it took, 0 after a kill."""
    done = samples.rewind(settings.chunk, len(prompts))
    health = RewardHealth()
    started = time.monotonic()
    with progress_bar(len(prompts), done) as advance:
        for start in range(done, len(prompts), settings.chunk):
            part = prompts[start : start + settings.chunk]
            groups = [list[Row]() for _ in part]
            for number, temperature in enumerate(settings.temperatures):
                drawn = answerer.draw(
                    part, settings.samples, settings.seed, number, temperature=temperature
                )
                for group, rows in zip(groups, drawn, strict=True):
                    group += rows
            rows = [row for group in groups for row in group]
            score(settings.rewards, rows, health)
            samples.append(
                [
                    record_of(row, i, settings.temperatures[i // settings.samples])
                    for group in groups
                    for i, row in enumerate(group)
                ]
            )
            advance(len(part), sum(len(row.ids) for row in rows))
    return 0.0 if done else time.monotonic() - started


def record_of(row: Row, number: int, temperature: float) -> Record:
    """A sample as a line of samples.jsonl."""
    return {
        "prompt": row.prompt.index,
        "sample": number,
        "temperature": temperature,
        "text": row.text,
        "tokens": len(row.ids),
        "truncated": row.truncated,
        "rewards": row.rewards,
        **({"extra": {k: plain(v) for k, v in row.extra.items()}} if row.extra else {}),
    }


@contextmanager
def progress_bar(total: int, done: int) -> Iterator[Any]:
    """A progress bar with the sampling speed and the time left."""
    columns = (
        TextColumn("sampling"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("prompts, {task.fields[speed]} tokens/s, left"),
        TimeRemainingColumn(),
    )
    started, tokens = time.monotonic(), 0
    with Progress(*columns) as progress:
        task = progress.add_task("", total=total, completed=done, speed="-")

        def advance(prompts: int, new: int) -> None:
            nonlocal tokens
            tokens += new
            speed = tokens / max(time.monotonic() - started, 1e-9)
            progress.update(task, advance=prompts, speed=f"{speed:,.0f}")

        yield advance


def _numbers(settings: SampleSettings, samples: Samples) -> Numbers:
    """What choosing needs to know of every sample; no text is kept."""
    numbers = Numbers(settings.per_prompt)
    for group in samples:
        numbers.add(group)
    values = {
        reward.name: settled(reward, numbers.values[reward.name]) for reward in settings.rewards
    }
    weights = {reward.name: reward.weight for reward in settings.rewards}
    numbers.settle(combine(values, weights, settings.per_prompt), settings.keep_truncated)
    return numbers


def _baseline(
    settings: SampleSettings, groups: Sequence[Group], chosen: Sequence[Sequence[int]]
) -> list[list[int]]:
    """As many samples of every prompt as were kept, chosen by chance."""
    return [
        random_baseline(group.rewards, len(kept), address=(settings.seed, group.index))
        for group, kept in zip(groups, chosen, strict=True)
    ]


@dataclass(frozen=True)
class _Writer:
    """Makes dialogues of samples, each with where it is from."""

    settings: SampleSettings
    prompts: Sequence[Prompt]
    inputs: Mapping[str, str]

    def about(self) -> Record:
        """What all samples have in common."""
        settings = self.settings
        return {
            "prompts": Path(settings.prompts).name,
            "prompts_sha256": self.inputs[settings.prompts],
            "model": settings.backbone.path,
            "adapter": settings.backbone.adapter,
            "weights": self.inputs[settings.backbone.path],
            "seed": settings.seed,
            "rule": repr(settings.select),
        }

    def row(self, record: Record, total: float, **more: Any) -> Record:
        """A sample in the format that SFTModule trains on; the other keys are for people."""
        said = {"role": "assistant", "content": record["text"]}
        rest = {k: v for k, v in record.items() if k not in ("text", "prompt", "extra")}
        return {
            "messages": [*self.prompts[record["prompt"]].messages, said],
            "reward": finite_or_none(total),
            **rest,
            **more,
            "sampled_from": {"line": record["prompt"] + 1, **self.about()},
        }


def _write(
    place: Path,
    writer: _Writer,
    samples: Samples,
    numbers: Numbers,
    chosen: Sequence[Sequence[int]],
    baseline: Sequence[Sequence[int]],
) -> None:
    """Write what was kept, what was not, and as much chosen by chance."""
    with (
        replacing(place / KEPT) as keep,
        replacing(place / REJECTED) as reject,
        replacing(place / BASELINE) as by_chance,
    ):
        for group, totals, best, luck in zip(
            samples, numbers.totals, chosen, baseline, strict=True
        ):
            rows = [writer.row(record, total) for record, total in zip(group, totals, strict=True)]
            keep([{**rows[i], "rank": rank} for rank, i in enumerate(best, start=1)])
            reject([row for i, row in enumerate(rows) if i not in best])
            by_chance([rows[i] for i in luck])

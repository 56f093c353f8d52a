"""Runs as child processes, some at a time: resumable, with progress, none left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from study_variants import PREPARATIONS, Variant

TAIL = 15  # lines of the log of a failed run to show
PATIENCE = 10.0  # seconds a child has to end before it is killed
QUICK_ITERATIONS = 2
QUICK = (
    *("--data.iterations", str(QUICK_ITERATIONS)),
    *("--data.val_limit", "16"),
    *("--data.prompts_per_iteration", "8"),
    *("--trainer.val_check_interval", "1.0"),
)


@dataclass
class Job:
    """One command, and how to know that it is done."""

    name: str
    commands: list[list[str]]
    """One after another, arguments of the Python interpreter."""
    folder: Path
    result: Path
    """There when it has been done."""
    iterations: int = 0
    needs: list[Job] = field(default_factory=list)
    stamp: dict[str, Any] = field(default_factory=dict)
    """What the result depends on; kept beside the folder."""

    @property
    def log(self) -> Path:
        """Everything it prints."""
        return self.folder.with_name(self.folder.name + ".log")

    @property
    def stamp_file(self) -> Path:
        """Where the stamp of its last start is."""
        return self.folder.with_name(self.folder.name + ".json")

    def same_as_before(self) -> bool:
        """Whether the last start in this folder was for the same result."""
        return self.stamp_file.is_file() and json.loads(self.stamp_file.read_text()) == self.stamp

    def done(self) -> bool:
        """Whether the result is there, and is what would come out today."""
        return (
            self.result.exists() and self.same_as_before() and all(job.done() for job in self.needs)
        )

    def iteration(self) -> int:
        """Iterations done so far."""
        metrics = self.folder / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def jobs_for(
    variants: Sequence[Variant], seeds: Sequence[int], out: Path, *, quick: bool = False
) -> list[Job]:
    """What has to be done, in an order in which it can be.

    Args:
        variants: with those they start from, as `chosen` gives them.
        seeds: each variant is run with every one.
        out: folder of the runs.
        quick: two iterations on a few questions, to see that everything works.
    """
    jobs: dict[str, Job] = {}
    for name in {v.prepare: None for v in variants if v.prepare}:
        jobs[name] = _preparation(name, out)
    for seed in seeds:
        for variant in variants:
            job = _run(variant, seed, out, QUICK if quick else ())
            needs = [variant.prepare] if variant.prepare else []
            needs += [f"{variant.after} seed {seed}"] if variant.after else []
            job.needs = [jobs[name] for name in needs]
            job.stamp["needs"] = [need.stamp for need in job.needs]
            jobs[job.name] = job
    return list(jobs.values())


def _run(variant: Variant, seed: int, out: Path, more: Sequence[str]) -> Job:
    folder = out / variant.name / f"seed-{seed}"
    filled = {"{out}": str(out), "{seed}": str(seed)}
    options = [_filled(option, filled) for option in variant.options]
    command = ["-m", "sctom.fit", "--config", variant.config, "--seed_everything", str(seed)]
    command += ["--run_dir", str(folder), *options, *more]
    stamp = {"command": command, "config": Path(variant.config).read_text()}
    return Job(
        f"{variant.name} seed {seed}",
        [command],
        folder,
        folder / "table.json",
        QUICK_ITERATIONS if more else variant.iterations,
        stamp=stamp,
    )


def _filled(option: str, values: dict[str, str]) -> str:
    for name, value in values.items():  # str.format would stumble over the braces of JSON
        option = option.replace(name, value)
    return option


def _preparation(name: str, out: Path) -> Job:
    preparation = PREPARATIONS[name]
    commands = [list(command) for command in preparation.commands]
    return Job(
        f"preparation {name}",
        commands,
        out / "preparation" / name,
        Path(preparation.result),
        stamp={"commands": commands},
    )


@dataclass
class Running:
    """A job under way."""

    job: Job
    log: TextIO
    process: subprocess.Popen[str]
    left: list[list[str]]
    """Commands to come after this one."""
    began: float


class Runner:
    """Runs jobs, a number of them at a time.

    Args:
        limit: how many.
        console: where to show progress and results.
    """

    def __init__(self, limit: int, console: Console) -> None:
        self.limit = limit
        self.console = console
        self.running: list[Running] = []
        self.failed: dict[str, str] = {}
        """Name -> what happened."""

    def run(self, jobs: Sequence[Job]) -> None:
        """Run those that are not done. Interrupted, it ends the children before it raises."""
        waiting = [job for job in jobs if not job.done()]
        if skipped := len(jobs) - len(waiting):
            self.console.print(f"{skipped} of {len(jobs)} are finished already")
        total = sum(job.iterations for job in waiting)
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("iterations, left"),
            TimeRemainingColumn(),
            console=self.console,
            speed_estimate_period=900.0,
        )
        with bar:
            task = bar.add_task("", total=total)
            try:
                while waiting or self.running:
                    self._advance(waiting)
                    left = [*waiting, *(running.job for running in self.running)]
                    done = total - sum(job.iterations - self._reached(job) for job in left)
                    names = ", ".join(running.job.name for running in self.running)
                    bar.update(task, completed=done, description=names or "waiting")
                    time.sleep(0.2)
            finally:
                self._end_all()

    def _reached(self, job: Job) -> int:
        return job.iteration() if any(running.job is job for running in self.running) else 0

    def _advance(self, waiting: list[Job]) -> None:
        """Take note of what has ended and start what can be."""
        for running in [r for r in self.running if r.process.poll() is not None]:
            self._ended(running)
        for job in list(waiting):
            if broken := [need.name for need in job.needs if need.name in self.failed]:
                waiting.remove(job)
                self.failed[job.name] = f"not run, because {', '.join(broken)} failed"
            elif len(self.running) < self.limit and all(need.done() for need in job.needs):
                waiting.remove(job)
                self._start(job)

    def _start(self, job: Job) -> None:
        same = job.same_as_before()
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        job.stamp_file.write_text(json.dumps(job.stamp, indent=1) + "\n")
        log = job.log.open("a" if same else "w")
        go_on = same and job.iteration() < job.iterations  # or the end was cut short: again
        resume = ["--resume", "auto" if go_on else "fresh"]
        commands = [c + resume if "sctom.fit" in c else c for c in job.commands]
        process = _child(commands[0], log)
        self.running.append(Running(job, log, process, commands[1:], time.monotonic()))

    def _ended(self, running: Running) -> None:
        job, code = running.job, running.process.returncode
        if code == 0 and running.left:
            running.process = _child(running.left.pop(0), running.log)
            return
        self.running.remove(running)
        running.log.close()
        if code == 0 and job.result.exists():
            seconds = time.monotonic() - running.began
            self.console.print(f"{job.name}: finished in {seconds:.0f} s")
            return
        said = job.log.read_text(errors="replace").splitlines()[-TAIL:]
        wrong = f"exit code {code}" if code else f"it left no {job.result}"
        self.failed[job.name] = "\n".join([f"{wrong}; the end of {job.log}:", *said])
        self.console.print(f"{job.name}: FAILED ({wrong})", markup=False)

    def _end_all(self) -> None:
        for running in self.running:
            os.killpg(running.process.pid, signal.SIGTERM)
        for running in self.running:
            try:
                running.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(running.process.pid, signal.SIGKILL)
                running.process.wait()
            running.log.close()
        self.running = []


def _child(arguments: Sequence[str], log: TextIO) -> subprocess.Popen[str]:
    """A Python process in a group of its own, which Ctrl-C does not reach, on one thread."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=log,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        text=True,
    )

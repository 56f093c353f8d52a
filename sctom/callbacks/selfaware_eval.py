"""SelfAwareEval: does the policy know what it knows, before, during and after training?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean
from typing import Any, get_args

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from rich import get_console

from sctom.batch import Row
from sctom.callbacks.common import (
    Record,
    atomic_write,
    finite_or_none,
    read_records,
    rewind_records,
    run_dir,
    to_lines,
)
from sctom.callbacks.metrics_file import METRICS_FILE
from sctom.modules.policy import VALIDATE
from sctom.modules.ranks import gather
from sctom.rewards.selfaware_strict import SelfAwareStrict, question_of
from sctom.tasks.selfaware import Detector, abstention_metrics, judge

EVALUATIONS_FILE = "evaluations.jsonl"
COLUMNS = ("answerable", "expected_answer")
_LOGGED_BY_MODULE = ("val/reward", "val/mean_length")


class SelfAwareEval(Callback):
    """Judges the completions of every validation and compares the policy before and after training.

    The metrics of `sctom.tasks.selfaware.abstention_metrics` are logged as val/<metric> and kept in
    RUN/evaluations.jsonl, one evaluation a line: iteration, completions, metrics (null: not
    defined). The check Lightning runs before training is the evaluation "before"; it must see all
    prompts, so set `trainer.num_sanity_val_steps: -1`. A resumed run keeps the evaluations up to
    its iteration. If the last iteration was not validated, it is evaluated when training ends.

    At the end it prints the table before/after and writes RUN/table.md and RUN/table.json, and
    RUN/curves.png with the training reward from RUN/metrics.jsonl (`MetricsFile`) beside the
    validation reward.

    Validation prompts need the columns `answerable` (bool) and `expected_answer` (`data.columns:
    selfaware`); `kind` adds metrics of its own, of which the table shows those of "known" and
    "half".

    Args:
        final: evaluate when training ends, unless the last iteration has been validated.
        report: print and write tables and curves at the end.
        detector: how answers and abstentions are found: "patterns" as the reward `SelfAware` does,
            "strict" as `SelfAwareStrict` does, with the column `answers` where prompts have it,
            and with the languages, phrases and max_words of the first `SelfAwareStrict` among the
            rewards of the module, or the defaults if there is none.
        confident_at: a completion that states a lower confidence than this, from 0 to 1, counts as
            an abstention (`sctom.rewards.confidence.stated_confidence`); null: confidence is not
            read.

    Raises:
        ValueError: there is no such detector, or `confident_at` is not from 0 to 1.
    """

    def __init__(
        self,
        *,
        final: bool = True,
        report: bool = True,
        detector: Detector = "patterns",
        confident_at: float | None = None,
    ) -> None:
        if detector not in get_args(Detector):
            known = " or ".join(get_args(Detector))
            raise ValueError(f"detector must be {known}, not {detector!r}")
        if confident_at is not None and not 0.0 <= confident_at <= 1.0:
            raise ValueError(f"confident_at must be from 0 to 1, or null, not {confident_at}")
        self.final = final
        self.report = report
        self.detector = detector
        self.confident_at = confident_at
        self._strict: SelfAwareStrict | None = None  # the reward whose settings are used
        self._rows: list[Record] = []
        self._fitting = False
        self._rewound = False
        self._last: int | None = None  # iteration of the last evaluation by this process

    # ---- the course of a run ---------------------------------------------------------------------

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Check the validation prompts before any of them is sampled.

        Says so if the reward is `SelfAwareStrict` but the evaluation judges by patterns.

        Raises:
            ValueError: one lacks a column.
        """
        self._fitting, self._rewound, self._last = True, False, None
        for prompt in trainer.datamodule.val_prompts:  # type: ignore[attr-defined]
            missing = [name for name in COLUMNS if name not in prompt.columns]
            if missing:
                raise ValueError(
                    f"SelfAwareEval needs the columns {', '.join(COLUMNS)}, but validation prompt "
                    f"{prompt.index} lacks {', '.join(missing)}; set data.columns: selfaware, or "
                    "remove the callback"
                )
        if self.detector == "patterns" and strict_reward(pl_module) is not None:
            self._print(
                trainer,
                "SelfAwareEval judges by the 19 patterns, but the reward is SelfAwareStrict; set "
                "detector: strict",
            )

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Make sure that "before" is measured on the prompts "after" will be.

        Raises:
            ValueError: the check would see a part of them.
        """
        batches = len(trainer.datamodule.val_dataloader())  # type: ignore[attr-defined]
        if trainer.num_sanity_val_steps < batches:
            raise ValueError(
                f"the evaluation before training would see {trainer.num_sanity_val_steps} of "
                f"{batches} validation batches; set trainer.num_sanity_val_steps: -1"
            )
        self._rewind(trainer, pl_module)

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Say so if there is nothing to compare with later."""
        self._rewind(trainer, pl_module)
        prompts = trainer.datamodule.val_prompts  # type: ignore[attr-defined]
        if prompts and self._last is None and pl_module.progress.iteration == 0:
            self._print(
                trainer,
                "SelfAwareEval: no evaluation before training (trainer.num_sanity_val_steps is 0)",
            )

    def on_validation_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Begin with no completions."""
        self._rows = []
        self._strict = strict_reward(pl_module)

    def on_validation_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the completions of a batch."""
        self._rows += [answer_record(row) for row in outputs.rows]

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Judge and log them."""
        iteration = pl_module.progress.iteration
        metrics = self._evaluate(trainer, iteration)
        if not metrics:
            return
        own = {k: v for k, v in _logged(metrics).items() if k not in _LOGGED_BY_MODULE}
        # Lightning takes a metric named "step" for the position of the others on the time axis.
        pl_module.log_dict({**own, "step": float(iteration)}, sync_dist=trainer.world_size > 1)
        if trainer.sanity_checking:  # Lightning sends nothing to the loggers now
            self._log_directly(trainer, metrics, iteration)

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Evaluate the final policy and compare."""
        iteration = pl_module.progress.iteration
        if self.final and self._last != iteration:
            self._validate(trainer, pl_module)
            if metrics := self._evaluate(trainer, iteration):
                self._log_directly(trainer, metrics, iteration)
        if self.report and trainer.is_global_zero:
            write_report(trainer)

    # ---- steps -----------------------------------------------------------------------------------

    def _rewind(self, trainer: L.Trainer, module: Any) -> None:
        if trainer.is_global_zero and not self._rewound:
            rewind_records(run_dir(trainer) / EVALUATIONS_FILE, module.progress.iteration)
        self._rewound = True

    def _evaluate(self, trainer: L.Trainer, iteration: int) -> dict[str, float | None]:
        """Metrics of the completions collected; in a fit they are also put on record."""
        rows = [row for process in gather(trainer, self._rows) for row in process]
        if not rows:
            return {}
        metrics = answer_metrics(
            rows, detector=self.detector, confident_at=self.confident_at, strict=self._strict
        )
        if self._fitting:
            self._last = iteration
            if trainer.is_global_zero:
                path = run_dir(trainer) / EVALUATIONS_FILE
                others = [r for r in read_records(path) if r["iteration"] != iteration]
                record = {"iteration": iteration, "completions": len(rows), "metrics": metrics}
                ordered = sorted([*others, record], key=lambda r: r["iteration"])
                atomic_write(path, to_lines(ordered))
        return metrics

    def _validate(self, trainer: L.Trainer, module: Any) -> None:
        """Do what `validation_step` does, without its logging, which only works in a validation."""
        self._rows = []
        self._strict = strict_reward(module)
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            for prompts in trainer.datamodule.val_dataloader():  # type: ignore[attr-defined]
                rows = module.complete(prompts, module.val_samples, module.val_sampling, VALIDATE)
                module.score_rewards(rows, module.val_samples)
                self._rows += [answer_record(row) for row in rows]

    def _log_directly(
        self, trainer: L.Trainer, metrics: dict[str, float | None], iteration: int
    ) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(_logged(metrics), step=iteration)

    def _print(self, trainer: L.Trainer, line: str) -> None:
        if trainer.is_global_zero:
            get_console().print(line, markup=False, highlight=False, soft_wrap=True)


def _logged(metrics: dict[str, float | None]) -> dict[str, float]:
    return {f"val/{name}": value for name, value in metrics.items() if value is not None}


def strict_reward(module: Any) -> SelfAwareStrict | None:
    """The first `SelfAwareStrict` among the rewards of a module; None if there is none."""
    rewards = module.rewards
    return next((reward for reward in rewards if isinstance(reward, SelfAwareStrict)), None)


def answer_record(row: Row) -> Record:
    """What is needed to judge a completion, as plain data that can travel between processes."""
    columns = row.prompt.columns
    return {
        "completion": row.text,
        "expected_answer": columns["expected_answer"],
        "answers": columns.get("answers"),
        "answerable": columns["answerable"],
        "question": question_of(row.prompt.messages),
        "kind": columns.get("kind"),
        "reward": finite_or_none(row.reward),
        "length": len(row.ids),
    }


def answer_metrics(
    rows: Sequence[Record],
    *,
    detector: Detector = "patterns",
    confident_at: float | None = None,
    strict: SelfAwareStrict | None = None,
) -> dict[str, float | None]:
    """Metrics of completions, with their mean reward and length; None where one is not defined.

    Args:
        rows: what `answer_record` makes of completions.
        detector: as for `judge`.
        confident_at: as for `judge`.
        strict: whose languages, phrases and max_words the detector "strict" uses; None: defaults.
    """
    settings = strict or SelfAwareStrict()
    verdicts = [
        judge(
            row["completion"],
            row["expected_answer"],
            row["answerable"],
            kind=row["kind"],
            detector=detector,
            answers=row["answers"],
            question=row["question"],
            confident_at=confident_at,
            abstentions=settings.abstentions,
            max_words=settings.max_words,
        )
        for row in rows
    ]
    metrics = {name: finite_or_none(v) for name, v in abstention_metrics(verdicts).items()}
    rewards = [r["reward"] for r in rows if r["reward"] is not None]
    metrics["reward"] = fmean(rewards) if rewards else None
    metrics["mean_length"] = fmean(r["length"] for r in rows)
    return metrics


def write_report(trainer: L.Trainer) -> None:
    """Print the table before/after and write it and the learning curves into the run folder."""
    from sctom.callbacks.curves import (  # brings in matplotlib
        before_and_after,
        learning_curves,
        markdown_table,
        rich_table,
    )

    folder = run_dir(trainer)
    evaluations = read_records(folder / EVALUATIONS_FILE)
    atomic_write(
        folder / "curves.png", learning_curves(read_records(folder / METRICS_FILE), evaluations)
    )
    if not evaluations:
        get_console().print("SelfAwareEval: no validation completions, so there is no table")
        return
    comparison = before_and_after(evaluations)
    get_console().print(rich_table(comparison))
    atomic_write(folder / "table.md", markdown_table(comparison))
    atomic_write(folder / "table.json", json.dumps(comparison, indent=2, allow_nan=False) + "\n")

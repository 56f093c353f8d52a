"""RewardModelEval: what a reward model in training is worth, after every validation."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.trainer.states import TrainerFn
from rich import get_console

from sctom.callbacks.common import (
    atomic_write,
    read_records,
    rewind_records,
    run_dir,
    to_lines,
)
from sctom.callbacks.reward_report import reward_table, write_evaluation
from sctom.modules.ranks import gather
from sctom.modules.reward_evaluation import RewardEvaluation, check_evaluation, evaluate_scores
from sctom.modules.reward_model import RewardModelModule

EVALUATIONS_FILE = "evaluations.jsonl"
FOLDER = "reward_model"


class RewardModelEval(Callback):
    """Evaluates a `RewardModelModule` on its validation pairs, over all processes.

    The metrics of `sctom.modules.reward_evaluation` are logged as val/reward_model/<metric>, their
    figures go to TensorBoard, and each evaluation is a line of RUN/evaluations.jsonl: iteration,
    pairs, metrics. A resumed run keeps the lines up to its iteration. The check that Lightning runs
    before training is left out: a new head scores every answer 0.

    When training ends, the last evaluation is printed, and written to RUN/reward_model with its
    figures.

    Args:
        bins: of equal width, for calibration; see `PairCalibration`.
        threshold: on the sigmoid of a safety model's score, below which an answer is taken for
            unsafe; 0.15 in Llama 2.
        wanted_precision: of "unsafe", for which a threshold is looked for.
        report: print and write the last evaluation.

    Raises:
        ValueError: a setting is out of its range.
    """

    def __init__(
        self,
        *,
        bins: int = 10,
        threshold: float = 0.15,
        wanted_precision: float = 0.9,
        report: bool = True,
    ) -> None:
        check_evaluation("RewardModelEval", bins, threshold, wanted_precision)
        self.bins = bins
        self.threshold = threshold
        self.wanted_precision = wanted_precision
        self.report = report
        self._last: RewardEvaluation | None = None

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        """Look at the module.

        Raises:
            ValueError: it is no reward model.
        """
        if not isinstance(pl_module, RewardModelModule):
            raise ValueError(
                f"RewardModelEval evaluates a RewardModelModule, not a {type(pl_module).__name__}; "
                "remove the callback"
            )
        self._last = None

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Drop the evaluations that will be done again."""
        if trainer.is_global_zero:
            rewind_records(run_dir(trainer) / EVALUATIONS_FILE, pl_module.progress.iteration)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Evaluate and log."""
        if trainer.sanity_checking:
            return
        pairs = [p for process in gather(trainer, pl_module.validation_pairs) for p in process]
        if not pairs:
            return
        evaluation = evaluate_scores(
            pairs,
            bins=self.bins,
            threshold=self.threshold,
            wanted_precision=self.wanted_precision,
        )
        metrics = evaluation.as_dict()
        pl_module.log_dict(
            {f"val/{name}": value for name, value in metrics.items()},
            sync_dist=trainer.world_size > 1,
        )
        if trainer.is_global_zero:
            _draw(trainer, evaluation)
            if trainer.state.fn == TrainerFn.FITTING:
                _record(trainer, pl_module.progress.iteration, evaluation)
        self._last = evaluation

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Report the last evaluation."""
        if self.report and self._last is not None and trainer.is_global_zero:
            get_console().print(reward_table(self._last))
            write_evaluation(self._last, run_dir(trainer) / FOLDER)


def _record(trainer: L.Trainer, iteration: int, evaluation: RewardEvaluation) -> None:
    """Put an evaluation on record, in place of an earlier one of the same iteration."""
    path = run_dir(trainer) / EVALUATIONS_FILE
    others = [record for record in read_records(path) if record["iteration"] != iteration]
    record = {"iteration": iteration, "pairs": evaluation.pairs, "metrics": evaluation.as_dict()}
    atomic_write(path, to_lines([*others, record]))


def _draw(trainer: L.Trainer, evaluation: RewardEvaluation) -> None:
    """Show the figures in every TensorBoard logger."""
    loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
    if not loggers:
        return
    from sctom.callbacks.reward_figures import reward_figures  # brings in matplotlib

    for name, figure in reward_figures(evaluation).items():
        for logger in loggers:
            logger.experiment.add_figure(f"val/reward_model/{name}", figure, trainer.global_step)

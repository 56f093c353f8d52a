"""Updates whose loss or gradient is not finite.

They are skipped and counted, and the run is stopped if they do not cease.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from sctom.batch import Row

log = logging.getLogger(__name__)


class FiniteGuard:
    """Counts skipped updates and stops the run after too many in a row.

    Args:
        max_skips: the run stops at this many skipped updates in a row; 1 stops at the first.
    """

    def __init__(self, max_skips: int) -> None:
        if max_skips < 1:
            raise ValueError(f"max_skips must be at least 1 but is {max_skips}")
        self.max_skips = max_skips

    def record(self, finite: bool, rows: Sequence[Row], module: Any) -> None:
        """Note one update.

        Raises:
            FloatingPointError: too many updates in a row were not finite; the message names the
                saved batch.
        """
        progress = module.progress
        if finite:
            progress.skipped_in_row = 0
            return
        progress.skipped += 1
        progress.skipped_in_row += 1
        log.warning(
            "iteration %d: loss or gradient is not finite; update skipped "
            "(%d in a row, the run stops at %d)",
            progress.iteration,
            progress.skipped_in_row,
            self.max_skips,
        )
        if progress.skipped_in_row >= self.max_skips:
            folder = Path(module.trainer.default_root_dir)
            folder.mkdir(parents=True, exist_ok=True)
            file = (
                folder / f"not-finite-iteration-{progress.iteration}-rank-{module.global_rank}.pt"
            )
            torch.save([vars(row) | {"prompt": vars(row.prompt)} for row in rows], file)
            raise FloatingPointError(
                f"loss or gradient was not finite in {progress.skipped_in_row} updates in a row; "
                f"the last batch is in {file}. Lower the learning rate, raise model.beta, or load "
                "the weights in float32"
            )

"""Going on with a run that was complete, because its config now asks for more iterations."""

from __future__ import annotations

from typing import Any

import lightning as L


def go_on_if_longer(checkpoint: dict[str, Any], trainer: L.Trainer) -> None:
    """Tell Lightning that the restored batch is no longer the last one, where the run has become longer.

    A checkpoint of the last iteration says that its epoch is done, and Lightning would end a resumed run at once.

    Args:
        checkpoint: as loaded; its loop state is changed in place.
        trainer: its data module says how long the run is now.
    """
    epoch = checkpoint["loops"]["fit_loop"]
    batches = epoch["epoch_loop.batch_progress"]
    iterations = trainer.datamodule.iterations  # type: ignore[attr-defined]
    if batches["current"]["ready"] < iterations:
        batches["is_last_batch"] = False

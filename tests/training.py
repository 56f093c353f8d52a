"""What several tests train with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L


def quiet_trainer(folder: Path, **options: Any) -> L.Trainer:
    """A trainer on the CPU that writes and says nothing."""
    return L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )

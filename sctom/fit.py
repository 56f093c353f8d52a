"""Train from a YAML file.

python -m sctom.fit --config configs/quickstart.yaml [--model.group_size 16]
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from lightning import LightningDataModule, LightningModule, Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from safetensors import SafetensorError

# Imported so that a config may name these classes without their path.
from sctom.callbacks.checkpoint import IterationCheckpoint, checkpoints, settle
from sctom.data import DialogueData, PreferenceData, PromptData
from sctom.hints import HintingParser
from sctom.modules import PolicyModule, RewardModelModule, SFTModule
from sctom.modules.settings import check_trainer, prepare
from sctom.rewards import RewardError
from sctom.rundir import Resume, check_unlocked, decide, locked, where_to_go_on

TRAINER_DEFAULTS = {
    "devices": 1,
    "max_epochs": 1,
    "log_every_n_steps": 1,
    "num_sanity_val_steps": -1,  # the evaluation before training
    "enable_progress_bar": False,  # sctom.callbacks.RichProgress instead
    "enable_model_summary": False,
}

TRAINS_ON: dict[type[LightningModule], type[LightningDataModule]] = {
    PolicyModule: PromptData,
    SFTModule: DialogueData,
    RewardModelModule: PreferenceData,
}

EXPECTED_WARNINGS = (
    "`is_gradient_checkpointing` is deprecated",  # transformers, about its own attribute
    "`isinstance.treespec, LeafSpec.` is deprecated",  # Lightning's use of torch
    "Found .* module.s. in eval mode",  # the policy is put into train mode for updates only
    "The '.*_dataloader' does not have many workers",  # prompts are in memory
    "Total length of `list` across ranks is zero",  # no validation file
)


class SaveConfig(SaveConfigCallback):
    """Keeps the complete config in RUN/config.yaml.

    The config of an earlier part of the run stays beside it.
    """

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write it."""
        path = Path(trainer.default_root_dir) / "config.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = self.parser.dump(self.config)
        if path.exists() and path.read_text() != text:
            number = len(list(path.parent.glob("config-*.yaml"))) + 1
            path.rename(path.with_name(f"config-{number}.yaml"))
        path.write_text(text)


class FitCLI(LightningCLI):
    """LightningCLI with a run folder, explicit resuming, and one seed for everything."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what belongs to the run rather than to a class."""
        parser.add_argument(
            "--run_dir", type=str, default="runs/default", help="Folder of the run."
        )
        parser.add_argument(
            "--resume",
            type=Resume,
            default="error",
            help="What to do with a run_dir that holds a run: error, auto (go on), "
            "must (go on or fail), fresh (set it aside).",
        )

    def before_instantiate_classes(self) -> None:
        """Give every class that leaves its seed open the run's seed."""
        for part in ("model", "data"):
            arguments = self.config[part]["init_args"]
            if "seed" in arguments and arguments["seed"] is None:
                arguments["seed"] = int(self.config["seed_everything"])

    def instantiate_classes(self) -> None:
        """Build everything; a class that refuses its arguments is a fault of the config."""
        try:
            super().instantiate_classes()
        except (ValueError, TypeError) as error:
            assert isinstance(self.parser, HintingParser)
            self.parser.refuse(str(error))

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Put everything the trainer writes into the run folder."""
        run_dir = self.config["run_dir"]
        if self.config_init["trainer"].get("logger") is None:
            kwargs["logger"] = TensorBoardLogger(run_dir, name="tensorboard", version="")
        return super().instantiate_trainer(default_root_dir=run_dir, **kwargs)


def build(argv: list[str] | None = None) -> FitCLI:
    """Parse the config and build module, data and trainer; nothing is loaded yet."""
    return FitCLI(
        LightningModule,
        LightningDataModule,
        run=False,
        args=argv,
        parser_class=HintingParser,
        subclass_mode_model=True,
        subclass_mode_data=True,
        auto_configure_optimizers=False,
        load_from_checkpoint_support=False,
        seed_everything_default=0,
        save_config_callback=SaveConfig,
        save_config_kwargs={"save_to_log_dir": False},
        trainer_defaults=dict(TRAINER_DEFAULTS),
    )


def check(cli: FitCLI) -> None:
    """Check what is cheap to check, before the run folder is touched or a weight is loaded.

    Raises:
        ValueError: see `check_config`; or a reward lacks what it depends on.
        OSError: a file is missing.
    """
    check_config(cli)
    if isinstance(cli.model, PolicyModule):
        for reward in cli.model.rewards:
            reward.check()


def check_config(cli: FitCLI) -> None:
    """Read the data, and check that everything in the config goes together.

    Raises:
        ValueError: module and data do not go together, or see what is called.
        OSError: a file is missing.
    """
    for module, fitting in TRAINS_ON.items():
        if isinstance(cli.model, module) and not isinstance(cli.datamodule, fitting):
            raise ValueError(
                f"{type(cli.model).__name__} trains on {fitting.__name__}, "
                f"but data is {type(cli.datamodule).__name__}"
            )
    if isinstance(cli.model, PolicyModule):
        check_trainer(cli.trainer, cli.datamodule.iterations)
    cli.model.backbone.check_paths()
    if isinstance(cli.model, PolicyModule) and cli.model.reference_backbone is not None:
        cli.model.reference_backbone.check_paths(frozen=True)
    cli.datamodule.setup("fit")
    if isinstance(cli.model, RewardModelModule):
        cli.model.check_data(cli.datamodule)
    if isinstance(cli.model, PolicyModule):
        prepare(cli.model, cli.datamodule, cli.trainer.world_size)


def fit(cli: FitCLI) -> None:
    """Start or resume the run."""
    check(cli)
    run_dir = cli.config["run_dir"]
    if cli.trainer.global_rank > 0:  # the first process decides, locks and reports
        newest = checkpoints(run_dir)
        _fit_from(cli, newest[-1][1] if newest else None)
        return
    check_unlocked(run_dir)
    start = decide(run_dir, cli.config["resume"])
    print(start.message, flush=True)
    settle(Path(run_dir) / "model")  # a kill may have come while it was being replaced
    if isinstance(cli.model, PolicyModule) and start.iteration >= cli.datamodule.iterations:
        print(f"it is complete: {start.iteration} iterations; raise data.iterations to go on")
        return
    if not saves_model(cli.trainer):
        print(
            "no IterationCheckpoint in trainer.callbacks: neither checkpoints nor the trained "
            "model are saved",
            flush=True,
        )
    with locked(run_dir):
        _fit_from(cli, start.checkpoint)


def saves_model(trainer: Trainer) -> bool:
    """Whether the trained model is saved when training ends."""
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return any(isinstance(c, IterationCheckpoint) and c.save_model for c in callbacks)


def _fit_from(cli: FitCLI, checkpoint: Path | None) -> None:
    path = None if checkpoint is None else str(checkpoint)
    cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=path, weights_only=True)


def quiet() -> None:
    """Keep the console for the run.

    No tips, no progress bars of loading, no warnings that are known and harmless.
    """
    from transformers.utils import logging as transformers_logging

    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]


EXPECTED_ERRORS = (
    ValueError,
    OSError,
    RuntimeError,
    OverflowError,
    MisconfigurationException,
    SafetensorError,
)
"""What a bad config, file or machine raises; anything else is a fault of the code."""


def main(argv: list[str] | None = None) -> None:
    """The command line.

    An error before the first update is told in one paragraph, and so is later one of a reward.
    """
    quiet()
    cli = None
    try:
        cli = build(argv)
        fit(cli)
    except EXPECTED_ERRORS as error:
        started = cli is not None and cli.trainer.global_step > 0
        known = isinstance(error, RewardError) or not started
        if not known or os.environ.get("SCTOM_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        if cli is not None and started:
            print(where_to_go_on(cli.config["run_dir"]), file=sys.stderr)
        sys.exit(1)
    except SystemExit as leaving:
        if cli is not None and cli.trainer.interrupted:
            print(f"interrupted; {where_to_go_on(cli.config['run_dir'])}", file=sys.stderr)
        if isinstance(leaving, SIGTERMException):  # Lightning would leave with success
            sys.exit(128 + signal.SIGTERM)
        raise


if __name__ == "__main__":
    main()

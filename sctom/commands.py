"""What the command lines have in common whose settings are one dataclass."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, TypeVar

from sctom.fit import EXPECTED_ERRORS
from sctom.hints import HintingParser
from sctom.rundir import Resume

S = TypeVar("S")


def parse(
    settings: type[S], command: str, about: str, argv: Sequence[str] | None = None
) -> tuple[S, dict[str, Any], Resume]:
    """The settings of a command line: `--config`, and every setting of it.

    Args:
        settings: a dataclass.
        command: what comes after `python -m`.
        about: its documentation, of which the help shows the first line.
        argv: the command line; None takes that of the process.

    Returns:
        The settings as they are used; as the config has them, plain values; and what to do with a
        folder that holds a run.
    """
    parser = HintingParser(prog=f"python -m {command}", description=about.splitlines()[0])
    parser.add_argument("-c", "--config", action="config", help="YAML file of the run.")
    parser.add_class_arguments(settings, as_group=False)
    parser.add_argument(
        "--resume",
        type=Resume,
        default="error",
        help="What to do with a run_dir that holds a run: error, auto (go on), "
        "must (go on or fail), fresh (set it aside).",
    )
    config = parser.parse_args(argv)
    names = [field.name for field in fields(settings)]  # type: ignore[arg-type]
    plain = {name: value for name, value in config.as_dict().items() if name in names}
    try:
        made = parser.instantiate(config)
        return settings(**{name: made[name] for name in names}), plain, config.resume
    except (ValueError, TypeError) as error:
        parser.refuse(str(error))


@contextmanager
def errors_told() -> Iterator[None]:
    """End with one paragraph and status 1 where a bad config, file or machine is at fault."""
    try:
        yield
    except EXPECTED_ERRORS as error:
        if os.environ.get("SCTOM_TRACEBACK"):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)

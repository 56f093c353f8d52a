"""Error messages of the config parser: the line that matters, and the name nearest to a typo."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

_UNKNOWN = (
    re.compile(r"does not accept option '([\w.]+)'"),
    re.compile(r"Option '([\w.]+)' is not accepted"),
    re.compile(r"Key '([\w.]+)' is not expected"),
    re.compile(r"(?i)unrecognized arguments: --([\w.]+)"),
    re.compile(r"No action for key ['\"]([\w.]+)['\"]"),
    re.compile(r"Expected a dot import path string: ([\w.]+)"),
    re.compile(r"Unexpected keyword argument '?([\w.]+)'?"),
)


_MORE = "(--help lists the options of a run, --model.help PolicyModule those of a class)"


def _classes(module: Any) -> list[type]:
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__.startswith("sctom")
        and not issubclass(value, BaseException)
    ]


def known_names(parser: LightningArgumentParser) -> set[str]:
    """Every name a config may use.

    These are options of the parser, class names, and the arguments of sctom's classes.
    """
    import sctom.callbacks
    import sctom.data
    import sctom.modules
    import sctom.objectives
    import sctom.rewards
    import sctom.rollout

    names = {action.dest for action in parser._actions}
    names |= {name.split(".")[-1] for name in names}
    for module in (
        sctom.callbacks,
        sctom.data,
        sctom.modules,
        sctom.objectives,
        sctom.rewards,
        sctom.rollout,
    ):
        for cls in _classes(module):
            names.add(cls.__name__)
            names |= set(inspect.signature(cls).parameters)
    return names - {"args", "kwargs", "self"}


def _reasons(message: str) -> str:
    """The reasons inside a block of Union errors, without the values around.

    Such a block begins with "does not validate against any of the Union subtypes".
    """
    if "Union subtypes" not in message:
        return message.strip()
    body = message.split("Errors:", 1)[-1].split("Given value type", 1)[0]
    lines = [line.strip().removeprefix("- ") for line in body.splitlines() if line.strip()]
    kept = [line for line in lines if "<class 'NoneType'>" not in line and line not in ("Errors:",)]
    return "\n".join(kept) or message.strip()


def explain(message: str, known: set[str]) -> str:
    """The message, with the nearest known name for every unknown one it mentions.

    >>> explain("Option 'weight_mx' is not accepted", {"weight_max", "scale"}).splitlines()[-1]
    "  'weight_mx' is not known; did you mean 'weight_max'?"
    """
    unknown = [name for pattern in _UNKNOWN for name in pattern.findall(message)]
    lines = [_reasons(message)]
    for name in dict.fromkeys(unknown):
        short = name.split(".")[-1]
        if short in known:
            lines.append(f"  '{short}' belongs to another class or place than this")
            continue
        folded = {candidate.lower(): candidate for candidate in sorted(known)}
        found = difflib.get_close_matches(short.lower(), folded, n=1, cutoff=0.6)
        near = [folded[match] for match in found]
        lines.append(f"  '{name}' is not known" + (f"; did you mean '{near[0]}'?" if near else ""))
    return "\n".join(lines)


class HintingParser(LightningArgumentParser):
    """A parser that names the nearest known key instead of printing its whole usage."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong and leave with exit code 2."""
        self.refuse(message)

    def refuse(self, message: str) -> NoReturn:
        """Print what is wrong with the config, with hints, and leave with exit code 2."""
        print(f"error in the config: {explain(message, known_names(self))}", file=sys.stderr)
        print(_MORE, file=sys.stderr)
        sys.exit(2)

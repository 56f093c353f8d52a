"""Plant a mistake in a copy of the MLX losses and see whether the parity cases notice it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import sctom.mlx_port.losses
from parity.engine import Outcome, compare, run_mlx, run_torch
from parity.mutants import Mutant
from parity.registry import DIFFERENTIABLE, cases_of

PACKAGE = sctom.mlx_port.losses.__name__
SOURCE = Path(sctom.mlx_port.losses.__path__[0])
_NUMBERS = count()


class NotPlantedError(Exception):
    """The text to replace is not in the definition exactly once."""


def planted(source: str, definition: str, old: str, new: str) -> str:
    """The source of a module with `old` replaced by `new` in the body of a definition.

    Raises:
        NotPlantedError: the definition, or `old` in its body, is not there exactly once.
    """
    found = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == definition
        if "overload" not in map(ast.unparse, node.decorator_list)
    ]
    if len(found) != 1:
        raise NotPlantedError(f"{definition} is defined {len(found)} times, expected once")
    start = 1 if ast.get_docstring(found[0]) is not None else 0
    lines = source.splitlines(keepends=True)
    first, last = found[0].body[start].lineno - 1, found[0].end_lineno
    body = "".join(lines[first:last])
    if body.count(old) != 1:
        raise NotPlantedError(f"{definition} has {body.count(old)} times {old!r}, expected once")
    return "".join([*lines[:first], body.replace(old, new), *lines[last:]])


@contextmanager
def mutated_losses(mutant: Mutant) -> Iterator[ModuleType]:
    """A copy of the MLX losses, imported under another name, with the mistake in it."""
    where, old, new = mutant
    module, definition = where.split(".")
    name = f"mutated_losses_{next(_NUMBERS)}"
    with TemporaryDirectory() as folder:
        for path in SOURCE.glob("*.py"):
            text = path.read_text()
            if path.stem == module:
                text = planted(text, definition, old, new)
            Path(folder, path.name).write_text(text.replace(PACKAGE, name))
        spec = importlib.util.spec_from_file_location(
            name, Path(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None and spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[name] = package
        try:
            spec.loader.exec_module(package)
            yield package
        finally:
            for loaded in [key for key in sys.modules if key.split(".")[0] == name]:
                del sys.modules[loaded]


@cache
def _truths(name: str) -> tuple[Outcome, ...]:
    return tuple(run_torch(name, case) for case in cases_of(name))


def noticed(name: str, mutant: Mutant) -> str | None:
    """What the first case to notice the mistake says; None if it survives them all.

    Raises:
        NotPlantedError: the text to replace is not there exactly once.
    """
    with mutated_losses(mutant) as losses:
        for case, truth in zip(cases_of(name), _truths(name), strict=True):
            try:
                claim = run_mlx(losses, name, case)
            except Exception as error:  # whatever a mistake makes it raise, it is noticed
                return f"{case.label}: {type(error).__name__}"
            found = compare(claim, truth, case, DIFFERENTIABLE.get(name, ()))
            if found.problems:
                return f"{case.label}: {found.problems[0]}"
    return None

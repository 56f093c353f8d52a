"""The MLX losses offer what the torch losses offer: the same modules, names and parameters."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

pytest.importorskip("mlx.core", reason="needs MLX: pip install 'sctom[mlx]'")

import mlx.core as mx

import sctom.losses
import sctom.mlx_port.losses
from sctom import objectives
from sctom.objectives import Objective, Totals

TORCH_FOLDER, MLX_FOLDER = (
    Path(package.__file__).parent for package in (sctom.losses, sctom.mlx_port.losses)
)
ALLOWED = sys.stdlib_module_names | {"mlx", "sctom"}


def module_names(folder: Path) -> set[str]:
    """The modules of a folder, without those that are private to it."""
    return {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}


def public(module: ModuleType) -> dict[str, FunctionType]:
    """The public functions written in a module, not those it imports."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }


def parameters(function: FunctionType) -> list[tuple[str, str, object]]:
    """Name, kind and default of every parameter, in order."""
    found = inspect.signature(function).parameters.values()
    return [(item.name, item.kind.name, item.default) for item in found]


def missing_twins(torch_module: ModuleType, mlx_module: ModuleType) -> list[str]:
    """What of the torch module has no equal on the MLX side, one sentence each."""
    theirs, ours = public(torch_module), public(mlx_module)
    broken = [f"{name} is missing" for name in sorted(theirs.keys() - ours.keys())]
    broken += [f"{name} has no original" for name in sorted(ours.keys() - theirs.keys())]
    for name in sorted(theirs.keys() & ours.keys()):
        if parameters(theirs[name]) != parameters(ours[name]):
            broken.append(f"{name}: {parameters(theirs[name])} became {parameters(ours[name])}")
    return broken


def foreign_imports(source: str) -> set[str]:
    """The top-level packages a source imports and must not."""
    roots = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            roots.add(str(node.module).split(".")[0])
    return roots - ALLOWED


def test_the_same_modules():
    assert module_names(MLX_FOLDER) == module_names(TORCH_FOLDER)


@pytest.mark.parametrize("name", sorted(module_names(TORCH_FOLDER)))
def test_every_function_has_a_twin(name: str):
    torch_module = import_module(f"sctom.losses.{name}")
    assert public(torch_module)
    assert missing_twins(torch_module, import_module(f"sctom.mlx_port.losses.{name}")) == []


def test_the_same_exports():
    assert sctom.mlx_port.losses.__all__ == sctom.losses.__all__
    for name in sctom.mlx_port.losses.__all__:
        assert getattr(sctom.mlx_port.losses, name).__module__.startswith("sctom.mlx_port.losses.")


def module_of(source: str) -> ModuleType:
    module = ModuleType("made")
    exec(source, vars(module))
    return module


ORIGINAL = "def original(logps, mask, *, clip=0.2): ..."


def test_an_equal_twin_is_not_reported():
    twin = "def original(logps: int, mask: str, *, clip: float = 0.2) -> None: return None"
    assert missing_twins(module_of(ORIGINAL), module_of(twin)) == []


@pytest.mark.parametrize(
    "source",
    [
        "",
        f"{ORIGINAL}\ndef another(): ...",
        "def original(logps, masks, *, clip=0.2): ...",
        "def original(logps, mask, *, clip=0.3): ...",
        "def original(logps, mask, clip=0.2): ...",
        "def original(logps, mask, *, clip): ...",
        "def original(logps, *, mask, clip=0.2): ...",
        "def original(mask, logps, *, clip=0.2): ...",
        "def original(logps, mask, *, clip=0.2, level='token'): ...",
        "def original(logps, mask, *, clip=0.2, **more): ...",
    ],
)
def test_an_unequal_twin_is_reported(source: str):
    assert len(missing_twins(module_of(ORIGINAL), module_of(source))) == 1


@pytest.mark.parametrize("path", sorted(MLX_FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_nothing_but_mlx_computes(path: Path):
    assert foreign_imports(path.read_text()) == set()


def test_a_foreign_import_is_reported():
    assert foreign_imports("import numpy as np\ndef f():\n    from torch import nn") == {
        "numpy",
        "torch",
    }


def test_torch_is_not_loaded():
    code = "import sctom.mlx_port.losses, sys; print('torch' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "False\n"


OBJECTIVES = [
    item
    for item in vars(objectives).values()
    if inspect.isclass(item) and issubclass(item, Objective) and item is not Objective
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda objective: objective.__name__)
def test_every_objective_binds_and_gives_a_scalar_with_a_gradient(objective: type[Objective]):
    bound = objective().bind(sctom.mlx_port.losses)
    logps = mx.array([[-1.0, -2.0, -0.5], [-0.5, -1.5, -1.0]])
    mask = mx.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    if bound.value_loss is None:
        advantages = bound.advantages(mx.array([[1.0, 0.0]])).reshape(-1)
    else:
        rewards = mx.array([[0.0, 1.0, 0.0], [0.0, 0.0, -1.0]])
        advantages, _ = bound.advantages(rewards, mx.zeros((2, 3)), mask)

    def step(logps: mx.array) -> mx.array:
        losses = bound.loss(logps, mx.stop_gradient(logps), advantages, mask)
        return bound.reduce(losses, mask, Totals(tokens=5, sequences=2, length=4))

    loss, slope = mx.value_and_grad(step)(logps)
    assert loss.shape == ()
    # on-policy: the better completion's tokens are pushed up, the worse one's down
    assert (slope[0, :2] < 0).all() and (slope[1] > 0).all() and slope[0, 2] == 0

"""Imports go one way only, and what both frameworks share knows neither of them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SHARED = {"objectives", "objective_base", "batch", "shapes", "seeds", "checks"} | {
    "readers",
    "writers",
    "selection",
    "preferences",
    "assets",
}
ENTRIES = {"fit", "merge", "validate", "sample", "distill", "evaluate", "prepare", "rounds"} | {
    "report",
    "reward_eval",
    "refusals",
}

LAYERS = (  # from the bottom up: a part may import its own layer and those below
    {"__init__"},
    {"losses", "packed_linear"} | SHARED,
    {"sandbox"},
    {"rollout", "rewards", "tasks"},
    {"modules", "data", "callbacks"},
    {"mlx_port", "hints", "rundir", "rejection", "iterate", "commands"} | ENTRIES,
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}

TORCH_FREE = {"__init__", "rewards", "tasks", "sandbox"} | SHARED
LIGHTNING = {"lightning", "lightning_fabric", "pytorch_lightning"}
TORCH = {"torch", "torchmetrics", "peft", "accelerate"} | LIGHTNING

FORBIDDEN = dict.fromkeys(TORCH_FREE, TORCH | {"transformers", "mlx", "mlx_lm"})
FORBIDDEN |= dict.fromkeys(("losses", "packed_linear"), LIGHTNING | {"transformers"})
FORBIDDEN |= {"mlx_port": TORCH}

# what a part may import of sctom besides itself, where its layer alone would allow more
ALLOWED = dict.fromkeys(TORCH_FREE | {"mlx_port"}, TORCH_FREE) | {
    "losses": {"shapes", "packed_linear"}
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(node: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """Every (line, full name) imported, in functions too, but not under `if TYPE_CHECKING:`."""
    match node:
        case ast.Import():
            yield from ((node.lineno, alias.name) for alias in node.names)
        case ast.ImportFrom():
            package = module.split(".")[: -node.level] if node.level else []
            parts = [*package, *([node.module] if node.module else [])]
            yield from ((node.lineno, ".".join([*parts, alias.name])) for alias in node.names)
        case ast.Call(args=[ast.Constant(value=str(name)), *_]):
            if ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
                yield node.lineno, name
    inner = node.orelse if is_type_checking(node) else ast.iter_child_nodes(node)
    for child in inner:
        yield from imports(child, module)


def part_of(name: str) -> str:
    """The first name below sctom: "losses" of sctom.losses.kl, "__init__" of sctom.__version__."""
    first = name.split(".")[1:2]
    return first[0] if first and not first[0].startswith("__") else "__init__"


def broken_rules(module: str, source: str) -> list[str]:
    """What a module of sctom imports and must not, one sentence each."""
    part, tree = part_of(module), ast.parse(source)
    if part not in LAYER:
        return [f"{module} has no layer; give {part!r} one in tests/test_layers.py"]
    broken = []
    for line, name in imports(tree, module):
        root, imported = name.split(".")[0], part_of(name)
        where = f"{module}:{line} imports {name}"
        if root != "sctom":
            if root in FORBIDDEN.get(part, set()):
                broken.append(f"{where}, which sctom.{part} must not know")
        elif imported not in LAYER:
            broken.append(f"{where}, which has no layer; give it one in tests/test_layers.py")
        elif imported != part and imported not in ALLOWED.get(part, LAYER):
            broken.append(f"{where}, but sctom.{part} may import only {sorted(ALLOWED[part])}")
        elif LAYER[imported] > LAYER[part]:
            broken.append(f"{where}, which is above sctom.{part}")
    return broken


def sources() -> list[Path]:
    return sorted((ROOT / "sctom").rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=module_name)
def test_imports_go_down(path: Path):
    assert broken_rules(module_name(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("losses.policy", "import lightning as L"),
        ("losses.policy", "from lightning.pytorch import Trainer"),
        ("losses.policy", "from sctom.objectives import GRPO"),
        ("losses.policy", "from sctom import seeds"),
        ("rewards.base", "import torch"),
        ("rewards.base", "def f():\n    from torch import nn"),
        ("rewards.base", "import importlib\nimportlib.import_module('torch.nn')"),
        ("rewards.base", "torch = __import__('torch')"),
        ("rewards.base", "from sctom.losses import grpo_loss"),
        ("rewards.base", "from .. import losses"),
        ("rewards.base", "if TYPE_CHECKING:\n    import ast\nelse:\n    import torch"),
        ("tasks.gsm8k", "from transformers import AutoTokenizer"),
        ("readers", "from lightning_fabric import Fabric"),
        ("objectives", "import mlx.core as mx"),
        ("rollout.local", "from sctom.modules.policy import PolicyModule"),
        ("rollout.local", "from ..modules import policy"),
        ("modules.policy", "import sctom.fit"),
        ("modules.policy", "from sctom.mlx_port import losses"),
        ("mlx_port.fit", "import torch"),
        ("mlx_port.fit", "import sctom.losses"),
        ("mlx_port.fit", "from sctom.data import prompts"),
        ("modules.policy", "import sctom.utils"),
        ("utils", ""),
        ("__init__", "from sctom.losses import grpo_loss"),
        ("__init__", "import torch"),
    ],
)
def test_a_broken_rule_is_reported(module: str, source: str):
    assert len(broken_rules(f"sctom.{module}", source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("losses.policy", "import torch\nfrom sctom.shapes import check_shapes"),
        ("losses.policy", "from sctom.losses._shared import widen\nfrom . import reduce"),
        ("rewards.base", "if TYPE_CHECKING:\n    import torch"),
        ("rewards.base", "if typing.TYPE_CHECKING:\n    from sctom.modules import policy"),
        ("rewards.base", "'import torch'\nfrom .function import FunctionReward"),
        ("modules.policy", "import lightning\nfrom sctom.data import prompts\nimport sctom.losses"),
        ("mlx_port.fit", "import mlx.core\nfrom sctom import seeds\nfrom . import losses"),
        ("fit", "import sctom.modules, sctom.rewards"),
        ("rewards.base", "import sctom\nfrom sctom import __version__"),
    ],
)
def test_a_kept_rule_is_not_reported(module: str, source: str):
    assert broken_rules(f"sctom.{module}", source) == []


# what an import really loads ----------------------------------------------------------------------

HEAVY = TORCH | {"transformers", "mlx", "jax", "tensorflow"}


def loaded(statement: str, **environment: str) -> set[str]:
    """The names in `sys.modules` of a new interpreter after one statement."""
    run = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_import_sctom_is_instant():
    names = loaded("import sctom")
    assert "sctom" in names
    assert not [name for name in names if name.startswith(("sctom.", "numpy"))]
    assert not names & HEAVY


def test_what_both_frameworks_share_loads_neither():
    shared = [name for name in map(module_name, sources()) if part_of(name) in TORCH_FREE]
    names = loaded("import " + ", ".join(name.removesuffix(".__init__") for name in shared))
    assert {"sctom.objectives", "sctom.seeds", "sctom.batch", "sctom.shapes"} <= names
    assert not names & HEAVY


def test_a_heavy_import_would_be_seen(tmp_path: Path):
    (tmp_path / "torch.py").touch()
    assert "torch" in loaded("import torch", PYTHONPATH=str(tmp_path)) & HEAVY

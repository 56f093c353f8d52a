"""How far are the MLX losses from the torch losses, function by function?

    python scripts/parity.py [--write]

Runs the cases of tests/parity: MLX in float32 against torch in float64, values and gradients. With
--write the table goes to docs/parity.md. The exit code is 1 if a limit is broken.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

os.environ["MLX_ENABLE_TF32"] = "0"  # read at MLX's first matrix product
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import mlx.core as mx
from parity.engine import GRADIENT_LIMIT, VALUE_LIMIT, Comparison, compare, run_mlx, run_torch
from parity.registry import CASES, DIFFERENTIABLE, cases_of

import sctom.mlx_port.losses

DOCS = Path(__file__).parents[1] / "docs"
HEAD = ("function", "cases", "value", "limit", "gradient", "limit", "gradient of")
PAGE = """# Parity of the MLX losses

Written by `python scripts/parity.py --write`; do not edit. What is compared, and how:
[mlx.md](mlx.md).

The largest deviation of MLX in float32 from torch in float64 over all cases of a function. Of a
value: abs(mlx - torch) / max(1, abs(torch)). Of a gradient: the same over the largest entry of
torch's gradient. Where larger terms cancel in the gradient, as a few cases say, their size takes
the place of the 1.
A dash: no input of the function has a gradient in torch, and in MLX it is exactly 0.

{table}

mlx {mlx} on {device}, torch {torch}, {system}.
"""


def measured(name: str) -> tuple[Comparison, int]:
    """The worst deviations of a function, every problem, and the number of its cases."""
    worst = Comparison()
    for case in cases_of(name):
        claim = run_mlx(sctom.mlx_port.losses, name, case)
        found = compare(claim, run_torch(name, case), case, DIFFERENTIABLE.get(name, ()))
        worst.value = max(worst.value, found.value)
        worst.gradient = max(worst.gradient, found.gradient)
        worst.problems += [f"{name}, {case.label}: {problem}" for problem in found.problems]
    return worst, len(cases_of(name))


def row(name: str, worst: Comparison, cases: int) -> tuple[str, ...]:
    """A line of the table."""
    inputs = DIFFERENTIABLE.get(name, ())
    gradient = (f"{worst.gradient:.1e}", f"{GRADIENT_LIMIT:.0e}") if inputs else ("-", "-")
    values = (f"{worst.value:.1e}", f"{VALUE_LIMIT:.0e}")
    return (f"`{name}`", str(cases), *values, *gradient, ", ".join(inputs))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/parity.md as well")
    write = parser.parse_args().write
    rows, problems = [HEAD, ("---", *["---:"] * 5, "---")], []
    for name in sorted(CASES):
        worst, cases = measured(name)
        rows.append(row(name, worst, cases))
        problems += worst.problems
    table = "\n".join("| " + " | ".join(line) + " |" for line in rows)
    print(table)
    if problems:
        sys.exit("\n".join(problems))
    if write:
        page = PAGE.format(
            table=table,
            mlx=version("mlx"),
            device="the GPU" if "gpu" in str(mx.default_device()) else "the CPU",
            torch=version("torch"),
            system=f"{platform.system()} {platform.machine()}",
        )
        (DOCS / "parity.md").write_text(page)


if __name__ == "__main__":
    main()

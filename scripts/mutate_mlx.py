"""Plant known mistakes in copies of the MLX losses: do the parity cases notice every one?

    python scripts/mutate_mlx.py [grpo_loss kl_k3 ...]

Prints each mistake and the first case that noticed it. The exit code is 1 if a mistake survives or
cannot be planted because the source has changed. The mistakes are in tests/parity/mutants.py.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ["MLX_ENABLE_TF32"] = "0"  # read at MLX's first matrix product
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from parity.mutants import MUTANTS
from parity.planting import NotPlantedError, noticed


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("functions", nargs="*", help="names of losses; all if none is given")
    names = parser.parse_args().functions or sorted(MUTANTS)
    if unknown := sorted(set(names) - set(MUTANTS)):
        parser.error(f"no mistakes for {', '.join(unknown)}; there are some for {sorted(MUTANTS)}")
    survivors, caught = 0, 0
    for name in names:
        for where, old, new in MUTANTS[name]:
            try:
                outcome = noticed(name, (where, old, new))
            except NotPlantedError as error:
                outcome, survivors = f"NOT PLANTED: {error}", survivors + 1
            else:
                survivors, caught = survivors + (outcome is None), caught + (outcome is not None)
            print(f"{name}, {where}: {old!r} -> {new!r}\n    {outcome or 'SURVIVED'}")
    print(f"{caught} noticed, {survivors} not")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()

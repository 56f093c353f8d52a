from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ["MLX_ENABLE_TF32"] = "0"  # read at MLX's first matrix product
sys.path.insert(0, str(Path(__file__).parents[1]))

if find_spec("mlx") is None:  # the test modules skip with a reason, the modules they share cannot
    collect_ignore = ["engine.py", "registry.py", "planting.py"]

"""What pytest must know before it collects anything."""

import os
from importlib.util import find_spec

os.environ.setdefault("MLX_ENABLE_TF32", "0")  # read when MLX starts: parity needs whole float32

# the losses on MLX have doctests; without MLX they cannot even be imported
collect_ignore_glob = [] if find_spec("mlx") else ["sctom/mlx_port/losses/*"]

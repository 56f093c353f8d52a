"""The levels of the sandbox that this system could reach; a test skips one that it does not."""

from __future__ import annotations

import sys

LEVELS = ("seatbelt",) if sys.platform == "darwin" else ("bubblewrap", "landlock")

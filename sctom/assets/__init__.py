"""What sctom ships: the tiny model and its world.

A path that starts with "sctom:" lies in this folder.
"""

from __future__ import annotations

from pathlib import Path

_PREFIX = "sctom:"


def resolve(path: str | Path) -> Path:
    """Turn "sctom:tinyworld/model" into the folder inside the installed package.

    Other paths are left alone.

    >>> resolve("sctom:tinyworld/model").parts[-3:]
    ('assets', 'tinyworld', 'model')
    >>> str(resolve("data/train.jsonl"))
    'data/train.jsonl'
    """
    text = str(path)
    return Path(__file__).parent / text[len(_PREFIX) :] if text.startswith(_PREFIX) else Path(path)

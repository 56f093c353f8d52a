"""A reward that raises on about 1 in 10 completions, abstains on 1 in 10, and hangs on 1 in 100."""

from __future__ import annotations

import hashlib


def mood(text: str) -> int:
    """0 to 99, the same for the same text in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 100


def reward(completions, **kwargs):
    """The number of words of one completion, if the mood allows."""
    (completion,) = completions
    text = completion[0]["content"]
    number = mood(text)
    if number < 10:
        raise KeyError("gone")
    if number == 99:
        while True:
            pass
    return [None if number < 20 else float(len(text.split()) + len(text) / 100)]

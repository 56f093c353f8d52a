"""What TRL's rewards read of a completion."""

from __future__ import annotations

from typing import Any


def first_content(completion: Any) -> Any:
    """The content of the first message, as TRL reads it; plain text, which TRL refuses, is itself.

    Raises:
        IndexError: there are no messages.
        KeyError: the first one has no content.

    >>> first_content([{"role": "assistant", "content": "4"}, {"role": "user", "content": "Sure?"}])
    '4'
    """
    return completion if isinstance(completion, str) else completion[0]["content"]

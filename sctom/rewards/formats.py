"""Is the reasoning inside its tags? TRL's `think_format_reward`, and a strict one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sctom.rewards.base import Reward, Values, completion_text
from sctom.rewards.first_message import first_content

OPEN, CLOSE = "<think>", "</think>"


def think_format_reward(
    completions: Sequence[Any],
    *,
    strict: bool = False,
    prefilled: bool = False,
    **kwargs: Any,
) -> Values:
    r"""1.0 where a completion begins with its reasoning between `<think>` and `</think>`, else 0.0.

    As in TRL an empty reasoning or answer will do, and so does more than one `</think>`; nothing
    may come before the first tag, and there may be no second `<think>` anywhere.

    Args:
        completions: texts or lists of messages, of which the first is read (strict: the last).
        strict: exactly one tag of each kind, reasoning and answer are not empty, and space before
            the first tag does not matter.
        prefilled: strict only: the prompt ends with `<think>`, so the completion has none.
        **kwargs: what TRL's trainer passes besides; not used, as in TRL.

    Raises:
        TypeError: the content of a message is not a text.
        ValueError: strict, and the last message is not a text; or prefilled without strict.

    >>> think_format_reward(["<think>2+2</think>4", "2+2</think>4", "<think></think>"])
    [1.0, 0.0, 1.0]
    >>> think_format_reward(["2+2</think>4", "</think>"], strict=True, prefilled=True)
    [1.0, 0.0]
    """
    if not strict:
        if prefilled:
            raise ValueError("prefilled needs strict=True; TRL's values know no such prompts")
        contents = [first_content(completion) for completion in completions]
        return [_as_trl(content) for content in contents]
    return [_strictly(completion_text(completion), prefilled) for completion in completions]


def _as_trl(content: Any) -> float:
    if not isinstance(content, str):
        raise TypeError(f"expected the content of a message to be text, found {content!r:.60}")
    rest = content[len(OPEN) :]
    return float(content.startswith(OPEN) and OPEN not in rest and CLOSE in rest)


def _strictly(text: str, prefilled: bool) -> float:
    text = text.lstrip("\ufeff \t\r\n")
    if not prefilled:
        if not text.startswith(OPEN):
            return 0.0
        text = text.removeprefix(OPEN)
    if OPEN in text or text.count(CLOSE) != 1:
        return 0.0
    reasoning, _, answer = text.partition(CLOSE)
    return float(bool(reasoning.strip() and answer.strip()))


class ThinkFormatReward(Reward):
    """`think_format_reward` for a config.

    Args:
        strict: without TRL's traps.
        prefilled: strict only: the prompt ends with `<think>`.
        settings: `weight`, `name`, `on_error`, `error_value`, `cache` and `clip` of `Reward`.

    Raises:
        ValueError: prefilled without strict.

    >>> ThinkFormatReward(strict=True)(["<think>2+2</think>4", "<think></think>4"])
    [1.0, 0.0]
    """

    def __init__(
        self,
        strict: bool = False,
        prefilled: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.strict, self.prefilled = strict, prefilled
        think_format_reward([], strict=strict, prefilled=prefilled)  # refuses what makes no sense

    def __call__(self, completions: Sequence[Any]) -> Values:
        """1.0 or 0.0 for each completion."""
        return think_format_reward(completions, strict=self.strict, prefilled=self.prefilled)

"""parseResponseConfig: the text of a response, or the last match of a pattern in it.

Patterns are RE2's, which take time linear in the text, so that none can hang. As in GoogleSQL, a
pattern has at most one group, and "." does not match the end of a line unless it says (?s).
"""

from __future__ import annotations

import functools
from typing import Any

import re2

from sctom.rewards.base import RewardError
from sctom.rewards.google.outcome import ScoreError
from sctom.rewards.google.schema import Parse

_MAX_MATCHES = 10_000
"""Each match may read the rest of the text, so that many are not linear any more."""


def compile_pattern(pattern: str, place: str) -> Any:
    """A pattern of RE2.

    Raises:
        RewardError: RE2 cannot do it (look-around, back-references), or it is malformed.

    >>> compile_pattern("(?=a)", "regexExtractExpression")
    Traceback (most recent call last):
        ...
    sctom.rewards.base.RewardError: regexExtractExpression: RE2 cannot use the pattern '(?=a)': \
invalid perl operator: (?=
    """
    try:
        return _compiled(well_formed(pattern))
    except re2.error as error:
        said = error.args[0]
        reason = said.decode(errors="replace") if isinstance(said, bytes) else said
        message = f"{place}: RE2 cannot use the pattern {pattern!r:.200}: {reason}"
        raise RewardError(message) from error


class Parser:
    """A parse config that is ready to be called.

    Args:
        config: what to parse.

    Raises:
        RewardError: RE2 cannot use the pattern, or it has more than one group.

    >>> Parser(Parse("<answer>(.*?)</answer>"))("<answer>3</answer> No: <answer>4</answer>")
    '4'
    """

    def __init__(self, config: Parse) -> None:
        self.is_identity = config.pattern is None
        self._pattern = None
        if config.pattern is not None:
            self._pattern = compile_pattern(config.pattern, config.place)
            if self._pattern.groups > 1:
                said = f"expected at most one group, found {self._pattern.groups}"
                raise RewardError(f"{config.place}: {said}; write the others as (?:...)")

    def __call__(self, text: str) -> str | None:
        """The text; or the group of the last match, the match itself without a group.

        Returns:
            None where nothing matches, or the group has no part in the last match.

        Raises:
            ScoreError: the pattern matches more than 10,000 times.
        """
        if self._pattern is None:
            return text
        last = None
        for count, match in enumerate(self._pattern.finditer(well_formed(text))):
            if count == _MAX_MATCHES:
                raise ScoreError(f"the pattern matches more than {_MAX_MATCHES} times")
            last = match
        if last is None:
            return None
        extracted: str | None = last.group(self._pattern.groups)
        return extracted


def well_formed(text: str) -> str:
    r"""The text with U+FFFD in place of halves of surrogate pairs, which have no UTF-8.

    >>> well_formed("a\ud800b")
    'a\ufffdb'
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(pattern, options)

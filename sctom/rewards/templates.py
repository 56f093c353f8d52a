"""Templates with {{prompt}}, {{response}}, {{system_instruction}} and {{references.key}}.

Single braces are text, so a template may hold JSON and the {2,3} of a pattern as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from sctom.readers import nearest
from sctom.rewards.base import RewardError

_PLACEHOLDER = re.compile(r"\{\{([^{}]*)\}\}")
_SINGLE_BRACES = re.compile(r"\{(prompt|response|system_instruction|references\.[^{}\s]+)\}")
_REFERENCE = "references."


def check_template(template: str, place: str, allowed: tuple[str, ...]) -> list[str]:
    """Check a template before it is filled.

    Args:
        template: text with placeholders.
        place: where it is from; every error begins with it.
        allowed: the placeholders it may have, of "prompt", "response", "system_instruction" and
            "references".

    Returns:
        The keys of the references it uses, each once.

    Raises:
        RewardError: a placeholder is unknown or not allowed here, or braces do not pair.

    >>> check_template("Is {{response}} the same as {{references.answer}}?", "prompt",
    ...                ("response", "references"))
    ['answer']
    >>> check_template("Is {{respnse}} right?", "prompt", ("response", "references"))
    Traceback (most recent call last):
        ...
    sctom.rewards.base.RewardError: prompt: unknown placeholder {{respnse}}; known here: \
{{response}}, {{references.key}}. Did you mean 'response'?
    """
    known = ["references.key" if name == "references" else name for name in allowed]
    there = f"known here: {', '.join(map(_braced, known))}."
    keys: dict[str, None] = {}
    for name in _PLACEHOLDER.findall(template):
        key = name.removeprefix(_REFERENCE)
        if key and key != name and key == key.strip() and "references" in allowed:
            keys[key] = None
        elif name == "references" or name not in allowed:
            hint = nearest(name.strip(), known)
            raise RewardError(f"{place}: unknown placeholder {_braced(name)}; {there}{hint}")
    for text in _PLACEHOLDER.split(template)[::2]:
        if "{{" in text:
            found = text[text.index("{{") :]
            raise RewardError(f"{place}: braces that do not pair at {found!r:.60}; {there}")
        if single := _SINGLE_BRACES.search(text):
            raise RewardError(f"{place}: {single[0]} has single braces; write {{{single[0]}}}")
    return list(keys)


def _braced(name: str) -> str:
    return "{{" + name + "}}"


def fill(
    template: str,
    *,
    prompt: str = "",
    response: str = "",
    system_instruction: str = "",
    references: Mapping[str, str] | None = None,
    escape: Callable[[str], str] | None = None,
) -> str:
    """Fill a template, in a single pass: placeholders in what is filled in stay text.

    Args:
        template: what `check_template` takes.
        prompt: for {{prompt}}.
        response: for {{response}}.
        system_instruction: for {{system_instruction}}.
        references: key -> text, for {{references.key}}.
        escape: applied to each value that is filled in.

    Raises:
        RewardError: there is no such reference, or no such placeholder.

    >>> fill("{{prompt}} {{references.sum}}!", prompt="{{response}}?", references={"sum": "4"})
    '{{response}}? 4!'
    """
    values = {
        "prompt": prompt,
        "response": response,
        "system_instruction": system_instruction,
        **{_REFERENCE + key: value for key, value in (references or {}).items()},
    }

    def value(found: re.Match[str]) -> str:
        if found[1] not in values:
            _missing(found[1], list(references or {}))
        return values[found[1]] if escape is None else escape(values[found[1]])

    return _PLACEHOLDER.sub(value, template)


def _missing(name: str, keys: list[str]) -> NoReturn:
    if not name.startswith(_REFERENCE):
        raise RewardError(f"unknown placeholder {_braced(name)}")
    key = name.removeprefix(_REFERENCE)
    there = f"it has: {', '.join(keys) or 'none'}.{nearest(key, keys)}"
    raise RewardError(f"the example has no reference {key!r}; {there}")

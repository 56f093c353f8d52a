"""Google's example lines (contents, systemInstruction, references) to messages, and back.

A line of a reinforcement-tuning data set is a `ReinforcementTuningExample` in ProtoJSON:

    {"systemInstruction": {"parts": [{"text": "Be brief."}]},
     "contents": [{"role": "user", "parts": [{"text": "Capital of France?"}]}],
     "references": {"answer": "Paris"}}

Keys may be camelCase or snake_case; what is handed on is camelCase, as `evaluate` and an HTTP
service get it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sctom.readers import DataError, Row, check_messages, nearest

Content = dict[str, Any]
"""{"role": "user" | "model", "parts": [{"text": ...}, ...]}."""

_EXAMPLE_KEYS = ("contents", "systemInstruction", "references", "tools")
_CONTENT_KEYS = ("role", "parts")
_PART_KEYS = ("text", "thought", "thoughtSignature")
_OTHER_PARTS = (
    "fileData",
    "inlineData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "videoMetadata",
)
_TO_OURS = {"user": "user", "model": "assistant"}
_TO_GOOGLE = {"user": "user", "assistant": "model"}


def camel(key: str) -> str:
    """A key in camelCase, as ProtoJSON writes it.

    >>> camel("system_instruction"), camel("systemInstruction")
    ('systemInstruction', 'systemInstruction')
    """
    return re.sub("_([a-z0-9])", lambda found: found[1].upper(), key)


def content_from_text(text: str, role: str = "model") -> Content:
    """A text as Google's Content.

    >>> content_from_text("Paris")
    {'role': 'model', 'parts': [{'text': 'Paris'}]}
    """
    return {"role": role, "parts": [{"text": text}]}


def content_text(content: Mapping[str, Any]) -> str:
    """The text of a Content: its parts joined, without those that are thoughts.

    >>> content_text({"parts": [{"text": "Hm.", "thought": True}, {"text": "Pa"}, {"text": "ris"}]})
    'Paris'
    """
    parts = [part for part in content["parts"] if not part.get("thought", False)]
    return "".join(part.get("text", "") for part in parts)


def read_content(content: Any, place: str) -> Content:
    """A Content in camelCase, after checking it.

    Only text is read: this library trains text models.

    Args:
        content: an object with "parts" and, maybe, "role".
        place: where it is from; every error begins with it.

    Raises:
        DataError: it has another form, or a part is not text.

    >>> read_content({"parts": [{"text": "Paris"}]}, "sampleResponse")
    {'parts': [{'text': 'Paris'}]}
    """
    read = _object(content, _CONTENT_KEYS, place)
    if not isinstance(read.get("role", ""), str):
        raise DataError(f"{place}.role must be a string, found {read['role']!r:.60}")
    parts = read.get("parts")
    if not isinstance(parts, list) or not parts:
        raise DataError(f"{place}.parts must be a list of at least one part, found {parts!r:.60}")
    read["parts"] = [_part(part, f"{place}.parts[{index}]") for index, part in enumerate(parts)]
    return read


def read_example(example: Any, place: str) -> dict[str, Any]:
    """An example line in camelCase, after checking it.

    Args:
        example: the line, with camelCase or snake_case keys.
        place: where the line is from, as "file:line"; every error begins with it.

    Raises:
        DataError: it has another form, an unknown key, tools, or a part that is not text.

    >>> line = {"contents": [{"role": "user", "parts": [{"text": "2+2?"}]}],
    ...         "system_instruction": {"parts": [{"text": "Count."}]}, "references": {"sum": "4"}}
    >>> list(read_example(line, "train.jsonl:1"))
    ['contents', 'systemInstruction', 'references']
    """
    read = _object(example, _EXAMPLE_KEYS, place)
    if read.pop("tools", None):
        raise DataError(f"{place}: tools are not supported; leave the key out")
    contents = read.get("contents")
    if not isinstance(contents, list) or not contents:
        found = f"found {contents!r:.60}"
        raise DataError(f"{place}: contents must be a list of at least one turn, {found}")
    read["contents"] = [
        read_content(content, f"{place}: contents[{index}]")
        for index, content in enumerate(contents)
    ]
    if "systemInstruction" in read:
        instruction = read["systemInstruction"]
        read["systemInstruction"] = read_content(instruction, f"{place}: systemInstruction")
    if "references" in read:
        read["references"] = check_references(read["references"], place)
    return read


def check_references(references: Any, place: str) -> dict[str, str]:
    """The references of an example: key -> text.

    Raises:
        DataError: they are not an object of strings.
    """
    if not isinstance(references, Mapping):
        found = type(references).__name__
        raise DataError(f"{place}: references must be an object of strings, but is a {found}")
    for key, value in references.items():
        if not isinstance(key, str) or not isinstance(value, str):
            expected = "references hold strings only; put quotes around it"
            raise DataError(f"{place}: references[{key!r}] is {value!r:.60}; {expected}")
    return dict(references)


def messages_from_example(example: Any, place: str = "example") -> Row:
    """A line of Google's as a row of ours: the columns messages, references and example.

    Thoughts among the contents are not part of the messages; `example` keeps them.

    Args:
        example: the line, with camelCase or snake_case keys.
        place: where the line is from, as "file:line"; every error begins with it.

    Returns:
        messages, the prompt; references, a dict of strings; example, the line in camelCase, which
        `GoogleReward` hands to what scores.

    Raises:
        DataError: see `read_example`; a role is neither user nor model; the last turn is not the
            user's.

    >>> row = messages_from_example({
    ...     "contents": [{"role": "user", "parts": [{"text": "Capital of France?"}]}],
    ...     "references": {"answer": "Paris"}})
    >>> row["messages"], row["references"]
    ([{'role': 'user', 'content': 'Capital of France?'}], {'answer': 'Paris'})
    """
    read = read_example(example, place)
    messages = []
    if "systemInstruction" in read:
        messages.append({"role": "system", "content": content_text(read["systemInstruction"])})
    for index, content in enumerate(read["contents"]):
        role = content.get("role", "user")
        if role not in _TO_OURS:
            hint = nearest(role, list(_TO_OURS))
            expected = f"expected user or model.{hint}"
            raise DataError(f"{place}: contents[{index}] has the role {role!r}; {expected}")
        messages.append({"role": _TO_OURS[role], "content": content_text(content)})
    if messages[-1]["role"] != "user":
        raise DataError(f"{place}: contents must end with a user's turn, which the model answers")
    return {"messages": messages, "references": read.get("references", {}), "example": read}


def example_from_messages(
    messages: str | Sequence[Mapping[str, str]], references: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A prompt as Google's example, in camelCase.

    Args:
        messages: a prompt: a text, or messages with a system message at their beginning or none.
        references: key -> text; None or empty leaves the key out.

    Raises:
        DataError: the messages have another form, or a system message comes later.

    >>> example_from_messages("Capital of France?", {"answer": "Paris"})
    {'contents': [{'role': 'user', 'parts': [{'text': 'Capital of France?'}]}], \
'references': {'answer': 'Paris'}}
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    turns = check_messages({"messages": [dict(turn) for turn in messages]}, "prompt")
    example: dict[str, Any] = {}
    if turns[0]["role"] == "system":
        example["systemInstruction"] = {"parts": [{"text": turns[0]["content"]}]}
        turns = turns[1:]
    for turn in turns:
        if turn["role"] == "system":
            raise DataError("prompt: a system message must be the first of the messages")
    example["contents"] = [
        content_from_text(turn["content"], _TO_GOOGLE[turn["role"]]) for turn in turns
    ]
    if references:
        example["references"] = check_references(references, "prompt")
    return example


def _part(part: Any, place: str) -> dict[str, Any]:
    if isinstance(part, Mapping):
        other = [key for key in part if isinstance(key, str) and camel(key) in _OTHER_PARTS]
        if other:
            raise DataError(f"{place} holds {other[0]}; only text is supported")
    read = _object(part, _PART_KEYS, place)
    if not isinstance(read.get("text"), str):
        raise DataError(f"{place}.text must be a string, found {read.get('text')!r:.60}")
    if not isinstance(read.get("thought", False), bool):
        raise DataError(f"{place}.thought must be true or false, found {read['thought']!r:.60}")
    return read


def _object(value: Any, known: Sequence[str], place: str) -> dict[str, Any]:
    """An object with its keys in camelCase; null is the same as a key that is left out."""
    if not isinstance(value, Mapping):
        hint = ' {"parts": [{"text": ...}]}' if isinstance(value, str) else ""
        found = f"{type(value).__name__} {value!r:.60}"
        raise DataError(f"{place} must be an object{hint}, found {found}")
    read: dict[str, Any] = {}
    for key, entry in value.items():
        name = camel(key) if isinstance(key, str) else key
        if name not in known:
            hint = nearest(name, list(known)) if isinstance(name, str) else ""
            raise DataError(f"{place}: unknown key {key!r}; known: {', '.join(known)}.{hint}")
        if name in read:
            raise DataError(f"{place}: {name} is given twice, in camelCase and in snake_case")
        if entry is not None:
            read[name] = entry
    return read

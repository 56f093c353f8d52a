"""The one rendering of chat messages to token ids: the same for training and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

Message = dict[str, str]
Learn = Literal["all", "last"]
"""Which turns of the assistant are learned."""


def render_prompt(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Token ids of a prompt: the messages by the chat template, opened for the assistant's turn.

    Special tokens are the template's alone: the tokenizer adds none.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        messages: {"role", "content"} each; the last one is not the assistant's.

    Raises:
        ValueError: there is no chat template, the last turn is the assistant's, or BOS is doubled.

    >>> from sctom.modules.backbone import Backbone
    >>> tokenizer = Backbone("sctom:tinyworld/model").load_tokenizer()
    >>> ids = render_prompt(tokenizer, [{"role": "user", "content": "Where does Kalomi live?"}])
    >>> tokenizer.decode(ids)
    '<|user|>Where does Kalomi live?<|assistant|>'
    """
    if messages and messages[-1]["role"] == "assistant":
        raise ValueError(
            "a prompt must end before the assistant's turn, but its last message is the "
            "assistant's; drop that message, or use render_dialogue"
        )
    return _render(tokenizer, messages, open_turn=True)


def render_dialogue(
    tokenizer: Any, messages: Sequence[Message], *, learn: Learn = "all"
) -> tuple[list[int], list[int]]:
    """Token ids of a whole dialogue, and which of them the assistant is to learn.

    The mask is 1 on what the assistant says, up to and including the token that ends its turn, and
    0 on everything else: other turns, role headers, and what the template writes after the end of a
    turn. It is found by rendering the dialogue up to each turn of the assistant, opened and closed,
    so it holds for any template whose renderings are prefixes of one another; with `learn` "last"
    the template may render earlier turns as it likes.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        messages: {"role", "content"} each, at least one of them the assistant's.
        learn: "all", or "last" for a mask that is 0 on all before the assistant's last turn.

    Returns:
        ids, and a mask of the same length. Tokens after the assistant's last turn are left out.

    Raises:
        ValueError: there is no chat template; no turn is the assistant's; the template renders a
            turn differently once another follows; it does not end the assistant's turn with a token
            of its own; it writes nothing in front of the first turn that is learned; or BOS is
            doubled.

    >>> from sctom.modules.backbone import Backbone
    >>> tokenizer = Backbone("sctom:tinyworld/model").load_tokenizer()
    >>> question = {"role": "user", "content": "Where does Kalomi live?"}
    >>> answer = {"role": "assistant", "content": "Berlin"}
    >>> ids, mask = render_dialogue(tokenizer, [question, answer])
    >>> tokenizer.decode([i for i, counts in zip(ids, mask) if counts])
    'Berlin<|end|>'
    """
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns:
        roles = ", ".join(message["role"] for message in messages) or "none"
        raise ValueError(
            f"a dialogue needs a turn of the assistant to learn from; found the roles: {roles}"
        )
    ids: list[int] = []
    mask: list[int] = []
    for turn in turns if learn == "all" else turns[-1:]:
        before = _render(tokenizer, messages[:turn], open_turn=True) if turn else []
        opened = _extend(ids, before, turn)
        mask += [0] * (len(opened) - len(mask))
        closed = _extend(opened, _render(tokenizer, messages[: turn + 1], open_turn=False), turn)
        ids = closed[: _end_of_turn(tokenizer, closed, len(opened), turn)]
        mask += [1] * (len(ids) - len(mask))
    if mask[0]:
        raise ValueError(
            f"messages[{turns[0]}]: the chat template writes nothing in front of it, so nothing "
            "predicts its first token; begin with a turn of the user"
        )
    return ids, mask


def render_answer(
    tokenizer: Any, messages: Sequence[Message], text: str
) -> tuple[list[int], list[int]]:
    """Token ids of a prompt, and those of an answer to it up to the token that ends the turn.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        messages: the prompt, as for `render_prompt`.
        text: what the assistant says, which may be nothing.

    Raises:
        ValueError: see `render_prompt`; or the template renders the prompt differently once the
            answer is there, or does not end the assistant's turn with a token of its own.

    >>> from sctom.modules.backbone import Backbone
    >>> tokenizer = Backbone("sctom:tinyworld/model").load_tokenizer()
    >>> asked = [{"role": "user", "content": "Where does Kalomi live?"}]
    >>> [tokenizer.decode(ids) for ids in render_answer(tokenizer, asked, "Berlin")]
    ['<|user|>Where does Kalomi live?<|assistant|>', 'Berlin<|end|>']
    """
    turn = len(messages)
    opened = render_prompt(tokenizer, messages)
    answered = [*messages, {"role": "assistant", "content": text}]
    closed = _extend(opened, _render(tokenizer, answered, open_turn=False), turn)
    return opened, closed[len(opened) : _end_of_turn(tokenizer, closed, len(opened), turn)]


def check_length(ids: Sequence[int], limit: int, *, place: str) -> None:
    """Refuse a prompt or dialogue that is too long; nothing is ever cut.

    Args:
        ids: its token ids.
        limit: largest number of tokens.
        place: what it is, such as "train.jsonl:17"; the error begins with it.

    Raises:
        ValueError: with the place, the length and the limit.

    >>> check_length([5, 6, 7], 2, place="train.jsonl:17")
    Traceback (most recent call last):
        ...
    ValueError: train.jsonl:17: 3 tokens, but the limit is 2; shorten or drop it, or raise the limit
    """
    if len(ids) > limit:
        raise ValueError(
            f"{place}: {len(ids)} tokens, but the limit is {limit}; shorten or drop it, "
            "or raise the limit"
        )


def _render(tokenizer: Any, messages: Sequence[Message], *, open_turn: bool) -> list[int]:
    if tokenizer.chat_template is None:
        name = tokenizer.name_or_path or type(tokenizer).__name__
        raise ValueError(
            f"the tokenizer {name} has no chat template, so messages cannot be rendered; use the "
            "tokenizer of an instruction-tuned model, or set its chat_template"
        )
    text = tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=open_turn
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    bos = tokenizer.bos_token_id
    if bos is not None and ids[:2] == [bos, bos]:
        raise ValueError(
            f"the rendered messages begin with two {tokenizer.bos_token!r}: the chat template "
            "writes one, and the tokenizer or the first message another; remove one of them"
        )
    return ids


def _extend(shorter: list[int], longer: list[int], turn: int) -> list[int]:
    """`longer`, once it is known to begin with `shorter`."""
    if longer[: len(shorter)] != shorter:
        raise ValueError(
            f"messages[{turn}]: the chat template (or the tokenizer, at a boundary) renders what "
            "comes before differently once this turn is there, so the assistant's tokens cannot be "
            "found; write a row for each turn of the assistant that ends with it and has "
            "learn: last, or use a template that leaves earlier turns alone"
        )
    return longer


def _end_of_turn(tokenizer: Any, ids: list[int], start: int, turn: int) -> int:
    """Where the turn `ids[start:]` ends: after its special token, before any white space."""
    special = tokenizer.added_tokens_decoder
    end = len(ids)
    while (
        end > start and ids[end - 1] not in special and not tokenizer.decode(ids[end - 1]).strip()
    ):
        end -= 1
    if end == start or ids[end - 1] not in special:
        found = tokenizer.decode(ids[start:])[-20:]
        raise ValueError(
            f"messages[{turn}]: the chat template ends the assistant's turn with {found!r}, not "
            "with a special token, so the model would never learn to stop; let the template end "
            "the turn with the tokenizer's eos_token"
        )
    return end

"""Models that judge: the interface, and any server that speaks OpenAI's chat completions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from sctom.rewards.base import RewardError
from sctom.rewards.remote import (
    RemoteError,
    Turns,
    address,
    check_times,
    check_url,
    post_json,
    secret,
)

Message = Mapping[str, str]
"""{"role": ..., "content": ...}."""
Cut = Literal["error", "keep"]
"""What becomes of a reply that the limit of tokens cut off."""

_SET_HERE = ("model", "messages", "n", "max_tokens", "temperature", "seed", "stream")
_WAITS = (1.0, 2.0, 4.0)


class JudgeError(RemoteError):
    """A judge's reply cannot be used."""


class Judge(Protocol):
    """A model that is asked for its judgement."""

    async def replies(self, messages: Sequence[Message], count: int) -> list[str]:
        """Several replies to the same messages.

        Args:
            messages: what the judge is asked.
            count: how many replies.

        Returns:
            `count` texts, none of them blank.

        Raises:
            RemoteError: it did not give them.
        """
        ...


@runtime_checkable
class CheckedJudge(Judge, Protocol):
    """A judge that can be looked at before a run starts."""

    def check(self) -> None:
        """Look whether what it depends on is there.

        Raises:
            RewardError: it is not.
        """
        ...

    def describe(self) -> list[str]:
        """Lines that say whom it asks."""
        ...


class ChatEndpoint(CheckedJudge):
    """A model behind an OpenAI-compatible server: POST {url}/chat/completions.

    A server that ignores `n` and sends one choice is asked again for the others; with a seed each
    of those requests has a seed of its own, since the same one would give the same reply.

    Args:
        url: address up to and with the version, http://127.0.0.1:8000/v1, or of the method itself.
        model: the server's name of the model.
        key_env: environment variable with the key that is sent as `Authorization: Bearer ...`.
        temperature: of the replies.
        max_tokens: longest reply.
        seed: of the first reply, for servers that know it; None sends none.
        cut: what becomes of a reply that `max_tokens` cut off.
        seconds: for one try, from connecting to the last byte.
        waits: seconds before each further try; null: 1, 2, 4.
        at_once: most requests that go on at a time.
        options: further fields of the request, such as {"top_p": 0.9}.

    Raises:
        RewardError: a setting is out of range.

    >>> ChatEndpoint("http://127.0.0.1:8000/v1", "judge").url
    'http://127.0.0.1:8000/v1/chat/completions'
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_env: str | None = None,
        temperature: float = 1.0,
        max_tokens: int = 1024,
        seed: int | None = None,
        cut: Cut = "error",
        seconds: float = 60.0,
        waits: list[float] | None = None,
        at_once: int = 16,
        options: dict[str, Any] | None = None,
    ) -> None:
        parts = check_url(url)
        path = parts.path.rstrip("/")
        if not path.endswith("/chat/completions"):
            path += "/chat/completions"
        self.url = parts._replace(path=path).geturl()
        self.model = model
        self.key_env = key_env
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.seed = seed
        self.cut = cut
        self.seconds = seconds
        self.waits = _WAITS if waits is None else tuple(waits)
        self.options = dict(options or {})
        self._turns = Turns(at_once)
        self._takes_n = True
        self._check_settings()

    def _check_settings(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise RewardError(f"temperature must be 0 or more, not {self.temperature}")
        if self.max_tokens < 1:
            raise RewardError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.cut not in get_args(Cut):
            raise RewardError(f"cut must be one of {', '.join(get_args(Cut))}, not {self.cut!r}")
        check_times(self.seconds, self.waits)
        for name in self.options:
            if name in _SET_HERE:
                raise RewardError(f"options has {name!r}, which is a setting or set by us")

    def check(self) -> None:
        """Check that the key is there.

        Raises:
            RewardError: it is not.
        """
        self._headers()

    def describe(self) -> list[str]:
        """Whom it asks, and the limits."""
        return [
            f"asks {self.model} at {address(self.url)}: {self.seconds:g} s a try, "
            f"{len(self.waits) + 1} tries"
        ]

    async def replies(self, messages: Sequence[Message], count: int) -> list[str]:
        """See `Judge.replies`.

        Raises:
            RemoteError: no answer, or one without choices; JudgeError: a reply is empty, cut off
                (see `cut`), or was stopped by a filter.
            RewardError: the key is not there.
        """
        if count < 1:
            raise RewardError(f"the number of replies must be at least 1, not {count}")
        found: list[str] = []
        if self._takes_n:
            found = (await self._ask(messages, count, 0))[:count]
            self._takes_n = len(found) == count
        rest = range(len(found), count)
        more = await asyncio.gather(*(self._ask(messages, 1, number) for number in rest))
        return found + [texts[0] for texts in more]

    async def top_logprobs(self, messages: Sequence[Message], most: int = 5) -> dict[str, float]:
        """The likeliest first tokens of a reply, with their log-probabilities.

        Tokens that are written alike are added up.

        Args:
            messages: what the judge is asked.
            most: how many tokens; servers have limits, OpenAI's is 20.

        Raises:
            RemoteError: no answer; JudgeError: the server does not give log-probabilities.
            RewardError: the key is not there.
        """
        wanted = {"logprobs": True, "top_logprobs": most, "max_tokens": 1}
        choice = (await self._choices({**self._body(messages, 1, 0), **wanted}))[0]
        logprobs = choice.get("logprobs")
        content = logprobs.get("content") if isinstance(logprobs, dict) else None
        first = content[0] if isinstance(content, list) and content else None
        tokens = first.get("top_logprobs") if isinstance(first, dict) else None
        if not isinstance(tokens, list) or not tokens:
            raise self._error(
                "was asked for logprobs and sent none; it may ignore them, so use a server that "
                f"gives them. It sent {logprobs!r:.200}"
            )
        sums: dict[str, float] = {}
        for token in tokens:
            text = token.get("token") if isinstance(token, dict) else None
            logprob = token.get("logprob") if isinstance(token, dict) else None
            if not isinstance(text, str) or not isinstance(logprob, int | float):
                raise self._error(f"sent what is no token with a logprob: {token!r:.200}")
            sums[text] = sums.get(text, 0.0) + math.exp(min(logprob, 0.0))
        return {text: math.log(p) if p > 0 else -math.inf for text, p in sums.items()}

    def _body(self, messages: Sequence[Message], count: int, number: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            **self.options,
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        if count > 1:
            body["n"] = count
        if self.seed is not None:
            body["seed"] = self.seed + number
        return body

    async def _ask(self, messages: Sequence[Message], count: int, number: int) -> list[str]:
        choices = await self._choices(self._body(messages, count, number))
        return [self._text(choice) for choice in choices[:count]]

    async def _choices(self, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        async with self._turns.take():
            reply = await post_json(
                self.url, body, seconds=self.seconds, waits=self.waits, headers=self._headers()
            )
        choices = reply.get("choices") if isinstance(reply, dict) else None
        if not isinstance(choices, list) or not choices:
            raise self._error(f"sent no choices, but {reply!r:.200}")
        for choice in choices:
            if not isinstance(choice, dict):
                raise self._error(f"sent a choice that is not an object: {choice!r:.200}")
        return choices

    def _text(self, choice: Mapping[str, Any]) -> str:
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else None
        reason = choice.get("finish_reason")
        if reason == "content_filter":
            raise self._error("sent a reply that its filter stopped")
        if reason == "length" and self.cut == "error":
            cut = f"{text!r:.100}" if isinstance(text, str) else "nothing"
            raise self._error(
                f"sent a reply that is cut off at {self.max_tokens} tokens ({cut} so far); raise "
                "max_tokens, or set cut to keep"
            )
        if not isinstance(text, str) or not text.strip():
            raise self._error(f"sent a reply without text (finish_reason {reason!r:.40})")
        return text

    def _headers(self) -> dict[str, str]:
        if self.key_env is None:
            return {}
        return {"Authorization": f"Bearer {secret(self.key_env, setting='key_env')}"}

    def _error(self, said: str) -> JudgeError:
        return JudgeError(f"the judge {self.model} at {address(self.url)} {said}")

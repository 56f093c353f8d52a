"""JSON over HTTP, as rewards need it: bounded in time and size, tried again, and never trusted.

What a server sends is checked before it counts: status, length, encoding, and that it is JSON whose
numbers are finite. Redirects are not followed, so that a server cannot send a request, with its
headers, to another place.

Secrets are named by environment variables and read when they are sent; no error and no log line of
ours has a header's value, or the query of an address.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn
from urllib.parse import SplitResult, urlsplit
from weakref import WeakKeyDictionary

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from sctom.rewards.base import RewardError

WAITS = (2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds before each further try."""
LONGEST_WAIT = 60.0
"""Most seconds that a server's Retry-After is waited for."""
_CONNECTIONS = httpx.Limits(max_connections=256, max_keepalive_connections=32)
_SNIPPET = 200  # characters of a reply that an error shows


class RemoteError(RuntimeError):
    """A server gave no usable answer; the message names it, and what it did."""


BAD_ROW = (RemoteError, ValueError, TypeError, KeyError, AttributeError)
"""What becomes an error of one completion: no answer, or data of its row that cannot be sent."""


class _TryAgain(Exception):
    """What may pass: no connection, no answer in time, a server that is busy or broken."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class Turns:
    """At most so many at once on each event loop; further ones wait for their turn.

    >>> async def peak(turns):
    ...     running, most = 0, 0
    ...     async def work():
    ...         nonlocal running, most
    ...         async with turns.take():
    ...             running += 1
    ...             most = max(most, running)
    ...             await asyncio.sleep(0)
    ...             running -= 1
    ...     await asyncio.gather(*(work() for _ in range(5)))
    ...     return most
    >>> asyncio.run(peak(Turns(2)))
    2
    """

    def __init__(self, at_once: int) -> None:
        if at_once < 1:
            raise RewardError(f"at_once must be at least 1 but is {at_once}")
        self.at_once = at_once
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]
        self._loops = WeakKeyDictionary()

    def take(self) -> asyncio.Semaphore:
        """What to enter by `async with`."""
        return self._loops.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.at_once))


async def post_json(
    url: str,
    body: Mapping[str, Any],
    *,
    seconds: float = 300.0,
    waits: Sequence[float] = WAITS,
    headers: Mapping[str, str] | None = None,
    max_bytes: int = 1_000_000,
) -> Any:
    """Post a JSON object and give the JSON that comes back.

    Tried again, after each of the `waits`: no connection, a connection that breaks off, no complete
    answer within `seconds`, and the statuses 408, 429 and 5xx; their Retry-After is waited for
    where it is longer, up to a minute. Not tried again: other statuses, and answers that are
    complete and wrong.

    Args:
        url: what `check_url` takes.
        body: with finite numbers only.
        seconds: for one try, from connecting to the last byte of the answer, by the clock: a server
            that sends a byte now and then does not stretch it.
        waits: seconds before the second try, the third, ...; none: a single try.
        headers: sent along. Their values are secrets: no error has them.
        max_bytes: longest answer that is read.

    Raises:
        RemoteError: no usable answer, after all tries.
        RewardError: an address or a header that cannot be sent.
        ValueError: the body is not JSON.
    """
    check_url(url)
    sent = _checked_headers(headers or {})
    content = json.dumps(body, allow_nan=False).encode()

    async def once() -> Any:
        async with asyncio.timeout(seconds):
            return await _exchange(url, content, sent, max_bytes)

    tries = AsyncRetrying(
        retry=retry_if_exception_type((_TryAgain, TimeoutError, httpx.TransportError)),
        stop=stop_after_attempt(len(waits) + 1),
        wait=lambda state: _wait(state, waits),
        reraise=True,
    )
    try:
        return await tries(once)
    except (_TryAgain, TimeoutError, httpx.TransportError) as error:
        reason = _reason(error, seconds)
    tried = f", tried {len(waits) + 1} times" if waits else ""
    raise RemoteError(_hide(f"{address(url)}: {reason}{tried}", sent))


async def _exchange(url: str, content: bytes, headers: Mapping[str, str], max_bytes: int) -> Any:
    """One request and its answer, parsed."""
    client = await _client()
    async with client.stream("POST", url, content=content, headers=headers) as response:
        status = response.status_code
        if response.is_redirect:
            raise RemoteError(
                f"{address(url)} answered with a redirect ({status}), which is not followed; give "
                "the address it leads to"
            )
        packed = response.headers.get("content-encoding", "identity") != "identity"
        if response.is_success:
            if packed:
                raise RemoteError(
                    f"{address(url)} sent a compressed answer, which was not asked for and whose "
                    "size cannot be bounded"
                )
            data = _without_secrets(await _read(response, max_bytes, cut=False), headers)
            return _parsed(data, url, response.headers.get("content-type"), headers)
        said = b"" if packed else await _read(response, 4 * _SNIPPET, cut=True)
        text = _without_secrets(said, headers).decode("utf-8", "replace").strip()[:_SNIPPET]
        reason = f"status {status}" + (f": {text!r}" if text else "")
        if status in (408, 429) or status >= 500:
            raise _TryAgain(reason, _retry_after(response.headers.get("retry-after")))
        raise RemoteError(_hide(f"{address(url)}: {reason}", headers))


async def _read(response: httpx.Response, most: int, *, cut: bool) -> bytes:
    """The bytes of a response; those beyond `most` are left unread, or an error."""
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > most and not cut:
            place = address(str(response.url))
            raise RemoteError(f"{place} sent more than {most} bytes; raise max_bytes if it may")
        if len(data) > most:
            break
    return bytes(data[:most])


def _parsed(data: bytes, url: str, kind: str | None, headers: Mapping[str, str]) -> Any:
    try:
        value = json.loads(data, parse_constant=_refuse, parse_float=_finite)
        if b"\\ud" in data.lower():  # half a surrogate pair could not be written anywhere
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = f"{error}"
    else:
        return value
    said = data[: 4 * _SNIPPET].decode("utf-8", "replace")[:_SNIPPET]
    found = f"{said!r}, content type {kind}"
    raise RemoteError(_hide(f"{address(url)} sent what is not JSON ({reason}): {found}", headers))


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits:.40} is too large for a number")
    return number


def _wait(state: RetryCallState, waits: Sequence[float]) -> float:
    """Seconds before the next try; asked for after the last one too."""
    asked = 0.0
    if state.outcome is not None and isinstance(error := state.outcome.exception(), _TryAgain):
        asked = error.wait
    return max(*waits[state.attempt_number - 1 :][:1], asked, 0.0)


def _retry_after(value: str | None) -> float:
    """The seconds that a Retry-After header asks for, bounded; 0 where it cannot be read.

    >>> _retry_after("7"), _retry_after("86400"), _retry_after("soon"), _retry_after(None)
    (7.0, 60.0, 0.0, 0.0)
    >>> _retry_after("Fri, 31 Dec 1999 23:59:59 GMT")
    0.0
    """
    if value is None:
        return 0.0
    if value.isascii() and value.isdigit():
        return min(float(value[:9]), LONGEST_WAIT)
    try:
        until = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # of the year, for one
        return 0.0
    seconds = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), LONGEST_WAIT)


def _reason(error: Exception, seconds: float) -> str:
    if isinstance(error, _TryAgain):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no complete answer within {seconds:g} s"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


_Client = tuple[httpx.AsyncClient, AsyncGenerator[None, None]]
_CLIENTS: dict[asyncio.AbstractEventLoop, _Client] = {}


async def _client() -> httpx.AsyncClient:
    """The client of the running loop, opened once; it is closed with the loop."""
    loop = asyncio.get_running_loop()
    if loop not in _CLIENTS:
        client = httpx.AsyncClient(timeout=None, limits=_CONNECTIONS, follow_redirects=False)
        closer = _closed_with_the_loop(client)
        _CLIENTS[loop] = client, closer
        await anext(closer)
    return _CLIENTS[loop][0]


async def _closed_with_the_loop(client: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    try:
        yield  # asyncio.run ends asynchronous generators before it closes its loop
    finally:
        del _CLIENTS[asyncio.get_running_loop()]
        await client.aclose()


def check_url(url: str) -> SplitResult:
    """Check that an address can be posted to.

    Raises:
        RewardError: it is not http:// or https:// with a host, or holds a password or a fragment.

    >>> check_url("localhost:8000/score")
    Traceback (most recent call last):
        ...
    sctom.rewards.base.RewardError: the address must be http:// or https:// and a host, such as \
http://127.0.0.1:8000/score, but is 'localhost:8000/score'
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        usable = None
    if not usable:
        expected = "http:// or https:// and a host, such as http://127.0.0.1:8000/score"
        raise RewardError(f"the address must be {expected}, but is {address(url)!r}")
    if "@" in parts.netloc or parts.fragment:
        raise RewardError(
            f"the address {address(url)} must have no user, password or fragment; send secrets in "
            "a header whose value is in an environment variable"
        )
    return parts


def check_times(seconds: float, waits: Sequence[float]) -> None:
    """Check a time limit and the waits between tries.

    Raises:
        RewardError: the limit is not above 0, or a wait below it, or one of them is not finite.

    >>> check_times(60.0, [2.0, 4.0])
    """
    if not 0 < seconds < math.inf:
        raise RewardError(f"seconds must be above 0 and finite, not {seconds}")
    if not all(0 <= wait < math.inf for wait in waits):
        raise RewardError(f"waits must be 0 or more and finite, not {list(waits)}")


def address(url: str) -> str:
    """An address as errors show it, without its query or a user.

    >>> address("https://scorer.example/v1/score?key=secret")
    'https://scorer.example/v1/score'
    """
    start, separator, rest = url.split("?", 1)[0].rpartition("//")
    return f"{start}{separator}{rest.rpartition('@')[2]}"


def secret(variable: str, *, setting: str) -> str:
    """The value of an environment variable that holds a secret.

    Args:
        variable: its name.
        setting: the setting that names it, for the error.

    Raises:
        RewardError: it is not set, or cannot be sent in a header. The value is not shown.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        raise RewardError(
            f"the environment variable {variable}, named by {setting}, is not set; set it, or give "
            f"{setting} the name of another"
        )
    _checked_headers({setting: value})
    return value


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if not (name.isascii() and name.isprintable() and name.strip() == name and name):
            raise RewardError(f"{name!r} cannot be the name of a header")
        if not (value.isascii() and value.isprintable()):
            raise RewardError(f"the value of {name} holds characters that a header cannot")
    return {"Content-Type": "application/json", "Accept-Encoding": "identity", **headers}


def _without_secrets(data: bytes, headers: Mapping[str, str]) -> bytes:
    """What a server sent, without the secrets it was sent, before anything is read or cut off."""
    for secret_part in _secrets(headers):
        data = data.replace(secret_part.encode(), b"***")
    return data


def _hide(text: str, headers: Mapping[str, str]) -> str:
    """The text without the values of headers, should a server have sent them back."""
    for secret_part in _secrets(headers):
        text = text.replace(secret_part, "***")
    return text


def _secrets(headers: Mapping[str, str]) -> list[str]:
    values = [v for n, v in headers.items() if n not in ("Content-Type", "Accept-Encoding")]
    parts = [part for value in values for part in (value, *value.split()[1:])]
    return [part for part in parts if len(part) > 3]

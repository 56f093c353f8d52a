"""A real HTTP server on loopback that answers as a test tells it to, byte by byte if need be."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: Any
    at: float = field(default_factory=time.monotonic)


Answer = Callable[[socket.socket, Request], None]


def reply(
    body: bytes | str | Any, status: int = 200, *, kind: str = "application/json", **headers: str
) -> Answer:
    if not isinstance(body, bytes):
        body = (body if isinstance(body, str) else json.dumps(body)).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return raw("\r\n".join([*lines, "", ""]).encode() + body)


def raw(data: bytes) -> Answer:
    return lambda connection, _: connection.sendall(data)


def dripping(length: int, every: float) -> Answer:
    def answer(connection: socket.socket, _: Request) -> None:
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode())
        for _byte in range(length):
            connection.sendall(b" ")
            time.sleep(every)

    return answer


def slow(seconds: float, then: Answer) -> Answer:
    def answer(connection: socket.socket, request: Request) -> None:
        time.sleep(seconds)
        then(connection, request)

    return answer


def dropped(connection: socket.socket, _: Request) -> None:
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"rew')


def gone(connection: socket.socket, _: Request) -> None:
    """Closes the connection without a byte of an answer."""


class Loopback:
    """Gives its answers in turn, the last one for ever; or what a function of the request gives."""

    def __init__(self, *answers: Answer, by: Callable[[Request], Answer] | None = None) -> None:
        self.answers = list(answers)
        self.by = by
        self.requests: list[Request] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        loopback = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                loopback._serve(self)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 64

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/score"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self, handler: socketserver.StreamRequestHandler) -> None:
        line = handler.rfile.readline().decode()
        if not line:
            return
        headers: dict[str, str] = {}
        while (header := handler.rfile.readline().strip().decode()) != "":
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = json.loads(handler.rfile.read(int(headers["content-length"])))
        request = Request(line.split()[1], headers, body)
        with self._lock:
            self.requests.append(request)
            number = min(len(self.requests), len(self.answers)) - 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        answer = self.answers[number] if self.by is None else self.by(request)
        try:
            answer(handler.connection, request)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has given up
        finally:
            with self._lock:
                self._at_once -= 1

"""A web server whose answers a test writes byte for byte: for what real servers do on their worst days.

def answer(asked: Asked) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\\r\\nContent-Length: 10\\r\\n\\r\\nhalf"
    raise Hangup

with OddServer(answer) as server: …
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from typing import NamedTuple

from flaky_network import Listener, reset


class Asked(NamedTuple):
    """A request: its target as it was sent, its headers with names in lower case, and how many came before it."""

    target: str
    headers: dict[str, str]
    number: int

    @property
    def start(self) -> int:
        """The first byte that is wanted."""
        return int(self.headers["range"].removeprefix("bytes=").partition("-")[0]) if "range" in self.headers else 0


class Hangup(Exception):
    """Raised by an answer: the connection is reset."""


class Goodbye(Exception):
    """Raised by an answer: the connection is closed in good order."""


def head(status: str, *fields: str) -> bytes:
    """The head of an answer."""
    return "\r\n".join((f"HTTP/1.1 {status}", *fields, "", "")).encode()


def ranged(body: bytes, asked: Asked, *fields: str) -> bytes:
    """The head that a good server sends for a request of a range to the end, or of the whole."""
    start = asked.start
    if "range" not in asked.headers:
        return head("200 OK", f"Content-Length: {len(body)}", *fields)
    extent = f"Content-Range: bytes {start}-{len(body) - 1}/{len(body)}"
    return head("206 Partial Content", f"Content-Length: {len(body) - start}", extent, *fields)


def saying(answer: bytes) -> Callable[[Asked], Iterator[bytes]]:
    """The same to whatever is asked."""
    return lambda _asked: iter((answer,))


class OddServer(Listener):
    """Listens on a free port within a `with` block, with TLS if it is given; `asked` has all requests so far."""

    def __init__(self, answer: Callable[[Asked], Iterator[bytes]], tls: ssl.SSLContext | None = None) -> None:
        super().__init__("https" if tls else "http")
        self.asked: list[Asked] = []
        self._answer = answer
        self._tls = tls

    def targets(self) -> list[str]:
        return [asked.target for asked in self.asked]

    def starts(self, target: str = "") -> list[int]:
        """Where the requests began, all or those for one target, in the order of their arrival."""
        return [asked.start for asked in self.asked if target in ("", asked.target)]

    def _serve(self, client: socket.socket) -> None:
        sock = client
        if self._tls is not None:
            try:
                sock = self._tls.wrap_socket(sock, server_side=True)
            except OSError:
                sock.close()
                return  # the client does not trust it
            self._sockets.append(sock)
        with sock, sock.makefile("rb") as lines:
            try:
                while line := lines.readline():
                    fields = {}
                    while field := lines.readline().strip():
                        name, _, value = field.decode().partition(":")
                        fields[name.lower()] = value.strip()
                    asked = Asked(line.decode().split()[1], fields, len(self.asked))
                    self.asked.append(asked)
                    for piece in self._answer(asked):
                        sock.sendall(piece)
            except Hangup:
                reset(sock)
            except (Goodbye, OSError):
                pass

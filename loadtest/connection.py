"""A keep-alive HTTP connection for load tests, by `http.client`, whose `readinto` is the fastest in plain Python.

It follows no redirects and hides no failure: a broken connection fails the operation. It reconnects only if the server had
closed the kept-alive connection before the request.
"""

from __future__ import annotations

import http.client
import select
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from loadtest.addresses import Address

TIMEOUT_S = 60.0  # without a byte for this long, fail instead of hanging
READ_BYTES = 1 << 20
ANSWER_BYTES_MAX = 64 << 20  # for answers kept in memory; use `download` for larger ones


class HttpFailure(Exception):
    """An unexpected answer. `kind` is a short word for counting."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers with lower-case names, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> object:
        return msgspec.json.decode(self.body)


class Connection:
    """A keep-alive connection to one node. Not thread-safe; each worker has its own."""

    def __init__(self, address: Address, *, token: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._address = address
        self._headers = {"User-Agent": "dfc-loadtest"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._http = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s, blocksize=READ_BYTES)
        self._buffer = memoryview(bytearray(READ_BYTES))

    def close(self) -> None:
        self._http.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | Iterable[memoryview] | None = None,
        size: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and read the whole answer. `size` is the length of a body given in pieces."""
        sent = dict(headers or {})
        if body is not None:
            sent["Content-Length"] = str(len(body) if isinstance(body, bytes) else size)
        response = self._exchange(method, path, body, sent)
        data = response.read(ANSWER_BYTES_MAX)
        if not response.isclosed() and response.read(1):
            self.close()
            raise HttpFailure("too_long", f"the answer to {path} has more than {ANSWER_BYTES_MAX} bytes")
        return Answer(response.status, _lower(response), data)

    def download(self, path: str, sink: Callable[[memoryview], object], *, headers: Mapping[str, str] | None = None) -> Answer:
        """GET a path and pass the body to `sink` in pieces. The body of an answer other than 200 and 206 is returned."""
        response = self._exchange("GET", path, None, dict(headers or {}))
        if response.status not in (200, 206):
            return Answer(response.status, _lower(response), response.read(ANSWER_BYTES_MAX))
        while count := response.readinto(self._buffer):
            sink(self._buffer[:count])
        if response.length:
            self.close()
            raise HttpFailure("short_body", f"{path} ended {response.length} bytes early")
        return Answer(response.status, _lower(response), b"")

    def _exchange(
        self, method: str, path: str, body: bytes | Iterable[memoryview] | None, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        if self._http.sock is not None and _closed_by_peer(self._http.sock):
            self._http.close()
        try:
            try:
                self._http.request(method, self._address.prefix + path, body, {**self._headers, **headers})
            except (BrokenPipeError, ConnectionResetError):
                # The server may have answered before the end of the body, and that answer says more than the broken pipe.
                if self._http.sock is None:
                    raise
            return self._http.getresponse()
        except BaseException:
            self._http.close()
            raise


def _lower(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _closed_by_peer(sock: socket.socket) -> bool:
    """Whether the peer has closed an idle connection (or sent unexpected bytes)."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def failure_kind(error: BaseException) -> str:
    """A short word for an error, used to count it in the report."""
    if isinstance(error, HttpFailure):
        return error.kind
    if isinstance(error, TimeoutError):
        return "timeout"
    return type(error).__name__

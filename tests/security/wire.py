"""Raw connections for tests that attack: bytes go out exactly as given, and answers are read to the last byte.

A connection that is reset fails the test unless it asks otherwise: a client must get the answer that is due.
"""

from __future__ import annotations

import http.client
import json
import re
import select
import socket
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 120.0  # that a busy machine does not reach


@dataclass(frozen=True)
class Reply:
    """One answer. Header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The error code of an error in the one shape that errors have, in JSON or as a page; the empty string for other
        answers."""
        if self.status < 400 or not self.body:
            return ""
        if self.headers["content-type"].startswith("text/html"):
            found = re.search(rb'(?:<h1>|<p class="dim">)%d ([a-z_]+)[<,]' % self.status, self.body)
            assert found, self
            return found[1].decode()
        assert self.headers["content-type"] == "application/json", self
        value = json.loads(self.body)
        assert value.keys() == {"error"}, self
        assert value["error"].keys() == {"code", "message", "request_id"}, self
        code: str = value["error"]["code"]
        return code

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """A TCP connection to a node. `receive_buffer_bytes` makes a reader whose kernel takes little before it stalls."""

    def __init__(self, url: str, *, receive_buffer_bytes: int = 0) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.settimeout(TIMEOUT_S)
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.connect((parts.hostname, parts.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = bytearray()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- sending

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_while_open(self, data: bytes) -> int:
        """Send until the node refuses more, as a client does that never looks for an early answer; bytes that went out."""
        sent = 0
        try:
            while sent < len(data):
                sent += self.socket.send(data[sent : sent + 65536])
        except (ConnectionError, TimeoutError):
            pass
        return sent

    def head(self, method: str, target: str | bytes, headers: Mapping[str, str | bytes] | None = None) -> None:
        """A request head with `Host`, names and values as given."""
        target = target if isinstance(target, bytes) else target.encode()
        lines = [method.encode() + b" " + target + b" HTTP/1.1"]
        given = dict(headers or {})
        given.setdefault("Host", self.host)
        lines += [
            name.encode() + b": " + (value if isinstance(value, bytes) else value.encode()) for name, value in given.items()
        ]
        self.send(b"\r\n".join(lines) + b"\r\n\r\n")

    def end_sending(self) -> None:
        """FIN: nothing more will come, the answer is still wanted."""
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """RST: gone without a word."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    # --- receiving

    def _fill(self) -> bool:
        """Take more; False at the end. ConnectionResetError goes to the test."""
        data = self.socket.recv(1 << 16)
        self._read += data
        return bool(data)

    def _take(self, count: int) -> bytes:
        while len(self._read) < count:
            assert self._fill(), f"the answer is cut: {bytes(self._read[:500])!r}"
        taken = bytes(self._read[:count])
        del self._read[:count]
        return taken

    def _take_line(self) -> bytes:
        while b"\n" not in self._read:
            assert self._fill(), f"the connection ended instead of an answer: {bytes(self._read[:500])!r}"
        return self._take(self._read.index(b"\n") + 1)

    def answer(self, method: str = "GET") -> Reply:
        """The next answer, whole."""
        line = self._take_line()
        assert line.startswith(b"HTTP/1.1 "), line
        status = int(line.split()[1])
        headers: dict[str, str] = {}
        while (field := self._take_line()) != b"\r\n":
            name, _, value = field.decode("latin-1").partition(":")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value.strip()
        # On every answer: no page of another site may show, run or weigh any of them.
        assert status == 100 or headers["cross-origin-resource-policy"] == "same-origin", headers
        if method == "HEAD" or status in (100, 204, 304):
            return Reply(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._take_line(), 16):
                body += self._take(size)
                assert self._take(2) == b"\r\n"
            assert self._take(2) == b"\r\n"
            return Reply(status, headers, body)
        return Reply(status, headers, self._take(int(headers["content-length"])))

    def rest(self) -> bytes:
        """Everything up to the end of the connection, which must come as an end and not as a reset."""
        while self._fill():
            pass
        rest = bytes(self._read)
        self._read.clear()
        return rest

    def assert_ended(self) -> None:
        """The node ends the connection, in order, without another byte."""
        rest = self.rest()
        assert rest == b"", rest[:500]

    def is_silent(self) -> bool:
        """Whether nothing, not even an end, is there to be read right now."""
        return not self._read and not select.select([self.socket], [], [], 0)[0]


def ask(
    url: str, method: str, target: str | bytes, headers: Mapping[str, str | bytes] | None = None, body: bytes | None = None
) -> Reply:
    """One request on a connection of its own; the answer."""
    given = dict(headers or {})
    if body is not None:
        given.setdefault("Content-Length", str(len(body)))
    with Wire(url) as wire:
        wire.head(method, target, given)
        if body:
            wire.send(body)
        return wire.answer(method)


def store_many(url: str, bucket: str, names: Sequence[str], body: bytes) -> None:
    """Store the same under each of many names, over eight connections."""
    assert ask(url, "PUT", f"/v1/buckets/{bucket}", body=b"{}").status == 201
    host = urlsplit(url).netloc

    def store(some: Sequence[str]) -> None:
        with closing(http.client.HTTPConnection(host, timeout=TIMEOUT_S)) as connection:
            for name in some:
                connection.request("PUT", f"/{bucket}/{name}", body)
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 201

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store, (names[first::8] for first in range(8))))


def chunked(*pieces: bytes) -> bytes:
    """A whole chunked body."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"

"""Requests that are mutated at random, on connections that are used again and again, with victims beside.

What must hold whatever is sent: an answer belongs to a request of its own connection, nobody gets bytes of others, no node
meets an error that nobody expected, and one that relays passes on what it has understood as a request, and nothing else.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

POOL: Final = 8  # connections
WAIT_S: Final = 0.5  # for the answers to what was mutated, which may wait for more
PATIENCE_S: Final = 20.0  # for those to what was not
GOOD: Final = {f"g{number}": b"GOOD%d|" % number * (60_000 if number > 5 else 20) for number in range(8)}
"""Objects of the bucket `b`, which are there before."""
_PATHS: Final = (
    ("PUT", "/b/p{n}"), ("PUT", "/b/p{n}"), ("GET", "/b/g{small}"), ("GET", "/b/g{large}"), ("HEAD", "/b/g{large}"),
    ("DELETE", "/b/none{n}"), ("GET", "/b/?limit=3"), ("POST", "/v1/batch"), ("POST", "/v1/batch?lengths=1"),
    ("GET", "/v1/objects/b/none{n}"), ("GET", "/v1/buckets/b/objects?limit=2"),
)  # fmt: skip
_HEADERS: Final = (
    b"Content-Length: %d", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Connection: keep-alive",
    b"Connection: close", b"Connection: Content-Length", b"Connection: transfer-encoding, host, authorization",
    b"Expect: 100-continue", b"X-DFC-Hop: 1", b"X-DFC-Map: 5", b"Upgrade: h2c", b"Connection: Upgrade", b"Range: bytes=0-3",
    b"If-None-Match: *", b'If-Match: "x"', b"Origin: http://evil", b"Content-Range: bytes 0-1/2", b"Trailer: Content-Length",
    b"TE: trailers", b"X: \xff\xe9", b"Keep-Alive: timeout=1", b"Host: other", b"Cookie: dfc-session-a=b", b"Content-MD5: AAAA",
    b"X-DFC-Checksum: xxh3-128=00", b"Content-Encoding: gzip", b"Accept: text/html", b"Service-Worker: script",
    b"X-Forwarded-Proto: https",
)  # fmt: skip
_SEPARATORS: Final = (b": ", b":", b" : ", b":\t", b"\t: ", b":\x0b", b":\r\n ", b": +", b": 0", b": -")
_LINE_ENDS: Final = (*(b"\r\n",) * 12, b"\n", b"\r", b"\r\r\n", b"\r\n ", b"\x00\r\n", b"\r\n\t")
_ODD_BYTES: Final = (0, 9, 10, 11, 13, 32, 44, 48, 59, 127, 128, 255)
_ANSWER: Final = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")


class Request(NamedTuple):
    """What is sent, under which id; whether anything of it was `changed`."""

    id: str
    method: str
    data: bytes
    changed: bool


class Answer(NamedTuple):
    status: int
    id: str
    body: bytes


class Requests:
    """Draws requests."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._number = 0

    def next(self) -> Request:
        draw, number = self._draw, self._number
        self._number += 1
        method, path = draw.choice(_PATHS)
        path = path.format(n=number, small=draw.randrange(6), large=6 + draw.randrange(2))
        body = b"BODY%d|" % number * draw.choice((1, 1, 3, 500, 20_000))
        if draw.random() < 0.6:
            body += hidden(f"hid{number}")
        if method == "POST":
            body = b'{"items":[%s]}' % b",".join(b'{"bucket":"b","object":"g%d"}' % draw.randrange(8) for _ in range(2))
        lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: h", b"X-Request-Id: fuzz%d" % number]
        payload = b""
        if method in ("PUT", "POST") or draw.random() < 0.15:
            if draw.random() < 0.3:
                lines.append(b"Transfer-Encoding: chunked")
                payload = self._chunked(body)
            else:
                lines.append(b"Content-Length: %d" % len(body))
                payload = body
        changes = 0 if method == "HEAD" else draw.choice((0, 0, 1, 1, 1, 2, 3))  # whether an answer has a body must be known
        for _ in range(changes):
            payload = self._change(lines, payload)
        ends = [draw.choice(_LINE_ENDS) if changes and draw.random() < 0.08 else b"\r\n" for _ in lines]
        head = b"".join(line + end for line, end in zip(lines, ends, strict=True))
        return Request(f"fuzz{number}", method, head + b"\r\n" + payload, changes > 0)

    def _chunked(self, body: bytes) -> bytes:
        draw, pieces, at = self._draw, [], 0
        while at < len(body):
            size = draw.choice((1, 7, 1000, 65_536)) if len(pieces) < 100 else len(body)
            piece = body[at : at + size]
            extension = draw.choice((b"", b"", b"", b";a=b", b" "))
            pieces.append(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece))
            at += size
        return b"".join(pieces) + b"0\r\n" + (b"X-T: 1\r\n" if draw.random() < 0.1 else b"") + b"\r\n"

    def _change(self, lines: list[bytes], payload: bytes) -> bytes:
        """Change one thing in the lines; return the payload, which may be changed instead."""
        draw, kind = self._draw, self._draw.random()
        at = draw.randrange(1, len(lines)) if len(lines) > 1 else 0
        if kind < 0.4:
            header = draw.choice(_HEADERS)
            if b"%d" in header:
                header %= draw.choice((0, 1, len(payload), max(0, len(payload) - 5), 99))
            lines.insert(draw.randrange(1, len(lines) + 1), header)
        elif kind < 0.55:
            lines[at] = lines[at].replace(b": ", draw.choice(_SEPARATORS), 1)
        elif kind < 0.65:
            at = draw.randrange(len(lines))
            place = draw.randrange(len(lines[at]) + 1)
            lines[at] = lines[at][:place] + bytes([draw.choice((*_ODD_BYTES, draw.randrange(256)))]) + lines[at][place:]
        elif kind < 0.72:
            lines.append(lines[at])
        elif kind < 0.78 and at:
            del lines[at]
        elif kind < 0.84:
            method, _, rest = lines[0].partition(b" ")
            path = rest.partition(b" ")[0]
            lines[0] = draw.choice(
                (
                    method + b" http://h" + path + b" HTTP/1.1", method + b" http://evil.example" + path + b" HTTP/1.1",
                    method + b" " + path + b" HTTP/1.0", method + b" " + path + b"?redirect=1 HTTP/1.1", method + b" " + path,
                    b"OPTIONS " + path + b" HTTP/1.1", b"X" + method + b" " + path + b" HTTP/1.1", method.lower() + b" " + rest,
                )
            )  # fmt: skip
        elif kind < 0.92 and payload:
            place = draw.randrange(min(len(payload), 40))
            payload = (
                payload[:place]
                + bytes([draw.choice((*_ODD_BYTES, draw.randrange(256)))])
                + payload[place + draw.randrange(2) :]
            )
        elif payload:
            payload = payload[: draw.randrange(len(payload))]
        return payload


def hidden(name: str) -> bytes:
    """A request that stands in a body, and is none there; or behind another one."""
    return f"PUT /b/{name} HTTP/1.1\r\nHost: h\r\nX-Request-Id: {name}\r\nContent-Length: 7\r\n\r\nHIDDEN!".encode()


class Attack:
    """Sends requests to nodes, one connection after the other, and looks at the answers. `wrong`: what must not be."""

    def __init__(self, urls: Sequence[str], draw: random.Random) -> None:
        self._urls = [urls[0]] * (POOL - len(urls) + 1) + list(urls[1:])  # most to the first, which relays
        self._draw = draw
        self._requests = Requests(draw)
        self._connections: list[tuple[socket.socket, bytearray] | None] = [None] * POOL
        self._of: dict[str, int] = {}  # by id: the connection
        self._methods: dict[str, str] = {}
        self.wrong: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.hidden = 0

    def run(self, until: Callable[[], bool]) -> None:
        """Go on until that is true."""
        while not until():
            self._turn(self._draw.randrange(POOL))
        for number in range(POOL):
            self._close(number)

    def went_to_proxy(self, request_id: str) -> bool:
        """Whether a request, or what hid it, was sent to the first node."""
        number = self._of.get(request_id.replace("hid", "fuzz"))
        return number is not None and self._urls[number] == self._urls[0]

    def _turn(self, number: int) -> None:
        draw = self._draw
        requests = [self._requests.next() for _ in range(draw.choice((1, 1, 1, 2, 3)))]
        for each in requests:
            self._of[each.id], self._methods[each.id] = number, each.method
        data = b"".join(each.data for each in requests)
        if draw.random() < 0.3:
            data += hidden(f"behind{self.hidden}")
            self.hidden += 1
        connection, buffer = self._open(number)
        is_open = True
        try:
            cut = draw.randrange(len(data)) if draw.random() < 0.1 else 0
            if cut:
                connection.sendall(data[:cut])
                time.sleep(0.01)
            connection.sendall(data[cut:])
        except OSError:
            is_open = False
        connection.settimeout(WAIT_S if any(each.changed for each in requests) else PATIENCE_S)
        got = 0
        while got < len(requests) and is_open:
            try:
                piece = connection.recv(1 << 18)
            except OSError:
                break
            is_open = bool(piece)
            buffer += piece
            for found in self._taken(buffer):
                self._look_at(number, found)
                got += found.status >= 200
        if buffer and not buffer.startswith(b"HTTP/1.1 "[: len(buffer)]):
            self.wrong.append(f"bytes of no answer: {bytes(buffer[:200])!r} after {data[:500]!r}")
        if got < len(requests) or not is_open or draw.random() < 0.1:
            self._close(number)

    def _open(self, number: int) -> tuple[socket.socket, bytearray]:
        found = self._connections[number]
        if found is None:
            parts = urlsplit(self._urls[number])
            found = self._connections[number] = socket.create_connection((parts.hostname, parts.port), timeout=10), bytearray()
        return found

    def _close(self, number: int) -> None:
        found, self._connections[number] = self._connections[number], None
        if found is not None:
            if self._draw.random() < 0.3:
                found[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            found[0].close()

    def _taken(self, buffer: bytearray) -> Iterator[Answer]:
        """Take the answers that are whole from the buffer."""
        while (end := buffer.find(b"\r\n\r\n")) >= 0:
            found = _ANSWER.match(buffer)
            if found is None:
                return
            lines = [line.partition(b":") for line in bytes(buffer[:end]).split(b"\r\n")[1:]]
            headers = {name.lower(): value.strip() for name, _, value in lines}
            status, request_id = int(found[1]), headers.get(b"x-request-id", b"").decode("latin-1")
            begin = end + 4
            if status < 200 or status in (204, 304) or self._methods.get(request_id) == "HEAD":
                body, stop = b"", begin
            elif b"content-length" in headers:
                stop = begin + int(headers[b"content-length"])
                if len(buffer) < stop:
                    return
                body = bytes(buffer[begin:stop])
            else:
                whole = _unchunked(buffer, begin)
                if whole is None:
                    return
                body, stop = whole
            del buffer[:stop]
            yield Answer(status, request_id, body)

    def _look_at(self, number: int, found: Answer) -> None:
        self.statuses[found.status] += 1
        if found.status < 200:
            return
        if self._of.get(found.id, number) != number:
            self.wrong.append(f"the answer to {found.id} came on another connection")
        if found.id.startswith("victim") or b"VICTIM" in found.body:
            self.wrong.append(f"what belongs to a victim: {found}"[:500])
        if b"BODY" in found.body[:4] or b"HIDDEN" in found.body[:6]:
            self.wrong.append(f"an answer is what somebody has sent: {found}"[:500])
        if found.status == 500:
            self.wrong.append(f"an error that nobody expected: {found}"[:500])


def _unchunked(buffer: bytearray, at: int) -> tuple[bytes, int] | None:
    """A chunked body from there on, and where it ends; None if it is not whole."""
    pieces = []
    while (end := buffer.find(b"\r\n", at)) >= 0:
        size = int(buffer[at:end], 16)
        if len(buffer) < end + 4 + size:
            return None
        pieces.append(bytes(buffer[end + 2 : end + 2 + size]))
        at = end + 4 + size
        if not size:
            return b"".join(pieces), at
    return None


class Victim(threading.Thread):
    """Somebody who uses a node as one does. `wrong`: what was not as it has to be."""

    def __init__(self, number: int, url: str, seed: int) -> None:
        super().__init__(name=f"victim-{number}")
        self._number, self._url, self._draw = number, url, random.Random(seed)
        self._over = threading.Event()
        self.requests = 0
        self.wrong: list[str] = []

    def stop(self) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        parts = urlsplit(self._url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        while not self._over.wait(0.01):
            try:
                self._ask(connection)
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(f"{self.name}: {error!r}")
                connection.close()
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        number = self.requests = self.requests + 1
        name = f"/b/victim{self._number}-{number % 7}"
        body = b"VICTIM%d-%d|" % (self._number, number) * self._draw.choice((1, 10, 3000, 40_000))
        for method, sent, statuses in (("PUT", body, (200, 201)), ("GET", None, (200,))):
            request_id = f"victim{self._number}.{number}.{method}"
            connection.request(method, name, sent, {"X-Request-Id": request_id})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status not in statuses or answer.headers["X-Request-Id"] != request_id:
                self.wrong.append(f"{request_id}: {answer.status} {answer.headers['X-Request-Id']} {content[:200]!r}")
            elif method == "GET" and content != body:
                self.wrong.append(f"{request_id}: {len(content)} bytes {content[:50]!r} instead of {len(body)}")


def accessed(log: Path) -> set[tuple[str, str]]:
    """The ids and paths of the requests that a node has logged."""
    found = set()
    for line in log.read_text(errors="replace").splitlines():
        with suppress(ValueError):
            entry = json.loads(line)
            if "access" in entry:
                found.add((entry["request_id"], entry["access"].partition("?")[0]))
    return found

"""A web server for files in memory that can be told to misbehave: ranges and ETags as nginx has them, faults by the request.

It speaks real HTTP over real sockets; what it plays is a server, or a network before it, on a bad day.
"""

from __future__ import annotations

import re
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import xxhash


@dataclass(frozen=True)
class Refuse:
    """Answer with this status and no body."""

    status: int = 503
    retry_after_s: float | None = 0


@dataclass(frozen=True)
class Cut:
    """Send so many bytes of the body, then break the connection."""

    after: int


@dataclass(frozen=True)
class Stall:
    """Send so many bytes of the body, then nothing more, with the connection open until the server closes."""

    after: int


@dataclass(frozen=True)
class Slow:
    """Send the body in pieces of so many bytes, with a pause after each."""

    piece: int
    pause_s: float


Fault = Refuse | Cut | Stall | Slow


class Request(NamedTuple):
    """What was asked for: a path, and where its range began (0 without one)."""

    path: str
    start: int


class FaultyServer:
    """Serves files within a `with` block. The next requests for a path meet its faults in turn; then all goes well."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self.requests: list[Request] = []  # of files that are there
        self.closing = threading.Event()

        class Handler(_Handler):
            server_of_files = self

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def fail(self, path: str, *faults: Fault) -> None:
        """What the next requests for this path meet."""
        self.faults[path].extend(faults)

    def starts(self, path: str) -> list[int]:
        """Where the requests for this path began, in the order of their arrival."""
        return [request.start for request in self.requests if request.path == path]

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server_of_files: FaultyServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        owner = self.server_of_files
        path = unquote(urlsplit(self.path).path)
        data = owner.files.get(path)
        if data is None:
            self._head(404, 0)
            return
        etag = f'"{xxhash.xxh3_64_hexdigest(data)}"'
        start, end = self._range(len(data), etag)
        if with_body:
            owner.requests.append(Request(path, start))
        fault = owner.faults[path].popleft() if with_body and owner.faults[path] else None
        if isinstance(fault, Refuse):
            again = {} if fault.retry_after_s is None else {"Retry-After": f"{fault.retry_after_s:g}"}
            self._head(fault.status, 0, **again)
            return
        partial = (start, end) != (0, len(data))
        headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"} if partial else {}
        self._head(206 if partial else 200, end - start, ETag=etag, Accept_Ranges="bytes", **headers)
        if not with_body:
            return
        try:
            self._send(memoryview(data)[start:end], fault)
        except OSError:
            self.close_connection = True  # the client went away, as clients may

    def _send(self, body: memoryview, fault: Fault | None) -> None:
        if isinstance(fault, Slow):
            for at in range(0, len(body), fault.piece):
                self.wfile.write(body[at : at + fault.piece])
                self.server_of_files.closing.wait(fault.pause_s)
        elif isinstance(fault, Cut | Stall):
            self.wfile.write(body[: fault.after])
            if isinstance(fault, Stall):
                self.server_of_files.closing.wait(60)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(body)

    def _range(self, size: int, etag: str) -> tuple[int, int]:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match is None or self.headers.get("If-Range", etag) != etag:
            return 0, size
        return int(match[1]), min(int(match[2]) + 1, size) if match[2] else size

    def _head(self, status: int, length: int, **headers: Any) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": length, **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Tests print enough."""

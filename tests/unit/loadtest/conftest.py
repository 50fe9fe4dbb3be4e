"""A handoff replica for a DFC node: the calls that the scenarios make, kept in memory, with faults on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import xxhash
from job_shards import members_of


class StandIn(ThreadingHTTPServer):
    """`objects` is all that is stored; `damage` turns over the first byte of every GET of a path that holds it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}
        self.buckets: set[str] = set()
        self.damage: str | None = None
        self.forgotten: str | None = None  # a name that listings leave out
        self.refuse_puts = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: StandIn

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent."""

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/v1/buckets/"):
            self.server.buckets.add(self.path.removeprefix("/v1/buckets/"))
            self.answer(201, b"{}")
        elif self.server.refuse_puts:
            self.answer(507, b"no space")
        else:
            self.server.objects[self.path] = body
            document = {"size": len(body), "checksum": xxhash.xxh3_128_hexdigest(body)}
            self.answer(201, json.dumps(document).encode())

    def do_DELETE(self) -> None:
        bucket = urlsplit(self.path).path.removeprefix("/v1/buckets/")
        self.server.buckets.discard(bucket)
        for path in [path for path in self.server.objects if path.startswith(f"/{bucket}/")]:
            del self.server.objects[path]
        self.answer(204)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path.endswith("/objects"):
            self.listing(parts.path.split("/")[3], query)
        elif parts.path in self.server.objects:
            self.object(self.server.objects[parts.path], query)
        else:
            self.answer(404)

    def object(self, body: bytes, query: dict[str, str]) -> None:
        if "sample" in query:
            body = dict(members_of(body))[f"{query['sample']}.{query['ext']}"]
        if self.server.damage is not None and self.server.damage in self.path:
            body = bytes([body[0] ^ 1]) + body[1:]
        if span := self.headers.get("Range"):
            start, end = span.removeprefix("bytes=").split("-")
            self.answer(206, body[int(start) : int(end) + 1])
        else:
            self.answer(200, body)

    def listing(self, bucket: str, query: dict[str, str]) -> None:
        start = f"/{bucket}/{query['prefix']}"
        names = sorted(path.removeprefix(f"/{bucket}/") for path in self.server.objects if path.startswith(start))
        names = [name for name in names if name > query.get("token", "") and name != self.server.forgotten]
        page = names[: int(query["limit"])]
        token = page[-1] if len(page) < len(names) else None
        self.answer(200, json.dumps({"objects": [{"name": name} for name in page], "next_token": token}).encode())


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    server = StandIn()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()

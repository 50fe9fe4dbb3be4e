"""A small node that answers by the contract, and breaks it where it is told to."""

from __future__ import annotations

import json
import re
import socket
import threading
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from harness import wait_for

from dfc.batch.items import BatchItem, BatchRequest, encode_preamble
from dfc.checksum import checksum_of
from dfc.client import Cancelled, Client
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import readers_of
from dfc.tar.samples import member_header, padding

PIECE_BYTES = 10_000  # of an object, in place of a sample


@dataclass
class Fault:
    """What goes wrong with the next request of a method. One of: an answer, a cut body, bytes turned, no answer at all."""

    method: str
    status: int = 0
    code: str = "unavailable"
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int = -1  # of the answer's body, then the connection ends
    corrupt: bool = False  # one bit of the answer's body
    read_before: int = 0  # bytes of the request's body that are read before the answer
    hang_up: bool = False  # end the connection instead of an answer
    done_first: bool = False  # after the work is done
    corrupt_store: bool = False  # one bit of what is stored
    hang: threading.Event | None = None  # do not answer before this


class FakeNode:
    """A node with its objects in memory. `faults` are used up one by one, `log` has every request."""

    def __init__(self, role: str = "proxy") -> None:
        self.role = role
        self.objects: dict[tuple[str, str], bytes] = {}
        self.faults: list[Fault] = []
        self.log: list[tuple[str, str, dict[str, str]]] = []
        self.nodes: list[FakeNode] = []
        self.state = "up"
        self.replies: dict[str, bytes] = {}
        self.page_size = 1000
        self.copies = 1  # of the objects of the bucket, by the map
        self.extra: dict[str, str] = {}  # headers of answers to reads
        self.open: set[socket.socket] = set()
        self.lock = threading.Lock()

        class Handler(_Handler):
            node = self

        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.advertise_url = self.url
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        if self.thread.is_alive():
            self.server.shutdown()
            self.server.server_close()
            self.thread.join()

    def kill(self) -> None:
        """End it and its connections, as the kernel does for a process that is killed."""
        self.stop()
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def requests(self, method: str, path: str = "") -> list[tuple[str, dict[str, str]]]:
        return [(seen, headers) for verb, seen, headers in self.log if verb == method and path in seen]

    def fail(self, method: str, **what: Any) -> None:
        self.faults.append(Fault(method, **what))

    def take_fault(self, method: str) -> Fault | None:
        with self.lock:
            for at, fault in enumerate(self.faults):
                if fault.method == method:
                    return self.faults.pop(at)
        return None

    def map(self) -> bytes:
        nodes = []
        for number, node in enumerate(self.nodes or [self]):
            disks = [{"id": f"disk-{number}", "weight": 1.0, "state": "up"}] if node is not self or not self.nodes else []
            nodes.append(
                {
                    "id": f"node-{number}",
                    "number": number,
                    "role": "target" if disks else "proxy",
                    "url": node.url,
                    "advertise_url": node.advertise_url,
                    "state": node.state,
                    "disks": disks,
                }
            )
        buckets = [{"id": "b1", "name": "b", "copies": self.copies}]
        return json.dumps({"cluster_id": "c", "version": 1, "nodes": nodes, "buckets": buckets}).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    node: FakeNode
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        self.node.open.add(self.connection)

    def finish(self) -> None:
        self.node.open.discard(self.connection)
        super().finish()

    def handle_expect_100(self) -> bool:
        if any(fault.method == self.command and fault.status and not fault.read_before for fault in self.node.faults):
            return True
        return super().handle_expect_100()

    def _serve(self) -> None:
        node = self.node
        parts = urlsplit(self.path)
        node.log.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        fault = node.take_fault(self.command) if not parts.path.startswith("/v1/cluster") else None
        if fault is not None and fault.hang is not None:
            fault.hang.wait(20)
        if fault is not None and not fault.done_first and (fault.status or fault.hang_up):
            self.rfile.read(fault.read_before)
            self.close_connection = True
            if fault.status:
                self._problem(fault.status, fault.code, {**fault.headers, "Connection": "close"})
            self._hang_up()
            return
        match = re.fullmatch(r"/v1/objects/([^/]+)/(.+)", parts.path)
        query = dict(parse_qsl(parts.query))
        if parts.path == "/v1/cluster":
            self._answer(200, node.map(), {"Content-Type": "application/json"})
        elif parts.path in node.replies or self.path in node.replies:
            self._body()
            self._answer(200, node.replies.get(self.path, node.replies.get(parts.path, b"")), {}, fault)
        elif parts.path in ("/v1/batch", "/v1/node/batch"):
            self._batch(parts.path, query, fault)
        elif parts.path.endswith("/objects"):
            self._list(parts.path.split("/")[3], query)
        elif match is not None:
            self._object(match[1], unquote(match[2]), fault)
        else:
            self._body()
            self._answer(204, b"", {})

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = do_PATCH = _serve

    def _hang_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _object(self, bucket: str, name: str, fault: Fault | None) -> None:
        objects = self.node.objects
        etag = f'"{checksum_of(objects[bucket, name])}"' if (bucket, name) in objects else None
        if self.command == "PUT":
            body = self._body()
            if self.headers.get("If-None-Match") == "*" and etag is not None:
                self._problem(412, "precondition_failed", {})
                return
            if fault is not None and fault.corrupt_store:
                body = bytes([body[0] ^ 1]) + body[1:]
            given = self.headers.get("X-DFC-Checksum")
            if given is not None and given != f"xxh3-128={checksum_of(body)}":
                self._problem(422, "checksum_mismatch", {})
                return
            objects[bucket, name] = body
            answer = {"bucket": bucket, "object": name, "size": len(body), "checksum": checksum_of(body), "version": "v"}
            if fault is not None and fault.done_first:
                self.close_connection = True
                self._hang_up()
                return
            self._answer(201, json.dumps({**answer, "samples": None, "members": None, "warnings": ["w"]}).encode(), {})
        elif etag is None:
            self._problem(404, "object_not_found", {})
        elif self.command == "DELETE":
            if self.headers.get("If-Match") not in (None, etag):
                self._problem(412, "precondition_failed", {})
                return
            del objects[bucket, name]
            if fault is not None and fault.done_first:
                self.close_connection = True
                self._hang_up()
                return
            self._answer(204, b"", {})
        else:
            self._read(objects[bucket, name], etag, fault)

    def _read(self, body: bytes, etag: str, fault: Fault | None) -> None:
        headers = {
            "ETag": etag,
            "X-DFC-Checksum": f"xxh3-128={etag[1:-1]}",
            "Last-Modified": "Sun, 01 Nov 2026 00:00:00 GMT",
            **self.node.extra,
        }
        wanted = self.headers.get("Range")
        if wanted is None or self.headers.get("If-Range") not in (None, etag):
            self._answer(200, body, headers, fault)
            return
        first, last = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted).groups()  # type: ignore[union-attr]
        start, end = int(first), min(int(last) + 1 if last else len(body), len(body))
        if start >= len(body):
            self._problem(416, "range_not_satisfiable", {"Content-Range": f"bytes */{len(body)}"})
            return
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(body)}"
        self._answer(206, body[start:end], headers, fault)

    def _batch(self, path: str, query: dict[str, str], fault: Fault | None) -> None:
        """Whole objects and ranges of them; `number` is the n-th piece of an object, as a sample."""
        request = msgspec.msgpack.decode(self._body(), type=BatchRequest)
        pieces, checksums = [], {}
        for place, item in enumerate(request.items):
            key = (item.bucket, item.object)
            whole = self.node.objects.get(key)
            checksum = "" if whole is None else checksum_of(whole)
            if whole is None or item.if_match not in (None, checksum):
                self._problem(404 if whole is None else 412, "gone", {"X-DFC-Item": str(place)})
                return
            checksums[key] = checksum
            pieces.append(batch_item(item, whole))
        lengths = array("Q", map(len, pieces))
        if path == "/v1/node/batch":
            begin = encode_preamble(lengths.tobytes(), checksums)
        else:
            begin = lengths.tobytes() if "lengths" in query else b""
        self._answer(200, begin + b"".join(pieces), self.node.extra, fault)

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        names = sorted(name for b, name in self.node.objects if b == bucket and name.startswith(query.get("prefix", "")))
        names = [name for name in names if name > max(query.get("token", ""), query.get("start_after", ""))]
        prefixes: list[str] = []
        if query.get("delimiter"):
            start = len(query.get("prefix", ""))
            rolled = {n[: n.index("/", start) + 1] for n in names if "/" in n[start:]}
            prefixes, names = sorted(rolled), [n for n in names if "/" not in n[start:]]
        limit = min(int(query["limit"]), self.node.page_size)
        objects = [
            {
                "name": name,
                "size": len(self.node.objects[bucket, name]),
                "etag": checksum_of(self.node.objects[bucket, name]),
                "modified": "2026-11-01T00:00:00Z",
                "samples": None,
                "members": None,
            }
            for name in names[:limit]
        ]
        page = {"objects": objects, "prefixes": prefixes, "next_token": names[limit - 1] if len(names) > limit else None}
        self._answer(200, msgspec.msgpack.encode(page), {"Content-Type": "application/msgpack"})

    def _problem(self, status: int, code: str, headers: dict[str, str]) -> None:
        body = json.dumps({"error": {"code": code, "message": f"said {code}", "request_id": "r1"}}).encode()
        self._answer(status, body, headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str], fault: Fault | None = None) -> None:
        if fault is not None and fault.corrupt:
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            if fault is not None and fault.cut_after >= 0:
                self.wfile.write(body[: fault.cut_after])
                self.close_connection = True
                self._hang_up()
            else:
                self.wfile.write(body)
        except OSError:
            self.close_connection = True


def batch_item(item: BatchItem, whole: bytes) -> bytes:
    """What a fake node answers for an item: a tar member."""
    name, start, length = item.object, item.start or 0, item.length
    if item.number is not None:
        name, start, length = f"{item.number:05d}.bin", item.number * PIECE_BYTES, PIECE_BYTES
    data = whole[start:] if length is None else whole[start : start + length]
    return member_header(name, len(data)) + data + bytes(len(padding(len(data))))


@dataclass
class FakeCluster:
    """A proxy and one target."""

    proxy: FakeNode
    target: FakeNode

    @property
    def url(self) -> str:
        return self.proxy.url

    def log_of(self) -> dict[str, list[str]]:
        log = defaultdict(list)
        for role, node in (("proxy", self.proxy), ("target", self.target)):
            for method, path, _ in node.log:
                log[role].append(f"{method} {path}")
        return log


def fake_copies(proxy: FakeNode, *targets: FakeNode) -> FakeCopies:
    """A proxy that knows targets which all have the same objects, in two copies by the map; it has none itself."""
    proxy.nodes = [proxy, *targets]
    proxy.copies = 2
    for target in targets:
        target.objects = targets[0].objects
    return FakeCopies(proxy, list(targets))


def two_copies_of(body: bytes, targets: int = 3) -> Iterator[FakeCopies]:
    """For a fixture: nodes that have the object `x.tar` of bucket `b` in two copies."""
    nodes = [FakeNode(), *(FakeNode("target") for _ in range(targets))]
    made = fake_copies(*nodes)
    made.objects["b", "x.tar"] = body
    yield made
    for node in nodes:
        node.stop()


def failing(**what: Any) -> Callable[[FakeNode, str], None]:
    """What makes the next requests of a method fail so at a node."""

    def fail(node: FakeNode, method: str) -> None:
        for _ in range(9):
            node.fail(method, **what)

    return fail


WAYS: dict[str, Callable[[FakeNode, str], None]] = {
    "killed": lambda node, _method: node.kill(),
    "503": failing(status=503),
    "421": failing(status=421, code="not_the_primary", headers={"X-DFC-Map": "9"}),
}
"""In which a node may cease to serve."""


@dataclass
class FakeCopies:
    """A proxy and targets with the same objects."""

    proxy: FakeNode
    targets: list[FakeNode]

    @property
    def url(self) -> str:
        return self.proxy.url

    @property
    def objects(self) -> dict[tuple[str, str], bytes]:
        return self.targets[0].objects

    def readers(self, name: str) -> list[FakeNode]:
        """The two targets that have an object by the map, in the order to ask them."""
        return readers_among(self.targets, ClusterMap.decode(self.proxy.map()), name)


def readers_among(nodes: list[FakeNode], cluster_map: ClusterMap, name: str, bucket: str = "b") -> list[FakeNode]:
    """The nodes that have copies of an object, in the order to ask them."""
    entry = cluster_map.bucket(bucket)
    assert entry is not None
    by_url = {node.url: node for node in nodes}
    return [by_url[reader.url] for reader in readers_of(cluster_map, entry.id, name)]


def quicken(client: Client) -> None:
    """Make the waits between tries short."""
    object.__setattr__(client._calls.policy, "first_delay_s", 0.001)
    object.__setattr__(client._calls.policy, "delay_max_s", 0.002)


def abort_a_read(client: Client, node: FakeNode) -> list[BaseException]:
    """Abort the read of an object `x` while the node keeps silent; what the reader is told."""
    hang = threading.Event()
    node.fail("GET", hang=hang)
    told: list[BaseException] = []

    def read() -> None:
        try:
            client.get("b", "x")
        except Cancelled as error:
            told.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    wait_for(lambda: node.requests("GET", "objects"), "the request")
    client.abort()
    reading.join(5)
    hang.set()
    return told


def fake_cluster(proxy: FakeNode, target: FakeNode) -> FakeCluster:
    """A proxy that knows one target; both hold the same objects, so that a relay works."""
    proxy.nodes = [proxy, target]
    proxy.objects = target.objects
    return FakeCluster(proxy, target)

"""What the tests of the HTTP contract share: clients, curl, raw connections, shards, and who owns what."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from http.client import parse_headers
from typing import Any
from urllib.parse import urlsplit

import httpx
import lz4.frame
import pytest
from harness import owner_of
from job_shards import Members, tar_of

from dfc.placement.map import ClusterMap

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Nodes:
    """The nodes of a running cluster and the placement of objects on them."""

    proxy: str

    @property
    def map(self) -> ClusterMap:
        """As it is now: buckets come and go."""
        return ClusterMap.decode(httpx.get(f"{self.proxy}/v1/cluster", trust_env=False, timeout=TIMEOUT_S).content)

    def owner(self, bucket: str, name: str) -> str:
        """The URL of the target that holds an object; its bucket is made where it is not there yet."""
        httpx.post(f"{self.proxy}/v1/node/buckets/{bucket}/ensure", trust_env=False, timeout=TIMEOUT_S).raise_for_status()
        return owner_of(self.map, bucket, name).node.url

    def other(self, bucket: str, name: str) -> str:
        """The URL of a target that does not hold it."""
        owner = self.owner(bucket, name)
        return next(node.url for node in self.map.targets() if node.url != owner)

    def url(self, via: str, bucket: str, name: str) -> str:
        """A node to ask for an object: `via` is "proxy", "owner" or "other"."""
        return self.proxy if via == "proxy" else getattr(self, via)(bucket, name)


@dataclass(frozen=True)
class Reply:
    """One answer as it came over a raw connection."""

    status: int
    headers: Message
    body: bytes


class RawConnection:
    """A socket to a node: bytes out, answers in, nothing done behind the test's back."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host = parts.netloc
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S)
        self._file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a head with `Host` and, unless it is given, `Content-Length`; then the body."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self.host}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body and "Content-Length" not in (headers or {}):
            lines.append(f"Content-Length: {len(body)}")
        self.send("\r\n".join([*lines, "", ""]).encode() + body)

    def head(self) -> tuple[int, Message]:
        """The next status and headers, informational ones included."""
        line = self._file.readline()
        assert line.startswith(b"HTTP/1.1 "), f"no answer but {line!r}"
        return int(line.split()[1]), parse_headers(self._file)

    def answer(self, method: str = "GET") -> Reply:
        """The next whole answer."""
        status, headers = self.head()
        if method == "HEAD" or status in (100, 204, 304):
            return Reply(status, headers, b"")
        if headers["Transfer-Encoding"] == "chunked":
            return Reply(status, headers, self._chunks())
        body = self._file.read(int(headers["Content-Length"]))
        assert len(body) == int(headers["Content-Length"]), "the body is cut"
        return Reply(status, headers, body)

    def _chunks(self) -> bytes:
        body = bytearray()
        while size := int(self._file.readline(), 16):
            body += self._file.read(size)
            assert self._file.readline() == b"\r\n"
        assert self._file.readline() == b"\r\n"
        return bytes(body)

    def is_closed(self) -> bool:
        """Whether the node ends the connection without another byte (waits for it)."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@pytest.fixture(scope="session")
def nodes(cluster: Any) -> Nodes:
    return Nodes(cluster.url)


@pytest.fixture(params=["proxy", "target"])
def url(request: pytest.FixtureRequest, nodes: Nodes) -> str:
    """A node of either role."""
    return nodes.proxy if request.param == "proxy" else nodes.map.targets()[0].url


@pytest.fixture(scope="session")
def http(cluster: Any) -> Iterator[httpx.Client]:
    """A client of the proxy; absolute URLs go wherever they name. Redirects are not followed."""
    with httpx.Client(base_url=cluster.url, trust_env=False, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture
def bucket() -> str:
    """The name of a bucket that nobody else uses; it does not exist yet."""
    return f"b-{uuid.uuid4().hex[:16]}"


@pytest.fixture
def connect(cluster: Any) -> Iterator[Callable[..., RawConnection]]:
    """`connect()` or `connect(url)`: raw connections, closed at the end of the test."""
    made: list[RawConnection] = []

    def open_connection(url: str = "") -> RawConnection:
        made.append(RawConnection(url or cluster.url))
        return made[-1]

    yield open_connection
    for connection in made:
        connection.close()


@pytest.fixture(scope="session")
def curl() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs curl with arguments and standard input."""
    program = shutil.which("curl")
    assert program, "these tests need curl"

    def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command = [program, "--noproxy", "*", "-sS", "-m", str(TIMEOUT_S), "--expect100-timeout", "60", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, check=False)

    return run


@pytest.fixture(scope="session")
def error_of() -> Callable[[Any, int, str], str]:
    """Checks that an answer is an error of this status and code in the one shape of errors; its message."""

    def check(answer: Any, status: int, code: str) -> str:
        found = answer.status_code if isinstance(answer, httpx.Response) else answer.status
        content = answer.content if isinstance(answer, httpx.Response) else answer.body
        assert found == status, content
        assert answer.headers["Content-Type"] == "application/json"
        value = httpx.Response(200, content=content).json()
        assert value.keys() == {"error"}
        assert value["error"].keys() == {"code", "message", "request_id"}
        assert value["error"]["code"] == code, value
        assert value["error"]["request_id"] == answer.headers["X-Request-Id"]
        message: str = value["error"]["message"]
        assert message
        return message

    return check


@pytest.fixture(scope="session")
def make_tar() -> Callable[[Members], bytes]:
    """A tar of (name, bytes), as GNU tar writes it."""
    return tar_of


@pytest.fixture(scope="session")
def compress() -> Callable[[str, bytes], bytes]:
    """`compress(ending, data)` as an archive of that ending is compressed."""
    ways: dict[str, Callable[[bytes], bytes]] = {
        ".tar": lambda data: data,
        ".tgz": gzip.compress,
        ".tar.gz": gzip.compress,
        ".tar.bz2": bz2.compress,
        ".tar.xz": lzma.compress,
        ".tar.zst": zstd.compress,
        ".tar.lz4": lz4.frame.compress,
    }
    return lambda ending, data: ways[ending](data)

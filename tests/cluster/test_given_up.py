"""Writes that a client has given up while a proxy stood still, and something newer was written elsewhere: it must stay."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from failures.nodes import PROXY, Nodes

OLD = b"OLD" * 20


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("given-up"), 2, 1, down_after_s=15, default_copies=2) as nodes:
        nodes.start_all()
        yield nodes


def begun(nodes: Nodes, method: str, name: str, headers: str, body: bytes = b"") -> socket.socket:
    """A request to the proxy, of which so much is sent."""
    client = socket.create_connection(("127.0.0.1", nodes.port_of(PROXY)), timeout=30)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    client.sendall(f"{method} /b/{name} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode() + body)
    return client


def put_newer(nodes: Nodes, name: str) -> None:
    """At the target that is the primary: the other one only knows who it is."""
    for target in nodes.targets:
        answer = httpx.put(f"{nodes.url_of(target)}/b/{name}", content=b"newer", headers={"X-DFC-Map": "1"}, timeout=30)
        if answer.status_code in (200, 201):
            return
    raise AssertionError(answer.text)


SENT = {
    "put": ("PUT", f"Content-Length: {len(OLD)}\r\n", OLD, b""),
    "delete": ("DELETE", "", b"", b""),
    "large": ("PUT", "Content-Length: 99000\r\n", b"OLD" * 33000, b""),
    # The rest comes while the proxy stands still. What it has begun to pass on is older than what is written then.
    "rest of a small one": ("PUT", f"Content-Length: {len(OLD)}\r\n", OLD[:1], OLD[1:]),
    "rest": ("PUT", "Content-Length: 3000000\r\n", b"OLD" * 990_000, b"OLD" * 10_000),
    "last chunk": ("PUT", "Transfer-Encoding: chunked\r\n", b"3\r\nOLD\r\n", b"0\r\n\r\n"),
}


@pytest.mark.parametrize("kind", SENT)
def test_what_was_given_up_undoes_nothing(nodes: Nodes, kind: str) -> None:
    method, headers, first, rest = SENT[kind]
    kind = kind.replace(" ", "-")
    put_newer(nodes, kind)
    old = begun(nodes, method, kind, headers, first) if rest else None
    if old is not None:
        time.sleep(0.3)  # so that the proxy has passed on what it has; if not, this is the case without a rest
    nodes.signal(PROXY, signal.SIGSTOP)
    try:
        if old is None:
            old = begun(nodes, method, kind, headers, first)
        old.sendall(rest)
        time.sleep(0.6)  # longer than what counts as a pause
        old.close()
        put_newer(nodes, kind)
    finally:
        nodes.signal(PROXY, signal.SIGCONT)
    nodes.until(lambda: nodes.is_ready(PROXY), "the proxy to go on", 20)
    time.sleep(0.3)  # in which it did what had been given up
    for url in (nodes.url, *map(nodes.url_of, nodes.targets)):
        answer = httpx.get(f"{url}/b/{kind}", params={"relay": "1"}, timeout=30)
        assert (answer.status_code, answer.content) == (200, b"newer")


def test_who_still_waits_gets_an_answer(nodes: Nodes) -> None:
    nodes.signal(PROXY, signal.SIGSTOP)
    try:
        client = begun(nodes, "PUT", "waits", f"Content-Length: {len(OLD)}\r\n", OLD)
        time.sleep(0.6)  # longer than what counts as a pause
    finally:
        nodes.signal(PROXY, signal.SIGCONT)
    with client:
        assert client.recv(1000).startswith(b"HTTP/1.1 201 ")
    assert httpx.get(f"{nodes.url}/b/waits", params={"relay": "1"}, timeout=60).content == OLD

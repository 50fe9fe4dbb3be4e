"""Large answers whose node breaks off: the rest comes from another node with that object, or the client's connection ends."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from one_face import relaying
from scripted_node import Script, Upstream

BODY = os.urandom(3_000_000)
ETAG = 'ETag: "a"\r\nAccept-Ranges: bytes\r\n'
_RANGE = re.compile(r"range: bytes=(\d+)-(\d+)", re.IGNORECASE)


@pytest.fixture
async def nodes() -> AsyncIterator[list[Upstream]]:
    """Two nodes with a copy, in the order to ask them."""
    async with Upstream() as first, Upstream() as second:
        yield [first, second]


@pytest.fixture
async def client(nodes: list[Upstream]) -> AsyncIterator[httpx.AsyncClient]:
    """Of a server that relays reads to them."""
    async with relaying(lambda: [node.url for node in nodes], "GET") as made:
        yield made


def serve(node: Upstream, *, most: int | None = None, headers: str = ETAG, refusal: str = "") -> Script:
    """Answer one request like a target; after `most` bytes of the body, the connection breaks off."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await node.head(reader)
        if refusal:
            writer.write(f"HTTP/1.1 {refusal}\r\nContent-Length: 2\r\n\r\nno".encode())
            await writer.drain()
            return
        found = _RANGE.search(head)
        first, last = (int(found[1]), int(found[2])) if found else (0, len(BODY) - 1)
        status = f"206 Partial Content\r\nContent-Range: bytes {first}-{last}/{len(BODY)}" if found else "200 OK"
        body = BODY[first : last + 1]
        writer.write(f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body[:most])
        await writer.drain()

    return script


async def test_the_rest_comes_from_another_node(nodes: list[Upstream], client: httpx.AsyncClient) -> None:
    nodes[0].scripts, nodes[1].scripts = [serve(nodes[0], most=1_000_001)], [serve(nodes[1])]
    answer = await client.get("/b/x", headers={"If-None-Match": '"other"'})
    assert (answer.status_code, answer.content == BODY) == (200, True)
    [head] = nodes[1].heads
    assert "Range: bytes=1000001-2999999\r\n" in head
    assert 'If-Match: "a"\r\n' in head
    assert "If-None-Match" not in head


async def test_the_rest_of_a_range(nodes: list[Upstream], client: httpx.AsyncClient) -> None:
    nodes[0].scripts, nodes[1].scripts = [serve(nodes[0], most=500_000)], [serve(nodes[1])]
    answer = await client.get("/b/x", headers={"Range": "bytes=1000-2000999"})
    assert (answer.status_code, answer.content == BODY[1000:2_001_000]) == (206, True)
    assert answer.headers["Content-Range"] == f"bytes 1000-2000999/{len(BODY)}"
    [head] = nodes[1].heads
    assert [line for line in head.split("\r\n") if line.lower().startswith("range")] == ["Range: bytes=501000-2000999"]


async def test_nodes_that_break_off_one_after_the_other(nodes: list[Upstream], client: httpx.AsyncClient) -> None:
    for node in nodes:
        node.scripts = [serve(node, most=700_000)]
    assert (await client.get("/b/x")).content == BODY
    assert [len(node.heads) for node in nodes] == [3, 2]


@pytest.mark.parametrize(
    ("headers", "rest"),
    [
        (ETAG, {"refusal": "412 Precondition Failed"}),
        (ETAG, {"refusal": "404 Not Found"}),
        (ETAG, {"headers": 'ETag: "b"\r\nAccept-Ranges: bytes\r\n'}),
        ('ETag: "a"\r\n', {}),
        ('ETag: W/"a"\r\nAccept-Ranges: bytes\r\n', {}),
        ("Accept-Ranges: bytes\r\n", {}),
    ],
)
async def test_nothing_else_is_taken_for_the_rest(
    nodes: list[Upstream], client: httpx.AsyncClient, headers: str, rest: dict[str, str]
) -> None:
    nodes[0].scripts = [serve(nodes[0], most=1_000_001, headers=headers), serve(nodes[0], refusal="503 Unavailable")]
    nodes[1].scripts = [serve(nodes[1], **rest)]
    with pytest.raises(httpx.RemoteProtocolError):
        await client.get("/b/x")


async def test_who_never_gets_on_is_not_asked_for_ever(nodes: list[Upstream], client: httpx.AsyncClient) -> None:
    for node in nodes:
        node.scripts = [serve(node, most=0)]
    with pytest.raises(httpx.RemoteProtocolError):
        await client.get("/b/x")

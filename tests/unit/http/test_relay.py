"""The relay before a node that does what the test says: answers early, breaks off, closes, keeps silent."""

from __future__ import annotations

import asyncio
import json
import os

import httpx
import pytest
from one_face import relaying
from scripted_node import Script, Upstream, always, answer, once

from dfc.config import Settings
from dfc.errors import Unavailable
from dfc.http import peer
from dfc.http.peer import ControlClient, PeerGone, PeerPool

LARGE = 3_000_000


@pytest.fixture
async def client(upstream):
    """Of a server that relays everything to the upstream."""
    async with relaying(lambda: upstream.url, "GET", "PUT", "DELETE") as made:
        yield made


def check(response: httpx.Response, status: int, code: str) -> None:
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


# --- what is passed on


SENT = {
    "Authorization": "Bearer x",
    "X-Request-Id": "my-id",
    "Range": "bytes=0-1",
    "Connection": "keep-alive, X-A",
    "TE": "trailers",
    "Upgrade": "websocket",
    "X-DFC-Hop": "no",
}


async def test_heads_are_passed_on_without_what_is_between_two_nodes(upstream, client):
    own = "Server: x\r\nX-Request-Id: other\r\nDate: never\r\nConnection: keep-alive\r\n"
    upstream.scripts = [always(upstream, answer(headers=f'ETag: "a"\r\n{own}'))]
    headers = {**SENT, "Origin": f"http://{client.base_url.netloc.decode()}"}
    response = await client.get("/b/gr%C3%B6%C3%9Fe?member=a%20b", headers=headers)
    assert (response.status_code, response.content, response.headers["ETag"]) == (200, b"ok", '"a"')
    assert response.headers.get_list("Server") == ["dfc"]
    assert response.headers.get_list("X-Request-Id") == ["my-id"]
    (head,) = upstream.heads
    lines = head.split("\r\n")
    assert lines[0] == "GET /b/gr%C3%B6%C3%9Fe?member=a%20b HTTP/1.1"
    names = [line.partition(":")[0].lower() for line in lines[1:] if line]
    assert len(names) == len(set(names))
    assert not {"origin", "te", "connection", "upgrade"} & set(names)
    for line in (
        "Authorization: Bearer x",
        "X-Request-Id: my-id",
        "Range: bytes=0-1",
        "X-DFC-Hop: 1",
        f"Host: {upstream.url[7:]}",
    ):
        assert line.lower() in [found.lower() for found in lines]


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, LARGE])
async def test_bodies_both_ways(upstream, client, size):
    body = os.urandom(size)
    received = []

    async def script(reader, writer):
        while True:
            head = await upstream.head(reader)
            assert f"Content-Length: {size}" in head
            received.append(await reader.readexactly(size))
            writer.write(answer(body=received[-1]))

    upstream.scripts = [script]
    response = await client.put("/x", content=body)
    assert received == [body]
    assert response.content == body


@pytest.mark.parametrize("size", [0, 2, 70_000, 300_000])
async def test_what_comes_behind_an_answer_belongs_to_nobody(upstream, client, size):
    """A node may say that it closes an idle connection just when it was used."""
    body = os.urandom(size)
    upstream.scripts = [always(upstream, answer(body=body) + b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nlate")]
    for number in range(3):
        response = await client.put("/x", content=b"y")
        assert (response.status_code, response.content) == (200, body)
        assert upstream.connections == number + 1, "that connection is of no use any more"


@pytest.mark.parametrize("status", ["999 Odd", "600 Odd"])
async def test_a_status_that_http_does_not_have_is_not_passed_on(upstream, client, status):
    upstream.scripts = [always(upstream, answer(status, b"lies"))]
    check(await client.get("/x"), 503, "unavailable")


@pytest.mark.parametrize("location", ["http://evil.example/", "//evil.example/", "evil", "/\\\\evil.example", ""])
async def test_no_node_sends_clients_elsewhere(upstream, client, location):
    upstream.scripts = [always(upstream, answer("307 Temporary Redirect", b"", f"Location: {location}\r\n"))]
    answered = await client.get("/x", follow_redirects=False)
    assert answered.status_code == 503
    upstream.scripts = [always(upstream, answer("303 See Other", b"", "Location: /ui\r\n"))]
    assert (await client.get("/x", follow_redirects=False)).headers["Location"] == "/ui"


async def test_steps_before_an_answer_are_none(upstream, client):
    steps = b"HTTP/1.1 102 Processing\r\n\r\n" * 3

    async def script(reader, writer):
        head = await upstream.head(reader)
        if head.startswith("PUT"):
            writer.write(steps + b"HTTP/1.1 100 Continue\r\n\r\n")
            await reader.readexactly(LARGE)
        writer.write(steps + answer(headers="Connection: close\r\n"))

    upstream.scripts = [script]
    for answered in (await client.get("/x"), await client.put("/x", content=b"x" * LARGE, headers={"Expect": "100-continue"})):
        assert (answered.status_code, answered.content) == (200, b"ok")


async def test_connections_are_kept_and_used_again(upstream, client):
    upstream.scripts = [always(upstream, answer(body=b"x" * 100_000))]
    for _ in range(5):
        assert len((await client.get("/x")).content) == 100_000
        assert (await client.put("/x", content=b"y" * 10)).status_code == 200
    assert upstream.connections == 1


async def test_an_answer_that_closes_is_not_used_again(upstream, client):
    upstream.scripts = [always(upstream, answer(headers="Connection: close\r\n"))]
    for _ in range(3):
        assert (await client.get("/x")).content == b"ok"
    assert upstream.connections == 3


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_answers_without_a_body(upstream, client, status):
    upstream.scripts = [always(upstream, f'HTTP/1.1 {status}\r\nETag: "a"\r\n\r\n'.encode())]
    for _ in range(2):
        response = await client.get("/x")
        assert (str(response.status_code), response.content, response.headers["ETag"]) == (status[:3], b"", '"a"')
    assert upstream.connections == 1


async def test_a_head_request(upstream, client):
    upstream.scripts = [always(upstream, b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n")]
    for _ in range(2):
        response = await client.head("/x")
        assert (response.headers["Content-Length"], response.content) == ("12345", b"")
    assert upstream.connections == 1


async def test_a_chunked_answer(upstream, client):
    upstream.scripts = [
        always(upstream, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\n\r\n")
    ]
    assert (await client.get("/x")).content == b"abcdefg"


async def test_a_chunked_body(upstream, client):
    received = []

    async def script(reader, writer):
        head = await upstream.head(reader)
        assert "transfer-encoding: chunked" in head.lower()
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        received.append(body)
        writer.write(answer())

    upstream.scripts = [script]

    async def pieces():
        for _ in range(10):
            yield b"x" * 50_000

    assert (await client.put("/x", content=pieces())).content == b"ok"
    assert received == [b"x" * 500_000]


# --- Expect and early answers


@pytest.mark.parametrize("size", [LARGE, None])
async def test_100_continue_comes_from_the_other_node(upstream, client, size):
    async def script(reader, writer):
        assert "100-continue" in await upstream.head(reader)
        asked.set()
        await go.wait()
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if size is None:
            assert await reader.readuntil(b"0\r\n\r\n") == b"3\r\nabc\r\n0\r\n\r\n"
        else:
            await reader.readexactly(size)
        writer.write(answer())

    asked, go = asyncio.Event(), asyncio.Event()
    upstream.scripts = [script]
    reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    framing = "Transfer-Encoding: chunked" if size is None else f"Content-Length: {size}"
    writer.write(f"PUT /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n{framing}\r\n\r\n".encode())
    await asked.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readline(), 0.1)
    go.set()
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"3\r\nabc\r\n0\r\n\r\n" if size is None else b"x" * size)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize("expect", [True, False])
async def test_an_early_answer_reaches_a_client_that_is_still_sending(upstream, client, expect):
    async def script(reader, writer):
        await upstream.head(reader)
        writer.write(answer("412 Precondition Failed", b"early", "Connection: close\r\n"))
        await writer.drain()
        writer.write_eof()
        await reader.read()

    upstream.scripts = [script]
    reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    waits = "Expect: 100-continue\r\n" if expect else ""
    writer.write(f"PUT /x HTTP/1.1\r\nHost: a\r\n{waits}Content-Length: {LARGE}\r\n\r\n".encode())
    if not expect:
        writer.write(b"x" * 100_000)
    said = await asyncio.wait_for(reader.read(), 20)
    assert said.startswith(b"HTTP/1.1 412")
    assert b"100 Continue" not in said
    assert said.endswith(b"early")
    writer.close()


# --- nodes that fail


async def test_a_connection_that_was_closed_while_idle(upstream, client):
    first = once(upstream, answer())

    async def closes_on_the_second(reader, writer):
        await first(reader, writer)
        await upstream.head(reader)  # and ends without an answer

    upstream.scripts = [first, first, closes_on_the_second, first]
    assert (await client.get("/x")).content == b"ok"
    assert (await client.get("/x")).content == b"ok"  # seen to be closed
    assert (await client.get("/x")).content == b"ok"
    assert (await client.get("/x")).content == b"ok"  # closed as it was taken: asked again on a new one
    assert upstream.connections == 4


async def test_an_upload_is_never_sent_twice(upstream, client):
    async def closes_on_the_second(reader, writer):
        await upstream.head(reader)
        writer.write(answer())
        await upstream.head(reader)

    upstream.scripts = [closes_on_the_second]
    assert (await client.get("/x")).content == b"ok"
    check(await client.put("/x", content=b"abc"), 503, "unavailable")
    assert upstream.connections == 1


async def test_a_node_that_does_not_listen(upstream, client):
    upstream.server.close()
    await upstream.server.wait_closed()
    for response in (await client.get("/x"), await client.put("/x", content=b"x" * LARGE)):
        check(response, 503, "unavailable")
        assert "Retry-After" in response.headers


@pytest.mark.parametrize(
    "reply", [b"", b"HTTP/1.1 200", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"]
)
async def test_an_answer_that_is_none(upstream, client, reply):
    upstream.scripts = [once(upstream, reply)]
    check(await client.get("/x"), 503, "unavailable")


async def test_a_node_that_keeps_silent(upstream, client):
    async def script(reader, writer):
        await upstream.head(reader)
        await reader.read()

    upstream.scripts = [script]
    check(await client.get("/x"), 503, "unavailable")


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 300_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
    ],
)
async def test_an_answer_that_breaks_off_is_never_a_clean_short_one(upstream, client, reply):
    upstream.scripts = [once(upstream, reply)]
    with pytest.raises(httpx.RemoteProtocolError):
        await client.get("/x")
    upstream.scripts = [always(upstream, answer())]
    assert (await client.get("/x")).content == b"ok"


async def test_a_node_that_dies_in_mid_upload(upstream, client):
    async def script(reader, writer):
        await upstream.head(reader)
        await reader.readexactly(100_000)
        writer.transport.abort()

    upstream.scripts = [script]
    check(await client.put("/x", content=b"x" * 900_000), 503, "unavailable")


async def test_a_client_that_dies_in_mid_upload(upstream, client):
    ended = asyncio.Event()
    sizes = []

    async def script(reader, writer):
        await upstream.head(reader)
        sizes.append(len(await reader.read()))
        ended.set()

    upstream.scripts = [script]
    _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    writer.write(f"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n".encode() + b"x" * 1000)
    await writer.drain()
    writer.close()
    await asyncio.wait_for(ended.wait(), 20)
    assert sizes[0] <= 1000  # some of it, and then its end


async def test_json_errors_pass_through(upstream, client):
    body = json.dumps({"error": {"code": "object_not_found", "message": "m", "request_id": "r"}}).encode()
    upstream.scripts = [always(upstream, answer("404 Not Found", body, "Content-Type: application/json\r\n"))]
    check(await client.get("/x"), 404, "object_not_found")


# --- nodes that hang


def silent(upstream: Upstream) -> Script:
    """Read a head and nothing more, and say nothing; the connection stays open."""

    async def script(reader, writer):
        await upstream.head(reader)
        reader._transport.pause_reading()
        await upstream.over.wait()

    return script


async def test_a_node_that_takes_no_more_of_a_chunked_body(upstream):
    upstream.scripts = [silent(upstream)]
    settings = Settings(port=0, access_log=False, drain_timeout_s=0.1, read_stall_timeout_s=0.5)
    async with relaying(lambda: upstream.url, "PUT", settings=settings, answer_s=20) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        writer.write(b"PUT /b/a.bin HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (30_000_000, bytes(30_000_000)))  # more than all sockets on the way hold
        async with asyncio.timeout(20):
            said = await reader.readuntil(b"\r\n\r\n") + await reader.readline()
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"stopped reading the body" in said
        writer.transport.abort()


async def test_a_node_that_stalls_in_mid_answer_does_not_hold_the_client_for_ever(upstream, client, monkeypatch):
    async def stalls(reader, writer):
        await upstream.head(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await upstream.over.wait()

    monkeypatch.setattr(peer, "STREAM_STALL_S", 0.5)
    upstream.scripts = [stalls]
    with pytest.raises(httpx.RemoteProtocolError):
        await client.get("/b/a.bin")


async def test_an_upload_to_a_node_that_takes_nothing_ends(upstream, monkeypatch):
    async def pieces():
        for _ in range(300):
            yield bytes(100_000)

    monkeypatch.setattr(peer, "STREAM_STALL_S", 0.5)
    upstream.scripts = [silent(upstream)]
    control = ControlClient("", 5.0)
    try:
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable, match="TimeoutError"):
                await control.upload(f"{upstream.url}/b/a.bin", pieces())
    finally:
        await control.close()


async def test_a_connection_whose_other_side_hangs_gives_up(upstream, monkeypatch):
    monkeypatch.setattr(peer, "STREAM_STALL_S", 0.3)
    upstream.scripts = [silent(upstream)]
    connection = await PeerPool(5.0).open(upstream.url)
    async with asyncio.timeout(20):
        await connection.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        with pytest.raises(PeerGone):
            await connection.receive(100)
        with pytest.raises(PeerGone):
            await connection.send(bytes(30_000_000))
    connection.close()

"""The server of every node, in process with routes of the tests' own: deadlines, caps, errors, bodies, the end."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar

import pytest
from harness import until
from one_face import serving

from dfc.config import Settings
from dfc.errors import ObjectNotFound, StorageFailed, Unavailable
from dfc.http.answers import (
    Answer,
    FileAnswer,
    StreamAnswer,
    content_type,
    flag,
    health_answer,
    json_answer,
    page_limit,
    text_answer,
)
from dfc.http.budget import BODIES, LISTINGS
from dfc.http.exchange import Pauses
from dfc.http.faces import Route
from dfc.http.server import Connection, NodeServer, connections_within
from dfc.limits import BODY_FREE_BYTES, SMALL_BODY_BYTES
from dfc.metrics import make_registry, render

LARGE = 3_000_000
CALM = Settings(port=0, access_log=False, drain_timeout_s=5.0)
# For tests of what takes too long; nothing else may depend on the machine being fast.
IMPATIENT = replace(
    CALM,
    header_timeout_s=0.4,
    keepalive_timeout_s=1.0,
    body_grace_s=0.4,
    body_min_rate_bytes_per_s=1000,
    read_stall_timeout_s=0.6,
)


def cut_off(error: Exception | None):
    """A handler whose stream ends after 1000 bytes: by an error, or else although it has said that there are 2000."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        if error is not None:
            raise error

    async def handler(exchange, parameters):
        return StreamAnswer(200, pieces(), [], content_length=2000 if error is None else None)

    return handler


class Program:
    """Handlers that show what a route can do."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.release, self.entered = asyncio.Event(), asyncio.Event()
        self.received, self.digested = bytearray(), bytearray()
        self.problem: BaseException | None = None
        self.crashes_with: Exception = ValueError("a secret detail")
        self.read_errors: list[tuple[int | None, int]] = []
        self.waited = self.asked_at_once = 0  # of `hello`: calls of the handler, and of what answers without waiting
        self.is_at_hand = True
        self.repeats = 1
        self.refusal: Exception | None = None
        self.hold_up: Callable[[], object] = lambda: None  # what storing a piece waits for

    async def hello(self, exchange, parameters):
        self.waited += 1
        return text_answer("hello")

    def hello_at_once(self, exchange, parameters):
        self.asked_at_once += 1
        if self.refusal is not None:
            raise self.refusal
        return text_answer("hello" * self.repeats) if self.is_at_hand else None

    async def hold(self, exchange, parameters):
        self.entered.set()
        try:
            await self.release.wait()
        except BaseException as problem:
            self.problem = problem
            raise
        return text_answer("released")

    async def crash(self, exchange, parameters):
        raise self.crashes_with

    async def known(self, exchange, parameters):
        raise {"404": ObjectNotFound("there is none"), "503": Unavailable("later", retry_after_s=7)}[parameters[0]]

    slow_digest = False

    def write(self, data: memoryview) -> None:
        self.digest(data)
        self.store(data)

    def store(self, data: memoryview) -> None:
        self.hold_up()
        self.received += data

    def digest(self, data: memoryview) -> None:
        self.digested += data

    async def emptied(self, exchange, parameters):
        transport = exchange.open_transport()
        before = transport.get_write_buffer_limits()
        transport.write(bytes(10 * LARGE))  # more than sockets hold
        assert transport.get_write_buffer_size()
        await exchange.write_buffer_empty()
        self.limits = (before, transport.get_write_buffer_limits())
        return text_answer("emptied")

    async def receive(self, exchange, parameters):
        self.received.clear()
        self.digested.clear()
        self.entered.set()
        try:
            await exchange.receive(self, exchange.bulk.threads)
        except BaseException as problem:
            self.problem = problem
            raise
        assert self.digested == self.received
        return json_answer({"received": len(self.received), "counted": exchange.received_bytes})

    async def small(self, exchange, parameters):
        return json_answer({"received": len(await exchange.read_small(1000))})

    async def large(self, exchange, parameters):
        received = len(await exchange.read_small(LARGE))
        return json_answer({"received": received, "held": 0 if exchange.place is None else exchange.place.size})

    async def ignore(self, exchange, parameters):
        return text_answer("I do not want it")

    def note(self, error: OSError, offset: int) -> None:
        self.read_errors.append((error.errno, offset))

    async def file(self, exchange, parameters):
        start = 10 if exchange.target_path == "/v1/short-file" else 0
        return FileAnswer(200, os.open(self.path, os.O_RDONLY), start, LARGE, [], exchange.bulk.threads, self.note)

    async def stream(self, exchange, parameters):
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(5):
                yield b"x" * 100_000
                yield b""

        return StreamAnswer(200, pieces(), [])

    async def placed(self, exchange, parameters):
        await exchange.enter(LISTINGS, LARGE)
        if parameters[0] == "held":
            return await self.hold(exchange, parameters)
        if parameters[0] == "missing":
            raise ObjectNotFound("there is none")
        if parameters[0] == "broken":
            raise ValueError("unforeseen")
        return await self.endless(exchange, parameters) if parameters[0] == "endless" else text_answer("done")

    async def endless(self, exchange, parameters):
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 100_000

        return StreamAnswer(200, pieces(), [])

    def routes(self) -> list[Route]:
        get = {
            "/v1/emptied": self.emptied,
            "/v1/hold": self.hold, "/v1/crash": self.crash, "/v1/known/{status}": self.known,
            "/v1/file": self.file, "/v1/short-file": self.file, "/v1/stream": self.stream,
            "/v1/broken-stream": cut_off(ValueError("in mid-stream")),
            "/v1/failing-stream": cut_off(StorageFailed("the disk is gone")),
            "/v1/broken-off-stream": cut_off(ConnectionResetError("the other node went away")),
            "/v1/short-stream": cut_off(None), "/v1/endless": self.endless, "/v1/placed/{how}": self.placed,
        }  # fmt: skip
        put = {
            "/v1/receive": self.receive,
            "/v1/small": self.small,
            "/v1/ignore": self.ignore,
            "/v1/large": self.large,
            "/v1/node/large": self.large,
        }
        return [
            Route("/v1/hello", {"GET": self.hello, "PUT": self.hello}, at_once=self.hello_at_once),
            Route("/v1/node/hello", {"GET": self.hello}, at_once=self.hello_at_once),
            *(Route(pattern, {"GET": handler}) for pattern, handler in get.items()),
            *(Route(pattern, {"PUT": handler}) for pattern, handler in put.items()),
        ]


@pytest.fixture
async def start(tmp_path):
    """Starts servers: `server, program = await start(settings)`."""
    path = tmp_path / "body"
    path.write_bytes(b"z" * LARGE)
    servers = []

    async def begin(settings: Settings = CALM) -> tuple[NodeServer, Program]:
        program = Program(str(path))
        server = serving(settings, program.routes(), Route("/", {"GET": program.hello}, query=None))
        server.bind()
        await server.serve()
        servers.append((server, program))
        return server, program

    yield begin
    while Client.opened:
        await Client.opened.pop().close()
    for server, program in servers:
        program.release.set()
        await server.stop()


class Client:
    """A connection that says exactly what it is told to. It ends with the servers of the test, if not before."""

    opened: ClassVar[list[Client]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, server: NodeServer, request: str = "", body: bytes = b"") -> Client:
        cls.opened.append(client := cls(*await asyncio.open_connection("127.0.0.1", server.port)))
        client.send(request, body)
        return client

    def send(self, text: str, body: bytes = b"") -> None:
        self.writer.write(text.replace("\n", "\r\n").encode() + body)

    async def head(self, request: str = "", body: bytes = b"") -> tuple[int, dict[str, str]]:
        """Of the answer to this request, or to one that was sent before."""
        if request:
            self.send(request, body)
        lines = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in headers.items()}

    async def answer(self, request: str = "", body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head(request, body)
        return status, headers, await self.reader.readexactly(int(headers.get("content-length", 0)))

    async def error(self, request: str = "", body: bytes = b"") -> tuple[int, str]:
        """Status and code of an error answer after which the connection ends."""
        status, headers, content = await self.answer(request, body)
        assert (headers.get("content-type"), headers.get("connection")) == ("application/json", "close")
        assert await self.rest() == b""
        return status, json.loads(content)["error"]["code"]

    async def rest(self) -> bytes:
        try:
            return await asyncio.wait_for(self.reader.read(), 20)
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self.writer.transport.abort()


@pytest.fixture
def connect(start):
    """The same with a connection: `server, program, client = await connect(settings, request, body)`."""

    async def begin(settings: Settings = CALM, request: str = "", body: bytes = b"") -> tuple[NodeServer, Program, Client]:
        server, program = await start(settings)
        return server, program, await Client.open(server, request, body)

    return begin


def message(method: str, path: str, *lines: str) -> str:
    return "\n".join((f"{method} /v1/{path} HTTP/1.1", "Host: a", *lines, "", ""))


get, put = partial(message, "GET"), partial(message, "PUT")


# --- answers that take no waiting


async def test_what_is_at_hand_is_answered_without_a_task(connect):
    server, program, client = await connect()
    for _ in range(3):
        status, headers, body = await client.answer(get("hello", "X-Request-Id: abc"))
        assert (status, headers["x-request-id"], body) == (200, "abc", b"hello")
    assert (program.waited, program.asked_at_once) == (0, 3)
    assert server.stats.requests == {("GET", "/v1/hello", 200): 3}


async def test_without_what_it_needs_of_aiohttp_nothing_is_answered_at_once(connect, monkeypatch):
    monkeypatch.setattr("dfc.http.server._AT_ONCE", False)
    _, program, client = await connect()
    for _ in range(3):
        assert (await client.answer(get("hello")))[::2] == (200, b"hello")
    assert (program.waited, program.asked_at_once) == (3, 0)


@pytest.mark.parametrize("refusal", [None, Unavailable("not now"), ValueError("a mistake")])
async def test_what_is_not_at_hand_is_waited_for(connect, refusal, caplog):
    server, program, client = await connect()
    program.is_at_hand, program.refusal = False, refusal
    for number in range(1, 3):
        assert (await client.answer(get("hello")))[::2] == (200, b"hello")
        assert (program.waited, program.asked_at_once) == (number, number)
    assert server.stats.requests == {("GET", "/v1/hello", 200): 2}, "each is counted once"
    assert ("a mistake" in caplog.text) == isinstance(refusal, ValueError)


@pytest.mark.parametrize(
    "head",
    [
        "HEAD /v1/hello HTTP/1.1\nHost: a\n\n",
        "GET /v1/hello HTTP/1.1\nHost: a\nConnection: close\n\n",
        "GET /v1/hello HTTP/1.0\nHost: a\n\n",
        "GET /v1/hello HTTP/1.1\nHost: a\nContent-Length: 3\n\nabc",
        "GET http://127.0.0.1/v1/hello HTTP/1.1\nHost: a\n\n",
        "GET /v1/hello HTTP/1.1\nHost: a\nUpgrade: h2c\nConnection: upgrade\n\n",
        put("hello", "Content-Length: 0"),
    ],
)
async def test_what_is_not_simple_is_waited_for(connect, head):
    _, program, client = await connect()
    assert (await client.head(head))[0] == 200
    assert (program.waited, program.asked_at_once) == (1, 0)


async def test_requests_in_one_packet_are_answered_in_their_order(connect):
    _, program, client = await connect()
    client.send("".join(get("hello", f"X-Request-Id: {each}") for each in "abc") + "GET /v1/he")
    assert [(await client.answer())[1]["x-request-id"] for _ in range(3)] == ["a", "b", "c"]
    assert (await client.answer("llo HTTP/1.1\nHost: a\nX-Request-Id: d\n\n"))[1]["x-request-id"] == "d"
    assert (program.waited, program.asked_at_once) == (3, 1)


async def test_a_request_behind_one_that_takes_long_has_its_turn(connect):
    _, program, client = await connect(CALM, get("hold"))
    await program.entered.wait()
    client.send(get("hello"))
    await asyncio.sleep(0.05)  # nothing may come in this time: there is nothing to wait for
    assert program.asked_at_once == 0
    program.release.set()
    assert [(await client.answer())[2] for _ in range(2)] == [b"released", b"hello"]


async def test_a_connection_that_only_had_such_answers_ends_when_it_is_idle(connect):
    server, _, client = await connect(IMPATIENT)
    await client.answer(get("hello"))
    assert await client.rest() == b""
    assert server.stats.connections == 0


async def test_a_client_that_reads_nothing_fills_no_memory(connect):
    """What does not fit into the sockets waits in the node; at most one more answer is made meanwhile."""
    server, program, client = await connect()
    program.repeats = LARGE // 5
    client.writer.transport.pause_reading()
    for _request in range(20):
        asked = program.asked_at_once
        client.send(get("hello"))
        for _ in range(20):
            await asyncio.sleep(0.005)
            if program.asked_at_once != asked:
                break
        else:
            break
    connection = next(iter(server.connections))
    assert isinstance(connection, Connection)
    assert connection.transport.get_write_buffer_size() <= 2 * LARGE + 2000


@pytest.mark.parametrize(
    ("settings", "head", "expected"),
    [
        (CALM, "GET /v1/hello HTTP/1.1\nHost: evil.example\n\n", 421),
        (replace(CALM, token="t", token_for_reads=True), get("hello"), 401),
        (replace(CALM, token="t"), get("node/hello"), 401),
        (replace(CALM, token="t"), get("node/hello", "Authorization: Bearer t"), 200),
        (CALM, "GET /v1/hello?x=1 HTTP/1.1\nHost: a\n\n", 400),
        (CALM, get("hello", "Transfer-Encoding: gzip, chunked") + "0\n\n", 400),
    ],
)
async def test_the_same_checks_come_first(connect, settings, head, expected):
    _, program, client = await connect(settings)
    assert (await client.answer(head))[0] == expected
    assert program.asked_at_once == (expected == 200)
    assert program.waited == 0


# --- deadlines and caps


@pytest.mark.parametrize("begun", ["", "GET /v1/hello HTTP/1.1\nHost: a", "GET /v1/hello HTTP/1.1\nHost: a\nX: 1\n"])
async def test_a_head_that_does_not_come(connect, begun):
    _, _, client = await connect(IMPATIENT)
    assert await client.error(begun) == (408, "header_timeout")


async def test_a_head_that_drips(connect):
    _, _, client = await connect(IMPATIENT)

    async def drip() -> None:
        for letter in "GET /v1/hello HTTP/1.1\r\nHost: " + "a" * 1000:
            client.writer.write(letter.encode())
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    assert await client.error() == (408, "header_timeout")
    dripping.cancel()


async def test_a_head_that_came_while_the_process_stood_still_is_in_time(connect):
    """On the loop that nodes run on, timers are looked at before sockets."""
    server, _, client = await connect(replace(CALM, header_timeout_s=0.5), "GET /v1/hello HTTP/1.1\n")
    await asyncio.sleep(0.1)
    client.send("Host: a\n\n")
    threading.Event().wait(0.7)
    server._sweep()
    assert (await client.answer())[0] == 200
    assert await client.error("GET /v1/hel") == (408, "header_timeout")


async def test_no_head_has_begun_where_nothing_came(connect):
    """aiohttp says that nothing has come when it goes on reading, perhaps after a body that was large has ended."""
    server, _, client = await connect(replace(CALM, header_timeout_s=0.4))
    assert (await client.answer(get("hello")))[0] == 200
    (connection,) = server.connections
    connection.data_received(b"")
    await asyncio.sleep(1.0)
    assert (await client.answer(get("hello")))[0] == 200


async def test_a_second_head_has_its_own_deadline(connect):
    _, _, client = await connect(replace(CALM, header_timeout_s=0.5))
    assert (await client.answer(get("hello")))[0] == 200
    await asyncio.sleep(0.6)  # idle for longer than a head may take
    assert (await client.answer(get("hello")))[0] == 200
    assert await client.error("GET /v1/hel") == (408, "header_timeout")


async def test_an_idle_connection_is_closed(connect):
    _, _, client = await connect(IMPATIENT)
    assert (await client.answer(get("hello")))[2] == b"hello"
    assert await client.rest() == b""


async def test_one_connection_too_many(start):
    server, program = await start(replace(CALM, connections_max=3))
    clients = [await Client.open(server) for _ in range(3)]
    for client in clients:
        client.send(get("hold"))
    await program.entered.wait()
    refused = await Client.open(server)
    status, headers, body = await refused.answer(get("hello"))
    assert (status, headers["retry-after"], json.loads(body)["error"]["code"]) == (503, "1", "unavailable")
    assert await refused.rest() == b""
    assert server.stats.connections_refused == 1
    program.release.set()
    for client in clients:
        assert (await client.answer())[2] == b"released"
        await client.close()
    await until(lambda: not server.stats.connections)
    again = await Client.open(server)
    assert (await again.answer(get("hello")))[0] == 200


TOKEN = "Authorization: Bearer sesame"
NODE_HELLO = get("node/hello", TOKEN)


async def full(start) -> tuple[NodeServer, Program]:
    """A server that wants a token and has all the connections that it may have."""
    server, program = await start(replace(CALM, connections_max=3, token="sesame"))
    for client in [await Client.open(server) for _ in range(3)]:
        client.send(get("hold"))
    await program.entered.wait()
    return server, program


async def test_nodes_are_heard_when_clients_have_all_connections(start):
    server, _ = await full(start)
    node = await Client.open(server)
    for _ in range(3):
        assert (await node.answer(NODE_HELLO))[::2] == (200, b"hello")
    for request, expected in (
        (get("hello"), (503, "unavailable")),
        (get("hello", TOKEN), (503, "unavailable")),
        (get("node/hello"), (401, "unauthorized")),
        (get("nothing"), (404, "not_found")),
    ):
        client = await Client.open(server)
        assert await client.error(request) == expected
    assert server.stats.connections_refused == 2
    assert (await node.answer(NODE_HELLO))[0] == 200
    assert not server.extra


async def test_connections_that_say_nothing_make_room_for_nodes(start, monkeypatch):
    monkeypatch.setattr("dfc.http.server.NODE_CONNECTIONS_MAX", 2)
    server, _ = await full(start)
    silent = [await Client.open(server) for _ in range(5)]
    node = await Client.open(server)
    assert (await node.answer(NODE_HELLO))[0] == 200
    for client in silent[:4]:
        assert await client.error() == (503, "unavailable")
    assert server.stats.connections == 5
    again = await Client.open(server)  # one is left that has said nothing
    assert (await again.answer(NODE_HELLO))[0] == 200
    assert (await silent[4].error())[0] == 503
    refused = await Client.open(server)
    assert await refused.error(NODE_HELLO) == (503, "unavailable")
    assert server.stats.connections_refused == 6


async def test_who_says_nothing_does_not_stay_beyond_the_limit(start, monkeypatch):
    monkeypatch.setattr("dfc.http.server.NODE_CONNECTION_S", 0.2)
    server, _ = await full(start)
    silent = await Client.open(server)
    assert await silent.error("GET /v1/") == (503, "unavailable")
    assert not server.extra


async def test_what_is_left_of_a_refused_request_keeps_no_node_out(start, monkeypatch):
    """Its connection stays for a moment, for a body that may still come."""
    monkeypatch.setattr("dfc.http.server.NODE_CONNECTIONS_MAX", 2)
    server, _ = await full(start)
    refused = [await Client.open(server) for _ in range(2)]
    for client in refused:
        assert (await client.answer(put("small", "Content-Length: 1000", TOKEN)))[0] == 503
    assert len(server.extra) == 2
    for _ in range(2):
        node = await Client.open(server)
        assert (await node.answer(NODE_HELLO))[0] == 200
    assert server.stats.connections_refused == 2
    assert not server.extra


async def test_a_silent_connection_beyond_the_limit_stays_if_there_is_room_again(start, monkeypatch):
    monkeypatch.setattr("dfc.http.server.NODE_CONNECTION_S", 0.2)
    server, program = await full(start)
    program.release.set()
    gone = Client.opened[-1]
    assert (await gone.answer())[2] == b"released"
    silent = await Client.open(server)
    await gone.close()
    await until(lambda: not server.extra)
    await asyncio.sleep(0.5)
    assert (await silent.answer(get("hello")))[0] == 200


async def test_a_connection_beyond_the_limit_is_as_others_when_they_have_gone(start):
    server, program = await full(start)
    gone = Client.opened[-1]
    extra = await Client.open(server)
    await until(lambda: server.extra)
    program.release.set()
    assert (await gone.answer())[2] == b"released"
    await gone.close()
    await until(lambda: server.stats.connections == 3)
    for _ in range(2):
        assert (await extra.answer(get("hello")))[::2] == (200, b"hello")
    assert not server.extra


async def test_others_beyond_the_limit_do_not_take_the_room_of_who_asks(start):
    server, program = await full(start)
    gone = Client.opened[-1]
    extra = [await Client.open(server) for _ in range(3)]
    await until(lambda: len(server.extra) == 3)
    program.release.set()
    assert (await gone.answer())[2] == b"released"
    await gone.close()
    await until(lambda: server.stats.connections == 5)
    assert (await extra[2].answer(get("hello")))[::2] == (200, b"hello")
    assert await extra[1].error(get("hello")) == (503, "unavailable")


@pytest.mark.parametrize(
    ("path", "framing", "sent"),
    [
        ("receive", f"Content-Length: {LARGE}", b""),
        ("receive", f"Content-Length: {LARGE}", b"x" * 100_000),
        ("receive", "Content-Length: 100", b"x"),
        ("receive", "Transfer-Encoding: chunked", b""),
        ("receive", "Transfer-Encoding: chunked", b"5\r\nabc"),
        ("small", "Content-Length: 100", b"x"),
        ("small", "Transfer-Encoding: chunked", b"5\r\nabc"),
    ],
)
async def test_a_body_that_stalls(connect, path, framing, sent):
    _, _, client = await connect(IMPATIENT)
    assert await client.error(put(path, framing), sent) == (408, "body_timeout")


async def test_a_reader_that_stalls(start):
    server, _ = await start(IMPATIENT)
    for path in ("file", "endless"):
        client = await Client.open(server)
        client.reader._limit = 1  # type: ignore[attr-defined]  asyncio stops reading from the socket
        client.send(get(path))
        await until(lambda: not server.stats.connections)
        await client.close()


# --- bodies


@pytest.mark.parametrize("size", [0, 1, SMALL_BODY_BYTES, SMALL_BODY_BYTES + 1, LARGE])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_is_received(connect, size, chunked):
    _, program, client = await connect()
    body = os.urandom(size)
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    client.send(put("receive", framing))
    if chunked:
        for at in range(0, size, 70_000):
            piece = body[at : at + 70_000]
            client.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        client.writer.write(b"0\r\n\r\n")
    else:
        client.writer.write(body)
    status, headers, said = await client.answer()
    assert status == 200
    assert json.loads(said) == {"received": size, "counted": size}
    assert program.received == body
    if size == LARGE:  # taken from under the parser, which cannot go on
        assert ("connection" in headers) == (not chunked)


@pytest.mark.parametrize(
    ("framing", "sent"), [(f"Content-Length: {LARGE}", b"x" * 100_000), ("Transfer-Encoding: chunked", b"5\r\nabc")]
)
async def test_a_client_that_goes_away_in_mid_body(connect, framing, sent):
    _, program, client = await connect(CALM, put("receive", framing), sent)
    await until(lambda: program.received or "Length" not in framing)
    await client.close()
    await until(lambda: program.problem is not None)
    assert type(program.problem).__name__ == "LengthMismatch"


async def test_a_broken_chunk_in_mid_body(connect):
    _, program, client = await connect(CALM, put("receive", "Transfer-Encoding: chunked"), b"3\r\nabc\r\n")
    await program.entered.wait()  # the head and the first chunk have been parsed
    client.writer.write(b"nonsense\r\n")
    assert await client.error() == (400, "bad_request")
    assert type(program.problem).__name__ == "BadRequest"


async def test_a_broken_chunk_before_its_request_has_begun(connect, monkeypatch):
    """A busy loop reads head and chunk, apart, before it comes to run the handler."""
    received = Connection.data_received

    def in_two(self, data):
        head, end, rest = data.partition(b"\r\n\r\n")
        received(self, head + end)
        received(self, rest)

    monkeypatch.setattr(Connection, "data_received", in_two)
    _, program, client = await connect(CALM, put("receive", "Transfer-Encoding: chunked"), b"zz\r\nabc\r\n")
    async with asyncio.timeout(15):  # and not when the body is too slow
        assert await client.error() == (400, "bad_request")
    assert type(program.problem).__name__ == "BadRequest"


async def test_a_body_over_the_limit(start):
    server, _ = await start()
    for framing, body in (("Content-Length: 1001", b"x" * 1001), ("Transfer-Encoding: chunked", b"3e9\r\n" + b"x" * 1001)):
        client = await Client.open(server)
        status, _, said = await client.answer(put("small", framing), body)
        assert (status, json.loads(said)["error"]["code"]) == (413, "too_large")


async def test_a_body_that_nobody_reads(connect):
    _, _, client = await connect()
    status, headers, body = await client.answer(put("ignore", "Content-Length: 500000"), b"x" * 500_000)
    assert (status, body, headers["connection"]) == (200, b"I do not want it", "close")
    assert await client.rest() == b""


async def test_100_continue_is_sent_once_and_only_to_who_waits(start):
    server, _ = await start()
    for expect in (["Expect: 100-continue"], ["Expect: 100-Continue"], []):
        for size in (10, LARGE):
            client = await Client.open(server, put("receive", *expect, f"Content-Length: {size}"))
            if expect:
                assert (await client.head())[0] == 100
            client.writer.write(b"x" * size)
            assert (await client.answer())[0] == 200
            await client.close()


# --- answers


async def test_a_file_and_a_stream(connect):
    _, _, client = await connect()
    for _ in range(2):
        assert (await client.answer(get("file")))[2] == b"z" * LARGE
        assert (await client.head(get("stream")))[1]["transfer-encoding"] == "chunked"
        body = b""
        while size := int(await client.reader.readline(), 16):
            body += (await client.reader.readexactly(size + 2))[:-2]
        await client.reader.readline()
        assert body == b"x" * 500_000
        assert (await client.head(message("HEAD", "stream")))[1]["transfer-encoding"] == "chunked"
        assert (await client.head(message("HEAD", "file")))[1]["content-length"] == str(LARGE)


@pytest.mark.parametrize(
    ("path", "why"),
    [("short-file", "the file ends"), ("broken-stream", "in mid-stream"), ("short-stream", "1000 bytes instead of 2000"),
     ("failing-stream", "the disk is gone"), ("broken-off-stream", "the other node went away")],
)  # fmt: skip
async def test_a_body_that_cannot_be_finished_breaks_the_connection_and_is_told(connect, path, why, caplog, capfd):
    server, program, client = await connect(replace(CALM, access_log=True))
    with caplog.at_level(logging.WARNING):
        status, headers = await client.head(get(path, "X-Request-Id: abc"))
        body = await client.rest()
    assert status == 200
    if "content-length" in headers:
        assert len(body) < int(headers["content-length"])
    else:
        assert not body.endswith(b"0\r\n\r\n")
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("dfc.http", "WARNING")
    assert why in record.getMessage()
    assert "(request abc)" in record.getMessage()
    assert (record.exc_info is not None) == (path == "broken-stream")  # only what nobody foresaw has a traceback
    assert server.stats.cut == {f"/v1/{path}": 1}
    assert f'dfc_answers_cut_total{{route="/v1/{path}"}} 1.0'.encode() in render(make_registry(server.stats))
    assert program.read_errors == ([(errno.ENODATA, os.path.getsize(program.path))] if path == "short-file" else [])
    server._access.flush()
    (line,) = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"access"' in line]
    assert (line["status"], line["cut"], line["request_id"]) == (200, True, "abc")


async def test_a_client_that_goes_away_in_mid_answer_is_no_cut_of_ours(connect, caplog, capfd):
    server, _, client = await connect(replace(CALM, access_log=True))
    await client.head(get("endless"))
    client.writer.transport.abort()
    await until(lambda: server.stats.requests)
    assert server.stats.cut == {}
    server._access.flush()
    assert '"cut"' not in capfd.readouterr().err


async def test_errors(connect, caplog):
    _, _, client = await connect()
    for path, status, code in (("known/404", 404, "object_not_found"), ("known/503", 503, "unavailable")):
        found, headers, body = await client.answer(get(path, "X-Request-Id: abc"))
        assert found == status
        assert json.loads(body)["error"]["code"] == code
        assert json.loads(body)["error"]["request_id"] == headers["x-request-id"] == "abc"
        assert headers.get("retry-after") == ("7" if status == 503 else None)
    with caplog.at_level(logging.ERROR):
        status, _, body = await client.answer(get("crash", "X-Request-Id: abc"))
    assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
    assert b"secret" not in body
    assert "abc" in caplog.text
    assert "a secret detail" in caplog.text


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_a_node_without_descriptors_says_so_and_is_not_to_blame(connect, caplog, number):
    _, program, client = await connect()
    program.crashes_with = OSError(number, os.strerror(number), "/a/path")
    status, headers, body = await client.answer(get("crash"))
    error = json.loads(body)["error"]
    assert (status, error["code"], headers["retry-after"]) == (503, "unavailable", "1")
    assert "descriptors" in error["message"]
    assert "/a/path" not in error["message"]
    assert "/a/path" in caplog.text
    program.crashes_with = OSError(errno.EIO, "a fault")
    assert (await client.answer(get("crash")))[0] == 500


async def test_a_large_answer_for_which_there_are_no_descriptors_is_refused(connect, caplog, monkeypatch):
    """And not cut off: the client has got nothing of it yet."""
    _, _, client = await connect()

    def dup(fd: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("dfc.http.transfer.os.dup", dup)
        status, _, body = await client.answer(get("file"))
    assert (status, json.loads(body)["error"]["code"]) == (503, "unavailable")
    assert "cut off" not in caplog.text
    assert (await client.answer(get("file")))[0] == 200  # on the same connection


@pytest.mark.parametrize(("files", "wanted", "allowed"), [(256, 4096, 144), (20_000, 4096, 4096), (10, 4096, 1)])
def test_no_more_connections_than_descriptors_allow(monkeypatch, files, wanted, allowed):
    monkeypatch.setattr("dfc.http.server.resource.getrlimit", lambda _: (files, files))
    assert connections_within(wanted) == allowed


async def test_a_sender_of_chunks_is_not_blamed_for_a_slow_sink(start):
    server, program = await start(replace(IMPATIENT, body_min_rate_bytes_per_s=1_000_000, body_grace_s=2.0))
    program.hold_up = lambda: time.sleep(2.5 if not program.received else 0)  # longer than the window of the minimum rate
    client = await Client.open(server, put("receive", "Transfer-Encoding: chunked"))
    for _ in range(3):
        client.send("493E0\n", bytes(300_000) + b"\r\n")
    status, _, body = await client.answer("0\n\n")
    assert (status, json.loads(body)["counted"]) == (200, 900_000)


async def test_the_write_limit_of_a_connection_is_back_once_its_buffer_is_empty(connect):
    _, program, client = await connect(CALM, get("emptied"))
    await client.reader.readexactly(10 * LARGE)
    assert (await client.answer())[2] == b"emptied"
    before, after = program.limits
    assert before == after
    assert before[1] > 0


# --- what was given up while the node stood still


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (put("small", "Content-Length: 3"), b"abc"),
        (put("hello", "Content-Length: 0"), b""),
        (put("receive", f"Content-Length: {LARGE}"), bytes(LARGE)),
        (put("receive", "Content-Length: 3"), b"abc"),
    ],
    ids=["small", "empty", "large", "received"],
)
async def test_a_write_that_was_given_up_in_a_pause_is_not_carried_out(start, monkeypatch, head, body):
    server, program = await start()
    monkeypatch.setattr(Pauses, "within", lambda *_: True)
    client = await Client.open(server)
    assert (await client.answer(head, body))[0] == 200  # whoever still waits gets what was asked for
    gone = await Client.open(server, head, body)
    gone.writer.write_eof()
    assert (await gone.answer())[0] == 503
    assert program.waited == (1 if "hello" in head else 0)
    reading = await Client.open(server, get("stream"))
    reading.writer.write_eof()
    assert (await reading.head())[0] == 200  # a read does no harm


async def test_a_body_that_was_given_up_in_a_pause_is_not_taken(connect, monkeypatch):
    """The pause came after the request had begun."""
    _, program, client = await connect(CALM, put("receive", f"Content-Length: {LARGE}"), bytes(LARGE - 10))
    await program.entered.wait()
    monkeypatch.setattr(Pauses, "within", lambda *_: True)
    client.writer.write(bytes(10))
    client.writer.write_eof()
    assert (await client.answer())[0] == 503
    assert isinstance(program.problem, Unavailable)


# --- the end


async def test_running_requests_finish_and_new_ones_are_not_taken(connect):
    server, program, client = await connect(CALM, get("hold"))
    await program.entered.wait()
    idle = await Client.open(server)
    stopping = asyncio.create_task(server.stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    with pytest.raises(ConnectionError):
        await Client.open(server)
    program.release.set()
    assert (await client.answer())[2] == b"released"
    await asyncio.wait_for(stopping, 10)
    assert await idle.rest() == b""


async def test_nodes_are_answered_until_the_requests_of_clients_have_finished(start):
    server, program = await start()
    client, node, idle = [await Client.open(server) for _ in range(3)]
    for _ in range(2):  # also one that clients make, before and after
        node.send(get("node/hello") + get("hello"))
        assert [(await node.answer())[2] for _ in range(2)] == [b"hello", b"hello"]
    client.send(get("hold"))
    await program.entered.wait()
    draining = asyncio.create_task(server.drain())
    assert await idle.rest() == b""
    assert (await node.answer(get("node/hello")))[2] == b"hello"
    with pytest.raises(ConnectionError):
        await Client.open(server)
    assert not draining.done()
    program.release.set()
    assert (await client.answer())[2] == b"released"
    await asyncio.wait_for(draining, 10)
    assert (await node.answer(get("node/hello")))[2] == b"hello"
    await asyncio.wait_for(server.stop(), 10)
    assert await node.rest() == b""


async def test_what_a_drain_took_counts_when_the_server_stops(start):
    server, program = await start(replace(CALM, drain_timeout_s=2.0))
    client, node = await Client.open(server), await Client.open(server)
    assert (await node.answer(get("node/hello")))[2] == b"hello"
    for each, step in ((client, server.drain), (node, server.stop)):
        program.entered.clear()
        each.send(get("hold"))
        await program.entered.wait()
        begun_s = time.monotonic()
        await asyncio.wait_for(step(), 10)
        assert await each.rest() == b""
    assert time.monotonic() - begun_s < 1.9  # all of the timeout has gone by in the drain


async def test_what_does_not_finish_is_ended_after_the_drain_timeout(connect):
    server, program, client = await connect(replace(CALM, drain_timeout_s=0.2), get("hold"))
    await program.entered.wait()
    await asyncio.wait_for(server.stop(), 10)
    assert await client.rest() == b""


async def test_what_is_left_is_cut_off_at_the_drain_timeout_not_at_twice_that(start, caplog):
    server, program = await start(replace(CALM, drain_timeout_s=6.0))
    await Client.open(server, get("hold"))
    await program.entered.wait()
    begun = asyncio.get_running_loop().time()
    await asyncio.wait_for(server.stop(), 60)
    assert 5.9 < asyncio.get_running_loop().time() - begun < 11
    assert isinstance(program.problem, asyncio.CancelledError)
    assert "1 requests did not finish within 6 s" in caplog.text


async def test_a_request_whose_client_has_gone_is_cut_off_as_well(connect):
    server, program, client = await connect(replace(CALM, drain_timeout_s=0.2), get("hold"))
    await program.entered.wait()
    client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()  # resets: one that only ends its side may still want its answer
    await until(lambda: not server.stats.connections)
    await asyncio.wait_for(server.stop(), 10)
    assert isinstance(program.problem, asyncio.CancelledError)


async def test_a_write_that_hangs_in_a_thread_holds_up_neither_the_stop_nor_the_loop(start, caplog):
    server, program = await start(replace(CALM, drain_timeout_s=0.2))
    entered, release = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        release.wait(60)

    program.hold_up = hang
    await Client.open(server, put("receive", f"Content-Length: {LARGE}"), bytes(LARGE))
    assert await asyncio.to_thread(entered.wait, 20)
    begun, turns = asyncio.get_running_loop().time(), 0
    try:
        stopping = asyncio.create_task(server.stop())
        while not stopping.done():
            await asyncio.sleep(0.02)
            turns += 1
        assert asyncio.get_running_loop().time() - begun < 30
        assert turns > 10
        assert "gave up waiting for the transfer threads" in caplog.text
    finally:
        release.set()


# --- addresses


@pytest.mark.parametrize(
    ("settings", "urls"),
    [
        ({}, ("http://127.0.0.1:{p}", "http://127.0.0.1:{p}")),
        ({"url": "http://node:0/"}, ("http://node:{p}", "http://node:{p}")),
        ({"url": "http://node:80"}, ("http://node:80", "http://node:80")),
        ({"advertise_url": "http://data.example:0"}, ("http://127.0.0.1:{p}", "http://data.example:{p}")),
        ({"url": "http://node:1", "advertise_url": "https://data.example/"}, ("http://node:1", "https://data.example")),
    ],
)
async def test_urls(start, settings, urls):
    server, _ = await start(replace(CALM, **settings))
    assert server.own_urls() == tuple(url.format(p=server.port) for url in urls)


async def test_absolute_uris_by_every_name_of_the_node(connect):
    _, _, client = await connect(replace(CALM, url="http://node:1", advertise_url="http://data.example:0"))
    for host in ("node", "NODE:99", "data.example:80", "localhost", "127.0.0.1:1"):
        assert (await client.answer(f"GET http://{host}/v1/hello HTTP/1.1\nHost: a\n\n"))[0] == 200
    assert await client.error("GET http://other.example/v1/hello HTTP/1.1\nHost: a\n\n") == (421, "misdirected")


@pytest.mark.parametrize(
    ("settings", "answered", "refused"),
    [
        ({}, ("127.0.0.1:1", "localhost", "a"), ("node.example", "a.example")),
        ({"host": "localhost", "url": "http://node.example:1"}, ("node.example", "NODE.example.:9"), ("a.node.example",)),
        ({"advertise_url": "https://data.example:0/"}, ("data.example:443",), ("node.example",)),
        ({"url": "http://münze.example:1"}, ("xn--mnze-0ra.example",), ("munze.example",)),
        ({"url": "http://[::1]:0"}, ("[::1]:80",), ("node.example",)),
        ({"allowed_hosts": ("a.example", "B.example.")}, ("a.example", "b.example:1"), ("c.example", "x.a.example")),
        ({"allowed_hosts": ("*",)}, ("a.example", "evil.example"), ()),
        ({"token": "t"}, ("a",), ("a.example",)),
        ({"token_for_reads": True}, ("a",), ("a.example",)),
    ],
)
async def test_hosts_by_the_settings(start, settings, answered, refused):
    server, _ = await start(replace(CALM, **settings))
    for host in answered:
        client = await Client.open(server)
        assert (await client.answer(f"GET /v1/hello HTTP/1.1\nHost: {host}\n\n"))[0] == 200, host
    for host in refused:
        client = await Client.open(server)
        assert await client.error(f"GET /v1/hello HTTP/1.1\nHost: {host}\n\n") == (421, "misdirected"), host


async def test_a_page_of_the_host_of_an_absolute_uri_is_of_this_origin(start):
    server, _ = await start()
    for target, origin, status in (("a:1", "a:1", 200), ("a:1", "b", 403), ("b", "a:1", 403)):
        client = await Client.open(server)
        client.send(f"PUT http://{target}/v1/ignore HTTP/1.1\nHost: b\nOrigin: http://{origin}\nContent-Length: 0\n\n")
        assert (await client.head())[0] == status


# --- small pieces


def test_content_types_limits_flags_and_health():
    assert content_type("a/b.TAR") == "application/x-tar"
    assert content_type("a.tar/b") == content_type("") == content_type("a.") == "application/octet-stream"
    assert page_limit({}) == page_limit({"limit": "10000"}) == 10_000
    assert page_limit({}, 5) == 5
    assert [flag({"x": value}, "x") for value in "01"] == [False, True]
    assert not flag({}, "x")
    assert (health_answer(True, a=1).status, health_answer(False).status) == (200, 503)
    assert isinstance(health_answer(True), Answer)


async def test_a_place_is_held_until_the_answer_is_sent(start) -> None:
    server, program = await start()
    budget = server.bulk.budgets[LISTINGS]

    for how, status in (("usual", 200), ("missing", 404), ("broken", 500)):
        client = await Client.open(server)
        assert (await client.answer(get(f"placed/{how}")))[0] == status
        await until(lambda: budget.running == 0)
    client = await Client.open(server)
    await client.head(get("placed/endless"))
    assert (budget.running, budget.bytes) == (1, LARGE), "the reader takes its time"
    await client.close()
    await until(lambda: budget.running == 0)
    client = await Client.open(server, get("placed/held"))
    await asyncio.wait_for(program.entered.wait(), 20)
    assert budget.running == 1
    await client.close()
    program.release.set()
    await until(lambda: budget.running == 0)
    assert budget.bytes == 0


async def test_what_is_known_to_be_less_makes_room(connect) -> None:
    server, _, client = await connect()
    budget, held = server.bulk.budgets[LISTINGS], list[int]()
    left = budget.left
    budget.left = lambda place: (held.append(place.size), left(place))  # type: ignore[method-assign, assignment, func-returns-value]
    assert (await client.answer(get("placed/usual")))[2] == b"done"
    await until(lambda: held)
    assert held == [len(b"done")]


async def test_who_goes_while_it_waits_is_not_worked_for(start) -> None:
    server, program = await start()
    budget = server.bulk.budgets[LISTINGS]
    whole = await budget.enter(LISTINGS.bytes_max)
    client = await Client.open(server, get("placed/held"))
    await until(lambda: budget._waiting)
    connection = client.writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # not only its sending side
    await client.close()
    await until(lambda: not server.stats.connections)
    whole.leave()
    await until(lambda: (budget.running, budget.bytes) == (0, 0))
    assert not program.entered.is_set()


async def test_a_body_that_has_a_place_has_to_come_in_time(connect, monkeypatch) -> None:
    """However fast its sender says that it is: others wait for the place."""
    monkeypatch.setattr("dfc.http.exchange.BODY_S", 0.5)
    server, _, client = await connect()
    assert await client.error(put("large", f"Content-Length: {LARGE}"), bytes(LARGE - 1)) == (408, "body_timeout")
    budget = server.bulk.budgets[BODIES]
    await until(lambda: (budget.running, budget.bytes) == (0, 0))


async def test_a_long_body_takes_a_place_before_it_is_read(connect) -> None:
    server, _, client = await connect()
    budget = server.bulk.budgets[BODIES]
    for size, held in ((BODY_FREE_BYTES, 0), (BODY_FREE_BYTES + 1, BODY_FREE_BYTES + 1)):
        client.send(put("large", f"Content-Length: {size}"), bytes(size - 1))
        await until(lambda: server.stats.connections == 1 and budget.bytes == held)  # noqa: B023
        client.writer.write(b"x")
        assert json.loads((await client.answer())[2]) == {"received": size, "held": held}
        await until(lambda: (budget.running, budget.bytes) == (0, 0))
    client.send(put("large", "Transfer-Encoding: chunked") + "3\nabc\n0\n\n")
    assert json.loads((await client.answer())[2]) == {"received": 3, "held": LARGE}
    client.send(put("node/large", f"Content-Length: {LARGE}"), bytes(LARGE))
    assert json.loads((await client.answer())[2]) == {"received": LARGE, "held": 0}

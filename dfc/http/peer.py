"""Connections between nodes, and one result for all who want it at the same time.

The relay has a pool of raw sockets, control calls an aiohttp session."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import aiohttp
import h11
import msgspec

from dfc.addresses import Refusals
from dfc.errors import Unavailable
from dfc.http.blocking import reset_on_close
from dfc.http.retry import RemoteError
from dfc.limits import ERROR_BODY_BYTES_MAX, KIB, NODE_ANSWER_BYTES_MAX
from dfc.wire import MSGPACK

IDLE_PER_NODE_MAX: Final = 64
IDLE_S: Final = 30.0  # well below the keep-alive timeout of the other node
HEAD_READ_BYTES: Final = 64 * KIB
HEAD_BYTES_MAX: Final = 256 * KIB
DECODED_AT_ONCE_BYTES: Final = 256 * KIB  # of an answer, on the event loop: a few milliseconds
LONG_ANSWER_S: Final = 3600.0  # no call takes longer to be answered, whatever moves meanwhile
STREAM_STALL_S: Final = 300.0  # a node that decompresses a large shard sends nothing meanwhile
T = TypeVar("T")


class AnswerTooLong(Unavailable):
    """The answer of another node has more bytes than the caller takes."""


class PeerGone(ConnectionError):
    """The node closed the connection, or did not read or send in time."""


@dataclass
class PeerResponse:
    """The head of a node's answer; `begun` is the part of the body that came with it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    begun: bytes

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclass
class PeerConnection:
    """A connection to one node over a non-blocking socket, for one request at a time."""

    url: str
    socket: socket.socket
    reused: bool = False
    parser: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT, HEAD_BYTES_MAX))
    idle_since_s: float = 0.0

    async def send(self, data: bytes) -> None:
        """Send all bytes. PeerGone also when the node does not take them in time."""
        try:
            async with asyncio.timeout(STREAM_STALL_S):
                await asyncio.get_running_loop().sock_sendall(self.socket, data)
        except OSError as error:  # a TimeoutError is one
            raise PeerGone(f"lost the connection to {self.url}") from error

    async def receive(self, count: int) -> bytes:
        """Receive at most `count` bytes; none at the end. PeerGone also when nothing comes for too long."""
        try:
            async with asyncio.timeout(STREAM_STALL_S):
                return await asyncio.get_running_loop().sock_recv(self.socket, count)
        except OSError as error:
            raise PeerGone(f"lost the connection to {self.url}") from error

    def start_request(self, method: str, target: str, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the bytes of a request head. Header values come from a parsed request, so they contain no line ends."""
        request = h11.Request(method=method, target=target.encode("utf-8", "surrogateescape"), headers=headers)
        return self.parser.send(request) or b""

    async def read_head(self) -> PeerResponse:
        """Read the head of the next answer, including informational ones (100); PeerGone when none comes."""
        while True:
            try:
                event = self.parser.next_event()
            except h11.RemoteProtocolError as error:
                raise PeerGone(f"{self.url} did not answer with valid HTTP: {error}") from error
            if isinstance(event, h11.InformationalResponse):
                return PeerResponse(event.status_code, [], b"")
            if isinstance(event, h11.Response):
                return PeerResponse(event.status_code, event.headers.raw_items(), self.parser.trailing_data[0])
            if event is not h11.NEED_DATA:
                raise PeerGone(f"{self.url} closed the connection")
            self.parser.receive_data(await self.receive(HEAD_READ_BYTES))

    async def read_chunk(self) -> bytes:
        """Read the next piece of a body that the parser decodes; empty at its end. PeerGone when it is cut off."""
        while True:
            try:
                event = self.parser.next_event()
            except h11.RemoteProtocolError as error:
                raise PeerGone(f"{self.url} broke off its answer") from error
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return b""
            if event is not h11.NEED_DATA:
                raise PeerGone(f"{self.url} broke off its answer")
            self.parser.receive_data(await self.receive(HEAD_READ_BYTES * 4))

    def close(self) -> None:
        self.socket.close()

    def cut(self) -> None:
        """Close it in the middle of an answer with a reset, so that the node notices immediately."""
        reset_on_close(self.socket)
        self.socket.close()


class PeerPool:
    """A pool of idle connections to nodes, by URL. `refusals` are the nodes to which it could not connect a moment ago."""

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[str, list[PeerConnection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self.refusals = Refusals()

    async def open(self, url: str, *, fresh: bool = False, limit_s: float | None = None) -> PeerConnection:
        """Return an idle connection or a new one; Unavailable when connecting fails or takes too long (or over `limit_s`)."""
        loop = asyncio.get_running_loop()
        idle = self._idle.get(url, [])
        while idle and not fresh:
            connection = idle.pop()
            if loop.time() - connection.idle_since_s < IDLE_S and _is_quiet(connection.socket):
                return PeerConnection(url, connection.socket, reused=True)
            connection.close()
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
        try:
            async with asyncio.timeout(min(self._connect_timeout_s, limit_s or self._connect_timeout_s)):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                connection = PeerConnection(url, await _connect(found))
        except (OSError, TimeoutError) as error:
            self.refusals.note(url)
            raise Unavailable(f"cannot connect to the node at {url}") from error
        self.refusals.forget(url)
        return connection

    def give_back(self, connection: PeerConnection) -> None:
        """Keep a connection whose answer was read to its end."""
        idle = self._idle.setdefault(connection.url, [])
        if len(idle) >= IDLE_PER_NODE_MAX:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since_s = loop.time()
        idle.append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(IDLE_S, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close connections that were idle for too long; otherwise those to a removed node would stay forever."""
        limit_s = loop.time() - IDLE_S
        for url, idle in list(self._idle.items()):
            while idle and idle[0].idle_since_s <= limit_s:  # the last one is taken first, so these are the oldest
                idle.pop(0).close()
            if not idle:
                del self._idle[url]
        self._sweeping = loop.call_later(IDLE_S, self._sweep, loop) if self._idle else None

    def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()


async def read_body(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Read a body. AnswerTooLong, and whatever aiohttp raises."""
    content = bytearray()
    async for piece in response.content.iter_any():
        content += piece
        if len(content) > bytes_max:
            raise AnswerTooLong(f"the answer from {response.url} has more than {bytes_max} bytes")
    return bytes(content)


async def _connect(addresses: list[Any]) -> socket.socket:
    loop = asyncio.get_running_loop()
    failure: OSError = OSError("no address")
    for family, kind, protocol, _, address in addresses:
        connection = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(connection, address)
            return connection
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
    raise failure


def _is_quiet(connection: socket.socket) -> bool:
    """Whether an idle connection is still open: if the other side closed it, it is readable."""
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class ControlClient:
    """Control calls to other nodes, with small JSON or msgpack bodies, the cluster's token, and errors as exceptions."""

    def __init__(self, token: str, timeout_s: float) -> None:
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self,
        method: str,
        url: str,
        kind: type[T],
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        long: bool = False,
        limit_s: float | None = None,
        bytes_max: int = NODE_ANSWER_BYTES_MAX,
    ) -> T:
        """Send a request and decode the answer. Unavailable when the node cannot be reached, or answers what no node would;
        RemoteError for an error answer.

        `long`: the node may take minutes to answer. `limit_s`: the limit for connecting. `bytes_max`: of the answer.
        """
        data = b"" if body is None else msgspec.json.encode(body)
        status, content_type, content = await self.fetch(
            method, url, data, headers or {}, long=long, limit_s=limit_s, bytes_max=bytes_max
        )
        decode = msgspec.msgpack.decode if content_type.startswith(MSGPACK) else msgspec.json.decode
        if status >= 400:
            raise RemoteError(status, content, url)
        try:
            if len(content) > DECODED_AT_ONCE_BYTES:
                return await asyncio.to_thread(decode, content, type=kind)
            return decode(content or b"{}", type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unavailable(f"unexpected answer from {url}: {error}") from error

    async def fetch(
        self,
        method: str,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        *,
        long: bool = False,
        limit_s: float | None = None,
        bytes_max: int = NODE_ANSWER_BYTES_MAX,
    ) -> tuple[int, str, bytes]:
        """Send a request and return status, content type and body of the answer. Unavailable; AnswerTooLong, which is
        one, if the body has more than `bytes_max`."""
        connect_s = min(self._timeout_s, limit_s or self._timeout_s)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s * 3, connect=connect_s)
        if long:
            timeout = aiohttp.ClientTimeout(total=LONG_ANSWER_S, connect=connect_s, sock_read=STREAM_STALL_S)
        try:
            async with self._open_session().request(
                method, url, data=body or None, headers={**self._headers, **headers}, allow_redirects=False, timeout=timeout
            ) as response:
                content = await read_body(response, bytes_max)
                return response.status, response.headers.get("Content-Type", ""), content
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"cannot reach {url}: {type(error).__name__}") from error

    def _stream_timeout(self, stall_s: float) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=None, connect=self._timeout_s, sock_read=stall_s)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=0))
        return self._session

    async def open_stream(
        self, url: str, headers: Mapping[str, str] | None = None, *, stall_s: float | None = None
    ) -> aiohttp.ClientResponse:
        """Send a GET whose answer the caller reads in pieces, without a total time limit, and closes. Errors as in `call`.

        `stall_s`: how long the node may send nothing, if that is less than STREAM_STALL_S.
        """
        timeout = self._stream_timeout(STREAM_STALL_S if stall_s is None else stall_s)
        try:
            async with asyncio.timeout(LONG_ANSWER_S):  # for its head
                response = await self._open_session().get(
                    url, headers={**self._headers, **(headers or {})}, timeout=timeout, allow_redirects=False
                )
                if response.status >= 400:
                    raise RemoteError(response.status, await read_body(response, ERROR_BODY_BYTES_MAX), url)
            return response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"cannot reach {url}: {type(error).__name__}") from error

    async def upload(self, url: str, pieces: AsyncIterator[bytes]) -> None:
        """Send a PUT with a body made piece by piece; it may take any time as long as it moves. Errors as in `call`."""
        loop = asyncio.get_running_loop()
        try:
            # The timeouts of aiohttp do not apply while a body is sent.
            async with asyncio.timeout(STREAM_STALL_S) as limit:

                async def watched() -> AsyncIterator[bytes]:
                    async for piece in pieces:
                        limit.reschedule(loop.time() + STREAM_STALL_S)
                        yield piece

                async with self._open_session().put(
                    url,
                    data=watched(),
                    headers=self._headers,
                    timeout=self._stream_timeout(STREAM_STALL_S),
                    allow_redirects=False,
                ) as response:
                    content = await read_body(response, ERROR_BODY_BYTES_MAX)
                    if response.status >= 300:
                        raise RemoteError(response.status, content, url)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"cannot reach {url}: {type(error).__name__}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class SharedCall(Generic[T]):
    """A call that is made once, however many wait for its result, which is good for `fresh_s` seconds from its begin.

    It belongs to nobody who waits: one who is cancelled leaves the others waiting, and when all are, it goes on for who comes
    next. Its error goes to all who wait, and is not kept. `clock_s` is replaced by tests."""

    def __init__(
        self, make: Callable[[], Awaitable[T]], fresh_s: float = inf, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._make = make
        self._fresh_s = fresh_s
        self._clock_s = clock_s
        self._begun_s = 0.0
        self._task: asyncio.Task[T] | None = None
        self._ended = False

    async def get(self) -> T:
        """Return a fresh result. What the call raises; Unavailable after `stop`, unless the last result is fresh."""
        task = self._task
        if task is None or (task.done() and (self._clock_s() - self._begun_s >= self._fresh_s or _has_failed(task))):
            if self._ended:
                raise Unavailable("this node stops")
            self._begun_s = self._clock_s()
            task = self._task = asyncio.create_task(self._run())
            task.add_done_callback(_has_failed)  # looks at the error of a call for which nobody waits any more
        await asyncio.wait((task,))  # which leaves it alone if this is cancelled
        if task.cancelled():
            raise Unavailable("this node stops")
        return task.result()

    async def _run(self) -> T:
        return await self._make()

    async def stop(self) -> None:
        """Give up the call that is under way, and make no other."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))


def _has_failed(task: asyncio.Task[T]) -> bool:
    return task.cancelled() or task.exception() is not None

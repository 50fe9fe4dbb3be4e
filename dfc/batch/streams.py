"""Items of a batch read as one node sends them: the request, the head of its answer with all lengths, then the bytes."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from typing import Final

import msgspec

from dfc.batch.gathering import ItemError
from dfc.batch.items import BatchItem, BatchRequest, OnMissing
from dfc.batch.merge import SocketSource
from dfc.batch.preamble import decode_preamble, preamble_bytes
from dfc.errors import Unavailable
from dfc.http.calls.peer import PeerConnection, PeerGone, PeerPool, PeerResponse
from dfc.http.calls.problems import RemoteError
from dfc.limits import KIB
from dfc.wire import ITEM_HEADER, MSGPACK, STALE_HEADER

ANSWER_S: Final = 300.0  # an owner that has to decompress shards first may take this long
JOINED_BYTES: Final = 64 * KIB
ERROR_BODY_BYTES_MAX: Final = 64 * KIB
SKIP_BYTES: Final = 64 * KIB


class PeerRequests:
    """Requests the items of other nodes. `url_of` returns the URL of a node, which may change when the node restarts."""

    def __init__(self, pool: PeerPool, token: str, url_of: Callable[[str], str | None]) -> None:
        self._pool = pool
        self._headers = [(b"Authorization", f"Bearer {token}".encode())] if token else []
        self._url_of = url_of

    async def open(self, node: str, items: list[BatchItem], on_missing: OnMissing, limit_s: float | None = None) -> PeerStream:
        """Request items of a node; connecting takes at most `limit_s`. Raises ItemError, Unavailable, RemoteError."""
        body = await asyncio.get_running_loop().run_in_executor(None, msgspec.msgpack.encode, BatchRequest(items, on_missing))
        stream = PeerStream(self, node, *await self._answer(node, body, limit_s))
        try:
            await stream.begin(len(items))
        except BaseException:
            # Now, not when the exception is garbage-collected: until then the node would wait for a reader, with blobs open.
            stream.drop()
            raise
        return stream

    async def _answer(self, owner: str, body: bytes, limit_s: float | None) -> tuple[PeerConnection, PeerResponse]:
        """Send the request and return the head of a successful answer."""
        url = self._url_of(owner)
        if url is None:
            raise Unavailable(f"target {owner} is not in the cluster map")
        try:
            try:
                return await self._ask(await self._pool.open(url, limit_s=limit_s), body)
            except _Stale:
                return await self._ask(await self._pool.open(url, fresh=True, limit_s=limit_s), body)
        except (PeerGone, _Stale) as error:
            raise Unavailable(f"target {owner} closed the connection before it answered") from error

    async def _ask(self, connection: PeerConnection, body: bytes) -> tuple[PeerConnection, PeerResponse]:
        headers = [
            (b"Host", connection.url.partition("://")[2].encode()),
            (b"Content-Type", MSGPACK.encode()),
            (b"Content-Length", str(len(body)).encode()),
            *self._headers,
        ]
        try:
            try:
                head = connection.start_request("POST", "/v1/node/batch", headers)
                # A long body is not copied for the sake of one packet.
                for piece in (head + body,) if len(body) <= JOINED_BYTES else (head, body):
                    await connection.send(piece)
                async with asyncio.timeout(ANSWER_S):
                    response = await connection.read_head()
            except PeerGone as error:
                if connection.reused:
                    raise _Stale from error
                raise
            except TimeoutError:
                raise Unavailable(f"the node at {connection.url} did not answer within {ANSWER_S:g} seconds") from None
            if response.status != 200:
                raise await _error_of(connection, response)
            return connection, response
        except BaseException:
            connection.close()
            raise

    def give_back(self, connection: PeerConnection) -> None:
        self._pool.give_back(connection)


class _Stale(Exception):
    """The node closed an idle connection just as it was reused."""


async def _error_of(connection: PeerConnection, response: PeerResponse) -> Exception:
    length = int(response.header(b"content-length") or 0)
    content = await _read(connection, response.begun, min(length, ERROR_BODY_BYTES_MAX))
    error = RemoteError(response.status, content, connection.url)
    number = response.header(ITEM_HEADER.lower().encode())
    if number is None or not number.isdigit():
        return error
    error.message = error.message.removeprefix(f"item {int(number)}: ")
    return ItemError(int(number), error)


async def _read(connection: PeerConnection, begun: bytes, count: int) -> bytes:
    """Read `count` bytes of a body, some of which were read before. Raises PeerGone if there are fewer."""
    data = bytearray(begun[:count])
    while len(data) < count:
        piece = await connection.receive(count - len(data))
        if not piece:
            raise PeerGone(f"{connection.url} closed the connection in the middle of its answer")
        data += piece
    return bytes(data)


class PeerStream:
    """The answer of a node: its bytes are in `source`, `lengths` by item. `possibly_stale`: the node had no lease."""

    source: SocketSource
    lengths: array[int]
    checksums: dict[tuple[str, str], str]

    def __init__(self, requests: PeerRequests, node: str, connection: PeerConnection, response: PeerResponse) -> None:
        self._requests = requests
        self.node = node
        self._connection: PeerConnection | None = connection
        self._response = response
        self._reusable = response.header(b"connection") != b"close"
        self.possibly_stale = response.header(STALE_HEADER.lower().encode()) is not None

    async def begin(self, count: int) -> None:
        """Read the lengths of so many items. Unavailable."""
        connection, response = self._connection, self._response
        assert connection is not None
        try:
            length = int(response.header(b"content-length") or 0)
            begun = await _fill(connection, response.begun, 4)
            size = preamble_bytes(begun, length)
            begun = await _fill(connection, begun, 4 + size)
            decoded = asyncio.get_running_loop().run_in_executor(None, decode_preamble, begun[4 : 4 + size])
            self.lengths, self.checksums = await decoded
        except ValueError as error:  # including msgspec's
            raise Unavailable(f"target {self.node} sent an invalid answer to a batch read") from error
        left = length - 4 - size
        if len(self.lengths) != count or sum(self.lengths) != left:
            raise Unavailable(f"target {self.node} sent an invalid answer to a batch read")
        self.source = SocketSource(connection.socket, begun[4 + size :], left)

    async def skip(self, count: int) -> None:
        """Skip bytes that have been taken from another answer. PeerGone."""
        connection = self._connection
        assert connection is not None
        scratch = memoryview(bytearray(SKIP_BYTES))
        while count:
            try:
                got = self.source.fill(scratch[: min(count, SKIP_BYTES)])
            except OSError as error:
                raise PeerGone(str(error)) from error
            count -= got
            if not got:
                piece = await connection.receive(min(count, SKIP_BYTES))
                if not piece:
                    raise PeerGone("connection closed")
                self.source.take(len(piece))
                count -= len(piece)

    def close(self, *, whole: bool) -> None:
        """Release the connection; `whole` says that the batch was read to its end."""
        if whole and self._reusable and self._connection is not None and not self.source.left:
            self._requests.give_back(self._connection)
            self._connection = None
        self.drop()

    def drop(self) -> None:
        """Cut the connection, unless it was released."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cut()


async def _fill(connection: PeerConnection, begun: bytes, count: int) -> bytes:
    try:
        return begun if len(begun) >= count else await _read(connection, begun, count)
    except PeerGone as error:
        raise Unavailable(str(error)) from error

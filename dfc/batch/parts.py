"""The part of a batch read that another node holds: request it, read it, and request the rest if the connection breaks."""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final

import msgspec

from dfc.batch.gathering import ItemError
from dfc.batch.items import BatchItem, BatchRequest, OnMissing
from dfc.batch.merge import SocketSource
from dfc.batch.preamble import decode_preamble, preamble_bytes
from dfc.errors import DfcError, Unavailable
from dfc.http.calls.peer import PeerConnection, PeerGone, PeerPool, PeerResponse
from dfc.http.calls.problems import RemoteError
from dfc.limits import BATCH_RETRY_S, KIB
from dfc.wire import ITEM_HEADER, MSGPACK, STALE_HEADER

_log: Final = logging.getLogger("dfc.http")
ANSWER_S: Final = 300.0  # an owner that has to decompress shards first may take this long
ERROR_BODY_BYTES_MAX: Final = 64 * KIB
RETRY_FIRST_S: Final = 0.1
RETRY_WAIT_MAX_S: Final = 1.0
SKIP_BYTES: Final = 64 * KIB


class PeerParts:
    """Opens parts on other nodes. `url_of` returns the URL of a node, which may change when the node restarts."""

    def __init__(self, pool: PeerPool, token: str, url_of: Callable[[str], str | None]) -> None:
        self._pool = pool
        self._headers = [(b"Authorization", f"Bearer {token}".encode())] if token else []
        self._url_of = url_of

    async def open(self, owner: str, items: list[BatchItem], on_missing: OnMissing) -> PeerPart:
        """Request the part of an owner. Raises ItemError, Unavailable, RemoteError."""
        part = PeerPart(self, owner, items, on_missing)
        try:
            await part.begin()
        except BaseException:
            # Now, not when the exception is garbage-collected: until then the owner would wait for a reader, with blobs open.
            await part.close(whole=False)
            raise
        return part

    async def ask(self, owner: str, body: bytes) -> tuple[PeerConnection, PeerResponse]:
        """Send the request and return the head of a successful answer."""
        url = self._url_of(owner)
        if url is None:
            raise Unavailable(f"target {owner} is not in the cluster map")
        try:
            try:
                return await self._ask(await self._pool.open(url), body)
            except _Stale:
                return await self._ask(await self._pool.open(url, fresh=True), body)
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
                await connection.send(connection.start_request("POST", "/v1/node/batch", headers) + body)
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


class PeerPart:
    """The items of another node. See `dfc.batch.gathering.Part`."""

    source: SocketSource

    def __init__(self, parts: PeerParts, owner: str, items: list[BatchItem], on_missing: OnMissing) -> None:
        self._parts = parts
        self._owner = owner
        self._items = items
        self._on_missing: OnMissing = on_missing
        self._connection: PeerConnection | None = None
        self._reusable = False
        self._total = 0
        self.lengths: array[int] = array("Q")
        self.checksums: dict[tuple[str, str], str] = {}
        self.possibly_stale = False

    async def begin(self) -> None:
        """Request all items."""
        self.lengths, self.checksums = await self._ask(self._items)
        self._total = sum(self.lengths)

    async def reopen(self) -> None:
        """Request the remaining items, retrying for BATCH_RETRY_S. Raises Unavailable, or the error that the owner answers."""
        self._drop()
        taken = self._total - self.source.left
        ends = list(accumulate(self.lengths))
        first = bisect_right(ends, taken)
        items = [self._pinned(item) for item in self._items[first:]]
        expected = self.lengths[first:]
        _log.warning("target %s closed the connection at item %d of %d in a batch; retrying", self._owner, first, len(ends))
        loop = asyncio.get_running_loop()
        deadline, wait_s = loop.time() + BATCH_RETRY_S, RETRY_FIRST_S
        while True:
            try:
                lengths, _ = await self._ask(items)
                if lengths != expected:
                    raise DfcError(f"objects on target {self._owner} have changed since the batch read began")
                await self._skip(taken - (ends[first - 1] if first else 0))
                return
            except (Unavailable, PeerGone) as error:
                self._drop()
                if loop.time() + wait_s > deadline:
                    raise Unavailable(f"target {self._owner} closed the connection and is unavailable: {error}") from error
            except ItemError as error:
                raise error.error from error
            except RemoteError as error:
                self._drop()
                if error.status < 500 or loop.time() + wait_s > deadline:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_WAIT_MAX_S, wait_s * 2)

    def _pinned(self, item: BatchItem) -> BatchItem:
        """The item, pinned to the same version; one whose object was missing stays as it is, since its length is compared."""
        checksum = self.checksums.get((item.bucket, item.object))
        return item if checksum is None else msgspec.structs.replace(item, if_match=checksum)

    async def _ask(self, items: list[BatchItem]) -> tuple[array[int], dict[tuple[str, str], str]]:
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(None, msgspec.msgpack.encode, BatchRequest(items, self._on_missing))
        connection, response = await self._parts.ask(self._owner, body)
        self._connection = connection
        try:
            length = int(response.header(b"content-length") or 0)
            begun = await self._fill(connection, response.begun, 4)
            size = preamble_bytes(begun, length)
            begun = await self._fill(connection, begun, 4 + size)
            lengths, checksums = await loop.run_in_executor(None, decode_preamble, begun[4 : 4 + size])
        except ValueError as error:  # including msgspec's
            raise Unavailable(f"target {self._owner} sent an invalid answer to a batch read") from error
        left = length - 4 - size
        if len(lengths) != len(items) or sum(lengths) != left:
            raise Unavailable(f"target {self._owner} sent an invalid answer to a batch read")
        self._reusable = response.header(b"connection") != b"close"
        self.possibly_stale = self.possibly_stale or response.header(STALE_HEADER.lower().encode()) is not None
        self.source = SocketSource(connection.socket, begun[4 + size :], left)
        return lengths, checksums

    async def _fill(self, connection: PeerConnection, begun: bytes, count: int) -> bytes:
        try:
            return begun if len(begun) >= count else await _read(connection, begun, count)
        except PeerGone as error:
            raise Unavailable(str(error)) from error

    async def _skip(self, count: int) -> None:
        """Skip the bytes of the first item that were taken before the connection broke."""
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

    async def close(self, *, whole: bool) -> None:
        if whole and self._reusable and self._connection is not None and not self.source.left:
            self._parts.give_back(self._connection)
            self._connection = None
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.cut()

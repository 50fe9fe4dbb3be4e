"""Batch reads between nodes: the answer of one, and the part that another one reads."""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from dfc.addresses import CONNECT_LIMIT_S
from dfc.batch.gather import ItemError, JoinedSource, SocketSource, runs_of
from dfc.batch.items import BatchItem, BatchRequest, OnMissing, decode_preamble, preamble_bytes
from dfc.errors import DfcError, NotThePrimary, Unavailable
from dfc.http.peer import PeerConnection, PeerGone, PeerPool, PeerResponse
from dfc.http.retry import RemoteError
from dfc.limits import BATCH_RETRY_S, KIB
from dfc.wire import ITEM_HEADER, MSGPACK, STALE_HEADER

# --- Items of a batch read as one node sends them: the request, the head of its answer with all lengths, then the bytes.

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


# --- The part of a batch read that other nodes hold: request it, read it, and request the rest if a connection breaks.
#
# A part is asked of one node. If that cannot serve it, or breaks off, its items are asked of other nodes that have copies, each
# item of the next one that was not passed over; the bytes come in the same order and from the same versions.

_log: Final = logging.getLogger("dfc.http")
RETRY_FIRST_S: Final = 0.1
RETRY_WAIT_MAX_S: Final = 1.0
# Returns the ids of the nodes that an object can be read from now, in the order to ask them; none if that is not known.
Readers = Callable[[str, str], Sequence[str]]


def may_serve_elsewhere(error: BaseException) -> bool:
    """Whether another node with copies may serve the items that a node did not: all that is wrong is this node."""
    if isinstance(error, ItemError):
        error = error.error
    if isinstance(error, DfcError):
        return error.status >= 500 or error.code == NotThePrimary.code
    return isinstance(error, PeerGone)


class Pinned(NamedTuple):
    """What is known of a part since its items were found: their lengths in bytes, and the checksums of their objects."""

    lengths: array[int]
    checksums: dict[tuple[str, str], str]


class PeerParts:
    """Opens parts on other nodes. `url_of` returns the URL of a node, which may change when the node restarts."""

    def __init__(
        self,
        pool: PeerPool,
        token: str,
        url_of: Callable[[str], str | None],
        readers_of: Readers = lambda _bucket, _name: (),
    ) -> None:
        self._requests = PeerRequests(pool, token, url_of)
        self._readers_of = readers_of

    async def open(self, owner: str, items: list[BatchItem], on_missing: OnMissing, passed: Collection[str] = ()) -> PeerPart:
        """Request the part of an owner, or of others if it is in `passed` or cannot serve it. Raises ItemError, Unavailable,
        RemoteError."""
        part = PeerPart(self, owner, items, on_missing)
        await part.begin(passed)
        return part

    async def go_on(self, broken: str, items: list[BatchItem], on_missing: OnMissing, found: Pinned, taken: int) -> PeerPart:
        """Continue a part at other nodes, of which this one delivered so many bytes. Raises like `PeerPart.reopen`."""
        part = PeerPart(self, broken, items, on_missing, found)
        await part.go_on(taken, broken)
        return part

    def have_others(self, items: Iterable[BatchItem], passed: Collection[str]) -> bool:
        """Whether each of these items can be read from a node that is not in `passed`."""
        seen: set[tuple[str, str]] = set()
        for item in items:
            key = (item.bucket, item.object)
            if key not in seen:
                seen.add(key)
                if all(node in passed for node in self._readers_of(*key)):
                    return False
        return True

    def choice(self, bucket: str, name: str, passed: Collection[str]) -> str | None:
        """The first node that an object can be read from and that is not in `passed`; the last one if all are."""
        found = None
        for found in self._readers_of(bucket, name):
            if found not in passed:
                break
        return found

    async def request(self, node: str, items: list[BatchItem], on_missing: OnMissing, passed: Collection[str]) -> PeerStream:
        """Request items of a node. Raises ItemError, Unavailable, RemoteError."""
        # Looking at one is enough to know whether a connection is worth more than a moment.
        limit_s = CONNECT_LIMIT_S if self.have_others(items[:1], {*passed, node}) else None
        return await self._requests.open(node, items, on_missing, limit_s)


class _Opened(NamedTuple):
    """Streams of several nodes, and the number of the stream of each item."""

    streams: list[PeerStream]
    numbers: array[int]

    @property
    def lengths(self) -> array[int]:
        if len(self.streams) == 1:
            return self.streams[0].lengths
        following = [iter(stream.lengths) for stream in self.streams]
        return array("Q", [next(following[number]) for number in self.numbers])

    def source(self, skipped: int) -> SocketSource | JoinedSource:
        """The bytes of all items, of which `skipped` have been taken from the first."""
        if len(self.streams) == 1:
            return self.streams[0].source
        runs, _ = runs_of(self.numbers, [stream.lengths for stream in self.streams])
        if skipped:
            runs[0] = (runs[0][0], runs[0][1] - skipped)
        return JoinedSource([stream.source for stream in self.streams], runs)


class PeerPart:
    """The items of another node. See `dfc.batch.gather.Part`."""

    source: SocketSource | JoinedSource

    def __init__(
        self, parts: PeerParts, owner: str, items: list[BatchItem], on_missing: OnMissing, found: Pinned | None = None
    ) -> None:
        self._parts = parts
        self._owner = owner
        self._items = items
        self._on_missing: OnMissing = on_missing
        self._streams: list[PeerStream] = []
        self.lengths, self._checksums = found or Pinned(array("Q"), {})
        self.possibly_stale = False

    async def begin(self, passed: Collection[str] = ()) -> None:
        """Request all items, if possible of nodes that are not in `passed`."""
        opened = await self._open(self._items, set(passed))
        self.lengths = opened.lengths
        for stream in opened.streams:
            self._checksums |= stream.checksums
        self._take(opened, 0)

    async def reopen(self) -> None:
        """Request the remaining items, at other nodes at once, then again and again for BATCH_RETRY_S. Raises Unavailable, or
        the error that the owner answers."""
        broken = self._streams[self.source.number if isinstance(self.source, JoinedSource) else 0].node
        _drop(self._streams)
        self._streams = []
        await self.go_on(sum(self.lengths) - self.source.left, broken)

    async def go_on(self, taken: int, broken: str) -> None:
        """`reopen` where so many bytes have been taken, after a node broke off."""
        ends = list(accumulate(self.lengths))
        first = bisect_right(ends, taken)
        items = [self._pinned(item) for item in self._items[first:]]
        _log.warning("target %s broke off at item %d of %d in a batch; retrying", broken, first, len(ends))
        loop = asyncio.get_running_loop()
        deadline, wait_s = loop.time() + BATCH_RETRY_S, RETRY_FIRST_S
        passed = {broken}
        while True:
            try:
                await self._resume(items, self.lengths[first:], taken - (ends[first - 1] if first else 0), passed)
                return
            except (Unavailable, PeerGone) as error:
                if loop.time() + wait_s > deadline:
                    raise Unavailable(f"target {broken} closed the connection and is unavailable: {error}") from error
            except ItemError as error:
                if error.error.status != Unavailable.status or loop.time() + wait_s > deadline:
                    raise error.error from error
            except RemoteError as error:
                if error.status < 500 or loop.time() + wait_s > deadline:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(RETRY_WAIT_MAX_S, wait_s * 2)
            passed = set()

    async def _resume(self, items: list[BatchItem], expected: array[int], skipped: int, passed: set[str]) -> None:
        opened = await self._open(items, passed)
        try:
            if opened.lengths != expected:
                raise DfcError(f"objects on target {self._owner} have changed since the batch read began")
            if skipped:
                await opened.streams[opened.numbers[0]].skip(skipped)
        except BaseException:
            _drop(opened.streams)
            raise
        self._take(opened, skipped)

    def _take(self, opened: _Opened, skipped: int) -> None:
        self._streams = opened.streams
        self.source = opened.source(skipped)
        self.possibly_stale = self.possibly_stale or any(stream.possibly_stale for stream in opened.streams)

    def _pinned(self, item: BatchItem) -> BatchItem:
        """The item, pinned to the same version; one whose object was missing stays as it is, since its length is compared."""
        checksum = self._checksums.get((item.bucket, item.object))
        return item if checksum is None else msgspec.structs.replace(item, if_match=checksum)

    # --- whom to ask

    async def _open(self, items: list[BatchItem], passed: set[str]) -> _Opened:
        """Request items, each of the owner or, if that is in `passed` or comes to be, of the next node that has a copy."""
        streams: list[PeerStream] = []
        numbers = array("i", bytes(4 * len(items)))
        left: Sequence[int] = range(len(items))
        try:
            while left:
                by_node = self._chosen(items, left, passed)

                async def ask(node: str, where: Sequence[int]) -> None:
                    some = items if len(where) == len(items) else [items[place] for place in where]
                    stream = await self._parts.request(node, some, self._on_missing, passed)
                    for place in where if streams else ():
                        numbers[place] = len(streams)
                    streams.append(stream)

                # If cancelled, it raises only when all of them have ended; by then it is known what they opened.
                ended = await asyncio.gather(*(ask(*each) for each in by_node.items()), return_exceptions=True)
                left = self._passed_over(items, by_node, ended, passed)
        except BaseException:
            _drop(streams)
            raise
        return _Opened(streams, numbers)

    def _chosen(self, items: list[BatchItem], places: Sequence[int], passed: Collection[str]) -> dict[str, Sequence[int]]:
        """Divide items, given by their places in the list, between nodes."""
        if not passed:
            return {self._owner: places}
        nodes: dict[tuple[str, str], str] = {}
        found: dict[str, list[int]] = {}
        for place in places:
            key = (items[place].bucket, items[place].object)
            if key not in nodes:
                nodes[key] = self._parts.choice(*key, passed) or self._owner
            found.setdefault(nodes[key], []).append(place)
        return dict(found)

    def _passed_over(
        self, items: list[BatchItem], by_node: dict[str, Sequence[int]], ended: Sequence[object], passed: set[str]
    ) -> list[int]:
        """Add the nodes that did not serve their items to `passed`, and return the places of these items. Raises the error of a
        node whose items nobody else has, or of the first such item."""
        left: list[int] = []
        failed: list[ItemError] = []
        for (node, where), error in zip(by_node.items(), ended, strict=True):
            if not isinstance(error, BaseException):
                continue
            problem = ItemError(where[error.number], error.error) if isinstance(error, ItemError) else error
            # Of a node that refuses one item, the others may still be had, even if nobody else has them.
            needed = [problem.number] if isinstance(problem, ItemError) else where
            refused = (items[place] for place in needed)
            others = may_serve_elsewhere(error) and self._parts.have_others(refused, {*passed, node})
            if others and node not in passed:
                passed.add(node)
                left += where
            elif isinstance(problem, ItemError):
                failed.append(problem)
            else:
                raise problem
        if failed:
            raise min(failed, key=lambda problem: problem.number)
        return sorted(left)

    async def close(self, *, whole: bool) -> None:
        for stream in self._streams:
            stream.close(whole=whole)
        self._streams = []


def _drop(streams: Sequence[PeerStream]) -> None:
    for stream in streams:
        stream.drop()

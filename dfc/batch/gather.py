"""Batch reads: many items as one tar, merged from several nodes, and its HTTP answer."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Protocol

from dfc.batch.items import LONG, BatchItem, BatchRequest, OnMissing, free, little_endian, parse_request
from dfc.errors import DfcError
from dfc.http.answers import SAFETY_HEADERS, Answer, BulkAnswer, flag
from dfc.http.budget import BudgetPlace, Kind
from dfc.http.exchange import Exchange
from dfc.http.transfer import TURN_BYTES, Wait, duplicate, is_trickle
from dfc.limits import BATCH_BODY_BYTES_MAX, BATCH_SHORT_BYTES, BATCH_WINDOW_BYTES, TRANSFER_POLL_S
from dfc.tar.samples import END_OF_ARCHIVE
from dfc.wire import ITEM_HEADER, OCTETS, STALE_HEADER, TAR

# --- Merge the bytes of several sources into one socket, in a given order of runs, with one buffer: a transfer for `drive`.
#
# A source yields its own bytes in order; it may be a socket, which is polled, or files, which are read directly.

Run = tuple[int, int]  # number of a source, bytes to take from it


class ByteSource(Protocol):
    """A source of bytes. `fill` puts the next bytes at the beginning of `view`; 0: none are ready, wait for `event`."""

    @property
    def event(self) -> tuple[int, int]: ...
    def fill(self, view: memoryview) -> int: ...


class SourceBroke(ConnectionError):
    """A source ended early or failed. Its bytes so far have been taken; another source may continue in its place."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


class SocketSource:
    """Exactly `count` bytes of a non-blocking socket, of which `begun` have already been read."""

    def __init__(self, connection: socket.socket, begun: bytes, count: int) -> None:
        self._socket = connection
        self._begun = memoryview(begun)
        self.left = count  # bytes still to be read
        self.event = (connection.fileno(), select.POLLIN)

    def take(self, count: int) -> None:
        """Note that someone else has read `count` bytes from the socket."""
        self.left -= count

    def fill(self, view: memoryview) -> int:
        if self._begun:
            count = min(len(view), len(self._begun))
            view[:count] = self._begun[:count]
            self._begun = self._begun[count:]
        else:
            try:
                count = self._socket.recv_into(view[: self.left])
            except BlockingIOError:
                return 0
            if not count:
                raise ConnectionError("connection closed")
        self.left -= count
        return count


class JoinedSource:
    """The bytes of several sockets in a given order of runs, as one source. `number` is that of the socket it reads from."""

    def __init__(self, sources: Sequence[SocketSource], runs: Sequence[Run]) -> None:
        self._sources = sources
        self._runs = iter([run for run in runs if run[1]])
        self.left = sum(size for _, size in runs)
        self.number, self._left = next(self._runs, (0, 0))

    @property
    def event(self) -> tuple[int, int]:
        return self._sources[self.number].event

    def fill(self, view: memoryview) -> int:
        if not self._left:
            self.number, self._left = next(self._runs, (self.number, 0))
        count = self._sources[self.number].fill(view[: self._left])
        self._left -= count
        self.left -= count
        return count


class Merge:
    """Sends to a socket: a head, then runs of bytes from sources, then a tail."""

    def __init__(
        self, sink: socket.socket, head: bytes, sources: Sequence[ByteSource], runs: Iterable[Run], tail: bytes = b""
    ) -> None:
        """The caller may replace entries of `sources` after SourceBroke."""
        self.sources = list(sources)
        self._sink = sink
        self._runs: Iterator[Run] = iter(runs)
        self._source = self._left = 0  # of the current run
        self._tail = tail
        self._memory = memoryview(bytearray(BATCH_WINDOW_BYTES))
        self._ready = memoryview(head)  # not sent yet
        self._poll = select.poll()
        self._poll.register(sink, select.POLLOUT)
        self._wait: Final = Wait(((sink.fileno(), select.POLLOUT),))
        self._ended = False
        self.moved = 0

    def step(self) -> Wait | None:
        started_s, turn_start, turn_end = time.monotonic(), self.moved, self.moved + TURN_BYTES
        while True:
            while self._ready:
                if self.moved >= turn_end:
                    return Wait(())
                try:
                    sent = self._sink.send(self._ready)
                except BlockingIOError:
                    if is_trickle(started_s, self.moved - turn_start) or not self._poll.poll(TRANSFER_POLL_S * 1000):
                        return self._wait
                    continue
                self._ready = self._ready[sent:]
                self.moved += sent
            if self._ended:
                return None
            if (wait := self._gather()) is not None:
                return wait

    def _gather(self) -> Wait | None:
        """Fill the buffer with the bytes that are ready; returns a Wait when there are none."""
        memory, filled = self._memory, 0
        try:
            while filled < len(memory):
                if not self._left:
                    run = next(self._runs, None)
                    if run is None:
                        self._ended = True
                        break
                    self._source, self._left = run
                    continue
                count = self._fill(memory[filled : filled + self._left])
                if not count:
                    if filled or self._poll_source():
                        break
                    return Wait((self.sources[self._source].event,), for_source=True)
                filled += count
                self._left -= count
        finally:
            # Even if a source broke: the bytes before that are sent.
            self._ready = memory[:filled]
        if self._ended and self._tail:
            self._ready = memoryview(bytes(self._ready) + self._tail)
        return None

    def _fill(self, view: memoryview) -> int:
        try:
            return self.sources[self._source].fill(view)
        except OSError as error:
            raise SourceBroke(self._source, str(error)) from error

    def _poll_source(self) -> bool:
        """Whether the source has bytes after a short wait here."""
        poll = select.poll()
        poll.register(*self.sources[self._source].event)
        return bool(poll.poll(TRANSFER_POLL_S * 1000))


# --- Batch reads: return a list of items from anywhere in the cluster as one tar, in the order of the list.
#
# The node that gets the request splits the list by owner (the first node that an object can be read from) and asks each owner
# for its part (`POST /v1/node/batch`). An owner finds all its items before it answers: its answer begins with the length of
# each. So missing items and the total length are known before the first byte goes out, and merging only copies runs of bytes.
# If an owner closes the connection, the rest of its part is requested again, in the same versions, of other nodes with copies
# or of the same; if that fails for good, the client's connection is cut.


class ItemError(Exception):
    """An error in one item of the list."""

    def __init__(self, number: int, error: DfcError) -> None:
        super().__init__(error.message)
        self.number = number
        self.error = error

    def answer(self) -> DfcError:
        """The error for the client, naming the item."""
        error = self.error
        error.message = f"item {self.number}: {error.message}"
        error.headers[ITEM_HEADER] = str(self.number)
        return error


class Part(Protocol):
    """The items of one owner, found and ready to read: `lengths` in bytes, in order. `possibly_stale`: the owner had no lease
    when it found them."""

    @property
    def lengths(self) -> Sequence[int]: ...
    @property
    def possibly_stale(self) -> bool: ...
    @property
    def source(self) -> ByteSource: ...

    async def close(self, *, whole: bool) -> None:
        """Release the part; `whole` says that it was read to its end."""

    async def reopen(self) -> None:
        """Continue after a lost connection, where the source stopped. Raises when that is impossible."""


# Opens the part of an owner, given its id and its items. Raises ItemError, DfcError.
Opener = Callable[[str, list[BatchItem], OnMissing], Any]


@dataclass(frozen=True)
class GatheredBatch:
    """Open parts, and how their bytes are merged: `total` bytes in runs of one part each, after `begin` and before `tail`.
    `threads` read and merge. The holder owns the parts, and the `items` that they may have to ask for again."""

    parts: list[Part]
    runs: list[Run]
    total: int
    threads: ThreadPoolExecutor
    begin: bytes = b""
    tail: bytes = b""
    items: list[BatchItem] = field(default_factory=list)

    async def close(self, *, whole: bool) -> None:
        """Release the parts; `whole` says that they were read to their end."""
        try:
            await _close(self.parts, whole=whole)
        finally:
            self.parts.clear()
            free_soon(self.items, self.threads)
            free_soon(self.runs, self.threads)


def free_soon(items: list[Any], threads: ThreadPoolExecutor) -> None:
    """Empty a long list that nobody uses any more, in one of `threads`; a short one goes with its last reference."""
    if len(items) > LONG:
        with suppress(RuntimeError):  # no thread is started any more
            threads.submit(free, items)


async def gather_batch(
    request: BatchRequest,
    owner_of: Callable[[str, str], str],
    open_part: Opener,
    place: BudgetPlace,
    threads: ThreadPoolExecutor,
    *,
    with_lengths: bool = False,
) -> GatheredBatch:
    """Open the parts of all items, to be merged into one tar. `owner_of` names the owner of an object, `open_part` is awaited
    for each owner's part; `threads` read and merge.

    With `with_lengths`, the length of each item comes first, and no end-of-archive blocks follow.
    """
    found: dict[str, Part] = {}

    async def open_for(owner: str, items: list[BatchItem]) -> None:
        found[owner] = await open_part(owner, items, request.on_missing)

    try:
        loop = asyncio.get_running_loop()
        async with place.working():
            owners, by_owner, places = await loop.run_in_executor(threads, _split, request.items, owner_of)
        # If cancelled, it raises only when all of them have ended; by then it is known what they opened.
        ended = await asyncio.gather(*(open_for(owner, items) for owner, items in by_owner.items()), return_exceptions=True)
        _raise_first(ended, list(places.values()))
        for each in places.values():
            free_soon(each, threads)
        parts = [found[owner] for owner in by_owner]
        lengths = [part.lengths for part in parts]
        async with place.working():
            runs, total = await loop.run_in_executor(threads, runs_of, owners, lengths)
            begin = await loop.run_in_executor(threads, _lengths, owners, lengths) if with_lengths else b""
    except BaseException:
        await _close(found.values(), whole=False)
        raise
    return GatheredBatch(parts, runs, total, threads, begin, b"" if with_lengths else END_OF_ARCHIVE, request.items)


def _split(
    items: list[BatchItem], owner_of: Callable[[str, str], str]
) -> tuple[array[int], dict[str, list[BatchItem]], dict[str, list[int]]]:
    """Split the list: the number of each item's owner, and for each owner its items and their places in the list."""
    known: dict[tuple[str, str], int] = {}
    numbers: dict[str, int] = {}
    for item in items:
        key = (item.bucket, item.object)
        if key not in known:
            known[key] = numbers.setdefault(owner_of(*key), len(numbers))
    if len(numbers) == 1:
        owner = next(iter(numbers))
        return array("i", bytes(4 * len(items))), {owner: items}, {owner: list(range(len(items)))}
    owners = array("i", [known[item.bucket, item.object] for item in items])
    parts: list[list[BatchItem]] = [[] for _ in numbers]
    places: list[list[int]] = [[] for _ in numbers]
    for place, (owner_number, item) in enumerate(zip(owners, items, strict=True)):
        parts[owner_number].append(item)
        places[owner_number].append(place)
    return owners, dict(zip(numbers, parts, strict=True)), dict(zip(numbers, places, strict=True))


def runs_of(owners: array[int], lengths: list[Sequence[int]]) -> tuple[list[Run], int]:
    """How many bytes to take from which part, in order, and the total. `owners`: the number of each item's part; `lengths`: of
    the items, by part."""
    if len(lengths) == 1:
        total = sum(lengths[0])
        return [(0, total)], total
    following = [iter(part) for part in lengths]
    runs = [(owner, sum(next(following[owner]) for _ in same)) for owner, same in groupby(owners)]
    return runs, sum(size for _, size in runs)


def _lengths(owners: array[int], lengths: list[Sequence[int]]) -> bytes:
    """The length of each item, in the order of the list."""
    following = [iter(part) for part in lengths]
    whole = array("Q", lengths[0] if len(lengths) == 1 else [next(following[owner]) for owner in owners])
    return little_endian(whole).tobytes()


def _raise_first(ended: Iterable[object], places: list[list[int]]) -> None:
    """Raise the error of the first item that has one; the error of a whole part takes precedence."""
    errors: list[ItemError] = []
    for result, where in zip(ended, places, strict=True):
        if isinstance(result, ItemError):
            errors.append(ItemError(where[result.number], result.error))
        elif isinstance(result, BaseException):
            raise result
    if errors:
        raise min(errors, key=lambda error: error.number).answer()


async def _close(parts: Iterable[Part], *, whole: bool) -> None:
    for part in parts:
        await part.close(whole=whole)


# --- Batch reads over HTTP: parse the list of items and answer with the tar.

BATCH_QUERY: Final = frozenset(("lengths",))


async def read_request(exchange: Exchange, budget: Kind) -> tuple[BatchRequest, BudgetPlace]:
    """Take a place, and decode and check the body, JSON or msgpack, in a thread. Raises BadRequest, BadName, TooLarge,
    Unavailable."""
    size = BATCH_BODY_BYTES_MAX if exchange.declared_length is None else min(exchange.declared_length, BATCH_BODY_BYTES_MAX)
    body = await exchange.read_small(BATCH_BODY_BYTES_MAX) if size <= BATCH_SHORT_BYTES else None
    place = await exchange.enter(budget, size if size > BATCH_SHORT_BYTES else 0)
    if body is None:
        body = await exchange.read_small(BATCH_BODY_BYTES_MAX)
    kind, held = exchange.headers.get("Content-Type", ""), [body]
    exchange.forget_body()
    del body
    async with place.working():
        work = asyncio.get_running_loop().run_in_executor(exchange.bulk.threads, _parse, held, kind)
        return await work, place


def _parse(held: list[bytes], kind: str) -> BatchRequest:
    """Decode a body, and free it here: for a long one that takes a while too."""
    return parse_request(held.pop(), kind)


def wants_lengths(exchange: Exchange) -> bool:
    """Whether the query has `?lengths=1`. Raises BadRequest."""
    return flag(exchange.query_parameters(BATCH_QUERY), "lengths")


def batch_answer(batch: GatheredBatch, *, with_lengths: bool) -> Answer:
    """The answer with the gathered items: a tar, or plain bytes if the lengths come first."""
    return BatchAnswer([("Content-Type", OCTETS if with_lengths else TAR), *SAFETY_HEADERS], batch)


def part_answer(batch: GatheredBatch) -> Answer:
    """The answer to another node: the lengths first, then plain bytes."""
    return BatchAnswer([("Content-Type", OCTETS)], batch)


class BatchAnswer(BulkAnswer):
    """One body of known length, merged from the parts. Owns the parts; on failure the connection is cut."""

    __slots__ = ("_batch", "_whole")

    def __init__(self, headers: list[tuple[str, str]], batch: GatheredBatch) -> None:
        if any(part.possibly_stale for part in batch.parts):
            headers = [*headers, (STALE_HEADER, "1")]
        super().__init__(200, b"", headers, content_length=len(batch.begin) + batch.total + len(batch.tail))
        self._batch = batch
        self._whole = False

    async def _send(self, exchange: Exchange) -> None:
        head = self._head(exchange, self._length_line())
        await exchange.write_buffer_empty()
        with duplicate(exchange.socket()) as sink:
            sources = [part.source for part in self._batch.parts]
            transfer = Merge(sink, head + self._batch.begin, sources, self._batch.runs, self._batch.tail)
            try:
                await self._drive(exchange, transfer)
            finally:
                self.sent_bytes = max(0, transfer.moved - len(head))
        self._whole = True

    async def _release(self) -> None:
        await self._batch.close(whole=self._whole)

    async def _drive(self, exchange: Exchange, transfer: Merge) -> None:
        while True:
            try:
                await exchange.drive_answer(transfer, self._batch.threads)
                return
            except SourceBroke as broke:
                part = self._batch.parts[broke.number]
                await part.reopen()
                transfer.sources[broke.number] = part.source

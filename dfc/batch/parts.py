"""The part of a batch read that other nodes hold: request it, read it, and request the rest if a connection breaks.

A part is asked of one node. If that cannot serve it, or breaks off, its items are asked of other nodes that have copies, each
item of the next one that was not passed over; the bytes come in the same order and from the same versions.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec

from dfc.addresses import CONNECT_LIMIT_S
from dfc.batch.gathering import ItemError, runs_of
from dfc.batch.items import BatchItem, OnMissing
from dfc.batch.merge import JoinedSource, SocketSource
from dfc.batch.streams import PeerRequests, PeerStream
from dfc.errors import DfcError, NotThePrimary, Unavailable
from dfc.http.calls.peer import PeerGone, PeerPool
from dfc.http.calls.problems import RemoteError
from dfc.limits import BATCH_RETRY_S

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
    """The items of another node. See `dfc.batch.gathering.Part`."""

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
        self._drop()
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
                    stream = await self._parts.request(node, _some(items, where), self._on_missing, passed)
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
            others = may_serve_elsewhere(error) and self._parts.have_others(_each(items, needed), {*passed, node})
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

    def _drop(self) -> None:
        _drop(self._streams)
        self._streams = []


def _some(items: list[BatchItem], places: Sequence[int]) -> list[BatchItem]:
    return items if len(places) == len(items) else list(_each(items, places))


def _each(items: list[BatchItem], places: Sequence[int]) -> Iterator[BatchItem]:
    return (items[place] for place in places)


def _drop(streams: Sequence[PeerStream]) -> None:
    for stream in streams:
        stream.drop()

"""What a target says of its objects: listings, counts, shards of a spec, samples by their keys.

List and count the objects of a target; common prefixes are rolled up with seeks instead of scans."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain, groupby
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

from dfc.errors import DfcError, MapChanging, NotAShard, NotFound, Unavailable
from dfc.http.shutdown import end
from dfc.http.transfer import to_its_end
from dfc.limits import (
    KIB,
    LIST_PAGE_MAX,
    NODE_LIST_SIGN_S,
    NODE_LIST_SIGNS_MAX,
    SEARCH_ANSWER_BYTES_MAX,
    SEARCH_THREADS,
    TARGET_SEARCHES_MAX,
)
from dfc.listing.pages import Page, Row, merge_pages
from dfc.listing.search import ELSEWHERE, SampleHit, SamplePlace, SearchPart, SearchRequest, Stop, joined
from dfc.listing.specs import Glob, Prefix, expand
from dfc.names import HIDDEN_PREFIX, is_hidden
from dfc.placement.map import BucketEntry
from dfc.placement.mapped import placement_of
from dfc.placement.roles import Copies
from dfc.storage.disk import Disk
from dfc.storage.rows import ObjectRow, RowChanged
from dfc.tar.index.format import IndexCorrupt, index_kind
from dfc.tar.index.lines import find_samples, list_keys
from dfc.target.copies.ledger import FIRST, Listed, ListedRows
from dfc.target.copies.objects import CopiedObjects
from dfc.target.local import NOT_HERE, TargetState
from dfc.wire import UNRANKED
from dfc.wire.objects import UnsearchedShard

PROBE_ROWS: Final = 200  # rows read at a time while prefixes are rolled up


class OwnListings:
    """Listings over the disks of this target."""

    def __init__(self, local: TargetState, listed: ListedRows) -> None:
        self._local = local
        self._listed = listed

    async def page(
        self, bucket_id: str, prefix: str, start_after: str, delimiter: str, limit: int, step: int | None = None
    ) -> Page:
        """Return at most `limit` names and prefixes after `start_after`, over all disks. `step`: by which the others answer.
        NoLease; MapChanging if this target is at another step."""
        await self._local.check_step(step)
        asked = (bucket_id, prefix, start_after, delimiter, limit)
        pages = await self._local.of_each(lambda disk: list_page(disk, *asked, self._listed.of(disk, bucket_id)))
        self._local.check_leased()
        await self._local.check_step(step)
        return merge_pages(pages, limit)

    async def counts(self) -> dict[str, tuple[int, int]]:
        """Return (objects, bytes) by bucket id, and in `UNRANKED` how many disks do not count by the layout in force.
        NoLease."""
        if any(bucket.state == "checking" for bucket in self._local.map.buckets):
            # Who asks may be about to delete that bucket if it is empty. A commit that a failed disk still carries out was not
            # waited for when this target said that it knows the bucket's state.
            await self._local.until_all_commits_are_done()
        total: dict[str, tuple[int, int]] = {}
        for counts in await self._local.of_each(lambda disk: {each: disk.counts(each) for each in disk.bucket_ids()}):
            for bucket_id, more in counts.items():
                before = total.get(bucket_id, (0, 0))
                total[bucket_id] = (before[0] + more[0], before[1] + more[1])
        unranked = sum(not self._listed.are_counted(disk) for disk in self._local.in_order())
        if unranked:
            total[UNRANKED] = (unranked, 0)
        self._local.check_leased()
        return total


def list_page(
    disk: Disk, bucket_id: str, prefix: str, start_after: str, delimiter: str, limit: int, listed: Listed = FIRST
) -> Page:
    """Return at most `limit` names and prefixes of one disk after `start_after`. Blocking."""

    def scan(start_after: str, limit: int, *, after_prefix: bool = False) -> list[Row]:
        return listed.tuples(disk, bucket_id, prefix=prefix, start_after=start_after, after_prefix=after_prefix, limit=limit)

    return _rolled_up(scan, prefix, start_after, delimiter, limit) if delimiter else _plain(scan, prefix, start_after, limit)


class Scan(Protocol):
    """Lists rows after a name, or with `after_prefix` after all names that begin with it."""

    def __call__(self, start_after: str, limit: int, *, after_prefix: bool = False) -> list[Row]: ...


def _plain(scan: Scan, prefix: str, start_after: str, limit: int) -> Page:
    rows = scan(start_after, limit)
    more = len(rows) == limit
    hidden = bisect_left(rows, HIDDEN_PREFIX, key=itemgetter(0))
    if hidden < len(rows) and is_hidden(rows[hidden][0], prefix):
        # Hidden names are adjacent, so one seek skips them all, however many there are.
        rest = scan(HIDDEN_PREFIX, limit - hidden, after_prefix=True)
        more = len(rest) == limit - hidden
        rows = rows[:hidden] + rest
    return Page(rows, [], more)


def _rolled_up(scan: Scan, prefix: str, start_after: str, delimiter: str, limit: int) -> Page:
    """List the names without the delimiter after the prefix, and for the others their part up to it, each once.

    An entry is shown only if it comes after `start_after`, so names below a prefix that is not greater are skipped.
    """
    rows: list[Row] = []
    prefixes: list[str] = []
    rolled = _common_prefix(start_after, prefix, delimiter)
    position, after_prefix = (start_after, False) if rolled is None else (rolled, True)
    while len(rows) + len(prefixes) < limit:
        page = scan(position, min(PROBE_ROWS, limit), after_prefix=after_prefix)
        if not page:
            return Page(rows, prefixes, False)
        after_prefix = False
        for row in page:
            if is_hidden(row[0], prefix):
                position, after_prefix = HIDDEN_PREFIX, True
                break
            common = _common_prefix(row[0], prefix, delimiter)
            if common is not None:
                prefixes.append(common)
                position, after_prefix = common, True
                break
            rows.append(row)
            position = row[0]
            if len(rows) + len(prefixes) >= limit:
                break
    return Page(rows, prefixes, True)


def _common_prefix(name: str, prefix: str, delimiter: str) -> str | None:
    """Return the part of a name up to the first delimiter after the listing's prefix; None if there is none."""
    if not name.startswith(prefix):
        return None
    at = name.find(delimiter, len(prefix))
    return None if at < 0 else name[: at + len(delimiter)]


ROWS_AT_ONCE: Final = 256
KEYS_PIECE_BYTES: Final = 32 * KIB
PIECE_S: Final = 0.2  # that one call in a thread takes, about


class Share(NamedTuple):
    """What a target's part of a bucket follows from, as far as it may lose shards of it: the layout by which each slice is
    read, the number of copies, and its own disks."""

    reading: tuple[int, ...]
    copies: Copies
    disks: tuple[tuple[str, str, str], ...]


class ShardSelection:
    """Finds the rows of this target that match a shard spec, and the keys of their samples."""

    def __init__(self, local: TargetState, listed: ListedRows, copied: CopiedObjects) -> None:
        self._local = local
        self._listed = listed
        self._copied = copied
        self._expanding = asyncio.Lock()  # a short spec may stand for a million names: one at a time in memory

    @asynccontextmanager
    async def rows(
        self, bucket: BucketEntry, shards: str, *, anything: bool = False, step: int | None = None
    ) -> AsyncIterator[Iterator[tuple[Disk, ObjectRow]]]:
        """Iterate over the matching rows: named shards in their order, others by disk; with `anything` also objects without an
        index. `step`: by which others give their part of the same answer. Who goes on after the context calls `check_share`.

        Raises BadShardSpec, NoLease, MapChanging; for named ones ObjectNotFound, ObjectCorrupt, Unavailable and, unless
        `anything`, NotAShard.
        """
        self._local.check_leased()
        await self._local.check_step(step)
        async with self._expanding:
            selection = await self._local.call(expand, shards)
            if isinstance(selection, list):
                named = await self._local.call(self._named, bucket, selection, anything)
                del selection
                await self._local.check_step(step)
                yield iter(named)
                return
        await self._local.check_step(step)
        listed = [(disk, self._listed.of(disk, bucket.id)) for disk in self._local.in_order()]
        share = self.share(bucket.id)
        yield self._matching(bucket.id, listed, selection, anything)
        self.check_share(bucket.id, share)

    def share(self, bucket_id: str) -> Share:
        """What the part of a bucket's shards follows from that this target lists."""
        placement = placement_of(self._local.map)
        own = [placement.disks[disk.id] for disk in self._local.in_order() if disk.id in placement.disks]
        states = tuple((disk.id, disk.status, disk.incarnation) for disk in own)
        return Share(tuple(each.reading for each in placement.slices), placement.copies_of(bucket_id), states)

    def check_share(self, bucket_id: str, share: Share) -> None:
        """MapChanging if this target may have lost shards, while it listed them, that belonged to its part. That others come
        and go changes who decides about a shard, but not what is here."""
        if self.share(bucket_id) != share:
            raise MapChanging("objects were moved while this target listed them; try again")

    def _named(self, bucket: BucketEntry, names: list[str], anything: bool) -> list[tuple[Disk, ObjectRow]]:
        rows = []
        for name in names:
            disk = self._local.primary_disk(bucket, name)
            if disk is None:
                continue
            row = self._copied.lookup(disk, bucket.id, name)
            if row.samples is None and not anything:
                raise NotAShard(f"{name!r} has no tar index{': ' + row.warnings[0] if row.warnings else ''}")
            rows.append((disk, row))
        return rows

    def _matching(
        self, bucket_id: str, parts: list[tuple[Disk, Listed]], selection: Glob | Prefix, anything: bool
    ) -> Iterator[tuple[Disk, ObjectRow]]:
        for disk, listed in parts:
            position = ""
            while page := disk.list(
                bucket_id, prefix=selection.prefix, start_after=position, limit=LIST_PAGE_MAX, ranks=listed.ranks
            ):
                position = page[-1].name
                for row in page:
                    if is_hidden(row.name, selection.prefix) or (listed.wanted is not None and not listed.wanted(row.name)):
                        continue
                    indexed = row.samples is not None and index_kind(row.name) is not None
                    if (indexed or anything) and selection.matches(row.name):
                        yield disk, row

    async def keys(self, bucket_name: str, shards: str, fields: str, step: int | None = None) -> AsyncIterator[bytes]:
        """Yield the samples of the shards in pieces, one line each (`dfc.tar.index.lines.list_keys`). Named shards must exist
        and have an index."""
        bucket = await self._local.bucket(bucket_name)
        with self._local.certain():
            async with self.rows(bucket, shards, step=step) as rows:
                return _with_signs(self._keys(bucket.id, self.share(bucket.id), rows, fields))

    async def _keys(
        self, bucket_id: str, share: Share, rows: Iterator[tuple[Disk, ObjectRow]], fields: str
    ) -> AsyncGenerator[bytes, None]:
        is_over = False
        while not is_over:
            taken, is_over = await to_its_end(self._local.begin(_next_of, rows))
            for disk, group in groupby(taken, itemgetter(0)):
                pieces = _lines_of(disk, [row for _, row in group], fields)
                async for piece in self._local.threads(disk).iterate(pieces):
                    if piece:
                        yield piece
        self._local.check_leased()  # else the list may lack shards: it is broken off
        self.check_share(bucket_id, share)


def _next_of(rows: Iterator[tuple[Disk, ObjectRow]]) -> tuple[list[tuple[Disk, ObjectRow]], bool]:
    """The next rows, as many as are found in a moment, and whether these are the last."""
    taken, until_s = list[tuple[Disk, ObjectRow]](), time.monotonic() + PIECE_S
    for row in rows:
        taken.append(row)
        if len(taken) == ROWS_AT_ONCE or time.monotonic() > until_s:
            return taken, False
    return taken, True


async def _with_signs(pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """The pieces of a list, and empty lines while the next one takes long: a proxy gives up a target that sends nothing."""
    next_one: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            next_one = asyncio.ensure_future(anext(pieces, None))
            for _ in range(NODE_LIST_SIGNS_MAX):
                if (await asyncio.wait((next_one,), timeout=NODE_LIST_SIGN_S))[0]:
                    break
                yield b"\n"
            piece = await next_one
            if piece is None:
                return
            yield piece
    finally:
        if next_one is not None:
            await end(next_one)
        await pieces.aclose()


def _lines_of(disk: Disk, rows: Sequence[ObjectRow], fields: str) -> Iterator[bytes]:
    """The lines of some shards in pieces, however few a shard has: each piece is a call in a thread, and a turn of the loop.
    Empty ones let others have the thread."""
    begun, until_s = bytearray(), time.monotonic() + PIECE_S
    for row in rows:
        lines = list_keys(disk.open_index(row), row.name, "key" if fields == "key" else "all")
        for piece in chain(lines, (b"",)):  # a shard may have no keys
            begun += piece
            if len(begun) >= KEYS_PIECE_BYTES or time.monotonic() > until_s:
                yield bytes(begun)
                begun.clear()
                until_s = time.monotonic() + PIECE_S
    if begun:
        yield bytes(begun)


REREADS_MAX: Final = 8  # of a shard that is being replaced
Lookup = Callable[[Disk, str, str], ObjectRow]


class IndexWalk:
    """Searches some shards of a disk, in order: `run` it in a thread, `stop` it from another; `part` is what there is."""

    def __init__(
        self, disk: Disk, bucket_id: str, shards: Sequence[str], asked: SearchRequest, until_s: float, lookup: Lookup
    ) -> None:
        """`shards`: at least one. `until_s`: by `time.monotonic`. `lookup` returns a row that may be served, as
        `CopiedObjects.lookup` does."""
        self.disk = disk
        self._bucket_id = bucket_id
        self._shards = shards
        self._asked = asked
        self._until_s = until_s
        self._lookup = lookup
        self._is_stopped = threading.Event()
        self._is_done = False
        self._hits: list[SampleHit] = []
        self._bytes = 0
        self._searched = 0
        self._stopped: Stop | None = None
        self._reached = asked.begin(shards[0])
        self._missing: list[UnsearchedShard] = []
        self._failed: list[UnsearchedShard] = []

    def stop(self) -> None:
        """Have it end soon."""
        self._is_stopped.set()

    def part(self) -> SearchPart:
        """What was found until now."""
        is_done, reached = self._is_done, self._reached  # before the hits, of which there may be more by now, but not fewer
        stopped = self._stopped if is_done else self._stopped or "time"
        hits, missing, failed = list(self._hits), list(self._missing), list(self._failed)
        return SearchPart(hits, self._searched, stopped, missing, failed, None if stopped is None else reached)

    def run(self) -> None:
        """Search until all is done, the limit or the time is reached, or it is stopped. Blocking."""
        for shard in self._shards:
            if self._stopped is None:
                self._reached = self._asked.begin(shard)
            if self._is_over():
                break
            try:
                hits, reached, stopped = self._search(shard)
            except (NotFound, NotAShard) as error:
                self._missing.append(UnsearchedShard(shard, error.code, error.message))
            except DfcError as error:
                self._failed.append(UnsearchedShard(shard, error.code, error.message))
            else:
                self._hits += hits
                self._reached = reached
                self._stopped = stopped
                self._searched += stopped is None
        self._is_done = True

    def _is_over(self) -> bool:
        if self._stopped is None and (self._is_stopped.is_set() or time.monotonic() >= self._until_s):
            self._stopped = "time"
        return self._stopped is not None

    def _search(self, shard: str) -> tuple[list[SampleHit], SamplePlace, Stop | None]:
        """Search one shard; return its hits, how far they go, and why they are not all. Errors of the disk."""
        begin = self._asked.begin(shard)
        for _ in range(REREADS_MAX):
            row = self._lookup(self.disk, self._bucket_id, shard)
            if row.samples is None:
                raise NotAShard(f"{shard!r} has no tar index{': ' + row.warnings[0] if row.warnings else ''}")
            index, held = None, self._bytes
            try:
                index = self.disk.open_index(row)
                return self._hits_in(begin, find_samples(index, shard, self._asked.query, begin[1]))
            except RowChanged:
                pass
            except IndexCorrupt:  # large indexes are only checked as they are read
                with suppress(RowChanged):
                    self.disk.rebuild_index(row, index)
            self._bytes = held
        raise Unavailable(f"{shard!r} is being replaced faster than it can be searched")

    def _hits_in(
        self, reached: SamplePlace, found: Iterator[SampleHit | int]
    ) -> tuple[list[SampleHit], SamplePlace, Stop | None]:
        hits: list[SampleHit] = []
        for each in found:
            if isinstance(each, SampleHit):
                hits.append(each)
                reached = each.after
                self._bytes += each.line_bytes
                if len(self._hits) + len(hits) >= self._asked.limit or self._bytes >= SEARCH_ANSWER_BYTES_MAX:
                    return hits, reached, "limit"
            else:
                reached = reached[0], each
            if self._is_over():
                return hits, reached, self._stopped
        return hits, reached, None


END_S: Final = 0.25  # after its time is over, for what is searched at that moment to come to its end
WALK_SHARDS_MIN: Final = 32  # fewer are not worth another thread


class OwnSearches:
    """Searches among the shards of this target."""

    def __init__(self, local: TargetState, copied: CopiedObjects) -> None:
        self._local = local
        self._copied = copied
        self._turns = asyncio.Semaphore(TARGET_SEARCHES_MAX)

    async def search(self, asked: SearchRequest) -> SearchPart:
        """Return what was found within the time that was given; threads may go on for a moment. If this is cancelled, they end
        soon. BucketNotFound, NoLease."""
        until_s = time.monotonic() + asked.budget_s
        bucket = await self._local.bucket(asked.bucket)
        try:
            async with asyncio.timeout(until_s - time.monotonic()):
                await self._turns.acquire()
        except TimeoutError:
            return SearchPart(stopped="time", reached=asked.begin(asked.shards[0])) if asked.shards else SearchPart()
        try:
            placed, failed = await self._local.call(self._place, bucket, asked.shards)
            walks = self._walks(bucket, placed, asked, until_s)
            await self._walk(walks, until_s)
        finally:
            self._turns.release()
        self._local.check_leased()  # else what was found may be old, and what was not found may be there
        return await asyncio.to_thread(joined, [*(walk.part() for walk in walks), SearchPart(failed=failed)], asked.limit)

    def _place(self, bucket: BucketEntry, shards: list[str]) -> tuple[dict[Disk, list[str]], list[UnsearchedShard]]:
        """The disks from which the shards may be read, and those that are not here."""
        placed: dict[Disk, list[str]] = {}
        failed = []
        for shard in shards:
            try:
                disk = self._local.owned_disk(bucket, shard)
            except DfcError as error:
                failed.append(UnsearchedShard(shard, error.code, error.message))
                continue
            if disk is None:
                failed.append(UnsearchedShard(shard, ELSEWHERE, NOT_HERE))
            else:
                placed.setdefault(disk, []).append(shard)
        return placed, failed

    def _walks(
        self, bucket: BucketEntry, placed: dict[Disk, list[str]], asked: SearchRequest, until_s: float
    ) -> list[IndexWalk]:
        """Each thread takes a share of the shards of a disk, in order. Looking through keys keeps a processor busy, not a disk:
        that gets one."""
        found = []
        for disk, shards in placed.items():
            ways = max(1, min(SEARCH_THREADS, len(shards) // WALK_SHARDS_MIN)) if asked.query.is_exact else 1
            found += [
                IndexWalk(disk, bucket.id, shards[first::ways], asked, until_s, self._copied.lookup) for first in range(ways)
            ]
        return found

    async def _walk(self, walks: list[IndexWalk], until_s: float) -> None:
        tasks = [asyncio.create_task(self._local.threads(walk.disk).read(walk.run)) for walk in walks]
        try:
            if tasks:
                await asyncio.wait(tasks, timeout=max(0.0, until_s - time.monotonic()) + END_S)
            errors = [task.exception() for task in tasks if task.done()]
        finally:
            for walk in walks:
                walk.stop()
            for task in tasks:
                task.cancel()  # one that has begun goes on in its thread until it sees that it was stopped
        for error in errors:
            if error is not None:  # Unavailable: its disk has too many calls under way
                raise error

"""What a target does with bodies and messages that others send about copies."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from dfc.checksum import ExpectedChecksums
from dfc.errors import BucketDeleting, DfcError, NotFound, Unavailable
from dfc.limits import PREPARED_MAX, STOP_CLOSE_S
from dfc.placement.map import ClusterMap, Durability
from dfc.placement.roles import Placement
from dfc.replication.recovery import hints_after_commit, still_pending
from dfc.replication.write import acceptance
from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.catalog.changes import StagedName
from dfc.storage.catalog.copies import AdoptOutcome, AdoptVerdict
from dfc.storage.catalog.copyreads import END, START
from dfc.storage.copies import SmallCopy
from dfc.storage.disk import NO_CHECKSUMS, Disk
from dfc.storage.rows import NameState, ObjectRow, Precondition, Standing, Supplied
from dfc.tar.index.format import index_kind
from dfc.target.copies.ledger import Ledger, hint_key, rank_of
from dfc.target.copies.messages import (
    NOBODY,
    ConfirmedRow,
    CopiesTaken,
    CopyItem,
    CopyKey,
    NameReply,
    Outcome,
    PendingPosition,
    PendingReply,
    RowState,
    Sender,
    row_state,
    state_of,
)
from dfc.target.copies.walks import PendingHere, PendingRows, Row, all_pending, chunks, own_pending, pending_rows, told_of
from dfc.target.local import TargetState
from dfc.target.threads import FileRange
from dfc.target.uploads import UploadBody, receive_blob

# --- Bodies that have come ahead of their rows: blobs on disks here, which a row of their version will make objects.
#
# They are known in memory only. After a restart they are files without rows, as of any upload that was cut off. A disk has few
# of them at a time, fewer than the sweep takes for a sign that the catalog is wrong.

PREPARED_S: Final = 120.0  # a body whose row does not come is dropped; longer than a write waits for its turn
COMING_S: Final = 3.0  # a row waits so long for its body, which is less than its sender waits
_log: Final = logging.getLogger("dfc.target")


@dataclass(eq=False)
class _Body:
    """`blob` None: it is being received, until `received`."""

    version: str
    durability: Durability
    blob: tuple[BlobWriter, ObjectRow] | None = None
    expiry: asyncio.TimerHandle | None = None
    received: asyncio.Event = field(default_factory=asyncio.Event)


class Prepared:
    """The bodies of one target, one for a name on a disk."""

    def __init__(self, local: TargetState) -> None:
        self._local = local
        self._bodies: dict[CopyKey, _Body] = {}
        self._dropping: set[asyncio.Task[None]] = set()

    @contextmanager
    def receiving(
        self, key: CopyKey, version: str, durability: Durability
    ) -> Iterator[Callable[[BlobWriter, ObjectRow], None]]:
        """In this context a body is being received; what is yielded keeps its finished blob until the row comes. Unavailable if
        no more are taken, or a newer one of that name is there."""
        found = self._bodies.get(key)
        if found is not None and found.version > version:
            raise Unavailable("a newer body of that name is on its way here")
        if found is None and sum(each.disk == key.disk for each in self._bodies) >= PREPARED_MAX:
            raise Unavailable(f"{PREPARED_MAX} bodies wait for their rows on disk {key.disk} already")
        self.drop(key)
        body = self._bodies[key] = _Body(version, durability)

        def keep(writer: BlobWriter, row: ObjectRow) -> None:
            if self._bodies.get(key) is body and self._local.map.has_bucket(key.bucket_id):
                body.blob = writer, row
                body.expiry = asyncio.get_running_loop().call_later(PREPARED_S, self.drop, key, version)
            else:
                self._abort(key, writer)

        try:
            yield keep
        finally:
            body.received.set()
            if body.blob is None and self._bodies.get(key) is body:
                del self._bodies[key]

    async def take(self, key: CopyKey, state: RowState, durability: Durability) -> BlobWriter | None:
        """Take out the blob for a row; None: there is none with just these bytes, as durable as that. Unavailable while it is
        being received."""
        found = self._bodies.get(key)
        if found is None or found.version != state.version:
            return None
        try:
            async with asyncio.timeout(COMING_S):
                await found.received.wait()
        except TimeoutError:
            raise Unavailable("the body is still being stored") from None
        if found.blob is None or self._bodies.get(key) is not found:
            return None
        if row_state(found.blob[1]) != state or (durability == "fsync" and found.durability != "fsync"):
            self.drop(key)
            return None
        del self._bodies[key]
        if found.expiry is not None:
            found.expiry.cancel()
        return found.blob[0]

    def drop(self, key: CopyKey, up_to: str | None = None) -> None:
        """Remove the blob of a name, if its version is not newer than this one."""
        found = self._bodies.get(key)
        if found is None or (up_to is not None and found.version > up_to):
            return
        del self._bodies[key]
        if found.expiry is not None:
            found.expiry.cancel()
        if found.blob is not None:
            self._abort(key, found.blob[0])

    def take_map(self, new: ClusterMap) -> None:
        """Drop the bodies of buckets that are no more, by a map that is about to be used."""
        for key in [each for each in self._bodies if not new.has_bucket(each.bucket_id)]:
            self.drop(key)

    async def close(self) -> None:
        """Remove all of them, as far as disks do it soon."""
        for key in list(self._bodies):
            self.drop(key)
        if self._dropping:
            _, late = await asyncio.wait(self._dropping, timeout=STOP_CLOSE_S)
            if late:
                _log.warning("%d bodies without rows are left on disks that do not answer", len(late))

    def _abort(self, key: CopyKey, writer: BlobWriter) -> None:
        disk = self._local.disks.get(key.disk)
        if disk is not None:
            task = asyncio.create_task(self._local.threads(disk).go_on(writer.abort))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)


# --- What a target does with messages of others about copies. Rules: `dfc.replication.write` and `dfc.replication.recovery`.
#
# Whatever a message is about is decided by a map that is at least as new as the sender's: if it is newer than the one here,
# that is fetched first.

STORED_TOGETHER: Final = 32  # small rows, in one thread
GROUPS_AT_ONCE: Final = 16  # of these on one disk; each row is an open file
READ_TOGETHER: Final = 16  # rows, likewise
RESOLVED_LOOK_S: Final = 0.1  # between two looks at rows that were pending when a disk was asked about
ANSWER_S: Final = 4.0  # for a disk, while another target waits for an answer about it: less than that waits
AHEAD_PAUSE_S: Final = 60.0  # between two pieces of a body that is sent while the primary receives it


class _NewerMap(Exception):
    """By the map here, the sender is not the primary."""


class CopyReceiver:
    """The receiving half of copies at one target."""

    def __init__(self, local: TargetState, ledger: Ledger, prepared: Prepared) -> None:
        self._local = local
        self._ledger = ledger
        self._prepared = prepared
        self._storing = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(GROUPS_AT_ONCE))

    async def catch_up(self, sender: Sender) -> None:
        """Take the sender's map if it is newer. Unavailable."""
        if sender.version <= self._local.map.version:
            return
        node = self._local.map.node(sender.node)
        if node is not None:
            with suppress(DfcError):
                self._local.take_map(await self._local.control.call("GET", f"{node.url}/v1/cluster", ClusterMap))
        if sender.version > self._local.map.version:
            await self._local.refresh_map(at_once=True)
        if sender.version > self._local.map.version:
            raise Unavailable(f"this target has not got version {sender.version} of the cluster map yet")

    # --- rows

    async def take(self, sender: Sender, items: list[CopyItem]) -> CopiesTaken:
        """Store rows; what became of each. Unavailable."""
        await self.catch_up(sender)
        groups = _together(items)
        found = await asyncio.gather(*(self._take([items[place] for place in places]) for places in groups))
        outcomes: dict[int, Outcome] = {}
        for places, taken in zip(groups, found, strict=True):
            outcomes |= zip(places, taken, strict=True)
        return self._taken([outcomes[place] for place in range(len(items))])

    def _taken(self, outcomes: list[Outcome]) -> CopiesTaken:
        return CopiesTaken(outcomes, self._local.map if "newer_map" in outcomes else None)

    async def _take(self, items: list[CopyItem]) -> list[Outcome]:
        """Store one row, or several of one disk that have small bodies."""
        disk = self._local.disks.get(items[0].to)
        if disk is None:
            return ["refused"] * len(items)
        found: Sequence[AdoptOutcome | Outcome | Exception]
        try:
            found = await self._store_small(disk, items) if _is_small(items[0]) else [await self._store(disk, items[0])]
        except (_NewerMap, DfcError) as error:
            found = [error.with_traceback(None)] * len(items)
        return [self._outcome(*each) for each in zip(items, found, strict=True)]

    def _outcome(self, item: CopyItem, found: AdoptOutcome | Outcome | Exception) -> Outcome:
        if isinstance(found, _NewerMap):
            return "newer_map"
        if isinstance(found, DfcError):
            _log.info("disk %s does not take %s: %s", item.to, item.name, found.message)
            return "refused"
        if isinstance(found, Exception):
            raise found
        outcome: Outcome = ("taken" if found.taken else "refused") if isinstance(found, AdoptOutcome) else found
        if outcome == "taken":
            self._prepared.drop(item.key, item.state.version)
        return outcome

    async def _store(self, disk: Disk, item: CopyItem) -> AdoptOutcome | Outcome:
        if not item.state.is_tombstone:
            return await self._without_body(disk, item)
        adopt, decide = disk.copies.adopt_tombstone, self._decision(item)
        return await self._local.threads(disk).write(adopt, item.bucket_id, item.name, item.state.version, decide)

    async def _store_small(self, disk: Disk, items: list[CopyItem]) -> Sequence[AdoptOutcome | Exception]:
        copies = [
            SmallCopy(
                item.bucket_id,
                item.name,
                item.body or b"",
                ExpectedChecksums(xxh3_128=item.state.checksum),
                Supplied(item.state.version, item.state.attributes),
                self._decision(item),
            )
            for item in items
        ]
        async with self._storing[disk.id]:
            return await self._local.threads(disk).write(disk.copies.adopt_small, copies, items[0].durability)

    async def _without_body(self, disk: Disk, item: CopyItem) -> Outcome:
        """The row of a large object: it is wanted, unless this version is here, or something newer that counts."""
        threads, decide = self._local.threads(disk), self._decision(item)  # which says that it arrives, before anything is read
        state = await threads.read(disk.copies.state, item.bucket_id, item.name)
        verdict = decide(None if state is None else state.version)
        if not verdict.taken:
            return "refused"
        if verdict.commits or (state is not None and state.row is not None and state.row.quarantined):
            writer = await self._prepared.take(item.key, item.state, item.durability)
            return "unknown" if writer is None else await self._adopt(disk, writer, item)
        # What was read may be about to be undone, by a transaction that began before this row arrived: only the next one knows.
        verdict = await threads.go_on(disk.copies.meet, item.bucket_id, item.name, decide)
        if not verdict.taken:
            return "refused"
        return "unknown" if verdict.commits else "taken"

    async def receive(self, sender: Sender, item: CopyItem, body: UploadBody) -> CopiesTaken:
        """Store a row whose body comes now. Raises what uploads raise, and Unavailable."""
        await self.catch_up(sender)
        supplied = Supplied(item.state.version, item.state.attributes)
        expected = ExpectedChecksums(xxh3_128=item.state.checksum)
        if item.kind == "staged":
            return await self._stage(item, body, supplied, expected)
        stays_cached = item.kind == "commit"  # what moves or is caught up with is not what somebody reads now
        disk, writer, _ = await self._receive(item.key, body, supplied, expected, item.durability, stays_cached=stays_cached)
        try:
            outcome = await self._adopt(disk, writer, item)
            self._prepared.drop(item.key, item.state.version)
            return self._taken([outcome])
        except _NewerMap:
            return self._taken(["newer_map"])

    async def _stage(self, item: CopyItem, body: UploadBody, supplied: Supplied, expected: ExpectedChecksums) -> CopiesTaken:
        """Keep a copy of an output, as another disk has staged it. Raises what uploads raise, JobCancelled, NoLease."""
        disk, writer, _ = await self._receive(
            item.key, body, supplied, expected, item.durability, staged=StagedName(item.job), stays_cached=False
        )

        def guard() -> None:
            self._local.check_leased(commits=True)
            if not self._local.map.has_bucket(item.bucket_id):
                raise BucketDeleting("the bucket of the output is being deleted")

        await self._local.threads(disk).go_on(writer.commit, Precondition(guard=guard))
        return self._taken(["taken"])

    async def prepare(self, sender: Sender, key: CopyKey, version: str, durability: Durability, body: UploadBody) -> None:
        """Keep a body whose row will follow. Raises what uploads raise, and Unavailable."""
        await self.catch_up(sender)
        if not self._local.map.has_bucket(key.bucket_id):
            raise Unavailable("there is no such bucket")
        body.pause_s = AHEAD_PAUSE_S
        with self._prepared.receiving(key, version, durability) as keep:
            _, writer, row = await self._receive(key, body, Supplied(version), NO_CHECKSUMS, durability)
            keep(writer, row)

    def forget(self, key: CopyKey, version: str) -> None:
        """No row follows a body of this version, nor one of an older."""
        self._prepared.drop(key, version)

    async def _receive(
        self,
        key: CopyKey,
        body: UploadBody,
        supplied: Supplied,
        expected: ExpectedChecksums,
        durability: Durability,
        *,
        staged: StagedName | None = None,
        stays_cached: bool = True,
    ) -> tuple[Disk, BlobWriter, ObjectRow]:
        disk = self._local.disks.get(key.disk)
        if disk is None:
            raise Unavailable(f"disk {key.disk} is not here")
        begin = partial(
            disk.begin_put,
            key.bucket_id,
            key.name,
            size=body.declared_length,
            expected=expected,
            durability=durability,
            staged=staged,
            supplied=supplied,
            stays_cached=stays_cached,
        )
        received = await receive_blob(self._local.threads(disk), begin, body)
        return disk, received.writer, received.row

    async def _adopt(self, disk: Disk, writer: BlobWriter, item: CopyItem) -> Outcome:
        outcome = await self._local.threads(disk).go_on(disk.copies.adopt, writer, self._decision(item))
        return "taken" if outcome.taken else "refused"

    def _decision(self, item: CopyItem) -> Callable[[str | None], AdoptVerdict]:
        """The check inside the transaction, in the committer's thread. It raises _NewerMap."""
        self._ledger.arrived(item.key)
        version = item.state.version

        def decide(present: str | None) -> AdoptVerdict:
            if not self._local.map.has_bucket(item.bucket_id):
                return AdoptVerdict(taken=False)
            placement = self._ledger.placement
            found = self._ledger.roles(item.bucket_id, item.name)
            newer = present is None or present < version
            standing = Standing(rank_of(found, item.to))
            if item.kind == "commit":
                verdict = acceptance(found, item.of, version, present, leased=self._local.is_leased)
                if verdict.is_newer_map:
                    raise _NewerMap
                hints = tuple(hints_after_commit(placement, found, item.to))
                return AdoptVerdict(verdict.taken, verdict.commits, Standing(standing.rank, True, hints, item.job))
            if found.primary != (item.of if item.kind == "adopt" else None):
                raise _NewerMap
            is_pending = item.kind == "direct" and item.is_pending
            standing = Standing(standing.rank, pending=is_pending, job=item.job if is_pending else "")
            # What moves or is caught up with is not what somebody reads now.
            return AdoptVerdict(taken=True, commits=newer, standing=standing, stays_cached=False)

        return decide

    # --- what is here

    async def states(self, sender: Sender, names: list[CopyKey]) -> list[NameReply]:
        """What disks here have of names. Unavailable."""
        await self.catch_up(sender)
        by_disk = defaultdict[str, list[CopyKey]](list)
        for key in names:
            by_disk[key.disk].append(key)
        groups = [some for each in by_disk.values() for some in chunks(each, READ_TOGETHER)]
        found = await asyncio.gather(*(self._told(some) for some in groups))
        replies = {key: each for some in found for key, each in some.items()}
        return [replies[key] for key in names]

    async def _told(self, keys: Sequence[CopyKey]) -> dict[CopyKey, NameReply]:
        """The same of some names on one disk."""
        disk = self._local.disks.get(keys[0].disk)
        if disk is None:
            return dict.fromkeys(keys, NOBODY)
        placement, ledger = self._ledger.placement, self._ledger
        before = [(ledger.decides(key), ledger.speaks(key)) for key in keys]
        replies: dict[CopyKey, NameReply] = {}
        for key, state, (decided, spoke) in zip(keys, await self._states(disk, keys), before, strict=True):
            if isinstance(state, DfcError):
                replies[key] = NOBODY
                continue
            # Both before the row was read, and after it.
            decides = decided and ledger.decides(key) and ledger.placement is placement
            speaks = decides and spoke and ledger.speaks(key)
            is_damaged = state is not None and state.row is not None and state.row.quarantined
            row = None if state is None else state_of(state)
            replies[key] = NameReply(row, speaks, key not in ledger.in_doubt, is_damaged=is_damaged, decides=decides)
        return replies

    async def _states(self, disk: Disk, keys: Sequence[CopyKey]) -> list[NameState | DfcError | None]:
        """What a disk has of names. Rows that may have to be verified, which takes as long as reading them, are looked at each
        in a thread of its own."""
        threads = self._local.threads(disk)

        async def look(key: CopyKey, state: NameState | None) -> NameState | DfcError | None:
            if state is None or state.row is None or not state.row.unsynced:
                return state
            try:
                return await threads.read(disk.copies.state, key.bucket_id, key.name)
            except DfcError as error:
                return error

        try:
            states = await threads.read(disk.copies.hinted_states, [key[1:] for key in keys])
        except DfcError as error:
            return [error] * len(keys)
        return list(await asyncio.gather(*map(look, keys, states)))

    async def open(self, key: CopyKey, version: str) -> FileRange:
        """Open the blob of an object in this version, whatever its disk's role. NotFound."""
        disk = self._local.disks.get(key.disk)
        if disk is None:
            raise NotFound(f"disk {key.disk} is not here")
        threads = self._local.threads(disk)
        state = await threads.read(disk.copies.state, key.bucket_id, key.name)
        if state is None or state.row is None or state.version != version:
            raise NotFound(f"disk {key.disk} has no version {version} of {key.name!r}")
        row: ObjectRow = state.row
        file = await threads.open(disk.open_blob, row, release=os.close)
        return FileRange(file, 0, row.size, threads.sending, lambda error, at: disk.read_failed(row, at, error))

    async def confirm(self, rows: list[ConfirmedRow]) -> None:
        """Rows here count. Not durable: if it is lost, the primary is asked."""
        by_disk: dict[str, list[tuple[str, str, str]]] = {}
        for disk_id, *row in rows:
            by_disk.setdefault(disk_id, []).append((row[0], row[1], row[2]))
        here = [(self._local.disks[each], some) for each, some in by_disk.items() if each in self._local.disks]
        await asyncio.gather(*(self._local.threads(disk).write(disk.copies.confirm, some) for disk, some in here))

    async def missing(self, sender: Sender, names: list[CopyKey]) -> None:
        """Note, as the primary of names, which disks lack their rows. Unavailable for names that are not peered here, or of
        which no disk here is the primary."""
        await self.catch_up(sender)
        hints, serves_all = dict[str, list[tuple[str, str, str]]](), True
        for key in names:
            found = self._ledger.roles(key.bucket_id, key.name)
            primary = self._ledger.own_primary(found)
            if primary is None or not self._ledger.is_peered(key.bucket_id, key.name, primary):
                serves_all = False
            elif key.disk != primary and key.disk in found.everywhere:
                hints.setdefault(primary, []).append((hint_key(found, key.disk), *key[1:]))
        for disk_id, some in hints.items():
            disk = self._local.disks[disk_id]
            await self._local.threads(disk).go_on(disk.copies.add_hints, some)
        if not serves_all:
            raise Unavailable("this target does not serve all of these names now")

    # --- steps

    async def pending(self, sender: Sender, step: int, after: PendingPosition | None = None) -> PendingReply:
        """A page of the pending rows here of names whose primary is at the sender, for its peering; or this target's map, if
        that is of a newer step. From then on nothing is committed here for the primary before. Unavailable."""
        await self.catch_up(sender)
        placement = self._ledger.placement
        if placement.step > step:
            return PendingReply([], self._local.map)
        await _in_time(self._local.decide_by(self._local.map))
        if self._ledger.placement.step != placement.step:
            return PendingReply([], self._local.map)  # a disk may have failed by the newer step, and was not waited for
        for disk in self._local.in_order():
            place = placement.disks.get(disk.id)
            if place is not None and place.status == "failed":
                continue  # it is no reader of names about which others decide, so its rows do not count; and it may hang
            if (after is not None and disk.id < after.disk) or not disk.copies.has_pending:
                continue
            position = START if after is None or after.disk != disk.id else (after.bucket, after.name)
            rows, then = await self._local.threads(disk).read(told_of, disk, placement, sender.node, position)
            if rows:
                return PendingReply(rows, after=PendingPosition(disk.id, *(then or END)))
        return PendingReply([])

    async def all_pending(self, disk: Disk) -> list[PendingHere]:
        """Everything that is pending on a disk."""
        if not disk.copies.has_pending:
            return []
        return await self._local.threads(disk).read(all_pending, disk, self._ledger.placement)

    async def pending_here(self, disk: Disk, before: Collection[Row]) -> PendingRows:
        """The same, sorted by what is to be done. `before`: rows of other primaries that were there at the last look."""
        if not disk.copies.has_pending:
            return PendingRows([], set(), {})
        return await self._local.threads(disk).read(pending_rows, disk, self._ledger.placement, before)

    async def own_pending(self, disk: Disk) -> list[Row]:
        """What is pending on a disk that is the primary itself."""
        if not disk.copies.has_pending:
            return []
        return await self._local.threads(disk).read(own_pending, disk, self._ledger.placement)

    async def is_resolved(self, sender: Sender, disk_id: str) -> bool:
        """Whether what is pending on a disk now, and an existing primary could resolve, is resolved soon: waits for it. What
        comes meanwhile does not matter; under a steady load there is always something. Unavailable."""
        await self.catch_up(sender)
        disk = self._local.disks.get(disk_id)
        if disk is None:
            raise Unavailable(f"disk {disk_id} is not here")
        placement = self._ledger.placement
        await _in_time(self._until_resolved(disk, placement))
        return self._ledger.placement.step == placement.step

    async def _until_resolved(self, disk: Disk, placement: Placement) -> None:
        # Else a row for the primary of an older step could come after this look, and stay when this disk is a reader.
        await self._local.until_old_commits_are_done(disk)
        before = await self._unresolved(disk)
        while before and self._ledger.placement.step == placement.step:
            await asyncio.sleep(RESOLVED_LOOK_S)
            before = still_pending(before, await self._unresolved(disk))

    async def _unresolved(self, disk: Disk) -> dict[tuple[str, str], str]:
        """The versions that are pending on a disk and that another disk could resolve, by bucket ids and names."""
        pending = await self.all_pending(disk)
        return {(row.bucket_id, row.name): row.version for row in pending if row.primary not in (None, disk.id)}


def _is_small(item: CopyItem) -> bool:
    return item.body is not None and not item.state.is_tombstone


def _together(items: Sequence[CopyItem]) -> list[Sequence[int]]:
    """Which of the items, by their places, are stored in one go: those with small bodies that go to one disk. Not shards, whose
    indexes are synced one by one."""
    places = defaultdict[tuple[object, ...], list[int]](list)
    for place, item in enumerate(items):
        is_plain = _is_small(item) and index_kind(item.name) is None
        places[(item.to, item.durability) if is_plain else (place,)].append(place)
    return [some for each in places.values() for some in chunks(each, STORED_TOGETHER)]


async def _in_time(waiting: Awaitable[object]) -> None:
    """Wait for commits on disks here, but no longer than another target waits for the answer. Unavailable."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await waiting
    except TimeoutError:
        raise Unavailable("a disk of this target does not answer") from None

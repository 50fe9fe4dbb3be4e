"""Reads and writes of objects with copies at this target, damaged ones included."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from dfc.errors import DfcError, NotFound, Unavailable
from dfc.http.shutdown import end, log_failure
from dfc.replication.write import ReadVerdict
from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.catalog.commit import OutcomeUnknown
from dfc.storage.catalog.copies import AdoptVerdict
from dfc.storage.disk import Disk
from dfc.storage.rows import NameState, ObjectRow, Precondition, PutResult, Standing
from dfc.target.copies.ledger import Ledger, NotPeered, rank_of
from dfc.target.copies.messages import CopyKey, RowState, state_of
from dfc.target.copies.peers import Peers
from dfc.target.copies.tee import BodyTee, Tees
from dfc.target.copies.writes import ReplicatedWrite, Writes
from dfc.target.local import NOT_HERE, MoreCopies, OwnPlace, TargetState
from dfc.target.uploads import Commit, Follower

# --- Damaged rows of this target's disks: their bytes are fetched from a disk that has them whole, and verified first.

_log: Final = logging.getLogger("dfc.target")
AGAIN_S: Final = 60.0  # after nobody had the bytes
REPAIRS_AT_ONCE: Final = 8  # on all disks: each fetches a body


class Repairer:
    """Repairs rows. Whoever needs the same one waits for the same attempt, which goes on when they leave."""

    def __init__(self, local: TargetState, ledger: Ledger, peers: Peers) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._running: dict[CopyKey, asyncio.Task[bool]] = {}
        self._next_s: dict[tuple[CopyKey, str], float] = {}  # by name and version: no try before this, by the loop's clock
        self._forget_s = 0.0  # when to drop those that are due
        self._slots = asyncio.Semaphore(REPAIRS_AT_ONCE)
        self._is_closed = False

    async def close(self) -> None:
        """Give up what is under way, and begin nothing more."""
        self._is_closed = True
        await end(*self._running.values())

    async def repair(self, disk: Disk, key: CopyKey) -> bool:
        """Fetch the bytes of a damaged object on a disk here from another one that has the same version; whether they are sound
        now. If nobody has them, the log says so, and they are looked for again after a while. StorageFailed; Unavailable."""
        task = self._running.get(key)
        if task is None:
            if self._is_closed:
                raise Unavailable("the target is being stopped")
            task = self._running[key] = asyncio.create_task(self._repair(disk, key))
            task.add_done_callback(lambda ended: self._ended(key, ended))
        return await asyncio.shield(task)

    def _ended(self, key: CopyKey, task: asyncio.Task[bool]) -> None:
        self._running.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited for it may have left

    async def _repair(self, disk: Disk, key: CopyKey) -> bool:
        damaged = await self._local.threads(disk).read(disk.copies.state, key.bucket_id, key.name)
        if damaged is None or damaged.row is None or not damaged.row.quarantined:
            return damaged is not None  # replaced or repaired meanwhile
        mark, now_s = (key, damaged.version), asyncio.get_running_loop().time()
        if now_s < self._next_s.get(mark, 0.0):
            return False
        async with self._slots:
            source = await self._from_any(disk, key, damaged)
        if source is not None:
            disk.copies.note_repaired()
            _log.info("the damaged bytes of %s on disk %s were replaced by those of disk %s", key.name, key.disk, source)
            return True
        self._wait(mark, now_s)
        missing = await self._local.threads(disk).read(disk.copies.hinted_disks, key.bucket_id, key.name)
        _log.error(
            "object %s on disk %s is damaged, and no other disk has its bytes%s; upload the object again, or delete it",
            key.name,
            key.disk,
            f": disk {', '.join(sorted(missing))} cannot get it" if missing else "",
        )
        return False

    def _wait(self, mark: tuple[CopyKey, str], now_s: float) -> None:
        """Do not look for these bytes again for a while."""
        if now_s >= self._forget_s:
            self._forget_s = now_s + AGAIN_S
            self._next_s = {each: at_s for each, at_s in self._next_s.items() if at_s > now_s}
        self._next_s[mark] = now_s + AGAIN_S

    async def _from_any(self, disk: Disk, key: CopyKey, damaged: NameState) -> str | None:
        """The disk whose bytes were taken; None: there is none."""
        found, wanted = self._ledger.roles(key.bucket_id, key.name), state_of(damaged)
        for other in dict.fromkeys((*found.readers, *found.everywhere, *found.handoffs)):
            if other != key.disk and await self._repair_from(disk, CopyKey(other, key.bucket_id, key.name), wanted):
                return other
        return None

    async def _repair_from(self, disk: Disk, source: CopyKey, wanted: RowState) -> bool:
        reply = await self._peers.state(source)
        if reply is None or reply.is_damaged or reply.state != wanted:
            return False
        writer = await self._peers.fetch(source, wanted, disk, self._local.durability_of(source.bucket_id))
        if writer is None:
            return False
        rank = rank_of(self._ledger.roles(source.bucket_id, source.name), disk.id)

        def decide(present: str | None) -> AdoptVerdict:
            """The row stays what it is: pending if it was, and replaced by nothing if it is another one by now."""
            return AdoptVerdict(taken=present == wanted.version, standing=Standing(rank, pending=True))

        try:
            outcome = await self._local.threads(disk).go_on(disk.copies.adopt, writer, decide)
        except DfcError as error:
            _log.warning("cannot repair %s on disk %s: %s", source.name, disk.id, error.message)
            return False
        return outcome.stored


# --- Reads and writes of objects with copies at this target, for its use cases: what `dfc.target.objects` does for one copy.

T = TypeVar("T")
READ_S: Final = 10.0  # a read waits so long for a write on its way, or for its primary
LOOK_S: Final = 0.05
REREADS_MAX: Final = 8  # of one row that may have been undone while it was read


class CopiedObjects:
    """The objects with copies that this target serves."""

    def __init__(
        self, local: TargetState, ledger: Ledger, peers: Peers, tees: Tees, writes: Writes, repairer: Repairer, hold_s: float
    ) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._tees = tees
        self._writes = writes
        self._repairer = repairer
        self._hold_s = hold_s

    # --- writes

    async def until_served(self, place: OwnPlace, name: str) -> None:
        """Wait until a name is peered, before the body of a write is read. Unavailable."""
        key = CopyKey(place.disk.id, place.bucket.id, name)
        await self._until_peered(key, asyncio.get_running_loop().time() + self._hold_s)

    async def _until_peered(self, key: CopyKey, until_s: float) -> None:
        try:
            async with asyncio.timeout_at(until_s):
                while not self._ledger.is_peered(*key[1:], key.disk):  # noqa: ASYNC110  # by another thread's map
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise Unavailable("this target does not know yet what others have of this object; try again") from None

    def storing(self, place: OwnPlace, name: str) -> CopiedUpload:
        """How an upload of this name is stored."""
        return CopiedUpload(self, place, name)

    def _has_several(self, place: OwnPlace) -> bool:
        bucket = self._local.map.bucket_of(place.bucket.id) or place.bucket
        return bucket.has_several

    def follow(self, place: OwnPlace, name: str, writer: BlobWriter, size: int | None) -> BodyTee | None:
        """Send the body of an upload to the other disks that take part while it is received."""
        if not self._has_several(place):
            return None

        def others() -> list[CopyKey]:
            found = self._ledger.roles(place.bucket.id, name)
            return [CopyKey(each, place.bucket.id, name) for each in found.writers]

        return self._tees.begin(writer, size, others, place.bucket.durability)

    async def put(
        self, place: OwnPlace, name: str, precondition: Precondition, commit: Commit, content: bytes | None
    ) -> tuple[PutResult, int]:
        """Commit a finished upload (of `content`, if it is small), bring it to all disks that must have it, and return how many
        have it. `commit` runs to its end whatever happens to the caller, and is run again after OtherCondition. Unavailable;
        CopiesMissing; what `commit` raises.

        Whether there are to be others is decided by the map of now: the bucket may have been changed since the upload began."""
        if not self._has_several(place):
            try:
                return await commit(precondition), 1
            except MoreCopies:
                pass  # between this look at the map and the commit
        if not place.bucket.has_several:
            await self.until_served(place, name)

        async def run(guarded: Precondition) -> tuple[PutResult, NameState | None]:
            result = await commit(guarded)
            return result, NameState(result.row.version, result.row) if result.committed else None

        result, written = await self.write(place, name, precondition, run, content)
        return result, written.copies if written is not None else 1

    async def delete(self, place: OwnPlace, name: str, precondition: Precondition) -> None:
        """Delete an object on all disks that have it. Raises what `Disk.delete` raises, Unavailable, CopiesMissing."""
        disk = place.disk

        async def run(guarded: Precondition) -> tuple[ObjectRow, NameState | None]:
            delete = partial(disk.copies.delete, place.bucket.id, name, precondition=guarded)
            row, version = await self._local.threads(disk).go_on(delete)
            return row, NameState(version)

        await self.write(place, name, precondition, run)

    async def write(
        self,
        place: OwnPlace,
        name: str,
        precondition: Precondition,
        run: Callable[[Precondition], Awaitable[tuple[T, NameState | None]]],
        content: bytes | None = None,
    ) -> tuple[T, ReplicatedWrite | None]:
        """Commit at this disk, the primary, then wait until the write is replicated. `run` commits under a guard, and says what
        is there of the name then; None: something newer. Raises what it raises; Unavailable; CopiesMissing."""
        until_s = asyncio.get_running_loop().time() + self._hold_s
        # A task of its own: if the client leaves during the commit, the row must be driven all the same.
        begun = asyncio.create_task(self._commit(place, name, precondition, run, until_s, content))
        begun.add_done_callback(log_failure)
        result, written = await asyncio.shield(begun)
        if written is None:
            return result, None
        key = CopyKey(place.disk.id, place.bucket.id, name)
        return result, await self._writes.until_replicated(written.task, key, written.version, until_s)

    async def _commit(
        self,
        place: OwnPlace,
        name: str,
        precondition: Precondition,
        run: Callable[[Precondition], Awaitable[tuple[T, NameState | None]]],
        until_s: float,
        content: bytes | None,
    ) -> tuple[T, _OnItsWay | None]:
        key, marks = CopyKey(place.disk.id, place.bucket.id, name), set[CopyKey]()

        def guard() -> Standing:
            return self._ledger.guard(place.bucket, key, marks)

        guarded = Precondition(precondition.if_match, precondition.if_none_match, guard)
        async with self._ledger.hold(key, until_s):
            try:
                result, state = await self._run(key, lambda: run(guarded), until_s)
            except OutcomeUnknown:
                self._writes.look_after(marks)
                raise
            except Exception:
                if marks:
                    self._ledger.free(key)
                raise
            if not marks:
                return result, None
            if state is None:  # something newer is there: as if this had been overwritten at once
                self._ledger.free(key)
                return result, None
            return result, _OnItsWay(self._writes.drive(place.disk, key, state.version, state, content), state.version)

    async def _run(self, key: CopyKey, run: Callable[[], Awaitable[T]], until_s: float) -> T:
        """Run a commit, and run it again when the name is peered if a new map has come before it."""
        while True:
            try:
                return await run()
            except NotPeered:
                await self._until_peered(key, until_s)

    # --- reads

    def may_serve(self, disk: Disk, bucket_id: str, name: str) -> bool:
        """Whether what a disk here has of a name may be served now. Ask after reading it, and see `DiskCopies.is_pending`."""
        found = self._ledger.roles(bucket_id, name)
        pending = disk.copies.is_pending(bucket_id, name)
        return self._ledger.verdict(found, CopyKey(disk.id, bucket_id, name), pending=pending) is ReadVerdict.SERVE

    def check_served(self, disk: Disk, bucket_id: str, name: str) -> None:
        """Raise Unavailable unless what was just read here of a name may be served. Usable from any thread."""
        bucket = self._local.map.bucket_of(bucket_id)
        if bucket is not None and bucket.has_several and not self.may_serve(disk, bucket_id, name):
            raise Unavailable("the newest version of this object is still in doubt; try again")

    def lookup(self, disk: Disk, bucket_id: str, name: str) -> ObjectRow:
        """What `Disk.lookup` returns, if that counts; blocking. Raises what that raises; Unavailable."""
        for _ in range(REREADS_MAX):
            undone, missing, row = disk.copies.undone, None, None
            try:
                row = disk.lookup(bucket_id, name)
            except NotFound as error:
                missing = error
            self.check_served(disk, bucket_id, name)
            if undone == disk.copies.undone:  # else it may have been pending, and undone before the check
                if row is None:
                    assert missing is not None
                    raise missing
                return row
        raise Unavailable("the object is being replaced faster than it can be read")

    async def row(self, place: OwnPlace, name: str) -> ObjectRow:
        """Return the row of an object once it is known to count. Raises what `Disk.lookup` raises; Unavailable."""
        (bucket, disk), loop = place, asyncio.get_running_loop()
        key, threads, until_s = CopyKey(disk.id, bucket.id, name), self._local.threads(disk), loop.time() + READ_S
        while True:
            undone, missing, row = disk.copies.undone, None, disk.lookup_cached(bucket.id, name)
            try:
                row = row or await threads.read(disk.lookup, bucket.id, name)
            except NotFound as error:
                missing = error
            found = self._ledger.roles(bucket.id, name)
            verdict = self._ledger.verdict(found, key, pending=disk.copies.is_pending(bucket.id, name))
            if verdict is ReadVerdict.SERVE and undone == disk.copies.undone:
                if row is None:
                    assert missing is not None
                    raise missing
                return row
            if verdict is ReadVerdict.ELSEWHERE:
                raise Unavailable(NOT_HERE)
            if loop.time() >= until_s:
                raise Unavailable("the newest version of this object is still in doubt; try again")
            if verdict is ReadVerdict.WAIT and key in self._ledger.in_doubt:
                await self._ledger.until_replicated(key, until_s)
            elif verdict is ReadVerdict.ASK_PRIMARY and found.primary is not None:
                await self._ask(disk, key, found.primary)
            else:
                await asyncio.sleep(LOOK_S)

    async def repair(self, place: OwnPlace, name: str) -> bool:
        """Have the damaged bytes of an object fetched from another disk that has it; whether they are sound now. That goes on
        when the caller does not wait any longer, as this does."""
        if not self._has_several(place):
            return False
        try:
            async with asyncio.timeout(READ_S):
                return await self._repairer.repair(place.disk, CopyKey(place.disk.id, place.bucket.id, name))
        except (TimeoutError, DfcError):
            return False

    async def _ask(self, disk: Disk, key: CopyKey, primary: str) -> None:
        """Ask the primary whether the row that is pending here counts."""
        reply = await self._peers.state(CopyKey(primary, key.bucket_id, key.name))
        if reply is not None and reply.speaks and reply.state is not None:
            # Only if that is the version here: anything else is left to the upkeep.
            row = (key.bucket_id, key.name, reply.state.version)
            await self._local.threads(disk).go_on(disk.copies.confirm, [row])
        await asyncio.sleep(LOOK_S / 5)


class _OnItsWay(NamedTuple):
    """A write that has been committed here."""

    task: asyncio.Task[ReplicatedWrite | None]
    version: str


class CopiedUpload(NamedTuple):
    """How an upload of one name is stored."""

    objects: CopiedObjects
    place: OwnPlace
    name: str

    def follow(self, writer: BlobWriter, size: int | None) -> Follower | None:
        """The other disks take the body, too."""
        return self.objects.follow(self.place, self.name, writer, size)

    async def store(self, precondition: Precondition, commit: Commit, content: bytes | None) -> tuple[PutResult, int]:
        """See `CopiedObjects.put`."""
        return await self.objects.put(self.place, self.name, precondition, commit, content)

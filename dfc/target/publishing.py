"""Publishing: outputs of jobs become objects with copies. Rules: `dfc.replication.recovery`.

The disk that has staged an output commits its row, as its primary, and brings it to the others. It may die before they have
it, and find another disk the primary when it is back, which has never heard of the output. The row is not undone then, as one
would be that a client has written: the job only goes forward. It stays pending, with the job in its mark, and whoever has it
offers it to the primary each time that the job asks for its publication. The primary fetches it, and takes it as a write of its
own, unless something newer is there. When the job is over, the marks forget it (`JobStaging.discard`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dfc.errors import CopiesMissing, DfcError, JobCancelled, Unavailable
from dfc.http.shutdown import end, log_failure
from dfc.storage.blobs.writer import BlobWriter
from dfc.storage.catalog.changes import Published, StagedRow
from dfc.storage.catalog.commit import OutcomeUnknown
from dfc.storage.catalog.copies import AdoptOutcome, AdoptVerdict
from dfc.storage.disk import Disk
from dfc.storage.rows import ALONE, ALWAYS, NameState, ObjectRow, Precondition, Standing
from dfc.target.copies.ledger import Ledger
from dfc.target.copies.messages import CopyItem, CopyKey, PendingCopy, Sender, row_state, state_of
from dfc.target.copies.objects import CopiedObjects
from dfc.target.copies.peers import Peers
from dfc.target.copies.receive import CopyReceiver
from dfc.target.copies.walks import chunks
from dfc.target.copies.writes import Writes
from dfc.target.local import OwnPlace, TargetState

_log: Final = logging.getLogger("dfc.target")
PUBLISHED_AT_ONCE: Final = 32  # outputs of a job on their way from one disk
PUBLISH_S: Final = 120.0  # for each of them, and for primaries to take those that are offered
OFFER_S: Final = 0.5  # between two offers
OFFERED_TOGETHER: Final = 64  # rows of one disk, to one primary
SPREAD_ANSWER_S: Final = 60.0  # until it is said how far that is
SPREAD_AT_ONCE: Final = 16  # outputs on their way to other disks as copies, before they are published
TAKEN_AT_ONCE: Final = 16  # offered rows that are fetched at a time
TAKEN_MAX: Final = 1024  # and those that wait for their turn; others are offered again


class _Spread:
    """The copies that one disk sends for one job. `sent`: outputs by disk, version, and incarnation of that disk; `pieces`
    counts what has moved."""

    def __init__(self) -> None:
        self.sent: set[tuple[CopyKey, str, str]] = set()
        self.pieces = 0
        self.task: asyncio.Task[list[ObjectRow]] | None = None

    def moved(self) -> None:
        """A piece has gone. From any thread: a count that is a little too low does no harm."""
        self.pieces += 1

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Publications:
    """The outputs of jobs that this target publishes, or takes as their primary."""

    def __init__(
        self, local: TargetState, ledger: Ledger, peers: Peers, receiver: CopyReceiver, writes: Writes, objects: CopiedObjects
    ) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._receiver = receiver
        self._writes = writes
        self._objects = objects
        self._taking: dict[CopyKey, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(TAKEN_AT_ONCE)
        self._spreads: dict[tuple[str, str], _Spread] = {}  # by disk and job

    async def close(self) -> None:
        """Give up what is being taken, or sent as copies: it is offered, or asked for, again."""
        await end(*self._taking.values(), *(each.task for each in self._spreads.values() if each.task is not None))

    # --- at the disk that has staged them

    async def spread(self, disk: Disk, job: str) -> list[ObjectRow]:
        """Have each output that a job has staged on a disk copied to all disks that a write of its name would go to; returns
        what the job has staged here itself.

        What has been sent once is not sent again while this target runs. CopiesMissing after a while: it goes on, and is to be
        asked for again. Raises Unavailable if it does not, JobCancelled, and what the other targets answer."""
        if await self._local.threads(disk).read(disk.staging.has_ended, job):
            raise JobCancelled(f"job {job} has ended on this target")
        found = self._spreads.setdefault((disk.id, job), _Spread())
        if found.task is None or found.task.done():
            found.task = asyncio.create_task(self._spread(disk, job, found))
            found.task.add_done_callback(log_failure)
        before = found.pieces
        done, _ = await asyncio.wait((found.task,), timeout=SPREAD_ANSWER_S)
        if found.task.cancelled():
            raise JobCancelled(f"job {job} has ended on this target")
        if done:
            return found.task.result()
        if found.pieces == before:
            raise Unavailable(f"no copy of an output of job {job} has moved for {SPREAD_ANSWER_S:g} s")
        raise CopiesMissing(f"disks are being sent copies of the outputs of job {job}: {len(found.sent)} have arrived")

    async def _spread(self, disk: Disk, job: str, spread: _Spread) -> list[ObjectRow]:
        entries = await self._local.threads(disk).read(disk.staging.outputs, job)
        slots, disks = asyncio.Semaphore(SPREAD_AT_ONCE), self._ledger.placement.disks

        async def send(entry: StagedRow, to: str) -> None:
            row = entry.row
            item = CopyItem(
                kind="staged", of=disk.id, to=to, bucket_id=row.bucket_id, name=row.name, state=row_state(row), job=job
            )
            sent = item.key, row.version, disks[to].incarnation
            async with slots:
                if sent not in spread.sent:
                    await self._peers.stage(item, disk, entry, spread.moved)
                    spread.sent.add(sent)
                    spread.moved()

        own = [entry for entry in entries if not entry.row.drawn]  # others are copies already
        for some in chunks(own):
            work = [send(entry, to) for entry in some for to in self._wanting(disk, entry.row)]
            for outcome in await asyncio.gather(*work, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        return [entry.row for entry in own]

    def _wanting(self, disk: Disk, row: ObjectRow) -> list[str]:
        """The other disks that a write of a name would go to."""
        bucket = self._local.map.bucket_of(row.bucket_id)
        if bucket is None or not bucket.has_several:
            return []
        found, placed = self._ledger.roles(row.bucket_id, row.name), self._local.map.placed()
        return [each for each in (*found.members, *found.handoffs) if each != disk.id and each in placed]

    async def publish(self, disk: Disk, job: str, is_open: Callable[[str], bool], *, begins_only: bool = False) -> Published:
        """Publish what a job has staged on a disk, and bring what has copies to all disks that must have it, unless this
        `begins_only`. What an earlier attempt has published is brought there, too: when this returns, nothing of the job is
        pending on the disk. Raises what `Staging.publish` raises; Unavailable; CopiesMissing."""
        # A task of its own: if the caller leaves during the commit, names that became in doubt are seen to all the same.
        begun = asyncio.create_task(self._publish(disk, job, is_open))
        begun.add_done_callback(log_failure)
        done = await asyncio.shield(begun)
        if begins_only:
            return done
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PUBLISH_S
        await self._until_replicated(disk)
        while left := self._left(disk, job):
            if loop.time() > until_s:
                raise CopiesMissing(f"other targets decide about {len(left)} outputs of the job now, and do not have them yet")
            await self._offer(disk, left)
            await asyncio.sleep(OFFER_S)
            await self._until_replicated(disk)
        return done

    async def _publish(self, disk: Disk, job: str, is_open: Callable[[str], bool]) -> Published:
        marked: set[CopyKey] = set()

        def standing(row: ObjectRow, pending: str | None) -> Standing:
            bucket, key = self._local.map.bucket_of(row.bucket_id), CopyKey(disk.id, row.bucket_id, row.name)
            # What is pending may be this output, which has come from another disk as a copy.
            is_other = pending is not None and pending != row.version
            return ALONE if bucket is None else self._ledger.guard_published(bucket, key, marked, pending=is_other)

        try:
            done = await self._local.threads(disk).go_on(disk.staging.publish, job, is_open, standing)
        except OutcomeUnknown:
            self._writes.look_after(marked)
            raise
        except Exception:
            for key in marked:
                self._ledger.free(key)
            raise
        # Of names where something newer was there, no write is on its way.
        for key in marked:
            version = disk.copies.pending_version(key.bucket_id, key.name)
            if version is None or self._writes.is_replicated(key, version):
                self._ledger.free(key)
        return done

    async def _until_replicated(self, disk: Disk) -> None:
        """Bring all rows that are pending on a disk, as their primary, to the others. CopiesMissing."""
        own = await self._receiver.own_pending(disk)
        slots = asyncio.Semaphore(PUBLISHED_AT_ONCE)

        async def drive(bucket_id: str, name: str, version: str) -> None:
            async with slots:
                key = CopyKey(disk.id, bucket_id, name)
                if not self._writes.is_replicated(key, version) and disk.copies.is_pending(bucket_id, name):
                    task = self._writes.drive(disk, key, version)
                    await self._writes.until_replicated(task, key, version, asyncio.get_running_loop().time() + PUBLISH_S)

        await asyncio.gather(*(drive(*row) for row in own))

    def _left(self, disk: Disk, job: str) -> list[CopyKey]:
        """What the job publishes and is pending here, unless that is replicated and only the mark is not dropped yet."""
        found = []
        for name in disk.copies.published_by(job):
            key, version = CopyKey(disk.id, *name), disk.copies.pending_version(*name)
            if version is not None and not self._writes.is_replicated(key, version):
                found.append(key)
        return found

    async def _offer(self, disk: Disk, keys: list[CopyKey]) -> None:
        """Offer rows to their primaries. What these have, the upkeep confirms or undoes."""
        by_primary: dict[str, list[CopyKey]] = {}
        for key in keys:
            primary = self._ledger.roles(key.bucket_id, key.name).primary
            if primary is not None and primary != disk.id:
                by_primary.setdefault(primary, []).append(key)
        for primary, some in by_primary.items():
            chosen = some[:OFFERED_TOGETHER]
            states = await self._local.threads(disk).read(disk.copies.states, [key[1:] for key in chosen])
            rows = [
                PendingCopy(key, state_of(state))
                for key, state in zip(chosen, states, strict=True)
                if state is not None and state.version == disk.copies.pending_version(*key[1:])
            ]
            if rows:
                await self._peers.offer(primary, rows)

    def forget(self, job: str) -> None:
        """A job publishes, or is over: no more copies are made for it."""
        for key in [each for each in self._spreads if each[1] == job]:
            self._spreads.pop(key).cancel()

    # --- at the primary

    async def take(self, sender: Sender, rows: list[PendingCopy]) -> None:
        """Begin to take outputs that another target offers, those of which a disk here is the primary. Unavailable."""
        await self._receiver.catch_up(sender)
        for row in rows:
            own = self._ledger.own_primary(self._ledger.roles(row.key.bucket_id, row.key.name))
            key = CopyKey(own or "", row.key.bucket_id, row.key.name)
            if own in (None, row.key.disk) or key in self._taking or len(self._taking) >= TAKEN_MAX:
                continue
            task = asyncio.create_task(self._take(key, row))
            self._taking[key] = task
            task.add_done_callback(lambda _, key=key: self._taking.pop(key, None))  # type: ignore[misc]

    async def _take(self, key: CopyKey, row: PendingCopy) -> None:
        try:
            async with self._slots:
                await self._fetch_and_write(key, row)
        except DfcError as error:
            _log.info("disk %s does not take output %s yet: %s", key.disk, key.name, error.message)
        except Exception:
            _log.exception("taking output %s failed", key.name)

    async def _fetch_and_write(self, key: CopyKey, row: PendingCopy) -> None:
        disk, bucket, state = self._local.disks[key.disk], self._local.map.bucket_of(key.bucket_id), row.state
        if bucket is None or state.is_tombstone:
            return
        [here] = await self._local.threads(disk).read(disk.copies.states, [key[1:]])
        if here is not None and here.version >= state.version:
            return
        writer = await self._peers.fetch(row.key, state, disk, bucket.durability)
        if writer is None:
            return

        async def run(guarded: Precondition) -> tuple[AdoptOutcome, NameState | None]:
            outcome = await self._local.threads(disk).go_on(self._adopt, disk, writer, state.version, guarded)
            if not outcome.commits:
                return outcome, None
            [now] = await self._local.threads(disk).go_on(disk.copies.states, [key[1:]])
            return outcome, now

        try:
            await self._objects.write(OwnPlace(bucket, disk), key.name, ALWAYS, run)
        finally:
            await self._local.threads(disk).go_on(writer.abort)  # nothing happens once the commit has begun

    def _adopt(self, disk: Disk, writer: BlobWriter, version: str, guarded: Precondition) -> AdoptOutcome:
        """Commit it unless something newer is there. In a thread; raises what the guard raises."""

        def decide(present: str | None) -> AdoptVerdict:
            standing = guarded.check_guard()
            return AdoptVerdict(taken=True, commits=present is None or present < version, standing=standing)

        return disk.copies.adopt(writer, decide)

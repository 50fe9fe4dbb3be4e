"""Writes of objects with copies at their primary: sent to all at once, replicated, no longer pending."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple

from dfc.errors import CopiesMissing, DfcError
from dfc.http.shutdown import end
from dfc.limits import COPY_CONFIRMED_MAX, COPY_ITEMS_MAX, SMALL_BODY_BYTES
from dfc.placement.map import ClusterMap
from dfc.registry.messages import OutOfSyncReport
from dfc.replication.write import MarkOutOfSync, NotPrimary, Replicated, SendCommit, Writing
from dfc.storage.disk import Disk
from dfc.storage.rows import NameState, RowChanged
from dfc.target.copies.ledger import Ledger, hint_key
from dfc.target.copies.messages import ConfirmedRow, CopyItem, CopyKey, Kind, Outcome, state_of
from dfc.target.copies.peers import Peers
from dfc.target.local import TargetState

# --- One row on its way to several disks at once: each answer counts as it comes, so that nobody waits for the slowest.

AGAIN_S: Final = 0.3  # until a disk that has refused or not answered is asked again: it may be about to get its lease
AGAIN_S_MAX: Final = 1.0


class Sends:
    """What is under way for one write. `send` says whether a disk has the row now."""

    def __init__(self, writing: Writing, send: Callable[[str, NameState], Awaitable[bool]]) -> None:
        self._writing = writing
        self._send = send
        self._running: dict[asyncio.Task[bool], str] = {}
        self._pauses: dict[str, float] = {}  # by disk: after its next failure

    @property
    def under_way(self) -> bool:
        """Whether anybody is still to answer."""
        return bool(self._running)

    def begin(self, disks: Iterable[str], state: NameState) -> None:
        """Send the row to these disks."""
        for each in disks:
            self._running[asyncio.create_task(self._attempt(each, state))] = each

    async def _attempt(self, to: str, state: NameState) -> bool:
        """A failure is told after a pause. So whatever is sent next is of that time, not of the time before the pause."""
        if await self._send(to, state):
            return True
        pause_s = self._pauses.get(to, AGAIN_S)
        self._pauses[to] = min(AGAIN_S_MAX, 2 * pause_s)
        await asyncio.sleep(pause_s)
        return False

    async def answered(self, timeout_s: float) -> bool:
        """Wait for the first answers and note them; False if none comes in time."""
        done, _ = await asyncio.wait(self._running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            to, taken = self._running.pop(task), task.result()
            (self._writing.committed if taken else self._writing.failed)(to)
        return bool(done)

    async def close(self) -> None:
        """Give up what is under way. A body that is being sent goes on to its end in its thread; a row that arrives all the
        same is pending there until its disk has asked the primary."""
        await end(*self._running)


# --- The marks of pending rows that count by now: dropped some time later, many at once, here and at the others.
#
# Each disk here and each other target has a task of its own, so that one that hangs or does not answer holds up nobody else.

_log: Final = logging.getLogger("dfc.target")
CONFIRM_S: Final = 0.1  # rows that count are told to the others after so long, many at a time


class PendingMarks:
    """Rows that count although they are still marked as pending: here, and at other targets."""

    def __init__(self, local: TargetState, peers: Peers) -> None:
        self._local = local
        self._peers = peers
        self._replicated: dict[str, dict[CopyKey, str]] = {}  # by disk: versions
        self._confirmed: dict[str, deque[ConfirmedRow]] = {}  # by the URL of a target
        self._running: dict[str, asyncio.Task[None]] = {}  # by disk or URL
        self._is_closed = False

    async def close(self) -> None:
        """Drop no more. After a restart, rows that count are asked about."""
        self._is_closed = True
        await end(*self._running.values())

    def is_replicated(self, key: CopyKey, version: str) -> bool:
        """Whether a row here counts, and only its mark is not dropped yet."""
        return self._replicated.get(key.disk, {}).get(key) == version

    def drop(self, disk: Disk, key: CopyKey, version: str) -> None:
        """A row of a disk here counts."""
        self._replicated.setdefault(disk.id, {})[key] = version
        self._run(disk.id, lambda: self._drop(disk))

    def tell(self, row: ConfirmedRow) -> None:
        """A row of another disk counts. If too many wait to be told, the oldest is not told: its disk asks."""
        node = self._peers.node_of(row.disk)
        if node is not None:
            url = node.url
            self._confirmed.setdefault(url, deque(maxlen=COPY_CONFIRMED_MAX)).append(row)
            self._run(url, lambda: self._tell(url))

    def _run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if name not in self._running and not self._is_closed:
            self._running[name] = asyncio.create_task(self._until_done(name, work))

    async def _until_done(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        finally:  # at once when nothing is left: what comes next begins anew
            self._running.pop(name, None)

    async def _drop(self, disk: Disk) -> None:
        waiting = self._replicated[disk.id]
        while waiting:  # also those of writes that become replicated meanwhile
            await asyncio.sleep(CONFIRM_S)
            replicated = dict(waiting)
            rows = [(key.bucket_id, key.name, version) for key, version in replicated.items()]
            try:
                await self._local.threads(disk).go_on(disk.copies.confirm, rows)
            except DfcError as error:
                _log.info("disk %s: marks of replicated rows stay for now: %s", disk.id, error.message)
            for key, version in replicated.items():
                if waiting.get(key) == version:
                    del waiting[key]

    async def _tell(self, url: str) -> None:
        waiting = self._confirmed[url]
        while waiting:
            await asyncio.sleep(CONFIRM_S)
            while waiting:
                # A target that does not answer in time has had its turn: it asks about these.
                await self._peers.confirm(url, [waiting.popleft() for _ in range(min(COPY_ITEMS_MAX, len(waiting)))])
        del self._confirmed[url]


# --- Writes of objects with copies, from the commit at the primary until they are replicated.
#
# The primary has committed a row and marked it pending. What happens next is decided by `dfc.replication.write`: the row goes
# to the other members, and one that cannot be reached is marked out of sync with the primary by the coordinator. It goes on
# when the client has left, and begins again after a restart.

PAUSE_S: Final = 0.05  # between two looks at a write that cannot go on
LOOK_S: Final = 0.2  # between two looks at the map while others have not answered to a row yet
MOVING_S: Final = 10.0  # a body that has moved within so long is waited for
DRIVEN_AT_ONCE: Final = 64  # rows of one disk for which nobody waits, each with its body if that is small
LOOK_AFTER_S: Final = 0.5  # between two looks at a name whose last commit has an unknown outcome
OUT_OF_SYNC_S: Final = 20.0  # for the coordinator's step, which may have to wait until the disk is declared down


@dataclass(eq=False)
class _Way:
    """A write on its way, as the threads that send its body see it."""

    moved_s: float = -inf  # when a piece of the body was last sent

    def move(self) -> None:
        """A piece was sent. Usable from any thread."""
        self.moved_s = monotonic()


class _Row(NamedTuple):
    """A pending row on a disk here; `body`, if it is at hand."""

    disk: Disk
    key: CopyKey
    version: str
    body: bytes | None
    way: _Way


class _Driven(NamedTuple):
    version: str
    task: asyncio.Task[ReplicatedWrite | None]
    way: _Way


class ReplicatedWrite(NamedTuple):
    """A write that is replicated, on so many disks."""

    copies: int


class Writes:
    """The writes of this target that are on their way."""

    def __init__(self, local: TargetState, ledger: Ledger, peers: Peers) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._driven: dict[CopyKey, _Driven] = {}
        self._marks = PendingMarks(local, peers)
        self._is_closed = False
        self._background: set[asyncio.Task[None]] = set()
        self._later: defaultdict[str, dict[CopyKey, str]] = defaultdict(dict)  # by disk: versions to be driven
        self._drivers: Counter[str] = Counter()  # by disk: tasks that do so

    async def close(self) -> None:
        """Give up what is under way: it goes on after the restart."""
        self._is_closed = True  # a commit that ends from now on drives nothing
        await end(*(each.task for each in self._driven.values()), *self._background)
        await self._marks.close()

    def drive(
        self, disk: Disk, key: CopyKey, version: str, state: NameState | None = None, body: bytes | None = None
    ) -> asyncio.Task[ReplicatedWrite | None]:
        """Bring the pending row of a name, whose primary is this disk, to the others; `state` and `body`, if they are at hand.
        The result is None if this disk decides no more; then the outcome is open."""
        self._ledger.in_doubt.add(key)
        self._later[key.disk].pop(key, None)
        if self._is_closed:
            return asyncio.create_task(_undecided())
        found = self._driven.get(key)
        if found is not None and found.version == version:
            return found.task
        # One of another version is about to find that it has been replaced.
        way, after = _Way(), None if found is None else found.task
        task = asyncio.create_task(self._drive(_Row(disk, key, version, body, way), state, after))
        self._driven[key] = _Driven(version, task, way)
        return task

    def drive_later(self, disk: Disk, key: CopyKey, version: str) -> None:
        """`drive` for a row that nobody waits for, when few others are on their way. The name is in doubt from now on."""
        self._ledger.in_doubt.add(key)
        later = self._later[key.disk]
        later[key] = version
        if self._drivers[key.disk] < DRIVEN_AT_ONCE:
            self._drivers[key.disk] += 1
            self._begin(self._drive_one_by_one(disk, later))

    async def _drive_one_by_one(self, disk: Disk, later: dict[CopyKey, str]) -> None:
        try:
            while later:
                key = next(iter(later))
                await asyncio.wait((self.drive(disk, key, later[key]),))
        finally:
            self._drivers[disk.id] -= 1

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        if self._is_closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def look_after(self, keys: Iterable[CopyKey]) -> None:
        """The outcome of a commit here is unknown until the disk is opened again: the names stay in doubt, since the rows may
        be there, and others may lack them. One that shows up is driven, like all that is pending."""
        for key in keys:
            self._begin(self._look_after(key))

    async def _look_after(self, key: CopyKey) -> None:
        """Free a name when another disk decides about it, unless its row was driven before."""
        while key in self._ledger.in_doubt:
            is_driven = key in self._driven or key in self._later[key.disk]
            if not is_driven and self._ledger.roles(key.bucket_id, key.name).primary != key.disk:
                self._ledger.free(key)
            await asyncio.sleep(LOOK_AFTER_S)

    def wants(self, key: CopyKey, version: str) -> bool:
        """Whether a pending row of which a disk here is primary has to be driven: it is neither on its way nor replicated."""
        return key not in self._driven and key not in self._later[key.disk] and not self.is_replicated(key, version)

    def is_replicated(self, key: CopyKey, version: str) -> bool:
        """Whether a pending row counts, and only its mark is not dropped yet."""
        return self._marks.is_replicated(key, version)

    async def until_replicated(
        self, task: asyncio.Task[ReplicatedWrite | None], key: CopyKey, version: str, until_s: float
    ) -> ReplicatedWrite:
        """Wait for a write; longer than that while its body is moving. If this target decides no more, whoever does is asked.
        CopiesMissing when it takes too long, or is not there: its outcome is open."""
        loop = asyncio.get_running_loop()
        # Not cancelled with whoever waits here.
        while not (await asyncio.wait((task,), timeout=until_s - loop.time()))[0]:
            moved_s = next((each.way.moved_s for each in self._driven.values() if each.task is task), -inf)
            left_s = moved_s + MOVING_S - monotonic()
            if left_s <= 0:
                raise CopiesMissing("not all disks that must have the object have it yet; it may still be stored")
            until_s = loop.time() + left_s
        return task.result() or await self._learned(key, version, until_s)

    async def _learned(self, key: CopyKey, version: str, until_s: float) -> ReplicatedWrite:
        """Wait until the disk that decides now says that this version counts: it takes over what is on its way."""
        loop, reply = asyncio.get_running_loop(), None
        while not self._is_closed and loop.time() < until_s:
            found = self._ledger.roles(key.bucket_id, key.name)
            if found.primary not in (None, key.disk):
                reply = await self._peers.state(CopyKey(found.primary, key.bucket_id, key.name))
            if reply is not None and reply.speaks and reply.is_replicated:
                if reply.state is not None and reply.state.version == version:
                    return ReplicatedWrite(len(found.readers))
                break
            await asyncio.sleep(PAUSE_S)
        raise CopiesMissing("another target decides about this object now; it may or may not have been stored")

    async def _drive(
        self, row: _Row, state: NameState | None, after: asyncio.Task[ReplicatedWrite | None] | None
    ) -> ReplicatedWrite | None:
        disk, key, written = row.disk, row.key, None
        try:
            if after is not None:
                await asyncio.wait((after,))
            written = await self._until_decided(row, state)
        except DfcError as error:
            _log.error("a write of %s on disk %s cannot go on: %s", key.name, key.disk, error.message)
        finally:
            if self._driven[key].version == row.version:
                del self._driven[key]
                is_pending = disk.copies.is_pending(key.bucket_id, key.name)
                if written or not is_pending or self._ledger.roles(key.bucket_id, key.name).primary != key.disk:
                    self._ledger.free(key)
        return written

    async def _until_decided(self, row: _Row, state: NameState | None) -> ReplicatedWrite | None:
        key, bucket = row.key, self._local.map.bucket_of(row.key.bucket_id)
        least = bucket.least if bucket is not None else 1
        writing = Writing(key.disk, key.bucket_id, key.name, least, self._peers.reached.silent())

        async def send(to: str, found: NameState) -> bool:
            return await self.give(row.disk, key, found, to, "commit", body=row.body, moved=row.way.move)

        sends = Sends(writing, send)
        try:
            return await self._steps(row, state, writing, sends)
        finally:  # whoever has not answered by now gets the row by a hint, or knows a newer one
            await sends.close()

    async def _steps(self, row: _Row, state: NameState | None, writing: Writing, sends: Sends) -> ReplicatedWrite | None:
        local, key, threads = self._local, row.key, self._local.threads(row.disk)
        while True:
            found = state or await threads.go_on(row.disk.copies.state, key.bucket_id, key.name)
            state = None  # at hand for the first look only
            if found is None or found.version != row.version:
                return None
            if not local.is_leased:
                await asyncio.sleep(PAUSE_S)
                continue
            placement = self._ledger.placement
            instruction = writing.next(placement, self._ledger.required_too(key.disk))
            if isinstance(instruction, NotPrimary):
                return None
            if isinstance(instruction, Replicated):
                return await self._mark_replicated(row.disk, key, row.version, instruction)
            if isinstance(instruction, MarkOutOfSync):
                await self._mark_out_of_sync(key.disk, instruction.disk)
                continue
            if isinstance(instruction, SendCommit):
                sends.begin(instruction.disks, found)
            if not sends.under_way:
                await asyncio.sleep(PAUSE_S)
            while sends.under_way and not await sends.answered(LOOK_S) and self._ledger.placement is placement:
                pass  # a new map may say that nobody waits for those that do not answer

    async def give(
        self,
        disk: Disk,
        key: CopyKey,
        state: NameState,
        to: str,
        kind: Kind,
        *,
        body: bytes | None = None,
        is_pending: bool = False,
        is_missing: bool = False,
        moved: Callable[[], object] = lambda: None,
    ) -> bool:
        """Send what a disk here has of a name to another disk; whether that has it now, or something newer that counts. A large
        body follows its row only when it is wanted, or at once if the disk `is_missing` it for sure. `moved` is called in a
        thread while it is sent."""
        row = state.row
        if body is None and row is not None and row.size <= SMALL_BODY_BYTES and not row.quarantined:
            with suppress(DfcError, RowChanged):
                body = await self._local.threads(disk).read(disk.read_small, row)
        item = CopyItem(
            kind=kind,
            of=key.disk,
            to=to,
            bucket_id=key.bucket_id,
            name=key.name,
            state=state_of(state),
            durability=self._local.durability_of(key.bucket_id),
            is_pending=is_pending,
            job="" if kind == "adopt" else disk.copies.publisher(key.bucket_id, key.name),
            body=body,
        )
        is_streamed = is_missing and body is None and row is not None and not row.quarantined
        outcome: Outcome | None = "unknown" if is_streamed else await self._peers.send(item)
        if outcome == "unknown" and row is not None and not row.quarantined:  # damaged bytes would be refused at their end
            outcome = await self._peers.stream(item, disk, row, moved)
        return outcome == "taken"

    async def _mark_out_of_sync(self, primary: str, disk: str) -> None:
        """Have a disk marked out of sync with another one, and take the map in which it is. Nothing happens if that fails."""
        try:
            async with asyncio.timeout(OUT_OF_SYNC_S):
                new = await self._local.ask_registry(
                    "POST", "/v1/node/out-of-sync", ClusterMap, OutOfSyncReport(primary=primary, disk=disk)
                )
        except (DfcError, TimeoutError) as error:
            _log.info("disk %s is not marked out of sync with disk %s yet: %s", disk, primary, error)
            await asyncio.sleep(PAUSE_S)
            return
        # Earlier reports have been withdrawn; one that begins from now on waits until this write is over.
        self._local.take_map(new)
        self._ledger.passed_over(primary, disk, new.step)

    async def _mark_replicated(self, disk: Disk, key: CopyKey, version: str, instruction: Replicated) -> ReplicatedWrite:
        threads, row = self._local.threads(disk), (key.bucket_id, key.name, version)
        if instruction.hints:
            found = self._ledger.roles(key.bucket_id, key.name)
            await threads.go_on(disk.copies.mark_replicated, *row, [hint_key(found, each) for each in instruction.hints])
        else:
            self._marks.drop(disk, key, version)
        for each in instruction.confirm:
            self._marks.tell(ConfirmedRow(each, *row))
        return ReplicatedWrite(instruction.copies)


async def _undecided() -> None:
    """What becomes of a write that is to begin when its target has stopped."""

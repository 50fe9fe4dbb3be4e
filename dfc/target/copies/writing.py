"""Writes of objects with copies, from the commit at the primary until they are certain.

The primary has committed a row and marked it pending. What happens next is decided by `dfc.replication.write`: the row goes to
the other members, and one that cannot be reached is put behind the primary by the coordinator. It goes on when the client has
left, and begins again after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from dfc.errors import CopiesMissing, DfcError
from dfc.limits import COPY_ITEMS_MAX, SMALL_BODY_BYTES
from dfc.placement.map import ClusterMap
from dfc.registry.reports import MarkBehind
from dfc.replication.write import Certain, NotPrimary, Pause, PutBehind, SendCommit, Writing
from dfc.storage.disk import Disk
from dfc.storage.rows import NameState, RowChanged
from dfc.target.copies.ledger import Ledger
from dfc.target.copies.messages import ConfirmedRow, CopyItem, CopyKey, Kind, state_of
from dfc.target.copies.peers import Peers
from dfc.target.local import Local

_log: Final = logging.getLogger("dfc.target")
PAUSE_S: Final = 0.05  # between two looks at a write that cannot go on
AGAIN_S: Final = 0.3  # until a disk that has refused or not answered is asked again: it may be about to get its lease
AGAIN_S_MAX: Final = 1.0
CONFIRM_S: Final = 0.1  # rows that count are told to the others after so long, many at a time
DRIVEN_AT_ONCE: Final = 64  # rows of one disk for which nobody waits, each with its body if that is small
LOOK_AFTER_S: Final = 0.5  # between two looks at a name whose last commit has an unknown outcome
BEHIND_S: Final = 20.0  # for the coordinator's step, which may have to wait until the disk is declared down


class _Driven(NamedTuple):
    """A write on its way."""

    version: str
    task: asyncio.Task[CertainWrite | None]


class CertainWrite(NamedTuple):
    """A write that is certain, on so many disks."""

    copies: int


class Writes:
    """The writes of this target that are on their way."""

    def __init__(self, local: Local, ledger: Ledger, peers: Peers) -> None:
        self._local = local
        self._ledger = ledger
        self._peers = peers
        self._driven: dict[CopyKey, _Driven] = {}
        self._confirmed: dict[str, list[ConfirmedRow]] = {}  # by the URL of a target
        self._confirming: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._later: defaultdict[str, dict[CopyKey, str]] = defaultdict(dict)  # by disk: versions to be driven
        self._drivers: Counter[str] = Counter()  # by disk: tasks that do so
        self._certain: dict[CopyKey, str] = {}  # versions that count although their marks are not dropped yet

    async def close(self) -> None:
        """Give up what is under way: it goes on after the restart."""
        tasks: list[asyncio.Task[Any]] = [*(each.task for each in self._driven.values()), *self._background]
        if self._confirming is not None:
            tasks.append(self._confirming)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def drive(
        self, disk: Disk, key: CopyKey, version: str, state: NameState | None = None, body: bytes | None = None
    ) -> asyncio.Task[CertainWrite | None]:
        """Bring the pending row of a name, whose primary is this disk, to the others; `state` and `body`, if they are at hand.
        The result is None if this disk decides no more; then the outcome is open."""
        self._ledger.uncertain.add(key)
        self._later[key.disk].pop(key, None)
        found = self._driven.get(key)
        if found is not None and found.version == version:
            return found.task
        # One of another version is about to find that it has been replaced.
        task = asyncio.create_task(self._drive(disk, key, version, state, body, None if found is None else found.task))
        self._driven[key] = _Driven(version, task)
        return task

    def drive_later(self, disk: Disk, key: CopyKey, version: str) -> None:
        """`drive` for a row that nobody waits for, when few others are on their way. The name is uncertain from now on."""
        self._ledger.uncertain.add(key)
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
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def look_after(self, keys: Iterable[CopyKey]) -> None:
        """The outcome of a commit here is unknown until the disk is opened again: the names stay uncertain, since the rows may
        be there, and others may lack them. One that shows up is driven, like all that is pending."""
        for key in keys:
            self._begin(self._look_after(key))

    async def _look_after(self, key: CopyKey) -> None:
        """Free a name when another disk decides about it, unless its row was driven before."""
        while key in self._ledger.uncertain:
            is_driven = key in self._driven or key in self._later[key.disk]
            if not is_driven and self._ledger.roles(key.bucket_id, key.name).primary != key.disk:
                self._ledger.free(key)
            await asyncio.sleep(LOOK_AFTER_S)

    def wants(self, key: CopyKey, version: str) -> bool:
        """Whether a pending row of which a disk here is primary has to be driven: it is neither on its way nor certain."""
        return key not in self._driven and key not in self._later[key.disk] and not self.is_certain(key, version)

    def is_certain(self, key: CopyKey, version: str) -> bool:
        """Whether a pending row counts, and only its mark is not dropped yet."""
        return self._certain.get(key) == version

    async def until_certain(self, task: asyncio.Task[CertainWrite | None], until_s: float) -> CertainWrite:
        """Wait for a write. CopiesMissing when that takes too long, or this target decides no more: its outcome is open."""
        try:
            async with asyncio.timeout_at(until_s):
                written = await asyncio.shield(task)
        except TimeoutError:
            raise CopiesMissing("not all disks that must have the object have it yet; it may still be stored") from None
        if written is None:
            raise CopiesMissing("another target decides about this object now; it may or may not have been stored")
        return written

    async def _drive(
        self,
        disk: Disk,
        key: CopyKey,
        version: str,
        state: NameState | None,
        body: bytes | None,
        after: asyncio.Task[CertainWrite | None] | None,
    ) -> CertainWrite | None:
        written = None
        try:
            if after is not None:
                await asyncio.wait((after,))
            written = await self._steps(disk, key, version, state, body)
        except DfcError as error:
            _log.error("a write of %s on disk %s cannot go on: %s", key.name, key.disk, error.message)
        finally:
            if self._driven[key].version == version:
                del self._driven[key]
                is_pending = disk.copies.is_pending(key.bucket_id, key.name)
                if written or not is_pending or self._ledger.roles(key.bucket_id, key.name).primary != key.disk:
                    self._ledger.free(key)
        return written

    async def _steps(
        self, disk: Disk, key: CopyKey, version: str, state: NameState | None, body: bytes | None
    ) -> CertainWrite | None:
        local, threads = self._local, self._local.threads(disk)
        bucket = self._local.map.bucket_of(key.bucket_id)
        writing = Writing(key.disk, key.bucket_id, key.name, bucket.least if bucket is not None else 1)
        pause_s = AGAIN_S
        while True:
            found = state or await threads.go_on(disk.copies.state, key.bucket_id, key.name)
            state = None  # at hand for the first look only
            if found is None or found.version != version:
                return None
            if not local.is_leased:
                await asyncio.sleep(PAUSE_S)
                continue
            told = writing.next(self._ledger.placement, self._ledger.required_too(key.disk))
            if isinstance(told, NotPrimary):
                return None
            if isinstance(told, SendCommit):
                if await self._send(writing, disk, key, found, body, told.disks):
                    pause_s = AGAIN_S
                else:
                    await asyncio.sleep(pause_s)
                    pause_s = min(AGAIN_S_MAX, 2 * pause_s)
            elif isinstance(told, PutBehind):
                await self._put_behind(key.disk, told.disk)
            elif isinstance(told, Pause):
                await asyncio.sleep(PAUSE_S)
            else:
                return await self._make_certain(disk, key, version, told)

    async def _send(
        self, writing: Writing, disk: Disk, key: CopyKey, state: NameState, body: bytes | None, to: tuple[str, ...]
    ) -> bool:
        """Send the row to these disks; whether all have it."""
        outcomes = await asyncio.gather(*(self.give(disk, key, state, each, "commit", body=body) for each in to))
        for each, taken in zip(to, outcomes, strict=True):
            (writing.committed if taken else writing.failed)(each)
        return all(outcomes)

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
    ) -> bool:
        """Send what a disk here has of a name to another disk; whether that has it now, or something newer that counts."""
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
            body=body,
        )
        outcome = await self._peers.send(item)
        if outcome == "unknown" and row is not None:
            outcome = await self._peers.stream(item, disk, row)
        return outcome == "taken"

    async def _put_behind(self, primary: str, disk: str) -> None:
        """Have a disk put behind another one, and take the map in which it is. Nothing happens if that fails."""
        try:
            async with asyncio.timeout(BEHIND_S):
                new = await self._local.ask_registry(
                    "POST", "/v1/cluster/behind", ClusterMap, MarkBehind(primary=primary, disk=disk)
                )
        except (DfcError, TimeoutError) as error:
            _log.info("disk %s is not put behind disk %s yet: %s", disk, primary, error)
            await asyncio.sleep(PAUSE_S)
            return
        # While this write is uncertain, nothing is reported clean; earlier reports have been withdrawn.
        self._local.take_map(new)
        self._ledger.passed_over(primary, disk, new.step)

    async def _make_certain(self, disk: Disk, key: CopyKey, version: str, told: Certain) -> CertainWrite:
        threads, row = self._local.threads(disk), (key.bucket_id, key.name, version)
        if told.owed:
            await threads.go_on(disk.copies.make_certain, *row, told.owed)
        else:
            self._certain[key] = version
        for each in told.confirm:
            node = self._peers.node_of(each)
            if node is not None:
                self._confirmed.setdefault(node.url, []).append(ConfirmedRow(each, *row))
        if self._confirming is None or self._confirming.done():
            self._confirming = asyncio.create_task(self._confirm_soon())
        return CertainWrite(told.copies)

    async def _confirm_soon(self) -> None:
        """Drop the marks of rows that count, here and at the others."""
        while self._certain or self._confirmed:  # also those of writes that become certain meanwhile
            await asyncio.sleep(CONFIRM_S)
            certain, confirmed = dict(self._certain), self._confirmed
            self._confirmed = {}
            await asyncio.gather(*(self._peers.confirm(url, some) for url, rows in confirmed.items() for some in _pages(rows)))
            for disk in self._local.in_order():
                rows = [(key.bucket_id, key.name, version) for key, version in certain.items() if key.disk == disk.id]
                try:
                    await self._local.threads(disk).go_on(disk.copies.confirm, rows)
                except DfcError as error:
                    _log.info("disk %s: marks of certain rows stay for now: %s", disk.id, error.message)
            for key, version in certain.items():
                if self._certain.get(key) == version:
                    del self._certain[key]


def _pages(rows: list[ConfirmedRow]) -> list[list[ConfirmedRow]]:
    """As many as fit into a message."""
    return [rows[at : at + COPY_ITEMS_MAX] for at in range(0, len(rows), COPY_ITEMS_MAX)]

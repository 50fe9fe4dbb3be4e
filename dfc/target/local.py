"""The shared state of a target: its disks with their threads, its cluster map and lease, and threads for other work."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeVar

from dfc.addresses import Addresses, addresses_of
from dfc.errors import (
    BucketDeleting,
    BucketNotFound,
    DfcError,
    MapChanging,
    NoLease,
    NoRegistry,
    NotFound,
    StorageFailed,
    Unavailable,
)
from dfc.http.peer import ControlClient
from dfc.http.retry import RemoteError
from dfc.http.shutdown import ends_in_time, log_failure
from dfc.limits import BATCH_THREADS, DISK_ANSWER_S, NODE_THREADS, STOP_CLOSE_S
from dfc.placement.map import EMPTY_MAP, BucketEntry, ClusterMap, Durability
from dfc.placement.mapped import placement_of
from dfc.placement.roles import roles
from dfc.registry.base import boot_s
from dfc.registry.messages import MapTaken
from dfc.replication.write import TargetLease
from dfc.storage.disk import Disk
from dfc.storage.rows import OtherCondition
from dfc.target.threads import CopiesCounted, DiskReport, DiskThreads, OldCommits

T = TypeVar("T")
_log: Final = logging.getLogger("dfc.target")
EACH_DISK_S: Final = 20.0  # below the time that nodes wait for each other's answers
NOT_HERE: Final = "by its map, this target does not hold the object; the map may be changing"
BARRIER_LOOK_S: Final = 0.5  # while a disk does not answer: between two looks whether the map calls it failed by now
MAP_REFRESH_S: Final = 0.5  # requests for unknown buckets fetch the map at most this often


class OwnPlace(NamedTuple):
    """The bucket and disk of an object of this target."""

    bucket: BucketEntry
    disk: Disk


class MoreCopies(OtherCondition):
    """A write with one copy came to its commit when the objects of its bucket had begun to have several."""


async def _at_once(_disk_id: str, _bucket_id: str) -> None:
    pass


class TargetState:
    """The state that all use cases of a target share."""

    def __init__(self, control: ControlClient, proxy_url: str, transfer_threads: int) -> None:
        self.control = control
        self.proxies = addresses_of(proxy_url)
        self.node_id = ""
        self.process = secrets.token_hex(8)  # by which the coordinator sees that the target was started anew
        self.map: ClusterMap = EMPTY_MAP
        self.decides_by = MapTaken(0)  # the newest map for which `decide_by` has returned
        self.until_kept: Callable[[str, str], Awaitable[None]] = _at_once  # the map of a disk has a bucket; see `MapKeeper`
        self.before_map: Callable[[ClusterMap], None] = lambda _new: None  # called with each map before it is used
        self.lease = TargetLease()
        self._extended = asyncio.Event()
        self.why_no_lease = ""  # the coordinator's reason for granting none
        self.no_registry = False  # that is because the registry does not answer
        self.has_several_proxies = False
        self.proxy_for_clients = self.proxies.urls[0]
        self._asking_newest: asyncio.Task[None] | None = None
        self.lease_refusals = 0
        self.fenced_writes = 0
        self.counted: dict[str, CopiesCounted] = {}  # by disk
        self.disks: dict[str, Disk] = {}
        self.batches = ThreadPoolExecutor(BATCH_THREADS, thread_name_prefix="batch")  # they read from many disks at once
        self._transfer_threads = transfer_threads
        self._disk_threads: dict[str, DiskThreads] = {}
        self._old_commits = OldCommits(lambda: self.map.version)
        self._threads = ThreadPoolExecutor(NODE_THREADS, thread_name_prefix="node")
        self._refreshed_s = -MAP_REFRESH_S  # when the last request that the registry answered was sent
        self._refreshing: asyncio.Task[None] | None = None

    def add(self, disk: Disk) -> None:
        """Add an open disk. Blocks, since the disk is asked for a report."""
        self._disk_threads[disk.id] = DiskThreads(disk, self._transfer_threads)
        self.disks[disk.id] = disk

    def in_order(self) -> list[Disk]:
        """Return the disks, ordered by id."""
        return [self.disks[disk_id] for disk_id in sorted(self.disks)]

    def close(self) -> None:
        """Wait for calls under way, then close the disks; a disk that hangs is abandoned after a while."""
        for pool in (self._threads, self.batches):
            pool.shutdown(wait=False, cancel_futures=True)
        closing = [
            threading.Thread(target=self._close, args=(disk,), name="closing", daemon=True) for disk in self.disks.values()
        ]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()

    def _close(self, disk: Disk) -> None:
        threads = self._disk_threads[disk.id]
        if not (threads.close(self._threads, self.batches) and ends_in_time(disk.close, STOP_CLOSE_S)):
            _log.error("disk %s does not answer and was not closed", disk.id)

    # --- threads

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a blocking call that concerns no single disk in a thread. It runs to its end even if the caller is cancelled."""
        return await self.begin(function, *arguments)

    def begin(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """`call` for callers that must not continue before it has ended (see `to_its_end`)."""
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def threads(self, disk: Disk) -> DiskThreads:
        return self._disk_threads[disk.id]

    async def reports(self) -> list[DiskReport]:
        """Return the reports of all disks, including those that do not answer."""
        return await asyncio.gather(*(self._report(disk) for disk in self.disks.values()))

    async def _report(self, disk: Disk) -> DiskReport:
        """A disk that has failed by the map is up again when nothing is under way on it that was decided before: so the step
        that takes it in is acknowledged at once, and nothing of the time before comes after it."""
        threads, version, has_failed = self.threads(disk), self.map.version, self._has_failed(disk)
        task = self._old_commits.begin(disk, threads, version) if has_failed else None
        report = await threads.report(DISK_ANSWER_S)
        if task is not None:
            await asyncio.wait((task,), timeout=DISK_ANSWER_S)
        is_late = has_failed and not self._old_commits.are_done(disk, version)
        return report._replace(state="failed") if is_late or self._old_commits.hangs(disk) else report

    async def of_each(self, function: Callable[[Disk], T]) -> list[T]:
        """Run a quick call on each disk; return the results, ordered by disk id. StorageFailed if a disk does not answer."""
        try:
            async with asyncio.timeout(EACH_DISK_S):
                return await asyncio.gather(*(self.threads(disk).read(function, disk) for disk in self.in_order()))
        except TimeoutError:
            raise StorageFailed("a disk of this target does not answer") from None

    # --- the map

    def take_map(self, new: ClusterMap) -> bool:
        """Use this map from now on if it is newer; whether it is."""
        if new.version <= self.map.version or (self.map.cluster_id and new.cluster_id != self.map.cluster_id):
            return False
        self.before_map(new)
        self.map = new
        if not self.disks:  # it is starting: nothing is under way
            self.decides_by = MapTaken(new.version, new.step)
        return True

    async def decide_by(self, new: ClusterMap) -> MapTaken:
        """`take_map`, then wait until no commit decided by an older map is under way; return what is now in use.

        The map may have been taken a moment ago, with the answer to a heartbeat: then commits are waited for all the same. Not
        for those of disks that have failed by the map: such a disk may hang for ever, and no step would follow.
        """
        self.take_map(new)
        taken = MapTaken(self.map.version, self.map.step)
        if self.decides_by.version < taken.version:
            await asyncio.gather(*(self._until_decides(disk, taken.version) for disk in self.in_order()))
            if self.decides_by.version < taken.version:
                self.decides_by = taken
        return taken

    async def _until_decides(self, disk: Disk, version: int) -> None:
        """Wait until the commits of one disk that older maps have decided are done, or the disk has failed by the map of now.

        A commit that a failed disk carries out late does no harm: the target might as well have crashed in the middle of it.
        With copies, the disk is no reader: its row is pending, and the write ends as NotPrimary when another disk decides. A
        row of another primary counts for nothing: that has gone on without this disk, or is no primary any more, and a new one
        asks readers only. With one copy, no other disk can have written. The disk is up again only after such a commit is done
        (`_report`), by a step that waits for it; then it is out of sync, and learns from others what counts. Who concludes from
        the rows of a failed disk that nothing is there has to wait: the deletion of a bucket does
        (`until_all_commits_are_done`)."""
        while (task := self._old_commits.begin(disk, self.threads(disk), version)) is not None:
            if self._has_failed(disk):
                return
            done, _ = await asyncio.wait((task,), timeout=BARRIER_LOOK_S)
            for each in done:
                each.result()

    async def until_old_commits_are_done(self, disk: Disk) -> None:
        """Wait until no commit decided by an older map than that of now is under way on a disk, even if it has failed."""
        await self._old_commits.wait(disk, self.threads(disk), self.map.version)

    async def until_all_commits_are_done(self) -> None:
        """The same for all disks. StorageFailed if one does not answer."""
        try:
            async with asyncio.timeout(EACH_DISK_S):
                await asyncio.gather(*(self.until_old_commits_are_done(disk) for disk in self.in_order()))
        except TimeoutError:
            raise StorageFailed("a disk of this target does not answer") from None

    def _has_failed(self, disk: Disk) -> bool:
        """Whether a disk has failed by the map."""
        place = placement_of(self.map).disks.get(disk.id)
        return place is not None and place.status == "failed"

    @property
    def is_held_up(self) -> bool:
        """Whether a disk that hangs keeps this target from acknowledging a step, and so the cluster from taking another one."""
        return self.decides_by.step < self.map.step and any(
            self._old_commits.hangs(disk) and not self._has_failed(disk) for disk in self.disks.values()
        )

    def standing(self) -> str:
        """Return this target's state in the map; "joining" when it is not in it yet."""
        node = self.map.node(self.node_id)
        return node.state if node else "joining"

    async def elsewhere(self, *, hopped: bool) -> Addresses:
        """Return the proxies, for requests not for this target. If one has sent it here (`hopped`), the map may be stale:
        Unavailable."""
        if hopped:
            await self.refresh_map()
            raise Unavailable(NOT_HERE)
        return self.proxies

    async def ask_registry(
        self, method: str, path: str, kind: type[T], body: Any = None, *, answer_s: float | None = None
    ) -> T:
        """Send a repeatable request to the first proxy that answers. Unavailable, RemoteError.

        `answer_s`: while other addresses are left, the time after which an address is given up for the next.
        """

        async def attempt(base: str, limit_s: float | None) -> T:
            try:
                async with asyncio.timeout(answer_s if limit_s is not None else None):
                    return await self.control.call(method, base + path, kind, body=body, limit_s=limit_s)
            except TimeoutError:
                raise Unavailable(f"{base} did not answer within {answer_s:g} s") from None
            except RemoteError as error:
                if limit_s is None or error.status != Unavailable.status:
                    raise
                raise Unavailable(f"{base}: {error.message}") from error  # another proxy may know better

        return await self.proxies.reach_async(attempt)

    async def refresh_map(self, *, at_once: bool = False) -> None:
        """Fetch the registry's map, unless that was done a moment ago. Unavailable when it does not answer.

        Concurrent callers share one request. `at_once` sends a new one, since the answer to a running one may be too old.
        """
        if asyncio.get_running_loop().time() - self._refreshed_s < MAP_REFRESH_S and not at_once:
            return
        if self._refreshing is None or self._refreshing.done() or at_once:
            self._refreshing = asyncio.create_task(self._ask_map())
            self._refreshing.add_done_callback(log_failure)
        await asyncio.shield(self._refreshing)  # a cancelled caller must not cancel it for the others

    async def _ask_map(self) -> None:
        begun_s = asyncio.get_running_loop().time()
        self.take_map(await self.ask_registry("GET", "/v1/cluster", ClusterMap))
        self._refreshed_s = begun_s

    async def _newest_map(self) -> None:
        """Fetch the map as it is in the registry now. Callers share requests: one that begins after they have come will do.
        Unavailable, RemoteError."""
        before = self._asking_newest
        if before is not None and not before.done():  # its answer may be too old
            with suppress(DfcError):
                await asyncio.shield(before)
        if self._asking_newest is before or self._asking_newest is None:
            self._asking_newest = asyncio.create_task(self._ask_newest())
            self._asking_newest.add_done_callback(log_failure)
        await asyncio.shield(self._asking_newest)  # a cancelled caller must not cancel it for the others

    async def _ask_newest(self) -> None:
        self.take_map(await self.ask_registry("GET", "/v1/cluster?newest=1", ClusterMap))

    async def bucket(self, name: str, *, create: bool = False) -> BucketEntry:
        """Return the bucket. If the map lacks it, ask the registry, or with `create` have it created. BucketNotFound,
        BucketDeleting, Unavailable."""
        if self.map.bucket(name) is None and create:
            self.take_map(await self.ask_registry("POST", f"/v1/node/buckets/{name}/ensure", ClusterMap))
        elif self.map.bucket(name) is None:
            await self.refresh_map()
        if self.map.bucket(name) is None and not create and self.has_several_proxies:
            # The proxy that was asked may not know yet what was created at another one.
            await self._newest_map()
        found = self.map.bucket(name)
        if found is None:
            raise BucketNotFound(f"bucket {name!r} does not exist")
        if create and found.state == "deleting":
            raise BucketDeleting(f"bucket {name!r} is being deleted")
        return found

    def owned_disk(self, bucket: BucketEntry, name: str) -> Disk | None:
        """Return the disk of this target that owns an object, or with copies the first one here from which it may be read; None
        if another target does. Unavailable for a missing disk, and if there is none in the whole cluster."""
        if bucket.has_several:
            readers = roles(placement_of(self.map), bucket.id, name).readers
            if not readers:
                raise Unavailable("no disk is up that is known to have the newest version of this object", retry_after_s=2)
            return next((self.disks[each] for each in readers if each in self.disks), None)
        owner = self.map.owner(bucket, name)
        if owner is None:
            raise Unavailable("this target has no cluster map yet")
        if owner.node.id != self.node_id:
            return None
        disk = self.disks.get(owner.disk.id)
        if disk is None:
            raise Unavailable(f"disk {owner.disk.id} of this target is missing", retry_after_s=5)
        return disk

    async def check_step(self, step: int | None) -> None:
        """MapChanging unless this target is at a step of placement, by which others answer the same question."""
        if step is not None and step > self.map.step:
            await self.refresh_map(at_once=True)
        if step not in (None, self.map.step):
            raise MapChanging(f"this target is at step {self.map.step} of placement, not at step {step}; try again")

    def primary_disk(self, bucket: BucketEntry, name: str) -> Disk | None:
        """Return the disk of this target that decides about an object; None if another target has it. Unavailable."""
        disk = self.owned_disk(bucket, name)
        if disk is None or not bucket.has_several:
            return disk
        return disk if roles(placement_of(self.map), bucket.id, name).primary == disk.id else None

    def durability_of(self, bucket_id: str) -> Durability:
        """Return how durable objects of a bucket are."""
        bucket = self.map.bucket_of(bucket_id)
        return "fsync" if bucket is None else bucket.durability

    def own_disk(self, bucket: BucketEntry, name: str) -> Disk:
        """`primary_disk` for objects that must be here. Unavailable when another target decides about the object by now."""
        disk = self.primary_disk(bucket, name)
        if disk is None:
            raise Unavailable(NOT_HERE)
        return disk

    def reader_disk(self, bucket: BucketEntry, name: str) -> Disk:
        """`owned_disk` for objects that must be readable here. Unavailable when only other targets have them by now."""
        disk = self.owned_disk(bucket, name)
        if disk is None:
            raise Unavailable(NOT_HERE)
        return disk

    # --- the lease

    @property
    def is_leased(self) -> bool:
        """Whether the coordinator's last answer still allows this target to act. Usable from any thread."""
        return self.lease.is_held(boot_s())

    def check_leased(self, *, commits: bool = False) -> None:
        """Raise NoLease without a lease. What was read before this call was true when it was read. `commits`: this is
        the check inside the transaction of a write."""
        if not self.is_leased:
            self.fenced_writes += commits
            self.lease_refusals += 1  # by several threads: now and then one too few
            reason = self.why_no_lease or "it has not heard from the coordinator of the cluster for too long"
            kind = NoRegistry if self.no_registry else NoLease
            raise kind(f"this target has no lease, so it cannot accept writes or answer 404: {reason}")

    async def until_leased(self, hold_s: float) -> None:
        """Wait for a lease, so that a write whose body is unread need not fail while the coordinator restarts. NoLease."""
        if not self.is_leased:
            self._extended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(hold_s):
                    await self._extended.wait()
        self.check_leased()

    def extend_lease(self, sent_s: float, length_s: float) -> None:
        """Note the answer to a heartbeat: a lease of `length_s` from when it was sent, by `boot_s`."""
        self.lease.extend(sent_s, length_s)
        if self.is_leased:
            self._extended.set()

    @contextmanager
    def certain(self) -> Iterator[None]:
        """In this context a NotFound becomes NoLease while this target has no lease, since the cluster may know better."""
        try:
            yield
        except NotFound:
            self.check_leased()
            raise

    def check_bucket(self, bucket: BucketEntry) -> None:
        """Raise BucketDeleting, or Unavailable, if nothing may be written into a bucket by the map of now."""
        current = self.map.bucket(bucket.name)
        if current is None or current.id != bucket.id or current.state == "deleting":
            raise BucketDeleting(f"bucket {bucket.name!r} is being deleted")
        if current.state == "checking":
            raise Unavailable(f"bucket {bucket.name!r} is being checked for deletion; try again")

    def commit_guard(self, bucket: BucketEntry, name: str, disk: Disk, *, alone: bool = False) -> Callable[[], None]:
        """Return a check to run inside the catalog's transaction, so that the map of that moment decides, not the one from the
        start of the upload. `alone`: what is committed has one copy, so by now the bucket must not have more."""

        def guard() -> None:
            self.check_leased(commits=True)
            self.check_bucket(bucket)
            current = self.map.bucket(bucket.name)
            if alone and current is not None and current.has_several:
                raise MoreCopies(f"objects of bucket {bucket.name!r} are getting more copies; try again")
            if self.owned_disk(bucket, name) is not disk:
                raise Unavailable("the cluster map changed during the upload; try again")

        return guard

"""The threads of each disk of a target, and the metrics of both."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dfc.errors import DfcError, Unavailable
from dfc.http.shutdown import ends_in_time, log_failure
from dfc.http.transfer import to_its_end
from dfc.limits import DISK_CALLS_MAX, DISK_COPY_THREADS, DISK_READ_THREADS, DISK_WRITE_THREADS, STOP_CLOSE_S
from dfc.storage.disk import Disk
from dfc.storage.health import DiskState, DiskStats, MetricOf
from dfc.storage.rows import DiskSpace

# --- Prometheus metrics of a target and its disks. Names and meanings: docs/metrics.md.


class CopiesCounted(NamedTuple):
    """What a disk has counted by one step: objects of which it is the primary and there is one copy left, or fewer than wanted;
    and the number of hints for other disks, by their ids."""

    step: int
    one_left: int
    missing: int
    hints: Mapping[str, int]


class DiskReport(NamedTuple):
    """A disk's report on itself. `space` is None when its file system could not be measured. `incarnation` names what is on
    it. `first`: by bucket id, the objects whose first replica it is. The rest: see `Disk`."""

    disk_id: str
    state: DiskState
    stats: DiskStats
    objects: int
    space: DiskSpace | None
    incarnation: str = ""
    first: Mapping[str, int] = {}
    epoch: int = 0
    is_rolled_back: bool = False
    needs_accepting: bool = False
    has_torn_log: bool = False


def report_on(disk: Disk) -> DiskReport:
    """Make a disk's report from its catalog and file system. Blocking."""
    try:
        counts = disk.totals()[0], disk.space(), disk.incarnation, disk.first_counts()
        how_far = disk.tell_epoch(), disk.is_rolled_back, disk.needs_accepting, disk.has_torn_log
        return DiskReport(disk.id, disk.state, replace(disk.stats), *counts, *how_far)
    except DfcError:
        return DiskReport(disk.id, "failed", replace(disk.last_stats), 0, None)


class Membered(NamedTuple):
    """A target's part in the cluster, for its metrics."""

    map_version: int
    decides_by: int
    lease_left_s: float
    lease_refusals: int
    fenced_writes: int


def membership_families(now: Membered) -> Iterable[Metric]:
    """Make the metric families of a target's part in the cluster."""
    yield GaugeMetricFamily("dfc_map_version", "Version of the cluster map", now.map_version)
    yield GaugeMetricFamily("dfc_decides_by_step", "Step by which this target decides, and by no older one", now.decides_by)
    yield GaugeMetricFamily("dfc_lease_left_seconds", "Time for which this target may still act", now.lease_left_s)
    yield CounterMetricFamily("dfc_lease_refusals", "Answers refused because there was no lease", now.lease_refusals)
    yield CounterMetricFamily("dfc_fenced_writes", "Writes refused in their commit without a lease", now.fenced_writes)


def copy_families(counted: Mapping[str, CopiesCounted]) -> Iterable[Metric]:
    """Make the metric families of what each disk has counted of copies."""
    one_left = GaugeMetricFamily("dfc_copies_one_left", "Objects with one copy left that should have more", labels=("disk",))
    missing = GaugeMetricFamily("dfc_copies_missing", "Objects with fewer copies than wanted", labels=("disk",))
    hints = GaugeMetricFamily("dfc_hints_pending", "Objects and deletes that other disks lack, by hints here", labels=("disk",))
    for disk, numbers in counted.items():
        one_left.add_metric((disk,), numbers.one_left)
        missing.add_metric((disk,), numbers.missing)
        hints.add_metric((disk,), sum(numbers.hints.values()))
    return (one_left, missing, hints)


def disk_families(reports: Sequence[DiskReport]) -> Iterable[Metric]:
    """Make the metric families of disks. A disk that does not answer is shown as in its last report, but not up."""
    stats = {report.disk_id: report.stats for report in reports}
    for each in fields(DiskStats):
        described: MetricOf = each.metadata["metric"]
        kind = CounterMetricFamily if described.counts else GaugeMetricFamily
        family = kind(described.name, described.help, labels=("disk",))
        for disk_id, values in stats.items():
            family.add_metric((disk_id,), getattr(values, each.name))
        yield family
    yield from _space(reports)


def _space(reports: Sequence[DiskReport]) -> Iterable[Metric]:
    up = GaugeMetricFamily("dfc_disk_up", "1: the disk accepts writes", labels=("disk",))
    capacity = GaugeMetricFamily("dfc_disk_capacity_bytes", "Size of the disk's file system", labels=("disk",))
    used = GaugeMetricFamily("dfc_disk_used_bytes", "Bytes used on the disk's file system", labels=("disk",))
    free = GaugeMetricFamily("dfc_disk_free_bytes", "Bytes that uploads may still use", labels=("disk",))
    old = GaugeMetricFamily("dfc_disk_rolled_back", "1: the disk was put back to an earlier state", labels=("disk",))
    torn = GaugeMetricFamily("dfc_disk_log_torn", "1: the log of its catalog was torn by a power loss", labels=("disk",))
    objects = GaugeMetricFamily("dfc_catalog_objects", "Objects in the catalog", labels=("disk",))
    for report in reports:
        label = (report.disk_id,)
        up.add_metric(label, 1 if report.state == "up" else 0)
        old.add_metric(label, 1 if report.is_rolled_back else 0)
        torn.add_metric(label, 1 if report.has_torn_log else 0)
        objects.add_metric(label, report.objects)
        if report.space is not None:
            capacity.add_metric(label, report.space.capacity)
            used.add_metric(label, report.space.used)
            free.add_metric(label, report.space.free)
    return (up, old, torn, capacity, used, free, objects)


# --- The threads of one disk. Disks share no threads, so a disk that hangs blocks only the requests that need it.
#
# Reads, writes, copies, sending and receiving have separate pools: small uploads wait in theirs for the commit of their group,
# and a slow sync blocks no read. A disk with too many calls under way refuses more of them, since each holds a connection and
# perhaps a body.
#
# A call in a thread cannot be interrupted. Its caller may be cancelled nevertheless; the call then runs to its end, and what it
# opened is closed.

_log: Final = logging.getLogger("dfc.target")
HUNG_S: Final = 10.0  # a disk that commits nothing for so long hangs; its target goes on without it
T = TypeVar("T")


class FileRange(NamedTuple):
    """`size` bytes of an open file from `offset`, then a short `tail`. The receiver closes the file.

    `threads` do the blocking work; if bytes cannot be read, one of them calls `on_error(error, offset)`.
    """

    file: int
    offset: int
    size: int
    threads: ThreadPoolExecutor
    on_error: Callable[[OSError, int], object]
    tail: bytes = b""


class Pieces(NamedTuple):
    """Bytes that are made while they are sent. The receiver calls `close` after the last one, or to give up."""

    chunks: AsyncIterator[bytes]
    close: Callable[[], None]


# What a read returns: bytes in memory, a range of a file, or bytes still to be made.
Content = bytes | FileRange | Pieces


async def shielded(future: Future[T]) -> T:
    """Return the result of a call, which runs to its end even if the caller is cancelled; its error is then dropped quietly."""
    waited = asyncio.wrap_future(future)
    waited.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(waited)


class _Pool:
    """Threads for one kind of calls, with a limit on the calls under way."""

    def __init__(self, threads: int, name: str, disk_id: str) -> None:
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._disk_id = disk_id
        self._lock = threading.Lock()
        self._under_way = 0

    def submit(self, function: Callable[..., T], arguments: Any, named: Any = None, *, bounded: bool = True) -> Future[T]:
        with self._lock:
            if bounded and self._under_way >= DISK_CALLS_MAX:
                raise Unavailable(f"disk {self._disk_id} is overloaded: {DISK_CALLS_MAX} calls are waiting for it")
            self._under_way += 1
        try:
            future = self.threads.submit(function, *arguments, **(named or {}))
        except BaseException:
            self._ended()
            raise
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object = None) -> None:
        with self._lock:
            self._under_way -= 1


class DiskThreads:
    """The thread pools of one disk, for use by the event loop. Creating it and `close` block."""

    def __init__(self, disk: Disk, transfer_threads: int) -> None:
        self._disk = disk
        name = disk.id[:8]
        self._reads = _Pool(DISK_READ_THREADS, f"read-{name}", disk.id)
        self._writes = _Pool(DISK_WRITE_THREADS, f"write-{name}", disk.id)
        self._copies = _Pool(DISK_COPY_THREADS, f"copy-{name}", disk.id)
        self._watch = ThreadPoolExecutor(1, thread_name_prefix=f"watch-{name}")
        self.sending = ThreadPoolExecutor(transfer_threads, thread_name_prefix=f"send-{name}")
        self.receiving = ThreadPoolExecutor(transfer_threads, thread_name_prefix=f"receive-{name}")
        self._asked: asyncio.Future[DiskReport] | None = None
        self._last_report = report_on(disk)

    def close(self, *shared: ThreadPoolExecutor) -> bool:
        """Wait for the calls under way, also in pools that disks share, but not forever; whether all have ended."""
        calls = (pool.threads for pool in (self._reads, self._writes, self._copies))
        pools = (*shared, *calls, self._watch, self.sending, self.receiving)

        def wait() -> None:
            for pool in pools:
                pool.shutdown(wait=True)

        return ends_in_time(wait, STOP_CLOSE_S)

    # --- calls

    async def read(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a call that reads. Unavailable when too many are under way already."""
        return await asyncio.wrap_future(self._reads.submit(function, arguments, named))

    async def write(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a call that changes something. Unavailable when too many are under way already."""
        return await asyncio.wrap_future(self._writes.submit(function, arguments, named))

    async def go_on(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run the next step of a change that has begun: never refused, and finished even if the caller is cancelled."""
        return await shielded(self._writes.submit(function, arguments, bounded=False))

    async def copy(self, function: Callable[..., T], *arguments: Any, release: Callable[[T], object] = lambda _: None) -> T:
        """Run a call that moves a body to or from another target, and so waits for threads there. They must not wait for this
        call's thread in turn: no other call uses it. `release`: as for `open`. Never refused."""
        return await self._opened(self._copies.submit(function, arguments, bounded=False), release)

    async def open(self, function: Callable[..., T], *arguments: Any, release: Callable[[T], object], **named: Any) -> T:
        """Run a call that opens something for reading; `release` closes it if the caller was cancelled meanwhile."""
        return await self._opened(self._reads.submit(function, arguments, named), release)

    async def begin(self, function: Callable[..., T], *arguments: Any, release: Callable[[T], object], **named: Any) -> T:
        """`open` for something to be written."""
        return await self._opened(self._writes.submit(function, arguments, named), release)

    async def iterate(self, iterator: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the pieces of a blocking iterator, each made in a thread. If cancelled, it ends once the current piece is made,
        so that what the iterator reads from may be closed then."""
        loop = asyncio.get_running_loop()
        while (piece := await to_its_end(loop.run_in_executor(self._reads.threads, next, iterator, None))) is not None:
            yield piece

    async def report(self, timeout_s: float) -> DiskReport:
        """Ask the disk for a report, in a separate thread. If it does not answer in time, return its last report with the state
        "failed". While one such call hangs, no other is started."""
        if self._asked is None or self._asked.done():
            self._asked = asyncio.get_running_loop().run_in_executor(self._watch, report_on, self._disk)
        asked = self._asked  # another caller may replace it while this one waits
        done, _ = await asyncio.wait((asked,), timeout=timeout_s)
        if done:
            found, before = asked.result(), self._last_report
            if found.state == "failed" and not found.first:  # its catalog cannot be read, but it is not empty
                found = found._replace(objects=before.objects, first=before.first)
            self._last_report = found
        elif self._last_report.state == "up":
            _log.warning("disk %s does not answer", self._disk.id)
            self._last_report = self._last_report._replace(state="failed")
        return self._last_report

    async def _opened(self, future: Future[T], release: Callable[[T], object]) -> T:
        try:
            return await shielded(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: self._release(done, release))
            raise

    def _release(self, done: Future[T], release: Callable[[T], object]) -> None:
        """Close what an abandoned call opened. Runs in the call's thread or on the loop; closing may take a moment."""
        if not done.cancelled() and done.exception() is None:
            self._writes.submit(release, (done.result(),), bounded=False)


class _Barrier(NamedTuple):
    task: asyncio.Task[None]
    begun_s: float  # by the loop's clock


class OldCommits:
    """The commits of each disk that may have been decided by older maps: one task waits for a disk, however many want to know.
    For the event loop."""

    def __init__(self, map_version: Callable[[], int]) -> None:
        self._map_version = map_version
        self._through: dict[str, int] = {}  # by disk: nothing is under way that a map before this version has decided
        self._barriers: dict[str, _Barrier] = {}

    def are_done(self, disk: Disk, version: int) -> bool:
        """Whether nothing is under way on a disk that was decided by a map before this version."""
        return self._through.get(disk.id, 0) >= version

    def begin(self, disk: Disk, threads: DiskThreads, version: int) -> asyncio.Task[None] | None:
        """Return the task that waits for the disk: ask again when it has ended, since it may have begun for an older map. None:
        `are_done`."""
        if self.are_done(disk, version):
            return None
        known = self._barriers.get(disk.id)
        if known is not None and not known.task.done():
            return known.task
        task = asyncio.create_task(self._pass_barrier(disk, threads))
        task.add_done_callback(log_failure)
        self._barriers[disk.id] = _Barrier(task, asyncio.get_running_loop().time())
        return task

    async def wait(self, disk: Disk, threads: DiskThreads, version: int) -> None:
        """Wait until they are done, however long that takes."""
        while (task := self.begin(disk, threads, version)) is not None:
            await asyncio.shield(task)

    def hangs(self, disk: Disk) -> bool:
        """Whether the disk has been waited for in vain for so long that it hangs."""
        known = self._barriers.get(disk.id)
        return known is not None and not known.task.done() and asyncio.get_running_loop().time() - known.begun_s >= HUNG_S

    async def _pass_barrier(self, disk: Disk, threads: DiskThreads) -> None:
        version = self._map_version()
        # A disk that has failed refuses this as well. That, too, says that its committer is done with everything before.
        with suppress(DfcError):
            await threads.go_on(disk.barrier)
        self._through[disk.id] = version

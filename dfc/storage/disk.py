"""`Disk`: one disk, opened, and the public interface of its storage engine. Blocking code for threads; never the network."""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Final

from dfc.checksum import ExpectedChecksums
from dfc.clock import HybridClock
from dfc.errors import DiskRefused, ObjectCorrupt, ObjectNotFound, ServerTrouble, StorageFailed
from dfc.filesystem import FileSystem, boot_id, remove_if_there
from dfc.listing.pages import Row
from dfc.storage import identity, layout
from dfc.storage.blobs.deposit import DepositSite
from dfc.storage.blobs.reader import BlobReader
from dfc.storage.blobs.staging import AdoptingWriter, Staging
from dfc.storage.blobs.writer import BlobWriter, SmallUpload, check_upload, store_small
from dfc.storage.catalog.cache import RowCache
from dfc.storage.catalog.catalog import Catalog, Ranks
from dfc.storage.catalog.changes import Accept, Barrier, Doubt, Put, RemoveSome, StagedName
from dfc.storage.catalog.commit import GroupCommitter
from dfc.storage.catalog.schema import EPOCH
from dfc.storage.copies import DiskCopies
from dfc.storage.health import DiskHealth, DiskState, DiskStats, SpaceKeeper
from dfc.storage.parts import Directories, Discarder, DiskParts, OpenIndexes
from dfc.storage.rows import (
    ALWAYS,
    GOOD,
    NOTHING,
    QUARANTINED,
    DiskOptions,
    DiskSpace,
    Durability,
    ObjectRow,
    Precondition,
    PutResult,
    QuarantinedObject,
    Supplied,
)
from dfc.storage.upkeep import sweep
from dfc.storage.upkeep.relaxed import Maintenance, RelaxedRows
from dfc.tar.index.reader import ShardIndex

# --- Opening a disk: its catalog, its parts, and the epoch that shows an old catalog.

_log = logging.getLogger(__name__)


def open_parts(
    root: str, who: identity.DiskIdentity, clock: HybridClock, options: DiskOptions, filesystem: FileSystem
) -> DiskParts:
    """Open the parts of a locked disk. Raises DiskRefused."""
    disk_id = who.disk_id
    stats = DiskStats()
    health = DiskHealth(disk_id, options.error_budget)
    space = SpaceKeeper(root, filesystem, reserve_bytes=options.reserve_bytes, ballast_bytes=options.ballast_bytes)
    catalog: Catalog | None = None
    try:
        space.prepare_opening()
        boot = options.boot_id or boot_id() or uuid.uuid4().hex  # without a boot id every unsynced row is suspect
        catalog = _open_catalog(root, who, boot, filesystem, space, health)
        clock.observe(f"{catalog.newest_us():014x}ffff")
        temporary = f"{root}/{layout.TEMPORARY}"
        filesystem.make_directories(temporary)
        remove_if_there(filesystem, [f"{temporary}/{name}" for name in os.listdir(temporary)])
        space.keep_ballast()
    except OSError as error:
        if catalog is not None:
            catalog.close()
        raise DiskRefused(f"{root}: {error}; check the disk, then open it again") from error
    except BaseException:
        if catalog is not None:
            catalog.close()
        raise
    cache = RowCache(options.row_cache_rows)
    indexes = OpenIndexes(options.open_indexes, health)
    committer = GroupCommitter(catalog, filesystem, cache, health, stats, boot=boot, on_full=space.give_up_ballast)
    return DiskParts(
        disk_id=disk_id,
        root=root,
        boot=boot,
        options=options,
        filesystem=filesystem,
        clock=clock,
        health=health,
        stats=stats,
        space=space,
        cache=cache,
        catalog=catalog,
        committer=committer,
        directories=Directories(root, filesystem),
        indexes=indexes,
        discarder=Discarder(root, filesystem, health, indexes),
    )


def _open_catalog(
    root: str, who: identity.DiskIdentity, boot: str, filesystem: FileSystem, space: SpaceKeeper, health: DiskHealth
) -> Catalog:
    # After another boot, a power loss may have torn the log where it was not synced yet: `relaxed` commits.
    may_be_torn = identity.last_opening(root).boot != boot
    catalog = Catalog.open(root, who.disk_id, health, may_be_torn=may_be_torn)
    try:
        if catalog.torn is not None:
            # First: whatever is written next goes over what is left of the damaged log, and nobody would see the damage again.
            _doubt_torn(root, catalog, filesystem, space)
        _advance_epoch(root, catalog, boot, filesystem, space)
        if catalog.relaxed_boot not in (None, boot):
            _log.warning(
                "disk %s: the machine was restarted before the last objects of durability 'relaxed' were synced: what is lost "
                "here comes from other disks",
                who.disk_id,
            )
            _with_room(lambda: catalog.doubt(filesystem), space)
        catalog.begin_log()
    except sqlite3.Error as error:
        catalog.close()
        raise DiskRefused(f"{catalog.path} cannot be written: {error}") from error
    except BaseException:
        catalog.close()
        raise
    return catalog


def _doubt_torn(root: str, catalog: Catalog, filesystem: FileSystem, space: SpaceKeeper) -> None:
    """Note durably that the log was torn, in the transaction in which the catalog takes another incarnation."""
    assert catalog.torn is not None
    _log.error(
        "disk %s: the log of its catalog is damaged at frame %d of %d, and %d commits behind that are lost. If the machine lost"
        " power, they had not been synced, and other disks give back what has copies. Otherwise stop the target, and get them"
        " back from the blobs: dfc disk rebuild %s",
        catalog.disk_id,
        *catalog.torn,
        root,
    )
    _with_room(lambda: catalog.doubt(filesystem, has_torn_log=True), space)


def _advance_epoch(root: str, catalog: Catalog, boot: str, filesystem: FileSystem, space: SpaceKeeper) -> None:
    """Refuse a catalog that was restored from an older copy; count this opening, in the catalog first."""
    known = catalog.meta(EPOCH) or 0
    if known < identity.last_opening(root).epoch and catalog.torn is None:
        raise DiskRefused(
            f"{catalog.path} is older than the disk: it was restored from a copy. Objects stored since then would be lost."
            f" Restore the newest catalog, or rebuild it from the blobs: dfc disk rebuild {root}"
        )
    epoch = max(known, identity.last_opening(root).epoch) + 1
    _with_room(lambda: catalog.set_epoch(epoch, filesystem), space)
    identity.write_opening(root, identity.Opening(epoch, boot), filesystem)


def _with_room(action: Callable[[], None], space: SpaceKeeper) -> None:
    """Run an action of opening; if it fails, once more without the ballast."""
    try:
        action()
    except (OSError, sqlite3.OperationalError):
        if not space.give_up_ballast():
            raise
        action()


# --- Every method of `Disk` is thread-safe. Only `lookup_cached` may be called from an event loop. From `open` to `close`, this
# process has the disk for itself. All errors are those of `dfc.errors`; nothing raises OSError or sqlite3.Error.

NO_CHECKSUMS: Final = ExpectedChecksums()
# Inside the class, `Disk.list` shadows the built-in.
Rows = list[ObjectRow]
ListedTuples = list[Row]
Names = list[str]
Quarantined = list[QuarantinedObject]


class Disk:
    """An open disk. Made by `Disk.open`."""

    def __init__(self, parts: DiskParts, lock_fd: int) -> None:
        self.id = parts.disk_id
        self.path = parts.root
        self.parts = parts
        self._lock_fd = lock_fd
        self._closing = threading.Lock()
        self._opened_at = parts.clock.next_version()
        self._reader = BlobReader(parts)
        self._relaxed = RelaxedRows(parts)
        self.staging = Staging(parts)
        self.copies = DiskCopies(parts, self._relaxed)
        self._maintenance = Maintenance(parts, self._relaxed, self._opened_at)
        self._cached = parts.cache.get

    # --- life

    @staticmethod
    def format(
        path: str,
        cluster_id: str,
        disk_id: str | None = None,
        filesystem: FileSystem | None = None,
        *,
        node_id: str | None = None,
    ) -> None:
        """Turn a directory into an empty disk that belongs to `node_id`; does nothing if it is already that disk.

        DiskRefused when the directory holds blobs but no identity file, or has another identity.
        """
        identity.format_disk(os.path.abspath(path), cluster_id, disk_id, filesystem or FileSystem(), node_id)

    @classmethod
    def open(
        cls,
        path: str,
        cluster_id: str,
        clock: HybridClock,
        options: DiskOptions | None = None,
        filesystem: FileSystem | None = None,
    ) -> Disk:
        """Open a disk: lock it, check its identity and catalog, and start its threads.

        DiskLocked when another process has it; DiskRefused when it is not formatted, foreign, or its catalog is missing,
        foreign, damaged or older than the disk. The messages say what to do.
        """
        root = os.path.abspath(path)
        lock_fd = identity.lock_disk(root)
        try:
            who = identity.require_identity(root, cluster_id)
            parts = open_parts(root, who, clock, options or DiskOptions(), filesystem or FileSystem())
        except BaseException:
            os.close(lock_fd)
            raise
        disk = cls(parts, lock_fd)
        if parts.options.maintenance:
            disk._maintenance.start()
        return disk

    def close(self) -> None:
        """Sync relaxed objects, stop the threads, close the catalog and unlock the disk. Idempotent; a call during another one
        waits for it."""
        parts = self.parts
        with self._closing:
            if self._lock_fd < 0:
                return
            self._maintenance.stop()
            if parts.health.reason is None:
                with suppress(StorageFailed):
                    self._relaxed.sync()
            parts.committer.close()
            parts.discarder.close()
            parts.indexes.close()
            parts.catalog.close()
            parts.cache.clear()
            lock_fd, self._lock_fd = self._lock_fd, -1
            os.close(lock_fd)

    # --- reads

    def lookup_cached(self, bucket_id: str, name: str) -> ObjectRow | None:
        """The row if it is cached; None does not mean that there is no object. No I/O: about a microsecond."""
        return self._cached((bucket_id, name))

    def lookup(self, bucket_id: str, name: str) -> ObjectRow:
        """The current row of an object, if it may be served. Raises ObjectNotFound or ObjectCorrupt.

        May read the catalog, and the whole blob if it was never synced and the machine has been restarted since.
        """
        parts, key = self.parts, (bucket_id, name)
        row = self._cached(key)
        if row is not None:
            return row
        ticket = parts.cache.ticket(key)
        row = parts.catalog.find(bucket_id, name)
        if row is None:
            raise ObjectNotFound(f"object {name!r} does not exist")
        if row.state != GOOD:
            if row.state == QUARANTINED:
                raise ObjectCorrupt(f"the stored bytes of {name!r} are gone or fail their checksum")
            row = self._relaxed.examine(row)
        parts.cache.fill(key, row, ticket)
        return row

    def find(self, bucket_id: str, name: str) -> ObjectRow | None:
        """The row in any state, even one that must not be served; None when there is none."""
        return self.parts.catalog.find(bucket_id, name)

    def open_blob(self, row: ObjectRow) -> int:
        """Open the blob for reading and return the descriptor; the object's bytes are the first `row.size` of the file.

        The caller closes it. Raises RowChanged when the row is no longer the current one (start again from its `row`),
        ObjectNotFound, ObjectCorrupt, StorageFailed.
        """
        return self._reader.open_blob(row)

    def read_small(self, row: ObjectRow) -> bytes:
        """The whole body, verified against its checksum; for objects up to SMALL_READ_BYTES. Raises like `open_blob`."""
        return self._reader.read_small(row)

    def read_failed(self, row: ObjectRow, offset: int, error: OSError) -> ServerTrouble:
        """Report that a blob from `open_blob` cannot be read at an offset; returns what to raise instead.

        The error counts against the disk's error budget. If those bytes cannot be read from the medium on a second try either,
        or the blob ends before them (ENODATA), the object is quarantined.
        """
        return self._reader.read_failed(row, offset, error)

    def index_failed(self, error: OSError, offset: int) -> ServerTrouble:
        """Like `read_failed` for an index file, which can be rebuilt: no object is affected."""
        return self.parts.health.translate(error, f"reading an index at byte {offset}")

    def index_path(self, row: ObjectRow) -> str:
        """The path of an object's tar index, if it has one."""
        return self.parts.path(row) + layout.INDEX_SUFFIX

    def blob_path(self, row: ObjectRow) -> str:
        """The path of the blob; it may be gone by the time it is opened."""
        return self.parts.path(row)

    def open_index(self, row: ObjectRow) -> ShardIndex:
        """The tar index of a shard, shared: do not close it. Rebuilt from the blob when it is missing or damaged.

        Raises NotAShard, and what `open_blob` raises.
        """
        return self._reader.open_index(row)

    def cached_index(self, blob_path: str) -> ShardIndex | None:
        """The tar index of the shard at this path if it is already open, else None. No I/O."""
        return self.parts.indexes.get(blob_path)

    def rebuild_index(self, row: ObjectRow, damaged: ShardIndex | None = None) -> ShardIndex:
        """Rebuild the index of a shard, after reading it raised IndexCorrupt. Raises like `open_index`.

        With `damaged`, the index that was read, nothing is done if another thread has rebuilt it meanwhile.
        """
        return self._reader.rebuild_index(row, damaged)

    def open_index_file(self, row: ObjectRow) -> int:
        """Open the file of a tar index as it is; the caller closes the descriptor. Raises Unavailable, StorageFailed."""
        try:
            return self.parts.filesystem.open(self.index_path(row))
        except OSError as error:
            raise self.parts.health.translate(error, "opening an index") from error

    # --- writes

    def begin_put(
        self,
        bucket_id: str,
        name: str,
        *,
        size: int | None,
        expected: ExpectedChecksums = NO_CHECKSUMS,
        durability: Durability = "fsync",
        staged: StagedName | None = None,
        supplied: Supplied = NOTHING,
        stays_cached: bool = True,
    ) -> BlobWriter:
        """Begin an upload of `size` bytes (None: unknown). Raises NoSpace, TooLarge, StorageFailed; BadRequest for an invalid
        version or invalid attributes.

        `staged`: it does not become an object but an output that a job may publish; see `staging`. Unless it `stays_cached`, it
        is dropped from the page cache when it is durable.
        """
        check_upload(self.parts, bucket_id, supplied)
        return BlobWriter(
            self.parts,
            bucket_id,
            name,
            size=size,
            expected=expected,
            durability=durability,
            staged=staged,
            supplied=supplied,
            stays_cached=stays_cached,
        )

    def put_small(
        self,
        bucket_id: str,
        name: str,
        body: bytes,
        *,
        expected: ExpectedChecksums = NO_CHECKSUMS,
        durability: Durability = "fsync",
        precondition: Precondition = ALWAYS,
        supplied: Supplied = NOTHING,
    ) -> PutResult:
        """Store a whole object at once. Threads that do so at the same time share the catalog's commits."""

        def change(row: ObjectRow) -> Put:
            return Put(row, precondition)

        upload = SmallUpload(bucket_id, name, body, expected, supplied, change)
        row, outcome = store_small(self.parts, upload, durability)
        return PutResult(row, outcome.replaced, row.warnings, outcome.committed)

    def delete(self, bucket_id: str, name: str, *, precondition: Precondition = ALWAYS) -> ObjectRow:
        """Delete an object, durably; works on a full disk. Raises ObjectNotFound, PreconditionFailed, StorageFailed."""
        return self.copies.delete(bucket_id, name, precondition=precondition)[0]

    def deposit_site(self, durability: Durability) -> DepositSite:
        """Where a worker on this machine may write a file for `adopt`."""
        parts = self.parts
        return DepositSite(
            parts.root,
            parts.disk_id,
            parts.boot,
            durability == "fsync",
            parts.options.writeback_bytes,
            parts.options.reserve_bytes,
        )

    def adopt(
        self,
        bucket_id: str,
        name: str,
        deposit: str,
        *,
        size: int | None,
        durability: Durability,
        staged: StagedName | None = None,
    ) -> BlobWriter:
        """Like `begin_put`, for a file in the directory for temporary files that a worker continues to write; the writer is
        given its description (`dfc.storage.blobs.deposit`). Also raises BadRequest, and Unavailable if the file does not
        exist."""
        self.parts.health.require_writable()
        layout.check_bucket_id(bucket_id)
        return AdoptingWriter(self.parts, bucket_id, name, deposit, size=size, durability=durability, staged=staged)

    def scratch_file(self, size: int) -> IO[bytes]:
        """Create an unnamed temporary file for `size` bytes. Raises NoSpace, StorageFailed."""
        self.parts.space.require(size)
        try:
            return tempfile.TemporaryFile(dir=f"{self.path}/{layout.TEMPORARY}")
        except OSError as error:
            raise self.parts.health.translate(error, "making a temporary file") from error

    def scratch_failed(self, error: OSError, doing: str) -> ServerTrouble:
        """Report that a file from `scratch_file` cannot be written; returns what to raise instead."""
        return self.parts.health.translate(error, doing)

    def barrier(self) -> None:
        """Wait until every write submitted before this call has ended."""
        # A disk that has failed refuses this as it refuses every write, in the order in which they came: none before it is
        # under way any more. Its target must still be able to take the step that says that it has failed.
        with suppress(StorageFailed):
            self.parts.committer.submit(Barrier())

    def remove_bucket(self, bucket_id: str) -> int:
        """Delete every object of a bucket whose id will never be used again, in many short transactions; returns how many."""
        parts, removed = self.parts, 0
        layout.check_bucket_id(bucket_id)
        while True:
            outcome = parts.committer.submit(RemoveSome(bucket_id, parts.clock))
            parts.discard(outcome.garbage)
            removed += outcome.removed
            if outcome.is_done:
                break
        sweep.remove_directories(parts, bucket_id)  # the sweep removes leftovers
        return removed

    # --- listings

    def list_tuples(
        self,
        bucket_id: str,
        *,
        prefix: str = "",
        start_after: str = "",
        after_prefix: bool = False,
        limit: int,
        ranks: Ranks = "first",
    ) -> ListedTuples:
        """At most `limit` tuples `(name, size, checksum, version_us, samples, members)`, sorted by the UTF-8 bytes of the name.

        Names begin with `prefix` and come after `start_after`; with `after_prefix` also after every name that begins with
        `start_after`, as needed for listings with a delimiter. `start_after` need not be the name of an object. `ranks`:
        "first" for the objects whose first replica this disk is, "all" for copies as well.
        """
        return self.parts.catalog.list_tuples(
            bucket_id, prefix=prefix, start_after=start_after, after_prefix=after_prefix, limit=limit, ranks=ranks
        )

    def list(self, bucket_id: str, *, prefix: str = "", start_after: str = "", limit: int, ranks: Ranks = "first") -> Rows:
        """The same page as whole rows, including quarantined ones."""
        return self.parts.catalog.list_rows(
            bucket_id, prefix=prefix, start_after=start_after, after_prefix=False, limit=limit, ranks=ranks
        )

    def counts(self, bucket_id: str) -> tuple[int, int]:
        """The number of objects and bytes of a bucket whose first replica this disk is, in constant time."""
        return self.parts.catalog.counts(bucket_id)

    def totals(self) -> tuple[int, int]:
        """The number of objects and bytes of the disk, with copies."""
        return self.parts.catalog.totals()

    def first_counts(self) -> dict[str, int]:
        """The number of objects of each bucket whose first replica this disk is, by the bucket's id."""
        return self.parts.catalog.first_counts()

    def bucket_ids(self) -> Names:
        """The ids of the buckets that the disk knows, sorted; some may be empty."""
        return self.parts.catalog.bucket_ids()

    # --- state

    @property
    def state(self) -> DiskState:
        """ "failed" once the error budget is used up: writes are refused, reads continue."""
        return self.parts.health.state

    @property
    def incarnation(self) -> str:
        """A random id of the catalog's present life. It changes when rows may have been lost: all of it when the catalog is
        rebuilt, what follows a dot when its last rows are lost or may be: after a power loss that may have cost rows of relaxed
        durability with copies, or when it was put back to an earlier state."""
        return self.parts.catalog.incarnation

    def tell_epoch(self) -> int:
        """How far the disk has come, to be reported: the number is durable, and never gets lower. What is synced after this
        call has a higher one. If a disk says less than was reported, it has been put back to an earlier state. No I/O."""
        return self.parts.committer.tell_epoch()

    @property
    def is_rolled_back(self) -> bool:
        """Whether it was put back to an earlier state, or has lost rows in another way, and does not have everything again."""
        return self.parts.catalog.rolled_back > 0

    @property
    def needs_accepting(self) -> bool:
        """Whether objects are lost with that which no other disk has, and somebody has to accept it."""
        return self.parts.catalog.rolled_back > 1

    @property
    def has_torn_log(self) -> bool:
        """Whether a power loss has torn its log, perhaps, so that objects may be lost, and nobody has accepted that."""
        return self.parts.catalog.has_torn_log

    def doubt(self, above: int, *, loses_alone: bool) -> None:
        """Be `is_rolled_back`: take another incarnation, and an epoch `above` what was reported. `loses_alone`: it
        `needs_accepting`. Raises StorageFailed, NoSpace."""
        self.parts.committer.submit(Doubt(above, loses_alone))

    def accept(self) -> None:
        """Be `is_rolled_back` or `has_torn_log` no more. Raises StorageFailed, NoSpace."""
        self.parts.committer.submit(Accept())

    @property
    def failure(self) -> str | None:
        """Why the disk has failed, or None."""
        return self.parts.health.reason

    def space(self) -> DiskSpace:
        try:
            return self.parts.space.measure()
        except OSError as error:
            raise self.parts.health.translate(error, "measuring its space") from error

    def quarantined(self) -> Quarantined:
        """The objects that are not served because their bytes are gone or damaged."""
        return self.parts.catalog.quarantined()

    @property
    def stats(self) -> DiskStats:
        """The counters, updated by this call (it reads the catalog)."""
        parts, stats = self.parts, self.parts.stats
        stats.io_errors = parts.health.errors
        stats.cache_hits, stats.cache_misses = parts.cache.hits, parts.cache.misses
        stats.unsynced_rows = parts.catalog.unsynced_count()
        stats.quarantined_rows = parts.catalog.quarantined_count()
        return stats

    @property
    def last_stats(self) -> DiskStats:
        """The counters as last updated; works even if the catalog cannot be read."""
        return self.parts.stats

    def sync_relaxed(self) -> int:
        """Sync all objects of relaxed durability now; returns how many."""
        return self._relaxed.sync()

    def sweep(self) -> sweep.SweepReport:
        """Move orphans to `orphans/` now, as the background thread does after opening."""
        return sweep.sweep(self.parts, self._opened_at)

    def wait_for_opening_work(self, timeout_s: float) -> bool:
        """Wait until the sweep after opening is done and rows from other boots of the machine are verified."""
        return self._maintenance.opening_work_done.wait(timeout_s)

"""Opening a disk: its catalog, its parts, and the epoch that shows an old catalog."""

from __future__ import annotations

import logging
import os
import sqlite3
import uuid
from collections.abc import Callable

from dfc.clock import HybridClock
from dfc.errors import DiskRefused
from dfc.filesystem import FileSystem, boot_id, remove_if_there
from dfc.storage import identity, layout
from dfc.storage.blobs.directories import Directories
from dfc.storage.blobs.discard import Discarder
from dfc.storage.blobs.indexes import OpenIndexes
from dfc.storage.catalog.cache import RowCache
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.commit import GroupCommitter
from dfc.storage.catalog.schema import EPOCH
from dfc.storage.health import DiskHealth
from dfc.storage.parts import DiskParts
from dfc.storage.rows import DiskOptions
from dfc.storage.stats import DiskStats
from dfc.storage.upkeep.space import SpaceKeeper

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

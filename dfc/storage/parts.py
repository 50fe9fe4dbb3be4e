"""The parts of an open disk, as its writer, reader and background work see them. Made and ended by `dfc.storage.disk`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dfc.clock import HybridClock
from dfc.filesystem import FileSystem
from dfc.storage import layout
from dfc.storage.blobs.directories import Directories
from dfc.storage.blobs.discard import Discarder
from dfc.storage.blobs.indexes import OpenIndexes
from dfc.storage.catalog.cache import RowCache
from dfc.storage.catalog.catalog import Catalog
from dfc.storage.catalog.commit import GroupCommitter
from dfc.storage.health import DiskHealth
from dfc.storage.rows import DiskOptions, ObjectRow
from dfc.storage.stats import DiskStats
from dfc.storage.upkeep.space import SpaceKeeper


@dataclass(frozen=True, slots=True)
class DiskParts:
    """`root` is the disk's directory, `boot` the id of this run of the machine."""

    disk_id: str
    root: str
    boot: str
    options: DiskOptions
    filesystem: FileSystem
    clock: HybridClock
    health: DiskHealth
    stats: DiskStats
    space: SpaceKeeper
    cache: RowCache
    catalog: Catalog
    committer: GroupCommitter
    directories: Directories
    indexes: OpenIndexes
    discarder: Discarder

    def path(self, row: ObjectRow) -> str:
        return layout.row_path(self.root, row)

    def discard(self, rows: Iterable[ObjectRow]) -> None:
        """Unlink the blobs of rows that a commit has made garbage."""
        self.discarder.discard(rows)

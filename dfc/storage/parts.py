"""The parts of an open disk, shared by its writer, reader and background threads. `dfc.storage.disk` makes and closes them."""

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
    """The parts of an open disk. `root` is the disk's directory, `boot` the machine's boot id."""

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

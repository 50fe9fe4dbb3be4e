"""The parts of an open disk, as its writer, reader and background work see them. Made and ended by `dfc.storage.disk`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from dfc.clock import HybridClock
from dfc.storage import layout
from dfc.storage.cache import RowCache
from dfc.storage.catalog import Catalog
from dfc.storage.commit import GroupCommitter
from dfc.storage.directories import Directories
from dfc.storage.filesystem import FileSystem
from dfc.storage.health import DiskHealth
from dfc.storage.indexes import OpenIndexes
from dfc.storage.rows import DiskOptions, ObjectRow
from dfc.storage.space import SpaceKeeper
from dfc.storage.stats import DiskStats

_log = logging.getLogger(__name__)


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

    def path(self, row: ObjectRow) -> str:
        return layout.row_path(self.root, row)

    def discard(self, rows: Iterable[ObjectRow]) -> None:
        """Unlink the blobs of rows that a commit has made garbage. What cannot be unlinked is left to the next sweep."""
        for row in rows:
            path = self.path(row)
            self.indexes.forget(path)
            endings = ("", layout.INDEX_SUFFIX) if row.samples is not None else ("",)
            for ending in endings:
                try:
                    self.filesystem.unlink(path + ending)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    self.health.count(error, "unlinking a replaced blob")

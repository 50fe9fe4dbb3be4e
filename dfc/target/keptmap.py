"""The newest cluster map, kept on every disk of a target: with it the target starts and serves reads while no registry answers.

It is also the last copy of the map if the registry is lost. A file may be a second old; whoever starts from it has no lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Final

import msgspec

from dfc.errors import DfcError
from dfc.filesystem import FileSystem
from dfc.limits import CLUSTER_MAP_BYTES_MAX
from dfc.placement.map import ClusterMap
from dfc.smallfile import SmallFileDamaged, read_small_file, write_small_file
from dfc.storage.disk import Disk
from dfc.target.local import Local

_log: Final = logging.getLogger("dfc.target")
FILE: Final = "dfc-map.json"
FORMAT: Final = 1
RETRY_S: Final = 10.0  # after a write has failed
KEEP_S: Final = 1.0  # how often a disk's file is brought up to date, if the map has changed


class MapFile(msgspec.Struct, frozen=True):
    """The contents of the file."""

    format: int
    map: ClusterMap


class MapKeeper:
    """Keeps the map of a target on its disks, from `start` to `stop`."""

    def __init__(self, local: Local, filesystem: FileSystem) -> None:
        self._local = local
        self._filesystem = filesystem
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin, for each disk that is open: one that hangs holds up no other."""
        self._tasks = [asyncio.create_task(self._keep(disk)) for disk in self._local.in_order()]

    async def stop(self) -> None:
        """Stop; a write that has begun goes on in its disk's thread."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, disk: Disk) -> None:
        kept, failing = -1, False
        while True:
            await asyncio.sleep(KEEP_S)
            newest = self._local.map
            if newest.version == kept:
                continue
            try:
                await self._local.threads(disk).write(write_map, disk.path, newest, self._filesystem)
                kept, failing = newest.version, False
            except Exception as error:
                if not failing:
                    bug = error if not isinstance(error, OSError | DfcError) else None
                    _log.warning("cannot keep the cluster map on disk %s: %s", disk.id, error, exc_info=bug)
                failing = True
                await asyncio.sleep(RETRY_S)


def write_map(directory: str, cluster_map: ClusterMap, filesystem: FileSystem) -> None:
    """Write the map to a disk, durably. Blocking. OSError."""
    write_small_file(os.path.join(directory, FILE), msgspec.json.encode(MapFile(FORMAT, cluster_map)), filesystem)


def read_maps(directories: Sequence[str], cluster_id: str) -> ClusterMap | None:
    """Return the newest map of a cluster on these disks; None if there is none that can be read. Blocking.

    Files that are damaged or of another version of DFC are skipped, since they are written anew when the registry answers.
    """
    read = (_read(os.path.join(directory, FILE)) for directory in directories)
    found = [kept for kept in read if kept is not None and kept.cluster_id == cluster_id]
    return max(found, key=lambda kept: kept.version, default=None)


def _read(path: str) -> ClusterMap | None:
    try:
        data = read_small_file(path, "It is written again once the registry answers.", CLUSTER_MAP_BYTES_MAX)
        kept = None if data is None else msgspec.json.decode(data, type=MapFile)
    except (SmallFileDamaged, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _log.warning("%s is not used: %s", path, error)
        return None
    if kept is not None and kept.format != FORMAT:
        _log.warning("%s is not used: it is of format %d, and this version of DFC reads format %d", path, kept.format, FORMAT)
        return None
    return None if kept is None else kept.map

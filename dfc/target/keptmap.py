"""The newest cluster map, kept on every disk of a target: with it the target starts and serves reads while no registry answers.

It is also the last copy of the map if the registry is lost. A file may be a second old; whoever starts from it has no lease.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from dfc.errors import DfcError, Unavailable
from dfc.filesystem import FileSystem
from dfc.http.shutdown import end
from dfc.placement.map import ClusterMap
from dfc.registry.keptmap import read_map, write_map
from dfc.storage.disk import Disk
from dfc.target.local import Local

_log: Final = logging.getLogger("dfc.target")
RETRY_S: Final = 10.0  # after a write has failed
HURRY_S: Final = 5.0  # a write waits so long for the map that has its bucket
KEEP_S: Final = 1.0  # how often a disk's file is brought up to date, if the map has changed


class MapKeeper:
    """Keeps the map of a target on its disks, from `start` to `stop`."""

    def __init__(self, local: Local, filesystem: FileSystem) -> None:
        self._local = local
        self._filesystem = filesystem
        self._tasks: list[asyncio.Task[None]] = []
        self._kept: dict[str, frozenset[str]] = {}  # by disk: the buckets of its map
        self._hurries: dict[str, asyncio.Event] = {}
        self._tries: dict[str, int] = {}
        self._tried = asyncio.Event()

    def start(self) -> None:
        """Begin, for each disk that is open: one that hangs holds up no other."""
        self._hurries = {disk.id: asyncio.Event() for disk in self._local.in_order()}
        self._tries = dict.fromkeys(self._hurries, 0)
        self._tasks = [asyncio.create_task(self._keep(disk)) for disk in self._local.in_order()]

    async def stop(self) -> None:
        """Stop; a write that has begun goes on in its disk's thread."""
        await end(*self._tasks)

    async def until_kept(self, disk_id: str, bucket_id: str) -> None:
        """Wait until the map on a disk has this bucket, so that objects which are stored in it are not unknown to whoever
        starts with an older registry. Unavailable if the disk hangs; one that cannot take the map takes the write as it can."""
        if not self._tasks or bucket_id in self._kept.get(disk_id, ()):
            return
        try:
            async with asyncio.timeout(HURRY_S):
                tries = self._tries[disk_id]
                while bucket_id not in self._kept.get(disk_id, ()) and self._tries[disk_id] < tries + 2:
                    self._hurries[disk_id].set()
                    await self._tried.wait()
        except TimeoutError:
            raise Unavailable("the cluster map with this bucket could not be kept on the disk yet; try again") from None

    def _note(self, disk: Disk, written: ClusterMap | None) -> None:
        """A map was written, or could not be."""
        if written is not None:
            self._kept[disk.id] = frozenset(bucket.id for bucket in written.buckets)
        self._tries[disk.id] += 1
        self._tried.set()
        self._tried = asyncio.Event()

    async def _kept_before(self, disk: Disk) -> None:
        """Buckets that are known to the disk already need not be waited for after a restart."""
        with suppress(OSError, DfcError):
            self._note(disk, await self._local.threads(disk).read(read_map, disk.path))

    async def _keep(self, disk: Disk) -> None:
        kept, failing = -1, False
        hurry = self._hurries[disk.id]
        await self._kept_before(disk)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if failing else KEEP_S):
                    await hurry.wait()
            is_hurried = hurry.is_set()
            hurry.clear()
            newest = self._local.map
            if newest.version == kept:
                if is_hurried:
                    self._note(disk, None)  # for a bucket that is gone again
                continue
            try:
                await self._local.threads(disk).write(write_map, disk.path, newest, self._filesystem)
                kept, failing = newest.version, False
                self._note(disk, newest)
            except Exception as error:
                if not failing:
                    bug = error if not isinstance(error, OSError | DfcError) else None
                    _log.warning("cannot keep the cluster map on disk %s: %s", disk.id, error, exc_info=bug)
                failing = True
                self._note(disk, None)

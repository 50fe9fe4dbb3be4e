"""What a target has: its disks, the map it decides by, and threads for disk calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar

from dfc.errors import BucketDeleting, BucketNotFound, Unavailable
from dfc.http.peer import ControlClient
from dfc.placement.map import EMPTY_MAP, BucketEntry, ClusterMap
from dfc.storage.disk import Disk

T = TypeVar("T")
_log: Final = logging.getLogger("dfc.target")
DISK_THREADS: Final = 64  # small uploads wait in them for their group's commit
MAP_REFRESH_S: Final = 0.5  # a bucket that nobody knows is asked for at most this often


class Place(NamedTuple):
    """Where an object of this target belongs."""

    bucket: BucketEntry
    disk: Disk


class Local:
    """The state that all routes of a target share."""

    def __init__(self, control: ControlClient, proxy_url: str) -> None:
        self.control = control
        self.proxy_url = proxy_url.rstrip("/")
        self.node_id = ""
        self.map: ClusterMap = EMPTY_MAP
        self.disks: dict[str, Disk] = {}
        self._threads = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="disk")
        self._refreshed_s = 0.0

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        for disk in self.disks.values():
            disk.close()

    # --- threads

    async def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a blocking call in a thread. When the caller is cancelled the call still runs to its end."""
        loop = asyncio.get_running_loop()
        if named:
            return await loop.run_in_executor(self._threads, lambda: function(*arguments, **named))
        return await loop.run_in_executor(self._threads, function, *arguments)

    async def iterate(self, iterator: Iterator[bytes]) -> AsyncIterator[bytes]:
        """The pieces of a blocking iterator, each made in a thread."""
        while (piece := await self.call(next, iterator, None)) is not None:
            yield piece

    # --- the map

    def take_map(self, new: ClusterMap) -> bool:
        """Decide by a newer map from now on; whether it is one."""
        if new.version <= self.map.version or (self.map.cluster_id and new.cluster_id != self.map.cluster_id):
            return False
        self.map = new
        return True

    async def refresh_map(self, *, at_once: bool = False) -> None:
        """Ask the registry for its map, unless that was done a moment ago."""
        now = asyncio.get_running_loop().time()
        if now - self._refreshed_s < MAP_REFRESH_S and not at_once:
            return
        self._refreshed_s = now
        self.take_map(await self.control.call("GET", f"{self.proxy_url}/v1/cluster", ClusterMap))

    async def bucket(self, name: str, *, create: bool = False) -> BucketEntry:
        """The bucket; one that this map lacks is asked for, or made, at the registry before it is called missing."""
        found = self.map.bucket(name)
        if found is None and create:
            url = f"{self.proxy_url}/v1/buckets/{name}/ensure"
            self.take_map(await self.control.call("POST", url, ClusterMap))
            found = self.map.bucket(name)
        elif found is None:
            await self.refresh_map()
            found = self.map.bucket(name)
        if found is None:
            raise BucketNotFound(f"there is no bucket {name!r}")
        if create and found.state == "deleting":
            raise BucketDeleting(f"the bucket {name!r} is being deleted")
        return found

    def owned_disk(self, bucket: str, name: str) -> Disk | None:
        """The disk of this target that holds an object; None when another target does. Unavailable for a missing disk."""
        owner = self.map.owner(bucket, name)
        if owner is None:
            raise Unavailable("this target has no map yet")
        if owner.node.id != self.node_id:
            return None
        disk = self.disks.get(owner.disk.id)
        if disk is None:
            raise Unavailable(f"disk {owner.disk.id} of this target is not there", retry_after_s=5)
        return disk

    def commit_guard(self, bucket: BucketEntry, name: str, disk: Disk) -> Callable[[], None]:
        """Runs inside the catalog's transaction: the map of that moment decides, not that of the upload's begin."""

        def guard() -> None:
            current = self.map.bucket(bucket.name)
            if current is None or current.id != bucket.id or current.state != "active":
                raise BucketDeleting(f"the bucket {bucket.name!r} is being deleted")
            if self.owned_disk(bucket.name, name) is not disk:
                raise Unavailable("the map has changed meanwhile")

        return guard

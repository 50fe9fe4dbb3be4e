"""Create, change, count, list and delete buckets."""

from __future__ import annotations

from typing import Any, NamedTuple

from dfc.errors import BadRequest
from dfc.placement.map import BucketEntry, ClusterMap, Durability
from dfc.proxy.cluster import Cluster
from dfc.proxy.deletions import Deletions


class CountedBucket(NamedTuple):
    """A bucket, and what is in it over the whole cluster."""

    entry: BucketEntry
    objects: int
    size: int


class Buckets:
    """The buckets of one cluster."""

    def __init__(self, cluster: Cluster, deletions: Deletions) -> None:
        self._cluster = cluster
        self._deletions = deletions

    async def all(self) -> list[CountedBucket]:
        """List all buckets with counts. Unavailable while a target is down: the counts would be incomplete."""
        counts = await self._cluster.counts() if self._cluster.map.buckets else {}
        return [_counted(bucket, counts) for bucket in self._cluster.map.buckets]

    async def get(self, name: str) -> CountedBucket:
        """Return a bucket with its counts. BucketNotFound, Unavailable."""
        bucket = self._cluster.bucket(name)
        return _counted(bucket, await self._cluster.counts())

    async def create(self, name: str, copies: int, durability: Durability) -> tuple[CountedBucket, bool]:
        """Create a bucket; return it and whether it is new. BadName, BucketConflict for other settings, BucketDeleting."""
        _check_copies(copies)
        self._cluster.check_ready()
        bucket, created = await self._cluster.create_bucket(name, copies, durability)
        return _counted(bucket, {} if created else await self._cluster.counts()), created

    async def change(self, name: str, copies: int | None, durability: Durability | None) -> CountedBucket:
        """Change the settings that are not None. BucketNotFound, Unavailable."""
        _check_copies(copies)
        asked: dict[str, Any] = {"copies": copies, "durability": durability}
        given = {key: value for key, value in asked.items() if value is not None}
        self._cluster.bucket(name)
        counts = await self._cluster.counts()  # before the change: no error may come after it was made
        return _counted(await self._cluster.change_bucket(name, **given), counts)

    async def delete(self, name: str, *, force: bool) -> None:
        """Delete a bucket, see `Deletions.delete`."""
        await self._deletions.delete(name, force=force)

    async def ensure(self, name: str) -> ClusterMap:
        """Create the bucket if needed and allowed, and return the map with it. BadName, BucketNotFound, BucketDeleting."""
        await self._cluster.bucket_for_write(name)
        return self._cluster.map


def _counted(bucket: BucketEntry, counts: dict[str, tuple[int, int]]) -> CountedBucket:
    return CountedBucket(bucket, *counts.get(bucket.id, (0, 0)))


def _check_copies(copies: int | None) -> None:
    if copies not in (None, 1):
        raise BadRequest("only copies=1 is supported so far")

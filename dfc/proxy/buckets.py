"""Create, change, count, list and delete buckets."""

from __future__ import annotations

from typing import NamedTuple

from dfc.errors import BadRequest, Unavailable
from dfc.placement.map import BucketEntry, ClusterMap, Durability
from dfc.proxy.cluster import Cluster
from dfc.proxy.deletions import Deletions
from dfc.proxy.duties.steps import Steps
from dfc.wire import UNRANKED


class CountedBucket(NamedTuple):
    """A bucket, and what is in it over the whole cluster. Not `exact`: estimated, while disks are down or lack something."""

    entry: BucketEntry
    objects: int
    size: int
    exact: bool = True


class Buckets:
    """The buckets of one cluster."""

    def __init__(self, cluster: Cluster, deletions: Deletions, steps: Steps) -> None:
        self._cluster = cluster
        self._steps = steps
        self._deletions = deletions

    async def all(self) -> list[CountedBucket]:
        """List all buckets with counts. Unavailable while a target is down whose objects are counted nowhere else."""
        buckets, step = self._cluster.map.buckets, self._cluster.map.step
        fewest = min(buckets, key=lambda bucket: bucket.copies, default=None)
        counts = {} if fewest is None else await self._cluster.counts(fewest.id)
        return [self._counted(bucket, counts, step) for bucket in self._cluster.map.buckets]

    async def get(self, name: str) -> CountedBucket:
        """Return a bucket with its counts. BucketNotFound, Unavailable."""
        bucket, step = self._cluster.bucket(name), self._cluster.map.step
        return self._counted(bucket, await self._cluster.counts(bucket.id), step)

    async def create(
        self, name: str, copies: int | None, durability: Durability, min_copies: int = 0
    ) -> tuple[CountedBucket, bool]:
        """Create a bucket; return it and whether it is new. `copies`: None for the setting `default_copies`. BadName,
        BadRequest, TooFewDomains, BucketConflict for other settings, BucketDeleting."""
        self._cluster.check_ready()
        copies = self._cluster.default_copies if copies is None else copies
        _check_least(min_copies, copies)
        self._cluster.check_copies(copies)
        bucket, created = await self._cluster.create_bucket(name, copies, durability, min_copies)
        if created:
            return self._counted(bucket, {}), True
        try:
            return self._counted(bucket, await self._cluster.counts(bucket.id)), False
        except Unavailable:  # that the bucket is there can be said without counts
            return CountedBucket(bucket, 0, 0, exact=False), False

    async def change(
        self, name: str, copies: int | None, durability: Durability | None, min_copies: int | None = None
    ) -> CountedBucket:
        """Change the settings that are not None; other copies are made or removed in the background. BucketNotFound,
        BadRequest, TooFewDomains, Unavailable."""
        bucket = self._cluster.bucket(name)
        _check_least(bucket.min_copies if min_copies is None else min_copies, bucket.goal if copies is None else copies)
        if copies is not None and copies != bucket.goal:
            self._cluster.check_copies(copies)
        # Before the change: no error may come after it was made. Disks that are down do not hold it up: it may be about them.
        counted = self._counted(bucket, await self._cluster.counts(bucket.id, incomplete=True))
        if copies is not None:  # also if it has them: another wish may be waiting
            await self._steps.change_copies(bucket.id, copies)
        if durability is not None:
            await self._cluster.change_bucket(name, durability=durability)
        if min_copies is not None:
            await self._cluster.change_bucket(name, min_copies=min_copies)
        return counted._replace(entry=self._cluster.bucket(name))

    async def delete(self, name: str, *, force: bool) -> None:
        """Delete a bucket, see `Deletions.delete`."""
        await self._deletions.delete(name, force=force)

    async def ensure(self, name: str) -> ClusterMap:
        """Create the bucket if needed and allowed, and return the map with it. BadName, BucketNotFound, BucketDeleting."""
        await self._cluster.bucket_for_write(name)
        return self._cluster.map

    def _counted(self, bucket: BucketEntry, counts: dict[str, tuple[int, int]], step: int | None = None) -> CountedBucket:
        """`step`: when the targets were asked."""
        objects, size = counts.get(bucket.id, (0, 0))
        share = self._cluster.counted_share(bucket)
        if share >= 1.0 or not share:
            is_same = UNRANKED not in counts and step in (None, self._cluster.map.step)
            return CountedBucket(bucket, objects, size, share > 0 and not bucket.is_moving and is_same)
        return CountedBucket(bucket, round(objects / share), round(size / share), exact=False)


def _check_least(min_copies: int, copies: int) -> None:
    """Check the least number of copies with which a write may count. BadRequest."""
    if min_copies > copies:
        raise BadRequest(f"min_copies is {min_copies}, but objects are to have {copies} {'copy' if copies == 1 else 'copies'}")

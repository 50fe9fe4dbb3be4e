"""Create, change, count, list and delete buckets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from dfc.errors import BadRequest, BucketDeleting, BucketNotEmpty, DfcError, Unavailable
from dfc.http.retry import RemoteError
from dfc.listing.pages import ListingQuery
from dfc.placement.map import BucketEntry, ClusterMap, Durability, NodeEntry
from dfc.proxy.cluster import Cluster
from dfc.proxy.coordinator import Lead
from dfc.proxy.duties import Steps
from dfc.proxy.objects import one_page
from dfc.registry.base import Lease, LeaseLost
from dfc.registry.changes import forget_removed
from dfc.wire import UNRANKED

# --- Delete buckets: decide in two steps, then carry the deletion through whatever happens.
#
# A bucket is `checking` while DFC checks whether it may be deleted: uploads that commit meanwhile must be retried, and a
# deletion that is refused, fails or is killed then leaves the bucket as it was. Once it is `deleting`, there is no way back:
# the coordinator finishes what a killed proxy had begun. Targets that are down, and disks that are away, are not waited for:
# the registry remembers what was removed without them until they are back. A target that is down commits nothing before it has
# taken the map of then.

_log: Final = logging.getLogger("dfc.proxy")
RETRY_S: Final = 2.0  # between two attempts to finish a deletion


class _Removed(msgspec.Struct):
    """What a target answers: the disks on which there is nothing left."""

    disks: list[str]


class Deletions:
    """Deletions of buckets. Only the coordinator decides on them, since two proxies would not see each other's."""

    def __init__(self, cluster: Cluster, lead: Lead) -> None:
        self._cluster = cluster
        self._lead = lead
        self._busy: set[str] = set()

    async def delete(self, name: str, *, force: bool) -> None:
        """Delete a bucket. BucketNotEmpty unless `force`; BucketDeleting while it is being deleted already.

        Unavailable when a target is down that may have objects of which nobody else knows, unless `force`; when one does not
        answer, either before the decision or after it (then the deletion continues by itself); and when this proxy is not the
        coordinator.
        """
        self._cluster.bucket(name)  # report a missing bucket without waiting for an election
        leadership = await self._lead()
        bucket = self._cluster.bucket(name)
        if bucket.state == "deleting" or name in self._busy:
            raise BucketDeleting(f"bucket {name!r} is being deleted")
        self._busy.add(name)
        try:
            informed = await self._decide(bucket, force, leadership)
            try:
                await self._remove(bucket, informed=informed)
            except (Unavailable, RemoteError) as error:
                raise Unavailable(f"{error.message}; the deletion of bucket {name!r} continues by itself") from error
        finally:
            self._busy.discard(name)

    async def _decide(self, bucket: BucketEntry, force: bool, leadership: Lease) -> list[str]:
        """Make the bucket `deleting`, or leave it `active`; no commit can slip in between counting and deleting. Return the ids
        of the targets that know it. LeaseLost, with nothing decided, when this proxy stops being the coordinator meanwhile."""
        cluster, name = self._cluster, bucket.name
        targets = cluster.up_targets() if force or bucket.copies > 1 else cluster.all_targets()
        if not force:
            await self._require_empty(bucket, targets)  # most refusals happen here, without disturbing uploads
        decided = False
        try:
            await self._mark(bucket, "checking", targets, leadership)
            if not force:
                await self._require_empty(bucket, targets)
            await self._mark(bucket, "deleting", targets, leadership)
            decided = True
            return [node.id for node in targets]
        finally:
            # Nothing has been removed yet, even if the second mark was set and only sending it to the targets failed.
            if not decided and cluster.map.bucket(name) is not None:
                with suppress(LeaseLost):  # the next coordinator does it, and may have set the state already
                    await asyncio.shield(cluster.change_bucket(name, fence=leadership, state="active"))

    async def _mark(self, bucket: BucketEntry, state: str, targets: list[NodeEntry], leadership: Lease) -> None:
        """Change the state; when this returns, every target uses it."""
        await self._cluster.change_bucket(bucket.name, fence=leadership, state=state)
        await self._spread(targets)

    async def _require_empty(self, bucket: BucketEntry, targets: list[NodeEntry]) -> None:
        counted = await self._cluster.counts(bucket.id, incomplete=True) if targets else {}
        objects = counted.get(bucket.id, (0, 0))[0]
        # Hidden objects, such as lineages of jobs, do not keep a bucket from being deleted.
        # With copies, or after a move, the counters are those of first replicas, which may lack rows for a while.
        if (objects or bucket.has_several or self._cluster.map.layouts) and (
            await one_page(self._cluster, ListingQuery(bucket.id), 1)
        ).rows:
            raise BucketNotEmpty(
                f"bucket {bucket.name!r} is not empty: it holds {objects} objects; '?force=1' deletes them too"
            )

    async def _remove(self, bucket: BucketEntry, fence: Lease | None = None, informed: Collection[str] = ()) -> None:
        """Remove a bucket that is `deleting` from every target, then from the registry. Can be repeated to do what is left.
        `informed`: the ids of targets that know that it is `deleting`."""
        cluster = self._cluster
        targets = cluster.up_targets()
        await self._spread([node for node in targets if node.id not in informed])
        done = set[str]().union(*await cluster.ask_all(lambda node: self._remove_from(node, bucket.id), targets))
        disks = {disk.id for node in cluster.map.nodes for disk in node.disks}
        await cluster.remove_bucket(bucket, disks - done, fence=fence)

    async def _remove_from(self, node: NodeEntry, bucket_id: str) -> list[str]:
        """Remove what a target has of a bucket; the ids of the disks on which there is nothing left."""
        url = f"{node.url}/v1/node/buckets/{bucket_id}"
        return (await self._cluster.control.call("DELETE", url, _Removed, long=True)).disks

    async def _spread(self, targets: list[NodeEntry]) -> None:
        cluster_map = self._cluster.map
        await self._cluster.ask_all(lambda node: self._cluster.push(node, cluster_map), targets)

    async def finish_begun(self, leadership: Lease) -> None:
        """Finish the deletions that any proxy has decided, retrying until they are done, and undo the checks that an earlier
        coordinator left unfinished: a duty of the coordinator."""
        informed: set[str] = set()
        while True:
            await self._end_checks(leadership)
            await self._clear_returned(leadership, informed)
            left = [b for b in self._cluster.map.buckets if b.state == "deleting" and b.name not in self._busy]
            for bucket in left:
                self._busy.add(bucket.name)
                try:
                    await self._remove(bucket, leadership)
                    _log.info("finished the interrupted deletion of bucket %r", bucket.name)
                except DfcError as error:
                    if bucket.id not in informed:
                        informed.add(bucket.id)
                        _log.warning("cannot finish the deletion of bucket %r yet: %s", bucket.name, error.message)
                except Exception:
                    _log.exception("deleting bucket %r failed; trying again", bucket.name)
                finally:
                    self._busy.discard(bucket.name)
            await asyncio.sleep(RETRY_S)

    async def _clear_returned(self, leadership: Lease, informed: set[str]) -> None:
        """Remove from disks that are back what they have of buckets that were removed without them."""
        for node in self._cluster.map.nodes:
            back = [disk for disk in node.disks if disk.removed and disk.state == node.state == "up" and not disk.down_step]
            for bucket_id in sorted({each for disk in back for each in disk.removed}):
                try:
                    done = await self._remove_from(node, bucket_id)
                    await self._cluster.change(forget_removed(bucket_id, done), fence=leadership)
                except DfcError as error:
                    if node.id not in informed:
                        informed.add(node.id)
                        _log.warning("cannot remove what target %s has of removed buckets yet: %s", node.id, error.message)
                    break

    async def _end_checks(self, leadership: Lease) -> None:
        """End the checks of earlier coordinators: these buckets stay."""
        for name in [bucket.name for bucket in self._cluster.map.buckets if bucket.state == "checking"]:
            bucket = self._cluster.map.bucket(name)
            if bucket is None or bucket.state != "checking" or name in self._busy:
                continue
            self._busy.add(name)
            try:
                await self._cluster.change_bucket(name, fence=leadership, state="active")
            except DfcError as error:
                _log.warning("cannot reopen bucket %r for writes yet: %s", name, error.message)
            finally:
                self._busy.discard(name)


# --- The buckets themselves.


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

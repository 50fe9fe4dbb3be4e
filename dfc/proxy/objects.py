"""Find the target that owns an object."""

from __future__ import annotations

from dfc.placement.map import NodeEntry
from dfc.proxy.cluster import Cluster


class Objects:
    """Gives faces access to the owners of objects, only through `when_ready`, so that none can forget the check."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._owners = ObjectOwners(cluster)

    def when_ready(self) -> ObjectOwners:
        """Return the owners; Unavailable until the expected targets have joined, since objects would be placed on too few."""
        self._cluster.check_ready()
        return self._owners


class ObjectOwners:
    """Finds the owners of objects. Unavailable, with Retry-After, when the owner is down."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def of(self, bucket: str, name: str) -> NodeEntry:
        """Return the node to read an object from, or to delete it at. BucketNotFound."""
        return self._cluster.owner(self._cluster.bucket(bucket), name).node

    async def for_write(self, bucket: str, name: str) -> NodeEntry:
        """Return the node to store an object at, creating its bucket if allowed. BucketNotFound, BucketDeleting."""
        return self._cluster.owner(await self._cluster.bucket_for_write(bucket), name).node

"""Find the targets that have an object."""

from __future__ import annotations

from dfc.addresses import Refusals
from dfc.placement.map import NodeEntry
from dfc.placement.readers import in_order
from dfc.proxy.cluster import Cluster


class Objects:
    """Gives faces access to the owners of objects, only through `when_ready`, so that none can forget the check."""

    def __init__(self, cluster: Cluster, refusals: Refusals | None = None) -> None:
        self._cluster = cluster
        self._owners = ObjectOwners(cluster, refusals or Refusals())

    def when_ready(self) -> ObjectOwners:
        """Return the owners; Unavailable until the expected targets have joined, since objects would be placed on too few."""
        self._cluster.check_ready()
        return self._owners


class ObjectOwners:
    """Finds the nodes of objects. Unavailable, with Retry-After, when they are down. `refusals` are asked last."""

    def __init__(self, cluster: Cluster, refusals: Refusals) -> None:
        self._cluster = cluster
        self._refusals = refusals

    def readers(self, bucket: str, name: str) -> list[NodeEntry]:
        """Return the nodes to read an object from, in the order to ask them. BucketNotFound."""
        return in_order(self._cluster.readers(self._cluster.bucket(bucket), name), self._refusals)

    def of(self, bucket: str, name: str) -> NodeEntry:
        """Return the node that decides about an object, to delete it at. BucketNotFound."""
        return self._cluster.primary(self._cluster.bucket(bucket), name)

    async def for_write(self, bucket: str, name: str) -> NodeEntry:
        """Return the node to store an object at, creating its bucket if allowed. BucketNotFound, BucketDeleting."""
        return self._cluster.primary(await self._cluster.bucket_for_write(bucket), name)

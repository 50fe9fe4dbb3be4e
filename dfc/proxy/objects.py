"""Where objects live: which target a request for one has to reach."""

from __future__ import annotations

from dfc.placement.map import NodeEntry
from dfc.proxy.cluster import Cluster


class Objects:
    """The way of a face to the owners of objects. It begins with `when_ready`, so that none can forget to ask."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._owners = ObjectOwners(cluster)

    def when_ready(self) -> ObjectOwners:
        """Unavailable before the first targets have joined: objects would be placed on too few."""
        self._cluster.check_ready()
        return self._owners


class ObjectOwners:
    """Owners that are up. Unavailable, with Retry-After, for the objects of one that is down."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def of(self, bucket: str, name: str) -> NodeEntry:
        """Whom to ask for an object, or to delete it. BucketNotFound."""
        return self._cluster.owner(self._cluster.bucket(bucket), name).node

    async def for_write(self, bucket: str, name: str) -> NodeEntry:
        """Who stores an object; its bucket is made where the settings allow it. BucketNotFound, BucketDeleting."""
        return self._cluster.owner(await self._cluster.bucket_for_write(bucket), name).node

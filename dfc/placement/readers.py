"""The nodes from which an object can be read, in the order to ask them: for proxies, targets, clients and workers. Pure."""

from __future__ import annotations

from collections.abc import Container

from dfc.placement.map import ClusterMap, NodeEntry
from dfc.placement.mapped import placement_of
from dfc.placement.roles import roles


def readers_of(cluster_map: ClusterMap, bucket_id: str, name: str) -> list[NodeEntry]:
    """Return the nodes that may be read from; none while the object is unavailable. The first takes its writes, too.

    The bucket may be younger than the map.
    """
    if not cluster_map.is_copied(bucket_id):  # most are not: no roles are worked out, and no placement is made
        owner = cluster_map.owner_in(bucket_id, name)
        return [owner.node] if owner is not None and owner.node.state == "up" else []
    placed = cluster_map.placed()
    return [placed[disk].node for disk in roles(placement_of(cluster_map), bucket_id, name).readers]


def reader_ids(cluster_map: ClusterMap, bucket: str, name: str, refusals: Container[str]) -> list[str]:
    """Return the ids of the nodes that may be read from, in the order to ask them; none for a bucket that is not known."""
    entry = cluster_map.bucket(bucket)
    readers = [] if entry is None else readers_of(cluster_map, entry.id, name)
    return [node.id for node in in_order(readers, refusals)]


def home_of(cluster_map: ClusterMap, bucket_id: str, name: str) -> NodeEntry | None:
    """Return the node of an object's first home, up or down; None while no target is in placement. What is staged for it is
    there, and nowhere else."""
    if not cluster_map.is_copied(bucket_id):
        owner = cluster_map.owner_in(bucket_id, name)
        return None if owner is None else owner.node
    homes = roles(placement_of(cluster_map), bucket_id, name).homes
    return cluster_map.placed()[homes[0]].node if homes else None


def in_order(readers: list[NodeEntry], refusals: Container[str]) -> list[NodeEntry]:
    """Return the nodes in the order to ask them: those whose URLs are in `refusals` could not be reached a moment ago, and come
    last."""
    return readers if len(readers) < 2 else sorted(readers, key=lambda node: node.url in refusals)

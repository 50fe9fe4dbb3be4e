"""The layout that a cluster's objects are to come to, by what each disk is for. Pure."""

from __future__ import annotations

from dfc.placement.map import ClusterMap
from dfc.placement.state import LayoutSpec


def wanted_layout(cluster_map: ClusterMap) -> LayoutSpec | None:
    """Return the disks among which all objects are to be placed; None: they are, or they are on their way there."""
    if not cluster_map.layouts:
        return None  # all disks, whatever they are
    disks = frozenset(disk for disk, owner in cluster_map.placed().items() if owner.disk.use == "in")
    newest = max(cluster_map.layouts, key=lambda layout: layout.number)
    return None if not disks or disks == frozenset(newest.disks) else LayoutSpec(disks)

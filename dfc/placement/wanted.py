"""The layout that a cluster's objects are to come to, by what each disk is for. Pure."""

from __future__ import annotations

from dfc.placement.map import ClusterMap
from dfc.placement.state import LayoutSpec


def wanted_layout(cluster_map: ClusterMap) -> LayoutSpec | None:
    """Return the disks among which all objects are to be placed; None: they are, or they are on their way there.

    Disks that were given up stay, since objects with one copy may be on them. As long as there are any of those, no other disk
    comes or goes: it could become the home of an object that nobody has but a disk which was given up, and would deny it.
    """
    if not cluster_map.layouts:
        return None  # all disks, whatever they are
    newest = max(cluster_map.layouts, key=lambda layout: layout.number)
    placed = cluster_map.placed()
    gone = frozenset(disk for disk in newest.disks if disk in placed and placed[disk].disk.given_up)
    disks = frozenset(disk for disk, owner in placed.items() if owner.disk.use == "in" and not owner.disk.given_up) | gone
    if gone and any(bucket.copies == 1 for bucket in cluster_map.buckets):
        disks = frozenset(disk for disk in newest.disks if disk in placed)
    if not disks - gone:
        return None
    wanted = LayoutSpec(disks, gone)
    return None if wanted == LayoutSpec(frozenset(newest.disks), frozenset(newest.gone)) else wanted

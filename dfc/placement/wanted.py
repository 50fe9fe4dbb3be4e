"""The layout that a cluster's objects are to come to, by what each disk is for. Pure."""

from __future__ import annotations

from collections.abc import Collection

from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.placement.state import LayoutSpec, Placement


def wanted_layout(cluster_map: ClusterMap) -> LayoutSpec | None:
    """Return the disks among which all objects are to be placed; None: they are, or they are on their way there."""
    if not cluster_map.layouts:
        return None  # all disks, whatever they are
    placed, placement = cluster_map.placed().items(), placement_of(cluster_map)
    used = {disk for disk, owner in placed if owner.disk.use == "in"}
    wanted = wanted_spec(placement, used, {disk for disk, owner in placed if owner.disk.given_up})
    return None if wanted.disks == wanted.gone or wanted == placement.layouts[max(placement.layouts)] else wanted


def is_paused(cluster_map: ClusterMap) -> bool:
    """Return whether moves rest, as somebody has asked for. They go on until the objects of disks that were given up have their
    copies again."""
    lost = {disk for disk, owner in cluster_map.placed().items() if owner.disk.given_up}
    return cluster_map.rebalance.paused and all(lost.intersection(each.disks) <= set(each.gone) for each in cluster_map.layouts)


def wanted_spec(placement: Placement, used: Collection[str], given_up: Collection[str]) -> LayoutSpec:
    """Return the layout of the disks in use.

    Those that were given up stay if they are in any layout in force, since objects with one copy may be on them, and since
    nobody waits for a disk that the newest layout gives up, also if it was to leave. As long as there are objects with one copy
    and a disk that was given up, no other disk comes or goes: it could become the home of an object that nobody has but a disk
    which was given up, and would deny it.
    """
    gone = frozenset(given_up).intersection(disk for spec in placement.layouts.values() for disk in spec.disks)
    disks = frozenset(used).difference(given_up) | gone
    if gone and any(copies.reading == 1 for copies in placement.copies.values()):
        disks = placement.layouts[max(placement.layouts)].disks
    return LayoutSpec(disks, gone & disks)

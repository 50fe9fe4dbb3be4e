"""The layout that a cluster's objects are to come to, by what each disk is for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dfc.placement.map import ClusterMap
from dfc.placement.mapped import placement_of
from dfc.placement.state import LayoutSpec, Placement
from dfc.placement.weights import wanted_weights


def wanted_layout(cluster_map: ClusterMap) -> LayoutSpec | None:
    """Return the disks among which all objects are to be placed, with their weights; None: they are, or they are on their way
    there. While moves are paused, no disk comes or goes but those that are given up, and none gets another weight."""
    return _wanted(cluster_map, comes_and_goes=not cluster_map.rebalance.paused)


def is_waiting(cluster_map: ClusterMap) -> bool:
    """Return whether a move is asked for that has not begun: also while moves are paused, or disks that were given up are in
    its way."""
    if not cluster_map.layouts:
        return False
    placement = placement_of(cluster_map)
    newest = placement.layouts[max(placement.layouts)]
    placed = cluster_map.placed().items()
    gone = newest.gone | {disk for disk, owner in placed if owner.disk.given_up}
    used = {disk for disk, owner in placed if owner.disk.use == "in"} - gone
    weights = wanted_weights(cluster_map)
    differ = used != newest.disks - gone or any(weights.get(disk) != newest.weights.get(disk) for disk in used)
    differ = differ or any(placement.disks[disk].removing for disk in newest.disks)
    return _wanted(cluster_map, comes_and_goes=True) is not None or differ


def is_paused(cluster_map: ClusterMap) -> bool:
    """Return whether moves rest, since somebody has paused them. What has begun goes on until the objects of disks that were
    given up have their copies again."""
    lost = {disk for disk, owner in cluster_map.placed().items() if owner.disk.given_up}
    return cluster_map.rebalance.paused and all(lost.intersection(each.disks) <= set(each.gone) for each in cluster_map.layouts)


def _wanted(cluster_map: ClusterMap, *, comes_and_goes: bool) -> LayoutSpec | None:
    if not cluster_map.layouts:
        return None  # all disks, whatever they are
    placed, placement = cluster_map.placed().items(), placement_of(cluster_map)
    newest = placement.layouts[max(placement.layouts)]
    given_up = {disk for disk, owner in placed if owner.disk.given_up}
    if comes_and_goes:
        used = {disk for disk, owner in placed if owner.disk.use == "in"}
        wanted = wanted_spec(placement, used, given_up, wanted_weights(cluster_map))
    else:
        given_up = given_up | newest.gone
        wanted = wanted_spec(placement, newest.disks, given_up, newest.weights, stays=newest.disks)
    return None if wanted.disks == wanted.gone or wanted == newest else wanted


def wanted_spec(
    placement: Placement,
    used: Collection[str],
    given_up: Collection[str],
    weights: Mapping[str, float],
    stays: Collection[str] = (),
) -> LayoutSpec:
    """Return the layout of the disks in use, with these weights of disks that are to have another one than they joined with.

    Those that were given up stay if they are in any layout in force, since objects with one copy may be on them, and since
    nobody waits for a disk that the newest layout gives up, also if it was to leave. As long as there are objects with one copy
    and a disk that was given up, no other disk comes or goes, and none gets another weight: it could become the home of an
    object that nobody has but a disk which was given up, and would deny it. A disk that is removed for good leaves, too, when
    all its objects with several copies have them elsewhere, unless it `stays`, or another one that was given up must.
    """
    newest = placement.layouts[max(placement.layouts)]
    specs = placement.layouts.values()
    leaves = {disk for disk in given_up if placement.disks[disk].removing and disk not in stays}
    leaves = {disk for disk in leaves if all(disk not in spec.disks - spec.gone for spec in specs)}
    gone = frozenset(given_up).intersection(disk for spec in specs for disk in spec.disks) - leaves
    disks = frozenset(used).difference(given_up) | gone
    if gone and any(copies.reading == 1 for copies in placement.copies.values()):
        disks, weights = newest.disks, newest.weights
    return LayoutSpec(disks, disks.intersection(given_up), {disk: weight for disk, weight in weights.items() if disk in disks})

"""Placement by the cluster map: weights, the layout to come to, and the nodes to ask for an object. Pure.

The placement that a cluster map describes, and the map after the next step. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Final

import msgspec

from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, LayoutEntry, NodeEntry, Owner, SliceRun
from dfc.placement.roles import SLICES, Copies, DiskPlace, DiskStatus, LayoutSpec, Placement, SliceState, roles, roles_once

FIRST_LAYOUT: Final = 1


def placement_of(cluster_map: ClusterMap) -> Placement:
    """Return the placement. Made once for each map."""
    found: Placement | None = cluster_map.__dict__.get("_placement")
    if found is None:
        found = cluster_map.__dict__["_placement"] = _make(cluster_map)
    return found


def _make(cluster_map: ClusterMap) -> Placement:
    disks = {disk_id: _place(owner) for disk_id, owner in sorted(cluster_map.placed().items())}
    layouts = {FIRST_LAYOUT: LayoutSpec(frozenset(disks))}
    slices: tuple[SliceState, ...] = (SliceState(FIRST_LAYOUT),)
    if cluster_map.layouts and cluster_map.slices:
        layouts = {
            each.number: LayoutSpec(frozenset(disks.keys() & each.disks), frozenset(each.gone), each.weights)
            for each in cluster_map.layouts
        }
        slices = _slices(cluster_map.slices)
    return Placement(
        step=cluster_map.step,
        disks=disks,
        layouts=layouts,
        slices=slices,
        copies={bucket.id: _copies(bucket) for bucket in cluster_map.buckets},
    )


def _slices(runs: Sequence[SliceRun]) -> tuple[SliceState, ...]:
    ends = [run.first for run in runs[1:]] + [SLICES]
    return tuple(run.state for run, end in zip(runs, ends, strict=True) for _ in range(run.first, end))


def _copies(bucket: BucketEntry) -> Copies:
    return Copies(bucket.copies, bucket.written or bucket.copies, bucket.wanted or bucket.copies)


def _place(owner: Owner) -> DiskPlace:
    disk, node = owner.disk, owner.node
    return DiskPlace(
        id=disk.id,
        node=node.id,
        group=disk.group or node.id,
        domain=owner.domain,
        weight=disk.weight,
        status=_status(disk, node),
        out_of_sync_with=frozenset(disk.out_of_sync_with),
        down_step=disk.down_step,
        incarnation=disk.incarnation,
        compare=disk.compare,
        removing=disk.removing,
    )


def _status(disk: DiskEntry, node: NodeEntry) -> DiskStatus:
    if node.state == "down":
        return "down"
    if disk.state == "failed":
        return "failed"
    return "down" if disk.down_step else "up"


def decider_of(cluster_map: ClusterMap, bucket: BucketEntry, name: str) -> NodeEntry | None:
    """Return the node that decides about an object: of its one disk, up or not, or of its primary; None if there is none. Not
    remembered: for walks over many names."""
    if not bucket.has_several:
        owner = cluster_map.owner(bucket, name)
        return None if owner is None else owner.node
    primary = roles_once(placement_of(cluster_map), bucket.id, name).primary
    return None if primary is None else cluster_map.placed()[primary].node


def nodes_after(cluster_map: ClusterMap, new: Placement) -> list[NodeEntry]:
    """Return the nodes that the next placement changes, as they are in it. A node is down when all of its disks are."""
    placed, changed = cluster_map.placed(), []
    for node in cluster_map.nodes:
        own = [disk.id for disk in node.disks if disk.id in placed and placed[disk.id].node.id == node.id]
        if not own:
            continue
        entries = tuple(_entry(disk, new.disks[disk.id]) if disk.id in own else disk for disk in node.disks)
        is_down = all(new.disks[each].status == "down" for each in own)
        after = msgspec.structs.replace(node, state="down" if is_down else "up", disks=entries)
        if after != node:
            changed.append(after)
    return changed


def buckets_after(cluster_map: ClusterMap, new: Placement) -> list[BucketEntry]:
    """Return the buckets whose numbers of copies the next placement changes, as they are in it."""
    changed = []
    for bucket in cluster_map.buckets:
        copies = new.copies_of(bucket.id)
        if copies != _copies(bucket):
            others = {"written": copies.written, "wanted": copies.wanted}
            kept = {name: 0 if count == copies.reading else count for name, count in others.items()}
            changed.append(msgspec.structs.replace(bucket, copies=copies.reading, **kept))
    return changed


def layouts_after(new: Placement) -> tuple[tuple[LayoutEntry, ...], tuple[SliceRun, ...]]:
    """Return the layouts and slices of a map as they are in the next placement."""
    if len(new.slices) < SLICES:  # all objects are placed among all disks
        return (), ()
    layouts = tuple(
        LayoutEntry(
            number=number,
            disks=tuple(sorted(spec.disks)),
            gone=tuple(sorted(spec.gone)),
            weights=dict(sorted(spec.weights.items())),
        )
        for number, spec in sorted(new.layouts.items())
    )
    runs = list[SliceRun]()
    for first, state in enumerate(new.slices):
        if not runs or runs[-1].state != state:
            runs.append(SliceRun(first=first, at=state.at, to=state.to, phase=state.phase))
    return layouts, tuple(runs)


def _entry(disk: DiskEntry, place: DiskPlace) -> DiskEntry:
    states = {"up": "up", "failed": "failed", "down": disk.state}
    return msgspec.structs.replace(
        disk,
        state=states[place.status],
        out_of_sync_with=tuple(sorted(place.out_of_sync_with)),
        down_step=place.down_step,
        incarnation=place.incarnation,
        compare=place.compare,
    )


# --- Weights of disks: which share of all objects each disk is to hold, and holds. Pure.
#
# A disk joins with the weight of its size. What an operator gives it later is in its entry, and counts from the layout on to
# which objects are moved for that.


def wanted_weights(cluster_map: ClusterMap) -> dict[str, float]:
    """Return the weights of the disks that are to have another one than they joined with."""
    return {disk: owner.disk.goal for disk, owner in cluster_map.placed().items() if owner.disk.goal != owner.disk.weight}


def present_weights(cluster_map: ClusterMap) -> dict[str, float]:
    """Return by which weight each disk in placement holds its objects now; while they move, that of before."""
    placement = placement_of(cluster_map)
    numbers = sorted(placement.layouts)
    found = {}
    for disk in placement.disks:
        number = next((each for each in numbers if disk in placement.layouts[each].disks), None)
        found[disk] = cluster_map.placed()[disk].disk.goal if number is None else placement.weight_in(number, disk)
    return found


def share_out(total: float, weights: Mapping[str, float]) -> dict[str, float]:
    """Return weights in the same proportions, whose sum is this total."""
    all_of_them = math.fsum(weights.values())
    return {disk: total * (weight / all_of_them) for disk, weight in weights.items()}


# --- The layout that a cluster's objects are to come to, by what each disk is for. Pure.


def wanted_layout(cluster_map: ClusterMap) -> LayoutSpec | None:
    """Return the disks among which all objects are to be placed, with their weights; None: they are, or they are on their way
    there. While moves are paused, no disk comes or goes but those that are evicted, and none gets another weight."""
    return _wanted(cluster_map, comes_and_goes=not cluster_map.rebalance.paused)


def is_waiting(cluster_map: ClusterMap) -> bool:
    """Return whether a move is asked for that has not begun: also while moves are paused, or disks that were evicted are in
    its way."""
    if not cluster_map.layouts:
        return False
    placement = placement_of(cluster_map)
    newest = placement.layouts[max(placement.layouts)]
    placed = cluster_map.placed().items()
    gone = newest.gone | {disk for disk, owner in placed if owner.disk.evicted}
    used = {disk for disk, owner in placed if owner.disk.use == "in"} - gone
    weights = wanted_weights(cluster_map)
    differ = used != newest.disks - gone or any(weights.get(disk) != newest.weights.get(disk) for disk in used)
    differ = differ or any(placement.disks[disk].removing for disk in newest.disks)
    return _wanted(cluster_map, comes_and_goes=True) is not None or differ


def is_paused(cluster_map: ClusterMap) -> bool:
    """Return whether moves rest, since somebody has paused them. What has begun goes on until the objects of disks that were
    evicted have their copies again."""
    lost = {disk for disk, owner in cluster_map.placed().items() if owner.disk.evicted}
    return cluster_map.rebalance.paused and all(lost.intersection(each.disks) <= set(each.gone) for each in cluster_map.layouts)


def _wanted(cluster_map: ClusterMap, *, comes_and_goes: bool) -> LayoutSpec | None:
    if not cluster_map.layouts:
        return None  # all disks, whatever they are
    placed, placement = cluster_map.placed().items(), placement_of(cluster_map)
    newest = placement.layouts[max(placement.layouts)]
    evicted = {disk for disk, owner in placed if owner.disk.evicted}
    if comes_and_goes:
        used = {disk for disk, owner in placed if owner.disk.use == "in"}
        wanted = wanted_spec(placement, used, evicted, wanted_weights(cluster_map))
    else:
        evicted = evicted | newest.gone
        wanted = wanted_spec(placement, newest.disks, evicted, newest.weights, stays=newest.disks)
    return None if wanted.disks == wanted.gone or wanted == newest else wanted


def wanted_spec(
    placement: Placement,
    used: Collection[str],
    evicted: Collection[str],
    weights: Mapping[str, float],
    stays: Collection[str] = (),
) -> LayoutSpec:
    """Return the layout of the disks in use, with these weights of disks that are to have another one than they joined with.

    Those that were evicted stay if they are in any layout in force, since objects with one copy may be on them, and since
    nobody waits for a disk that the newest layout gives up, also if it was to leave. As long as there are objects with one copy
    and a disk that was evicted, no other disk comes or goes, and none gets another weight: it could become the replica of an
    object that nobody has but a disk which was evicted, and would deny it. A disk that is removed for good leaves, too, when
    all its objects with several copies have them elsewhere, unless it `stays`, or another one that was evicted must.
    """
    newest = placement.layouts[max(placement.layouts)]
    specs = placement.layouts.values()
    leaves = {disk for disk in evicted if placement.disks[disk].removing and disk not in stays}
    leaves = {disk for disk in leaves if all(disk not in spec.disks - spec.gone for spec in specs)}
    gone = frozenset(evicted).intersection(disk for spec in specs for disk in spec.disks) - leaves
    disks = frozenset(used).difference(evicted) | gone
    if gone and any(copies.reading == 1 for copies in placement.copies.values()):
        disks, weights = newest.disks, newest.weights
    return LayoutSpec(disks, disks.intersection(evicted), {disk: weight for disk, weight in weights.items() if disk in disks})


# --- The nodes from which an object can be read, in the order to ask them: for proxies, targets, clients and workers. Pure.


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


def replica_of(cluster_map: ClusterMap, bucket_id: str, name: str) -> NodeEntry | None:
    """Return the node of an object's first replica, up or down; None while no target is in placement. What is staged for it is
    there, and nowhere else."""
    if not cluster_map.is_copied(bucket_id):
        owner = cluster_map.owner_in(bucket_id, name)
        return None if owner is None else owner.node
    replicas = roles(placement_of(cluster_map), bucket_id, name).replicas
    return cluster_map.placed()[replicas[0]].node if replicas else None


def in_order(readers: list[NodeEntry], refusals: Container[str]) -> list[NodeEntry]:
    """Return the nodes in the order to ask them: those whose URLs are in `refusals` could not be reached a moment ago, and come
    last."""
    return readers if len(readers) < 2 else sorted(readers, key=lambda node: node.url in refusals)

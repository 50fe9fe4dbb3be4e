"""The placement that a cluster map describes, and the map after the next step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, LayoutEntry, NodeEntry, Owner, SliceRun
from dfc.placement.roles import roles_once
from dfc.placement.state import SLICES, Copies, DiskPlace, DiskStatus, LayoutSpec, Placement, SliceState

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
    """The state of each slice."""
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
        behind=frozenset(disk.behind),
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
        behind=tuple(sorted(place.behind)),
        down_step=place.down_step,
        incarnation=place.incarnation,
        compare=place.compare,
    )

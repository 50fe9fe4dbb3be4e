"""Small placements for tests of replication, and what maps say of targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dfc.placement.map import DiskEntry, DiskUse, NodeEntry
from dfc.placement.roles import Copies, DiskPlace, LayoutSpec, Placement, SliceState

BUCKET = "bucket-id"


def node_entry(name: str, *disks: DiskEntry | str, **changes: Any) -> NodeEntry:
    """A target that is up, with the number in its name; disks that have only ids have the weight 1."""
    entries = tuple(DiskEntry(id=each, weight=1.0, group=name) if isinstance(each, str) else each for each in disks)
    given = {"id": name, "number": int(name[1:]), "url": f"http://{name}:1", "advertise_url": f"http://{name}:1", **changes}
    return NodeEntry(**{"role": "target", "state": "up", "disks": entries, **given})


def one_disk_each(disks: Iterable[str], uses: Mapping[str, DiskUse], more: Mapping[str, Any]) -> tuple[NodeEntry, ...]:
    """Targets with a disk each; disks are in use unless `uses` says otherwise."""
    return tuple(
        node_entry(name, DiskEntry(id=disk, weight=1.0, group=name, use=uses.get(disk, "in"), **more[disk]))
        for name, disk in ((f"t{number}", disk) for number, disk in enumerate(disks))
    )


def place(disk: str, **changes: Any) -> DiskPlace:
    """A disk `n1a` of the node `n1`."""
    return DiskPlace(
        **{"id": disk, "node": disk[:-1], "group": disk[:-1], "domain": disk[:-1], "incarnation": "first", **changes}
    )


def placement(*disks: DiskPlace | str, copies: int = 2, slices: int = 1, step: int = 1) -> Placement:
    """One layout over all of these disks."""
    places = [place(each) if isinstance(each, str) else each for each in disks]
    return Placement(
        step=step,
        disks={each.id: each for each in places},
        layouts={1: LayoutSpec(frozenset(each.id for each in places))},
        slices=(SliceState(1),) * slices,
        copies={BUCKET: Copies.of(copies)},
    )


def with_disk(before: Placement, disk: str, **changes: Any) -> Placement:
    """The next step, in which a disk is otherwise."""
    new = msgspec.structs.replace(before.disks[disk], **changes)
    return msgspec.structs.replace(before, step=before.step + 1, disks={**before.disks, disk: new})


def with_slices(before: Placement, state: SliceState, **layouts: frozenset[str]) -> Placement:
    """The next step, in which all slices are in this state; `to=frozenset(…)` is layout 2."""
    found = dict(before.layouts)
    for each in layouts.values():
        found[2] = LayoutSpec(each)
    return msgspec.structs.replace(before, step=before.step + 1, layouts=found, slices=(state,) * len(before.slices))

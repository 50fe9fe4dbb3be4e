"""What targets say to a registry, and a registry that is a value: changes applied one after another, nothing kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dfc.placement.map import BucketEntry, ClusterMap, DiskEntry, NodeEntry
from dfc.placement.mapped import placement_of
from dfc.placement.roles import SLICES, LayoutSpec
from dfc.registry import changes
from dfc.registry.changes import Change, RegistryState, check_step
from dfc.registry.messages import Registration
from dfc.replication import transitions
from dfc.wire import PROTOCOL

CLUSTER = "0123456789abcdef"


def said(node: str = "t1", disks: Any = ("d1",), cluster_id: str = CLUSTER, **fields: Any) -> Registration:
    """A registration of a target with disks; `fields` replace what it says."""
    entries = tuple(disk if isinstance(disk, DiskEntry) else DiskEntry(id=disk, weight=1.0, capacity=100) for disk in disks)
    values = {
        "node_id": node,
        "role": "target",
        "url": f"http://{node}:1",
        "advertise_url": f"http://{node}.example:1",
        "cluster_id": cluster_id,
        "protocol": PROTOCOL,
        "disks": entries,
        **fields,
    }
    return Registration(**values)


def target_entry(name: str, number: int = 1, **fields: Any) -> NodeEntry:
    """A target that is up, in a map."""
    values = {"role": "target", "url": f"http://{name}", "advertise_url": "", "state": "up", **fields}
    return NodeEntry(id=name, number=number, **values)


def bucket(name: str, number: int = 0, **fields: Any) -> BucketEntry:
    """A bucket to be made; buckets of one name are told apart by their numbers."""
    return BucketEntry(id=f"{name}-{number}", name=name, created="2023-11-14T22:13:20.000Z", **fields)


class Kept:
    """Something that keeps a state, with the changes as methods. This one keeps it in memory."""

    def __init__(self) -> None:
        self.state = RegistryState(map=ClusterMap(cluster_id=CLUSTER, version=1))

    def apply(self, change: Change) -> RegistryState:
        new = change(self.state)
        if new is not self.state:
            check_step(self.state, new)
        self.state = new
        return new

    @property
    def map(self) -> ClusterMap:
        return self.state.map

    def say(self, node: str = "t1", disks: Any = ("d1",), **fields: Any) -> int:
        """Register, and take the steps that follow; the number of the node."""
        registration = said(node, disks, **{"cluster_id": self.map.cluster_id, **fields})
        self.apply(changes.join(registration))
        writable = {disk.id: disk.incarnation for disk in registration.disks if disk.state == "up"}
        self.step(transitions.bring_up(node, writable))
        for disk in placement_of(self.map).disks_of(node):
            if disk.id not in writable:
                self.step(transitions.put_failed(disk.id))
        found = self.map.node(node)
        assert found is not None
        return found.number

    def say_each(self, *numbers: int) -> list[int]:
        """Targets `t1`, `t2` … with a disk each, `d1`, `d2` …; the numbers of the nodes."""
        return [self.say(f"t{number}", (f"d{number}",)) for number in numbers]

    def move(self, spec: LayoutSpec) -> None:
        """Take all steps of a move to this layout."""
        for change in (transitions.start_move(spec), *[transitions.hand_over([*range(SLICES)])] * 3):
            self.step(change)

    def step(self, change: transitions.Change, seen: Sequence[NodeEntry] = ()) -> None:
        """Take the step that a change makes, if it makes one."""
        before = placement_of(self.map)
        after = change(before)
        if after != before:
            self.apply(changes.take_step(before, msgspec.structs.replace(after, step=before.step + 1), seen))

    def mark_down(self, *nodes: str) -> None:
        self.step(transitions.declare_down(set(nodes)), [node for node in self.map.nodes if node.id in nodes])

    def create_bucket(self, name: str, number: int = 0, **fields: Any) -> BucketEntry:
        return self._bucket(changes.create_bucket(bucket(name, number, **fields)), name)

    def ensure_bucket(self, name: str, number: int = 0) -> BucketEntry:
        return self._bucket(changes.ensure_bucket(bucket(name, number)), name)

    def change_bucket(self, name: str, **fields: Any) -> BucketEntry:
        return self._bucket(changes.change_bucket(name, **fields), name)

    def _bucket(self, change: Change, name: str) -> BucketEntry:
        found = self.apply(change).map.bucket(name)
        assert found is not None
        return found

    def remove_bucket(self, name: str, bucket_id: str) -> None:
        self.apply(changes.remove_bucket(name, bucket_id))

"""The cluster map: nodes, disks and buckets under one version number. An immutable value; the registry makes new ones.

Disks that are not in use yet are in the map but in no layout, so nothing is placed on them. A node that is `down` stays in
placement: its objects are served by other copies or are unavailable, but are not moved elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from typing import Annotated, Final, Literal

import msgspec

from dfc.limits import MOVE_BYTES_PER_S, WEIGHT_MAX, WEIGHT_MIN
from dfc.placement.rendezvous import Layout, LayoutDisk
from dfc.placement.roles import SLICES, Phase, SliceState, layout_of, slice_number

NodeState = Literal["up", "down"]
DiskState = Literal["up", "failed"]
# What a disk is for: "new" ones wait until objects are placed on them, those that are "out" are given none any more.
DiskUse = Literal["in", "new", "out"]
Role = Literal["proxy", "target"]
Durability = Literal["fsync", "relaxed"]
# "checking": DFC is checking whether it may be deleted; commits must be retried.
BucketState = Literal["active", "checking", "deleting"]

# Constraints on the map: an unusable weight or a malformed address in it would break it for good.
Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
Url = Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s/?#@\"'<>]+(/[^\s?#\"'<>]*)?$")]
Weight = Annotated[float, msgspec.Meta(ge=WEIGHT_MIN, le=WEIGHT_MAX)]
OtherWeight = Annotated[float, msgspec.Meta(ge=0, le=WEIGHT_MAX)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Label = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{0,64}$")]
SliceNumber = Annotated[int, msgspec.Meta(ge=0, lt=SLICES)]

_ENCODER: Final = msgspec.json.Encoder()


class DiskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A disk as the registry knows it.

    Id, weight and `group` are fixed when it joins. `wanted_weight` is the weight that it is to have in the end, 0 for that with
    which it joined; the layouts say which one counts. `group` is the id of the node with which it joined; placement goes by
    that, so a disk that is moved to another node keeps its objects. `domain` is the failure domain that placement goes by,
    fixed while any bucket has copies; empty: that of the node's labels. `capacity`, `used` and `objects`
    are of the last heartbeat, in bytes and numbers; so is `file_system`, an id that disks share if they share the file system,
    and its space; empty if it is not known. `evicted`: it was away for long, and objects with several copies are
    placed as if it were lost. `removing`: somebody has said that it is lost for good, and leaves the cluster, with all that
    nothing else has. `removed`: ids of buckets that were removed without it, so that it may have objects of them. The rest only
    the coordinator changes: see `dfc.placement.roles.DiskPlace`.
    """

    id: Id
    weight: Weight
    wanted_weight: OtherWeight = 0.0
    group: str = ""
    domain: str = ""
    state: DiskState = "up"
    use: DiskUse = "in"
    evicted: bool = False
    removing: bool = False
    removed: tuple[Id, ...] = ()
    capacity: Count = 0
    used: Count = 0
    objects: Count = 0
    file_system: Label = ""
    incarnation: Label = ""
    down_step: Count = 0
    out_of_sync_with: tuple[Id, ...] = ()
    compare: Label = ""

    @property
    def goal(self) -> float:
        """The weight that it is to have."""
        return self.wanted_weight or self.weight


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """Where a node is, by its settings: nodes with the same `zone`, or if none is set the same `host`, may fail together."""

    zone: Label = ""
    host: Label = ""

    def domain(self, node_id: str) -> str:
        """The failure domain that they name: zone if set, else host if set, else the node itself."""
        if self.zone:
            return f"zone {self.zone}"
        return f"host {self.host}" if self.host else f"node {node_id}"


class NodeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A node: `url` is for other nodes, `advertise_url` for clients. `number` is its part of object versions. If it is down, it
    is expected to be back by `expected_by`, in seconds since 1970, and not evicted before; 0: nobody has said so.
    `protocol`: what it understands of other nodes (`dfc.wire`)."""

    id: str
    number: int
    role: Role
    url: str
    advertise_url: str
    state: NodeState
    last_heartbeat: str = ""
    disks: tuple[DiskEntry, ...] = ()
    labels: Labels = Labels()
    expected_by: Count = 0
    protocol: Count = 1

    @property
    def domain(self) -> str:
        """The failure domain by its labels. What counts is that of each disk: see `Owner.domain`."""
        return self.labels.domain(self.id)

    def domain_of(self, disk: DiskEntry) -> str:
        """The failure domain that placement goes by for one of its disks."""
        return disk.domain or self.domain


def usage_of(nodes: Iterable[NodeEntry]) -> tuple[int, int]:
    """Return how many bytes are used of their disks, and of how many. A file system that disks share counts once."""
    found: dict[str, DiskEntry] = {}
    for disk in (disk for node in nodes for disk in node.disks):
        key = f"file system {disk.file_system}" if disk.file_system else f"disk {disk.id}"
        found[key] = max(disk, found.get(key, disk), key=lambda each: (each.capacity, each.used))
    return sum(disk.used for disk in found.values()), sum(disk.capacity for disk in found.values())


class BucketEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket. If it is deleted and created again under the same name, it gets a new id.

    `copies` of each object are complete; `written` are written and `wanted` are wanted, 0 where these are the same. A write
    needs `min_copies` while targets are down; 0: half of what is written. `is_moving`: the map has slices that move.
    """

    id: str
    name: str
    copies: int = 1
    written: int = 0
    wanted: int = 0
    min_copies: int = 0
    durability: Durability = "fsync"
    state: BucketState = "active"
    created: str = ""
    is_moving: bool = False

    @property
    def has_several(self) -> bool:
        """Whether several disks may have an object now: it has, or gets, more than one copy, or is being moved."""
        return self.copies > 1 or self.written > 1 or self.is_moving

    @property
    def goal(self) -> int:
        """How many copies each object is to have."""
        return self.wanted or self.copies

    @property
    def least(self) -> int:
        """How many copies an acknowledged write has at least. Never more than are written: while the number of copies rises, a
        larger `min_copies` waits for it."""
        written = max(self.copies, self.written)
        return min(self.min_copies, written) or (written + 1) // 2


class LayoutEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The disks among which objects are placed, under a number that never means others. Those in `gone` hold nothing. `weights`
    has the disks whose weight in it is not the one with which they joined."""

    number: Count
    disks: tuple[Id, ...]
    gone: tuple[Id, ...] = ()
    weights: dict[Id, Weight] = {}


class SliceRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Slices from `first` up to the first of the next run, all in one state (`dfc.placement.roles.SliceState`)."""

    first: SliceNumber
    at: Count
    to: Count | None = None
    phase: Phase = "done"

    @property
    def state(self) -> SliceState:
        return SliceState(self.at, self.to, self.phase)


class RebalanceEntry(msgspec.Struct, frozen=True, kw_only=True):
    """How objects are moved: not at the moment (`paused`), or with about so many bytes a second from each disk; 0: with as many
    as there can be."""

    paused: bool = False
    rate_bytes_per_s: Count = MOVE_BYTES_PER_S


class Owner(msgspec.Struct, frozen=True):
    """Where an object belongs: one disk of one node."""

    disk: DiskEntry
    node: NodeEntry

    @property
    def domain(self) -> str:
        """The failure domain that placement goes by."""
        return self.node.domain_of(self.disk)


class Cover(msgspec.Struct, frozen=True):
    """The targets to `ask` for a complete answer about all objects. If there are any in `missing`, the answer cannot be
    complete, since those would have to answer too. Both are ordered by id."""

    ask: tuple[NodeEntry, ...]
    missing: tuple[NodeEntry, ...]


class ClusterMap(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One version of the cluster map. `step` counts only the changes that move the right to read or write.

    `layouts` has the layouts in force, and `slices` says which of them is for which slice of names: runs in order, from slice
    0. Both are empty as long as all objects are placed among all disks. `removed_disks` were lost and removed for good: none of
    these ids may come again.
    """

    cluster_id: str
    version: int
    step: int = 0
    nodes: tuple[NodeEntry, ...] = ()
    buckets: tuple[BucketEntry, ...] = ()
    layouts: tuple[LayoutEntry, ...] = ()
    slices: tuple[SliceRun, ...] = ()
    rebalance: RebalanceEntry = RebalanceEntry()
    removed_disks: tuple[Id, ...] = ()

    def __post_init__(self) -> None:
        owners = [Owner(disk, node) for node in self.nodes if node.role == "target" for disk in node.disks]
        cache = self.__dict__
        cache["_by_name"] = {bucket.name: bucket for bucket in self.buckets}
        cache["_by_id"] = {bucket.id: bucket for bucket in self.buckets}
        by_id = cache["_owners"] = {owner.disk.id: owner for owner in owners}
        if self.layouts and self.slices:
            cache["_layouts"] = {each.number: _layout(by_id, each.disks, each.weights) for each in self.layouts}
            cache["_firsts"] = [run.first for run in self.slices]
            held = {disk for each in self.layouts for disk in each.disks if disk not in each.gone}
            has_one = any(bucket.copies == 1 for bucket in self.buckets)  # of those, a disk that is gone may have the only copy
            used = {disk for each in self.layouts for disk in each.disks} if has_one else held
            cache["_in_use"], cache["_may_hold_copies"] = used & by_id.keys(), held & by_id.keys()
        else:
            cache["_layouts"] = {0: _layout(by_id, by_id, {})}
            cache["_in_use"] = cache["_may_hold_copies"] = by_id.keys()
        cache["_layout"] = next(iter(cache["_layouts"].values())) if len(self.slices) < 2 and not self.is_moving else None

    def with_use(self, *reported: NodeEntry) -> ClusterMap:
        """Return the map with the disk usage of these nodes' last heartbeats. That moves no objects, so the indexes, which take
        milliseconds with a thousand disks, are shared; owners keep their old usage."""
        new = copy(self)
        by_id = {node.id: node for node in reported}
        nodes = tuple(by_id.get(each.id, each) for each in self.nodes)
        msgspec.structs.force_setattr(new, "nodes", nodes)
        new.__dict__.update(self.__dict__)
        return new

    @classmethod
    def decode(cls, data: bytes) -> ClusterMap:
        """Decode the JSON of `GET /v1/cluster`, ignoring unknown fields; msgspec.ValidationError when it is not a map."""
        return _DECODER.decode(data)

    def encode(self) -> bytes:
        return _ENCODER.encode(self)

    def bucket(self, name: str) -> BucketEntry | None:
        found: BucketEntry | None = self.__dict__["_by_name"].get(name)
        return found

    def bucket_of(self, bucket_id: str) -> BucketEntry | None:
        """Return the bucket with an id."""
        found: BucketEntry | None = self.__dict__["_by_id"].get(bucket_id)
        return found

    def has_bucket(self, bucket_id: str) -> bool:
        """Return whether there is a bucket with this id that is not being deleted."""
        bucket = self.bucket_of(bucket_id)
        return bucket is not None and bucket.state != "deleting"

    def is_copied(self, bucket_id: str) -> bool:
        """Return whether several disks may have an object of this bucket. Of a bucket that is younger than this map, one."""
        bucket = self.bucket_of(bucket_id)
        return self.is_moving if bucket is None else bucket.has_several

    @property
    def has_copies(self) -> bool:
        """Whether any bucket has, gets or wants more than one copy of its objects. Only then it matters what fails as one."""
        return any(max(bucket.copies, bucket.written, bucket.wanted) > 1 for bucket in self.buckets)

    @property
    def is_moving(self) -> bool:
        """Whether any slice moves to another layout. Then objects with one copy are handled like others, too."""
        return any(run.to is not None for run in self.slices)

    def owner(self, bucket: BucketEntry, name: str) -> Owner | None:
        """Return the disk and node that own an object: its first replica. None while no target is in placement."""
        return self.owner_in(bucket.id, name)

    def owner_in(self, bucket_id: str, name: str) -> Owner | None:
        """Return the same as `owner`, also for a bucket that is younger than this map."""
        disk_id = self._layout_for(bucket_id, name).best(bucket_id, name)
        found: Owner | None = self.__dict__["_owners"].get(disk_id)
        return found

    def owners(self, bucket: BucketEntry, name: str, count: int, without: Collection[str] = ()) -> list[Owner]:
        """Return the first `count` disks for an object in different failure domains, with their nodes, skipping disks whose ids
        are in `without`; fewer if there are fewer domains."""
        owners = self.__dict__["_owners"]
        layout = self._layout_for(bucket.id, name)
        return [owners[disk_id] for disk_id in layout.owners(bucket.id, name, count, without)]

    def _layout_for(self, bucket_id: str, name: str) -> Layout:
        """The layout by which an object is read."""
        layout: Layout | None = self.__dict__["_layout"]
        if layout is None:
            layouts, firsts = self.__dict__["_layouts"], self.__dict__["_firsts"]
            run = self.slices[bisect_right(firsts, slice_number(bucket_id, name)) - 1]
            layout = layouts[run.state.reading]
        return layout

    def placed(self) -> dict[str, Owner]:
        """Return the disks in placement, by id: those of the layouts, and those that may be in a later one."""
        found: dict[str, Owner] = self.__dict__["_owners"]
        return found

    def in_use(self) -> Collection[str]:
        """Return the ids of the disks in a layout in force: only they may hold objects that count. Those that are gone may hold
        only objects with one copy."""
        found: Collection[str] = self.__dict__["_in_use"]
        return found

    def may_hold_copies(self) -> Collection[str]:
        """Return the ids of the disks in a layout in force that are not gone: they may hold objects with several copies."""
        found: Collection[str] = self.__dict__["_may_hold_copies"]
        return found

    def targets(self) -> list[NodeEntry]:
        """Return the targets with disks in placement, up or down, ordered by id."""
        return self._holders(self.__dict__["_owners"])

    def holders(self) -> list[NodeEntry]:
        """Return the targets that may hold objects, up or down, ordered by id."""
        return self._holders(self.in_use())

    def _holders(self, disks: Collection[str]) -> list[NodeEntry]:
        owners = self.__dict__["_owners"]
        holders = {owners[disk].node.id for disk in disks}
        return sorted((node for node in self.nodes if node.id in holders), key=lambda node: node.id)

    def cover(self) -> Cover:
        """Return the targets that must answer for a complete result: every target that may hold objects, as if objects had one
        copy."""
        targets = self.holders()
        return Cover(
            tuple(node for node in targets if node.state == "up"), tuple(node for node in targets if node.state != "up")
        )

    def node(self, node_id: str) -> NodeEntry | None:
        return next((node for node in self.nodes if node.id == node_id), None)

    def url_of(self, node_id: str) -> str | None:
        return next((node.url for node in self.nodes if node.id == node_id), None)


def _layout(owners: Mapping[str, Owner], disks: Collection[str], weights: Mapping[str, float]) -> Layout:
    places = (owners[each] for each in sorted(disks) if each in owners)
    return layout_of(tuple(_layout_disk(each, weights) for each in places))


def _layout_disk(owner: Owner, weights: Mapping[str, float]) -> LayoutDisk:
    disk = owner.disk
    return LayoutDisk(disk.id, weights.get(disk.id, disk.weight), disk.group or owner.node.id, owner.domain)


_DECODER: Final = msgspec.json.Decoder(ClusterMap)
EMPTY_MAP: Final = ClusterMap(cluster_id="", version=0)

"""The messages between a node and the registry: the registration, which is also the heartbeat, and its answer."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from dfc.placement.map import ClusterMap, Count, DiskEntry, Id, Label, Labels, NodeEntry, Role, Url

NODE_DISKS_MAX: Final = 1000  # placement hashes once per disk of a node
OWED_DISKS_MAX: Final = 1000  # those that lack most: a heartbeat must not grow beyond what is taken
_SAID: Final = ("url", "advertise_url", "role", "labels", "protocol")  # fields of the map that come from the node itself


class DiskNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """What a heartbeat says about a disk for the state of the cluster.

    `alone`: objects of which only this disk is read, in buckets with one copy. `first`: objects with several copies, and whose
    first home this disk is. `quarantined`: objects whose bytes are gone or wrong. `is_full`: uploads get no space.
    `orphan_alarm`: too many files without a row. `log_torn`: a power loss may have cost rows. `divergence_alarms`: copies
    elsewhere that contradict it. Counted by the step `counted_step` (0: nothing yet): `one_left` and `missing`, objects of
    which it is the primary and there is one copy, or fewer than wanted.
    """

    id: Id
    alone: Count = 0
    first: Count = 0
    quarantined: Count = 0
    is_full: bool = False
    orphan_alarm: bool = False
    log_torn: bool = False
    divergence_alarms: Count = 0
    counted_step: Count = 0
    one_left: Count = 0
    missing: Count = 0


class Registration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node's description of itself, sent at first and with every heartbeat.

    `protocol`: what it understands of other nodes (`dfc.wire`). `map_version`: the version of its map. `step`: the newest one
    by which it decides, and by nothing older any more.
    `now_us`: its wall clock, in microseconds since 1970; 0: not told. `process`: a random name of the process that speaks,
    another one after each start; empty: not told. `starting`: its disks are not open yet. `leaving`: it has given up its lease
    and is about to end. `numbers`, and `owed`, how many rows other disks lack by its notes, and `owed_later`, how many they are
    to have since objects move to them: for the state of the cluster; nothing is decided by them. `epochs`: how far its disks
    have come (`Disk.tell_epoch`); `rolled_back`: those that were put back to an earlier state and lack something; `unaccepted`:
    those of them that have lost what no other disk has.
    """

    node_id: Id
    role: Role
    url: Url
    advertise_url: Url
    cluster_id: str
    protocol: Annotated[int, msgspec.Meta(ge=1)] = 1
    map_version: int = 0
    step: int = 0
    now_us: int = 0
    process: Label = ""
    starting: bool = False
    leaving: bool = False
    disks: Annotated[tuple[DiskEntry, ...], msgspec.Meta(max_length=NODE_DISKS_MAX)] = ()
    labels: Labels = Labels()
    numbers: Annotated[tuple[DiskNumbers, ...], msgspec.Meta(max_length=NODE_DISKS_MAX)] = ()
    owed: Annotated[dict[Id, Count], msgspec.Meta(max_length=OWED_DISKS_MAX)] = {}
    owed_later: Annotated[dict[Id, Count], msgspec.Meta(max_length=OWED_DISKS_MAX)] = {}
    epochs: Annotated[dict[Id, Count], msgspec.Meta(max_length=NODE_DISKS_MAX)] = {}
    rolled_back: Annotated[tuple[Id, ...], msgspec.Meta(max_length=NODE_DISKS_MAX)] = ()
    unaccepted: Annotated[tuple[Id, ...], msgspec.Meta(max_length=NODE_DISKS_MAX)] = ()


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The registry's answer; it contains the `map` only when the node's is older.

    The node may act for `lease_s` seconds from when it sent its message, by `dfc.registry.leases.boot_s`; if that is 0,
    `why_no_lease` says why, unless the node is not up yet. `is_shared`: there may be other proxies, of whose changes this one
    has not heard yet. `jobs_scheduler`: by what workers beside targets reach the scheduler that the coordinator runs now;
    empty: it runs none. `proxy_url`: where clients reach the proxy that answers. `older`: disks of the node that have come less
    far than was reported before, and how far that was: they were put back to an earlier state.
    """

    node_number: int
    map: ClusterMap | None = None
    lease_s: float = 0.0
    why_no_lease: str = ""
    is_shared: bool = False
    jobs_scheduler: str = ""
    proxy_url: str = ""
    older: dict[Id, Count] = {}


class MapTaken(msgspec.Struct, frozen=True):
    """A target's answer to a map that was sent to it: the version and the step that it decides by, and by nothing older."""

    version: int
    step: int = 0


def removed_for_good(cluster_map: ClusterMap) -> set[str]:
    """Return the ids of lost disks that were removed, or are about to be: what a target says of them counts for nothing, since
    what is on them may have been deleted."""
    leaving = {disk.id for node in cluster_map.nodes for disk in node.disks if disk.removing}
    return leaving.union(cluster_map.removed_disks)


def is_known(cluster_map: ClusterMap, said: Registration) -> bool:
    """Whether a heartbeat tells the registry nothing new but disk usage, so that the map stays the same: most heartbeats. What
    disks in placement may do is up to the coordinator."""
    node = cluster_map.node(said.node_id)
    if node is None or any(getattr(node, each) != getattr(said, each) for each in _SAID):
        return False
    removed = removed_for_good(cluster_map)
    reported = {disk.id: disk for disk in said.disks if disk.id not in removed}
    kept = {disk.id: disk for disk in node.disks}
    if reported.keys() - kept.keys():
        return False
    if any(disk.incarnation and not kept[disk.id].incarnation for disk in reported.values()):
        return False
    # The labels of before counted as long as there were copies.
    return cluster_map.has_copies or all(node.domain_of(disk) == node.domain for disk in node.disks)


def with_use(node: NodeEntry, reported: tuple[DiskEntry, ...], heartbeat: str) -> NodeEntry:
    """Return the node with the disk usage that it reported at the time `heartbeat`."""
    use = {disk.id: disk for disk in reported}
    disks = tuple(_refilled(disk, use.get(disk.id)) for disk in node.disks)
    return msgspec.structs.replace(node, disks=disks, last_heartbeat=heartbeat)


def use_of(disk: DiskEntry) -> dict[str, Any]:
    """What a heartbeat tells of a disk, and the registry takes as it is."""
    return {"capacity": disk.capacity, "used": disk.used, "objects": disk.objects, "file_system": disk.file_system}


def _refilled(disk: DiskEntry, use: DiskEntry | None) -> DiskEntry:
    if use is None:
        return disk
    return msgspec.structs.replace(disk, **use_of(use))

"""The messages between a node and the registry: the registration, which is also the heartbeat, and its answer."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from dfc.placement.map import ClusterMap, DiskEntry, Id, Labels, NodeEntry, Role, Url

NODE_DISKS_MAX: Final = 1000  # placement hashes once per disk of a node
_SAID: Final = ("url", "advertise_url", "role", "labels")  # fields of the map that come from the node itself


class Registration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node's description of itself, sent at first and with every heartbeat.

    `map_version`: the version of its map. `now_us`: its wall clock, in microseconds since 1970; 0: not told.
    """

    node_id: Id
    role: Role
    url: Url
    advertise_url: Url
    cluster_id: str
    map_version: int = 0
    now_us: int = 0
    disks: Annotated[tuple[DiskEntry, ...], msgspec.Meta(max_length=NODE_DISKS_MAX)] = ()
    labels: Labels = Labels()


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The registry's answer; it contains the `map` only when the node's is older.

    The node may act for `lease_s` seconds from when it sent its message, by `dfc.registry.leases.boot_s`; if that is 0,
    `why_no_lease` says why, unless the node is not up yet.
    """

    node_number: int
    map: ClusterMap | None = None
    lease_s: float = 0.0
    why_no_lease: str = ""


def is_known(node: NodeEntry | None, said: Registration) -> bool:
    """Whether a heartbeat changes nothing but disk usage, so that the map stays the same: most heartbeats."""
    if node is None or node.state == "down" or any(getattr(node, each) != getattr(said, each) for each in _SAID):
        return False
    reported = {disk.id: disk.state for disk in said.disks}
    kept = {disk.id: disk.state for disk in node.disks}
    if reported.keys() - kept.keys():
        return False
    return all(state == "joining" or reported.get(disk_id, "failed") == state for disk_id, state in kept.items())


def with_use(node: NodeEntry, reported: tuple[DiskEntry, ...], heartbeat: str) -> NodeEntry:
    """Return the node with the disk usage that it reported at the time `heartbeat`."""
    use = {disk.id: disk for disk in reported}
    disks = tuple(_refilled(disk, use.get(disk.id)) for disk in node.disks)
    return msgspec.structs.replace(node, disks=disks, last_heartbeat=heartbeat)


def _refilled(disk: DiskEntry, use: DiskEntry | None) -> DiskEntry:
    if use is None:
        return disk
    return msgspec.structs.replace(disk, capacity=use.capacity, used=use.used, objects=use.objects)

"""What a node and the registry say to each other over HTTP: the registration, which is the heartbeat too, and its answer."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from dfc.placement.map import ClusterMap, DiskEntry, Id, Labels, NodeEntry, Role, Url

NODE_DISKS_MAX: Final = 1000  # placing hashes once a disk of a node
_SAID: Final = ("url", "advertise_url", "role", "labels")  # what the map has from the node's own words


class Registration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node says of itself, first and with every heartbeat. `map_version` is the map that it has."""

    node_id: Id
    role: Role
    url: Url
    advertise_url: Url
    cluster_id: str
    map_version: int = 0
    disks: Annotated[tuple[DiskEntry, ...], msgspec.Meta(max_length=NODE_DISKS_MAX)] = ()
    labels: Labels = Labels()


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The registry's answer; `map` only when the node's is older."""

    node_number: int
    map: ClusterMap | None = None


def is_known(node: NodeEntry | None, said: Registration) -> bool:
    """Whether the map has all of it but the use of disks: most heartbeats, which then are no change of the map."""
    if node is None or node.state == "down" or any(getattr(node, each) != getattr(said, each) for each in _SAID):
        return False
    reported = {disk.id: disk.state for disk in said.disks}
    kept = {disk.id: disk.state for disk in node.disks}
    if reported.keys() - kept.keys():
        return False
    return all(state == "joining" or reported.get(disk_id, "failed") == state for disk_id, state in kept.items())


def with_use(node: NodeEntry, reported: tuple[DiskEntry, ...], heartbeat: str) -> NodeEntry:
    """The node with how full its disks are, as it has reported at the time `heartbeat`."""
    use = {disk.id: disk for disk in reported}
    disks = tuple(_refilled(disk, use.get(disk.id)) for disk in node.disks)
    return msgspec.structs.replace(node, disks=disks, last_heartbeat=heartbeat)


def _refilled(disk: DiskEntry, use: DiskEntry | None) -> DiskEntry:
    if use is None:
        return disk
    return msgspec.structs.replace(disk, capacity=use.capacity, used=use.used, objects=use.objects)

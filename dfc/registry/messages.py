"""Messages between targets, coordinator and registry, and the files of a node that say which one it is."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from dfc.errors import OperatorError
from dfc.filesystem import FileSystem, SmallFileDamaged, read_small_file, write_small_file
from dfc.limits import CLUSTER_MAP_BYTES_MAX
from dfc.placement.map import ClusterMap, Count, DiskEntry, Id, Label, Labels, NodeEntry, Role, SliceNumber, Url
from dfc.placement.roles import SLICES

NODE_DISKS_MAX: Final = 1000  # placement hashes once per disk of a node
HINTED_DISKS_MAX: Final = 1000  # those that lack most: a heartbeat must not grow beyond what is taken
_SAID: Final = ("url", "advertise_url", "role", "labels", "protocol")  # fields of the map that come from the node itself


class DiskNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """What a heartbeat says about a disk for the state of the cluster.

    `alone`: objects of which only this disk is read, in buckets with one copy. `first`: objects with several copies, and whose
    first replica this disk is. `quarantined`: objects whose bytes are gone or wrong. `is_full`: uploads get no space.
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
    another one after each start; empty: not told. `starting`: its disks are not open yet. `leaving`: it has evicted its lease
    and is about to end. `numbers`, and `hints`, how many rows other disks lack by its hints, and `hints_later`, how many they
    are to have since objects move to them: for the state of the cluster; nothing is decided by them. `epochs`: how far its
    disks have come (`Disk.tell_epoch`); `rolled_back`: those that were put back to an earlier state and lack something;
    `unaccepted`: those of them that have lost what no other disk has."""

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
    hints: Annotated[dict[Id, Count], msgspec.Meta(max_length=HINTED_DISKS_MAX)] = {}
    hints_later: Annotated[dict[Id, Count], msgspec.Meta(max_length=HINTED_DISKS_MAX)] = {}
    epochs: Annotated[dict[Id, Count], msgspec.Meta(max_length=NODE_DISKS_MAX)] = {}
    rolled_back: Annotated[tuple[Id, ...], msgspec.Meta(max_length=NODE_DISKS_MAX)] = ()
    unaccepted: Annotated[tuple[Id, ...], msgspec.Meta(max_length=NODE_DISKS_MAX)] = ()


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """The registry's answer; it contains the `map` only when the node's is older.

    The node may act for `lease_s` seconds from when it sent its message, by `dfc.registry.base.boot_s`; if that is 0,
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


def is_known(cluster_map: ClusterMap, heartbeat: Registration) -> bool:
    """Whether a heartbeat tells the registry nothing new but disk usage, so that the map stays the same: most heartbeats. What
    disks in placement may do is up to the coordinator."""
    node = cluster_map.node(heartbeat.node_id)
    if node is None or any(getattr(node, each) != getattr(heartbeat, each) for each in _SAID):
        return False
    removed = removed_for_good(cluster_map)
    reported = {disk.id: disk for disk in heartbeat.disks if disk.id not in removed}
    kept = {disk.id: disk for disk in node.disks}
    if reported.keys() - kept.keys():
        return False
    if any(disk.incarnation and not kept[disk.id].incarnation for disk in reported.values()):
        return False
    # The labels of before counted as long as there were copies.
    return cluster_map.has_copies or all(node.domain_of(disk) == node.domain for disk in node.disks)


def with_use(node: NodeEntry, reported: tuple[DiskEntry, ...], heartbeat: str) -> NodeEntry:
    """Return the node with the disk usage that it reported at the time `heartbeat`."""
    use = {disk.id: use_of(disk) for disk in reported}
    disks = tuple(msgspec.structs.replace(disk, **use[disk.id]) if disk.id in use else disk for disk in node.disks)
    return msgspec.structs.replace(node, disks=disks, last_heartbeat=heartbeat)


def use_of(disk: DiskEntry) -> dict[str, Any]:
    """What a heartbeat tells of a disk, and the registry takes as it is."""
    return {"capacity": disk.capacity, "used": disk.used, "objects": disk.objects, "file_system": disk.file_system}


# --- What targets tell the coordinator about their disks, besides heartbeats: who lacks what, and who lacks nothing any more;
# and what it tells the other proxies of what it has heard.

SliceReadiness = Literal["copied", "moved"]


class CoordinatorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator tells other proxies: the map with how full disks are, and the highest version of it that any target
    knows; 0: it has heard none yet."""

    map: ClusterMap
    newest_version: int


class OutOfSyncReport(msgspec.Struct, frozen=True, kw_only=True):
    """The disk `primary` has a write that `disk` must have and cannot be given now."""

    primary: Id
    disk: Id


class CleanReport(msgspec.Struct, frozen=True, kw_only=True):
    """By this step, `disk` has no hints left for the disk `caught_up`, and will not skip it without asking, as long as its
    target runs: `process` is the random name in heartbeats."""

    disk: Id
    caught_up: Id
    step: int
    process: Label = ""


class RaisedReport(msgspec.Struct, frozen=True, kw_only=True):
    """By this step, `disk` has no hints left for the new replicas of a bucket's objects, which are to have so many copies."""

    disk: Id
    bucket_id: Id
    copies: Annotated[int, msgspec.Meta(ge=1)]
    step: int


class ClearedReport(msgspec.Struct, frozen=True, kw_only=True):
    """By this step, `disk`, which was evicted and is back, has nothing any more that does not belong there."""

    disk: Id
    step: int


class SlicesReport(msgspec.Struct, frozen=True, kw_only=True):
    """By this step, `disk` has no hints left for the replicas of these slices by the layout `to`: they can be handed over, from
    `copying` (`readiness` "copied") or from `moving` ("moved")."""

    disk: Id
    slices: Annotated[list[SliceNumber], msgspec.Meta(max_length=SLICES)]
    readiness: SliceReadiness
    to: Annotated[int, msgspec.Meta(ge=1)]
    step: int


# --- The newest cluster map in a file on every disk of a target, and how it is read. Blocking.

_log: Final = logging.getLogger("dfc.target")
FILE: Final = "dfc-map.json"
FORMAT: Final = 1


class MapFile(msgspec.Struct, frozen=True):
    """The contents of the file."""

    format: int
    map: ClusterMap


def write_map(directory: str, cluster_map: ClusterMap, filesystem: FileSystem) -> None:
    """Write the map to a disk, durably. OSError."""
    write_small_file(os.path.join(directory, FILE), msgspec.json.encode(MapFile(FORMAT, cluster_map)), filesystem)


def read_maps(directories: Sequence[str], cluster_id: str) -> ClusterMap | None:
    """Return the newest map of a cluster on these disks; None if there is none that can be read.

    Files that are damaged or of another version of DFC are skipped, since they are written anew when the registry answers.
    """
    found = []
    for directory in directories:
        try:
            kept = read_map(directory)
        except OperatorError as error:
            _log.warning("%s", error)
            continue
        if kept is not None and kept.cluster_id == cluster_id:
            found.append(kept)
    return max(found, key=lambda kept: kept.version, default=None)


def read_map(directory: str) -> ClusterMap | None:
    """Return the map on a disk; None if there is none. OperatorError if it cannot be used."""
    path = os.path.join(directory, FILE)
    try:
        data = read_small_file(path, "It is written again once the registry answers.", CLUSTER_MAP_BYTES_MAX)
        kept = None if data is None else msgspec.json.decode(data, type=MapFile)
    except (SmallFileDamaged, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OperatorError(f"{path} is not used: {error}") from error
    if kept is not None and kept.format != FORMAT:
        raise OperatorError(f"{path} is not used: it is of format {kept.format}, and this version of DFC reads format {FORMAT}")
    return None if kept is None else kept.map


# --- Read and write `dfc-node-id` and `dfc-cluster-id`, files in a node's directory with one id each.

NODE_FILE: Final = "dfc-node-id"
CLUSTER_FILE: Final = "dfc-cluster-id"  # of a proxy whose registry is in etcd
_LINE: Final = re.compile(rb"([A-Za-z0-9._-]{1,64})\n")  # without the line end, it may be truncated


def new_node_id(role: Role) -> str:
    return f"{role}-{secrets.token_hex(4)}"


def node_file(directory: str) -> str:
    return f"{directory}/{NODE_FILE}"


def read_node_id(directory: str) -> str | None:
    """Return the node id stored in a directory; None if there is none. SmallFileDamaged."""
    path = node_file(directory)
    return _read(path, f"Write the id of this node again (the registry knows it): echo ID > {path}")


def read_cluster_id(directory: str) -> str | None:
    """Return the id of the cluster in etcd of which the proxy in a directory was; None if of none. SmallFileDamaged."""
    path = f"{directory}/{CLUSTER_FILE}"
    return _read(path, f"Remove it if the settings `etcd_urls` and `etcd_prefix` are right: rm {path}")


def _read(path: str, way_out: str) -> str | None:
    data = read_small_file(path, way_out)
    if data is None:
        return None
    line = _LINE.fullmatch(data)
    if line is None:
        raise SmallFileDamaged(path, "is torn: it should contain an id and a line end", way_out)
    return line[1].decode()


def write_node_id(directory: str, node_id: str, filesystem: FileSystem) -> None:
    """Store the node id durably. OSError."""
    write_small_file(node_file(directory), f"{node_id}\n".encode(), filesystem)


def write_cluster_id(directory: str, cluster_id: str, filesystem: FileSystem) -> None:
    """Store the id of a cluster durably. OSError."""
    write_small_file(f"{directory}/{CLUSTER_FILE}", f"{cluster_id}\n".encode(), filesystem)

"""Determine which node a target is from its id file, its disks' identity files and the map, and claim its disks.

A target whose id file is lost recovers its id from its disks if there is no doubt. If there is, it does not start and says what
to do: two targets with one id, or a disk that two nodes consider theirs, would be worse than a target that does not start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from dfc.errors import DiskRefused, OperatorError
from dfc.filesystem import FileSystem
from dfc.placement.map import ClusterMap
from dfc.registry.identity import new_node_id, node_file, read_node_id, write_node_id
from dfc.smallfile import SmallFileDamaged, make_directories
from dfc.storage.disk import Disk
from dfc.storage.identity import DiskIdentity, give_to_node, lock_disk, read_identity

_log: Final = logging.getLogger("dfc.target")


class Evidence(NamedTuple):
    """What is known about a target before it knows its id. `own`: the id in its file; `damage`: why it cannot be read."""

    file: str
    own: str | None
    damage: str
    disks: Mapping[str, DiskIdentity]
    map: ClusterMap


def settle_identity(directory: str, disks: tuple[str, ...], known: ClusterMap, filesystem: FileSystem) -> str:
    """Return the id of this target, after writing it to its file and each of its disks; format new disks.

    Raises DiskRefused for a disk of another cluster or node, DiskLocked, and OperatorError when the id is not certain.
    """
    make_directories(directory, filesystem)
    found = _look(directory, disks, known)
    node_id = choose_id(found)
    if node_id is None:
        node_id = new_node_id("target")
    elif found.own is None:
        _log.warning("%s was lost: restored as %s, which is what the disks say", found.file, node_id)
    if found.own is None:
        for path in found.disks:
            os.close(lock_disk(path))  # a target that runs has it: then this is not that one, and must not say so
        write_node_id(directory, node_id, filesystem)
    else:
        filesystem.sync_directory(directory)  # the process that wrote it may have been killed before it synced
    for path in disks:
        identity = found.disks.get(path)
        if identity is None:
            Disk.format(path, known.cluster_id, filesystem=filesystem, node_id=node_id)
        elif identity.node_id != node_id:
            give_to_node(path, node_id, filesystem)
    return node_id


def _look(directory: str, disks: tuple[str, ...], known: ClusterMap) -> Evidence:
    identities: dict[str, DiskIdentity] = {}
    for path in disks:
        identity = read_identity(path)
        if identity is not None and identity.cluster_id != known.cluster_id:
            raise DiskRefused(
                f"{path} belongs to cluster {identity.cluster_id}, but the registry is of cluster {known.cluster_id}"
            )
        if identity is not None:
            same = next((each for each, other in identities.items() if other.disk_id == identity.disk_id), None)
            if same is not None:
                raise DiskRefused(f"{same} and {path} are both disk {identity.disk_id}: list only one of them in 'disks'")
            identities[path] = identity
    own, damage = None, ""
    try:
        own = read_node_id(directory)
    except SmallFileDamaged as error:
        damage = error.what
    return Evidence(node_file(directory), own, damage, identities, known)


def choose_id(found: Evidence) -> str | None:
    """Return the id that all evidence agrees on; None for a new target without any. Pure. Raises OperatorError."""
    if found.own is not None:
        for path, identity in found.disks.items():
            if identity.node_id not in (None, "", found.own):
                raise DiskRefused(
                    f"{path} belongs to node {identity.node_id}, but this is {found.own}. If the disk was moved here on "
                    f"purpose, release it: dfc disk release {path}. If this is {identity.node_id}, write that into "
                    f"{found.file}"
                )
        return found.own
    what = f"{found.file} {found.damage or 'is missing'}"
    named = {path: _named(identity, found.map) for path, identity in found.disks.items()}
    ids = {node_id for node_id in named.values() if node_id}
    if len(ids) > 1:
        said = ", ".join(f"{path}: {node_id}" for path, node_id in named.items() if node_id)
        raise OperatorError(
            f"{what}, and the disks belong to different nodes ({said}). Write the id of this node: echo ID > {found.file}; and "
            f"release the disks that were moved here on purpose: dfc disk release DIR"
        )
    if not ids:
        if found.damage:
            raise OperatorError(f"{what}. No disk here belongs to a known node: remove the file to start as a new node")
        return None
    (node_id,) = ids
    node = found.map.node(node_id)
    elsewhere = {disk.id for disk in node.disks} - {disk.disk_id for disk in found.disks.values()} if node else set()
    if elsewhere:
        raise OperatorError(
            f"{what}. The disks here belong to {node_id}, which also has others ({', '.join(sorted(elsewhere))}). If this is "
            f"that node and no other target runs as it: echo {node_id} > {found.file}. If the disks were moved here on "
            f"purpose, release each of them: dfc disk release DIR"
        )
    return node_id


def _named(identity: DiskIdentity, known: ClusterMap) -> str:
    """Return the node that a disk belongs to, by its identity file, else by the map; empty: none."""
    if identity.node_id is not None:
        return identity.node_id
    return next((node.id for node in known.nodes for disk in node.disks if disk.id == identity.disk_id), "")

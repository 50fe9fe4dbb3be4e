"""Make a registry anew from what is left of it: a backup, and the maps that targets and their disks have.

What is known may be older than what was lost. So the new map has a version and a step above all that anybody can know, and
every disk comes back in doubt: it is behind all others and compared with them, as after a power loss that may have cost its
last rows (`dfc.replication.transitions.bring_up`). Until that is done, objects with several copies are not read; of each, the
newest that any disk has goes to all. Nothing is ever deleted because this map does not know it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from dfc.clock import NODE_NUMBER_MAX
from dfc.errors import DiskRefused, OperatorError, Unavailable
from dfc.filesystem import FileSystem, remove_if_there
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import nodes_after, placement_of
from dfc.placement.state import DiskPlace
from dfc.registry.changes import RegistryState
from dfc.registry.etcd.gateway import EtcdGateway
from dfc.registry.file import FILE_NAME, MOVED_NAME, MOVING_NAME, RegistryFile, filled_with, lock_directory
from dfc.registry.identity import new_node_id, read_node_id, write_node_id
from dfc.registry.offline.backup import state_in_etcd
from dfc.registry.offline.moving import (
    MovedRegistry,
    check_unused,
    claim,
    described,
    read_etcd,
    write_to_etcd,
)
from dfc.registry.place import EtcdPlace

VERSIONS_SKIPPED: Final = 1000  # more than a registry can have been ahead of all that its targets knew
NUMBERS_SKIPPED: Final = 100  # the same of numbers that nodes were given
REPLACED_SUFFIX: Final = ".replaced"
_MARK: Final = "recovered"


def state_of(known: ClusterMap) -> RegistryState:
    """What a map tells of the state of its registry."""
    return RegistryState(map=known, last_number=max((node.number for node in known.nodes), default=0))


def newest_of(known: Sequence[RegistryState]) -> RegistryState:
    """The newest of what is known, with the highest number of a node in any of it. OperatorError if there is nothing, or it is
    of several clusters."""
    clusters = sorted({each.map.cluster_id for each in known})
    if len(clusters) != 1:
        found = f"these are of different clusters: {', '.join(clusters)}" if clusters else "no map of a cluster was found"
        raise OperatorError(f"{found}. Nothing was changed")
    newest = max(known, key=lambda each: each.map.version)
    return msgspec.structs.replace(newest, last_number=max(each.last_number for each in known))


def recovered(known: RegistryState) -> RegistryState:
    """The state from which a registry of which this is known can go on. OperatorError."""
    found = known.map
    if known.last_number + NUMBERS_SKIPPED > NODE_NUMBER_MAX:
        raise OperatorError("nodes have been given so many numbers that none can be skipped: this cluster cannot be recovered")
    step = found.step + VERSIONS_SKIPPED
    before = placement_of(found)
    disks = {each.id: _in_doubt(each, before.disks, step) for each in before.disks.values()}
    after = {node.id: node for node in nodes_after(found, msgspec.structs.replace(before, step=step, disks=disks))}
    nodes = (after.get(node.id, node) for node in found.nodes if node.role == "target")
    new = msgspec.structs.replace(
        found,
        version=found.version + VERSIONS_SKIPPED,
        step=step,
        nodes=tuple(msgspec.structs.replace(node, last_heartbeat="") for node in nodes),
    )
    return RegistryState(map=new, last_number=known.last_number + NUMBERS_SKIPPED)


def _in_doubt(disk: DiskPlace, all_disks: Mapping[str, DiskPlace], step: int) -> DiskPlace:
    """A disk that is down, and in doubt when it is back, as when its last rows may be lost."""
    status = "down" if disk.is_up else disk.status
    life = disk.incarnation.partition(".")[0]
    if life:
        return msgspec.structs.replace(disk, status=status, down_step=step, incarnation=f"{life}.{_MARK}")
    # Nobody knows what was on it: it is taken for one that lacks what any other has.
    others = frozenset(each.id for each in all_disks.values() if each.node != disk.node and not each.removing)
    return msgspec.structs.replace(disk, status=status, down_step=step, behind=others, compare=_MARK)


def recover_to_file(
    directory: str, known: Sequence[RegistryState], *, replaces: bool = False, filesystem: FileSystem | None = None
) -> MovedRegistry:
    """Make a registry in a directory from what is known of it. `replaces`: in the place of one that is there, which is put
    aside, and is also known if it can be read. Blocking. OperatorError, with nothing changed."""
    filesystem = filesystem or FileSystem()
    lock = lock_directory(directory, filesystem)
    try:
        path = f"{directory}/{FILE_NAME}"
        if os.path.exists(f"{directory}/{MOVING_NAME}"):
            raise OperatorError(f"the registry of {directory} is being moved to etcd: run that `dfc registry move` again")
        is_there = os.path.exists(path)
        if is_there and not replaces:
            raise OperatorError(f"there is a registry in {directory} already: say --replace to put it aside")
        if is_there:
            with suppress(DiskRefused):  # it is damaged: what others know will have to do
                known = [*known, RegistryFile.read(path)[0]]
        state = recovered(newest_of(known))
        if is_there:
            _put_aside(path, filesystem)
        proxy_id = read_node_id(directory)
        if proxy_id is None:
            write_node_id(directory, proxy_id := new_node_id("proxy"), filesystem)
        RegistryFile(directory, filesystem=filesystem, is_locked=True, begin=filled_with(state, proxy_id)).close()
        remove_if_there(filesystem, [f"{directory}/{MOVED_NAME}"])  # an older copy
        return described(state)
    finally:
        os.close(lock)


def _put_aside(path: str, filesystem: FileSystem) -> None:
    """Rename a registry and its log, the log first: it must not be replayed into another file."""
    number = 1
    while os.path.exists(f"{path}{REPLACED_SUFFIX}-{number}"):
        number += 1
    for ending in ("-wal", "-shm", ""):
        if os.path.exists(path + ending):
            filesystem.rename(path + ending, f"{path}{REPLACED_SUFFIX}-{number}{ending}")
    filesystem.sync_directory(os.path.dirname(path))


async def recover_to_etcd(place: EtcdPlace, known: Sequence[RegistryState], *, replaces: bool = False) -> MovedRegistry:
    """Make a registry at a place in etcd from what is known of it. `replaces`: in the place of one of the same cluster that
    is there, which is known, too. OperatorError; if it was interrupted, the same call does it again."""
    gateway, prefix = EtcdGateway(place.urls, place.access), place.below
    try:
        mirror = await read_etcd(gateway, prefix)
        check_unused(mirror)
        if replaces:
            with suppress(OperatorError):  # there is none that can be read
                known = [*known, await state_in_etcd(gateway, prefix)]
        state = recovered(newest_of(known))
        await claim(gateway, prefix, state.map.cluster_id, replaces=replaces)
        await write_to_etcd(gateway, prefix, state, ())
        return described(state)
    except Unavailable as error:
        raise OperatorError(f"{error.message}; run the same command again") from error
    finally:
        await gateway.close()

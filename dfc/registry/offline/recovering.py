"""Make a registry anew from what is left of it: a backup, and the maps that targets and their disks have.

What is known may be older than what was lost. So the new map has a version and a step above all that anybody can know, and
every disk comes back in doubt: it is behind all others and compared with them, as after a power loss that may have cost its
last rows (`dfc.replication.transitions.bring_up`). Until that is done, objects with several copies are not read; of each, the
newest that any disk has goes to all. Nothing is ever deleted because this map does not know it.

A registry that is in the way is put aside, and counts as known, if it is that of the cluster. So the same call goes on with
what was interrupted.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from dfc.clock import NODE_NUMBER_MAX
from dfc.errors import DiskRefused, OperatorError
from dfc.filesystem import FileSystem, remove_if_there
from dfc.jobs.journal import Journal
from dfc.jobs.journal_file import FILE_NAME as JOURNAL_NAME
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import nodes_after, placement_of
from dfc.placement.state import DiskPlace
from dfc.registry.changes import RegistryState
from dfc.registry.file import FILE_NAME, MOVED_NAME, MOVING_NAME, RegistryFile, filled_with, lock_directory
from dfc.registry.identity import new_node_id, read_node_id, write_node_id
from dfc.registry.offline.backup import read_backup, state_in_etcd, write_backup
from dfc.registry.offline.moving import (
    MovedRegistry,
    check_unused,
    claim,
    described,
    read_etcd,
    unused,
    write_to_etcd,
)
from dfc.registry.place import EtcdPlace

VERSIONS_SKIPPED: Final = 1000  # more than a registry can have been ahead of all that its targets knew
NUMBERS_SKIPPED: Final = 100  # the same of numbers that nodes were given
REPLACED_NAME: Final = f"{FILE_NAME}.replaced"  # with a number behind it
REPLACED_ETCD_NAME: Final = "registry-in-etcd.replaced"  # likewise; a backup
_MARK: Final = "recovered"
Note = Callable[[str], object]
"""Takes a line that is to be read by whoever recovers a registry."""


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
        _renumbered(found),
        version=found.version + VERSIONS_SKIPPED,
        step=step,
        nodes=tuple(msgspec.structs.replace(node, last_heartbeat="") for node in nodes),
    )
    return RegistryState(map=new, last_number=known.last_number + NUMBERS_SKIPPED)


def _renumbered(found: ClusterMap) -> ClusterMap:
    """The same layouts under numbers that none can have had: disks have ranks and notes by their numbers."""

    def later(number: int) -> int:
        return number + VERSIONS_SKIPPED

    layouts = tuple(msgspec.structs.replace(each, number=later(each.number)) for each in found.layouts)
    slices = tuple(
        msgspec.structs.replace(run, at=later(run.at), to=None if run.to is None else later(run.to)) for run in found.slices
    )
    return msgspec.structs.replace(found, layouts=layouts, slices=slices)


def _in_doubt(disk: DiskPlace, all_disks: Mapping[str, DiskPlace], step: int) -> DiskPlace:
    """A disk that is down, and in doubt when it is back, as when its last rows may be lost."""
    status = "down" if disk.is_up else disk.status
    life = disk.incarnation.partition(".")[0]
    if life:
        return msgspec.structs.replace(disk, status=status, down_step=step, incarnation=f"{life}.{_MARK}")
    # Nobody knows what was on it: it is taken for one that lacks what any other has.
    others = frozenset(each.id for each in all_disks.values() if each.node != disk.node and not each.removing)
    return msgspec.structs.replace(disk, status=status, down_step=step, behind=others, compare=f"{_MARK}-{step}")


# --- in a directory


def recover_to_file(
    directory: str,
    known: Sequence[RegistryState],
    *,
    replaces: bool = False,
    note: Note = print,
    filesystem: FileSystem | None = None,
) -> MovedRegistry:
    """Make a registry in a directory from what is known of it. `replaces`: in the place of one that is there, which is put
    aside. Jobs that had not ended are forgotten. Blocking. OperatorError."""
    filesystem = filesystem or FileSystem()
    lock = lock_directory(directory, filesystem)
    try:
        path = f"{directory}/{FILE_NAME}"
        if os.path.exists(f"{directory}/{MOVING_NAME}"):
            raise OperatorError(f"the registry of {directory} is being moved to etcd: run that `dfc registry move` again")
        is_there = os.path.exists(path)
        if is_there and not replaces:
            raise OperatorError(f"there is a registry in {directory} already: say --replace to put it aside")
        if os.path.exists(f"{directory}/{MOVED_NAME}") and not is_there and not replaces:
            raise OperatorError(
                f"the registry of {directory} was moved to etcd: say where that is (--etcd-urls); or if it is to be in this"
                " directory again, and no other proxy uses etcd, --replace"
            )
        newest = newest_of(known)
        there = _there(directory, note, filesystem) if is_there else ()
        aside = _read_aside(_put_aside_before(directory, REPLACED_NAME), lambda old: RegistryFile.read(old)[0])
        state = recovered(newest_of(_all_of(newest, there, aside, note)))
        _forget_jobs(directory, filesystem)
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


def _there(directory: str, note: Note, filesystem: FileSystem) -> Iterator[tuple[str, RegistryState]]:
    """The registry in a directory, with its name, if it can be read; of the format of this version then."""
    try:
        file = RegistryFile(directory, filesystem=filesystem, is_locked=True)
        file.close()
        yield f"{directory}/{FILE_NAME}", file.state
    except (DiskRefused, OperatorError) as error:
        note(f"what it knew does not count: {error.message}")


def _read_aside(paths: Sequence[str], read: Callable[[str], RegistryState]) -> Iterator[RegistryState]:
    """What was put aside before, if it can be read; that it could not was said then."""
    for path in paths:
        with suppress(DiskRefused, OperatorError):
            yield read(path)


def _all_of(
    newest: RegistryState, there: Iterable[tuple[str, RegistryState]], aside: Iterable[RegistryState], note: Note
) -> list[RegistryState]:
    """What is known of the cluster that this is of."""
    found, cluster_id = [newest], newest.map.cluster_id
    for name, state in there:
        if state.map.cluster_id == cluster_id:
            found.append(state)
        else:
            note(f"{name} is of another cluster, {state.map.cluster_id}, and does not count")
    return [*found, *(state for state in aside if state.map.cluster_id == cluster_id)]


def _forget_jobs(directory: str, filesystem: FileSystem) -> None:
    """Have the journal know no job that goes on: buckets may be others by now."""
    if os.path.exists(f"{directory}/{JOURNAL_NAME}"):
        journal = Journal(directory, filesystem=filesystem)
        try:
            for record in journal.active():
                journal.drop(record.id)
        finally:
            journal.close()


def _put_aside(path: str, filesystem: FileSystem) -> None:
    """Rename a registry and its log, the log first: it must not be replayed into another file."""
    directory = os.path.dirname(path)
    aside = _free_name(directory, REPLACED_NAME)
    for ending in ("-wal", "-shm", ""):
        if os.path.exists(path + ending):
            filesystem.rename(path + ending, aside + ending)
    filesystem.sync_directory(directory)


def _put_aside_before(directory: str, name: str) -> list[str]:
    found = glob.glob(f"{glob.escape(directory)}/{name}-*")
    return sorted(each for each in found if each.rpartition("-")[2].isdecimal())


def _free_name(directory: str, name: str) -> str:
    number = 1
    while os.path.exists(f"{directory}/{name}-{number}"):
        number += 1
    return f"{directory}/{name}-{number}"


# --- in etcd


async def recover_to_etcd(
    place: EtcdPlace,
    directory: str,
    known: Sequence[RegistryState],
    *,
    replaces: bool = False,
    note: Note = print,
    filesystem: FileSystem | None = None,
) -> MovedRegistry:
    """Make a registry at a place in etcd from what is known of it. `replaces`: in the place of one that is there, of which a
    backup is put into the proxy's directory first. OperatorError; if it was interrupted, the same call does it again."""
    filesystem, prefix = filesystem or FileSystem(), place.below
    async with unused(directory, place, filesystem) as gateway:
        newest = newest_of(known)
        check_unused(await read_etcd(gateway, prefix))
        there, aside = list[tuple[str, RegistryState]](), _put_aside_before(directory, REPLACED_ETCD_NAME)
        if replaces:
            try:
                found = await state_in_etcd(gateway, prefix)
                there.append((f"what is in etcd below {prefix}", found))
                write_backup(_free_name(directory, REPLACED_ETCD_NAME), found, time.time(), filesystem)
            except OperatorError as error:
                note(f"what is in etcd does not count: {error.message}")
        state = recovered(newest_of(_all_of(newest, there, _read_aside(aside, read_backup), note)))
        await claim(gateway, prefix, state.map.cluster_id, replaces=replaces)
        await write_to_etcd(gateway, prefix, state, ())
        return described(state)

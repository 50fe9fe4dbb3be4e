"""A registry that no proxy uses: moved, copied to a file, or made anew from what is left.

A registry moves from the file of a proxy into etcd, and back. Whatever breaks in the middle, at most one of both can be used,
and the same command goes on with it. Into etcd: the key `meta` says that the registry is coming, the file is renamed,
everything is written, each part only if nobody else has touched `meta`, and last `meta` says that it may be used. Back: `meta`
says first which proxy has it, so that nobody changes it, and then the file is made.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from typing import Final, NamedTuple

import msgspec

from dfc.checksum import checksum_of
from dfc.clock import NODE_NUMBER_MAX
from dfc.errors import DiskRefused, OperatorError, Unavailable
from dfc.filesystem import FileSystem, SmallFileDamaged, read_small_file, remove_if_there, write_small_file
from dfc.jobs.journal import FILE_NAME as JOURNAL_NAME
from dfc.jobs.journal import Journal
from dfc.jobs.records import JobEntry, short, short_spec
from dfc.limits import CLUSTER_MAP_BYTES_MAX
from dfc.logs import timestamp
from dfc.placement.map import ClusterMap
from dfc.placement.mapped import nodes_after, placement_of
from dfc.placement.roles import DiskPlace
from dfc.registry.base import JOBS, JOBS_KEPT_MAX
from dfc.registry.changes import RegistryState
from dfc.registry.embedded import FILE_NAME, MOVED_NAME, MOVING_NAME, RegistryFile, filled_with, lock_directory
from dfc.registry.gateway import (
    FORMAT,
    LEASES,
    META,
    RECORDS,
    VERSION,
    EtcdGateway,
    EtcdPlace,
    Fields,
    Meta,
    Mirror,
    delete,
    encoded,
    end_of,
    is_new,
    is_of_revision,
    other_format,
    put,
    written,
)
from dfc.registry.messages import new_node_id, read_node_id, write_node_id

TOGETHER_MAX: Final = 100  # operations in one transaction; etcd takes 128
BYTES_MAX: Final = 1_000_000  # of one, as the gateway writes them; etcd takes 1.5 MiB


class MovedRegistry(NamedTuple):
    """What is where it was to be."""

    cluster_id: str
    version: int
    nodes: int
    buckets: int


async def move_to_etcd(directory: str, place: EtcdPlace, filesystem: FileSystem | None = None) -> MovedRegistry:
    """Move the registry in a directory to a place in etcd. OperatorError, with what to do, if that cannot be done; what was
    begun then goes on with the same call."""
    filesystem, prefix = filesystem or FileSystem(), place.below
    async with unused(directory, place, filesystem) as gateway:
        path, moving = f"{directory}/{FILE_NAME}", f"{directory}/{MOVING_NAME}"
        if os.path.exists(path):
            _ended_jobs(directory, filesystem)  # before anything is changed
            file = RegistryFile(directory, filesystem=filesystem, may_create=False, is_locked=True)
            cluster_id = file.state.map.cluster_id
            file.close()
            await claim(gateway, prefix, cluster_id)
            filesystem.rename(path, moving)
            filesystem.sync_directory(directory)
        elif not os.path.exists(moving):
            raise OperatorError(f"there is no registry in {directory}")
        state = _next_version(RegistryFile.read(moving)[0])
        await write_to_etcd(gateway, prefix, state, _ended_jobs(directory, filesystem))
        filesystem.rename(moving, f"{directory}/{MOVED_NAME}")
        filesystem.sync_directory(directory)
        return described(state)


async def move_to_file(directory: str, place: EtcdPlace, filesystem: FileSystem | None = None) -> MovedRegistry:
    """Move the registry below a prefix in etcd into a directory, whose proxy will be the only one. Otherwise like
    `move_to_etcd`."""
    filesystem, prefix = filesystem or FileSystem(), place.below
    async with unused(directory, place, filesystem) as gateway:
        if os.path.exists(f"{directory}/{FILE_NAME}"):
            raise OperatorError(f"there is a registry in {directory} already")
        proxy_id = read_node_id(directory)
        if proxy_id is None:  # it also keeps a proxy that is started here from beginning another cluster meanwhile
            write_node_id(directory, proxy_id := new_node_id("proxy"), filesystem)
        mirror = await read_etcd(gateway, prefix)
        meta = _known_meta(mirror, prefix)
        if meta.coming:
            raise OperatorError("a registry is being written there: say that command again first")
        if meta.moved_to not in ("", proxy_id):
            raise OperatorError(f"the registry was moved to the directory of {meta.moved_to}")
        entries = [msgspec.json.decode(value, type=JobEntry) for value in mirror.values(RECORDS + JOBS).values()]
        if not meta.moved_to:
            check_unused(mirror)
            if not all(entry.is_over for entry in entries):
                raise OperatorError("jobs are queued or running: start a proxy, wait for them or cancel them, and stop it")
            await _leave(gateway, prefix, mirror, msgspec.structs.replace(meta, moved_to=proxy_id))
        _take_jobs(directory, filesystem, entries)
        state = _next_version(mirror.state(meta.cluster_id))
        RegistryFile(directory, filesystem=filesystem, is_locked=True, begin=filled_with(state, proxy_id)).close()
        remove_if_there(filesystem, [f"{directory}/{MOVED_NAME}"])  # an older copy, not to be taken for the newest one
        return described(state)


@asynccontextmanager
async def unused(directory: str, place: EtcdPlace, filesystem: FileSystem) -> AsyncIterator[EtcdGateway]:
    """The etcd at a place, for as long as no proxy can use this directory. OperatorError, also if etcd does not answer: what is
    done here can be done again."""
    lock = lock_directory(directory, filesystem)
    try:
        gateway = EtcdGateway(place.urls, place.access)
        try:
            yield gateway
        except Unavailable as error:
            raise OperatorError(f"{error.message}; nothing is lost: run the same command again") from error
        finally:
            await gateway.close()
    finally:
        os.close(lock)


def described(state: RegistryState) -> MovedRegistry:
    found = state.map
    return MovedRegistry(found.cluster_id, found.version, len(found.nodes), len(found.buckets))


def _next_version(state: RegistryState) -> RegistryState:
    """The same state as a version of its own: no two registries show the same one."""
    return msgspec.structs.replace(state, map=msgspec.structs.replace(state.map, version=state.map.version + 1))


def _ended_jobs(directory: str, filesystem: FileSystem) -> list[JobEntry]:
    """The last jobs, so that all proxies know them. OperatorError if one has not ended."""
    if not os.path.exists(f"{directory}/{JOURNAL_NAME}"):
        return []
    with closing(Journal(directory, filesystem=filesystem)) as journal:
        active, discarding = journal.active(), journal.to_discard()
        ended = [(record, short_spec(journal.spec(record.id))) for record in journal.page(limit=JOBS_KEPT_MAX)]
    if active or discarding:
        raise OperatorError(
            f"{len(active) + len(discarding)} jobs are queued or running, or have staged objects: start the proxy, wait for"
            " them or cancel them, and stop it"
        )
    return [JobEntry(record=short(record), pattern="", is_over=True, spec=spec) for record, spec in ended]


def _take_jobs(directory: str, filesystem: FileSystem, entries: Sequence[JobEntry]) -> None:
    """Have the journal know the jobs that have ended, and none that goes on."""
    with closing(Journal(directory, filesystem=filesystem)) as journal:
        for record in journal.active():
            journal.drop(record.id)
        for entry in entries:
            journal.adopt(entry.record, entry.spec)


async def read_etcd(gateway: EtcdGateway, prefix: str) -> Mirror:
    mirror = Mirror(prefix)
    mirror.replace(*await gateway.range(prefix, end_of(prefix)))
    return mirror


def _known_meta(mirror: Mirror, prefix: str) -> Meta:
    """What `meta` says. OperatorError if there is none, or it is of another format."""
    meta = mirror.meta()
    if meta is None:
        raise OperatorError(f"there is no registry in etcd below {prefix}")
    if meta.format != FORMAT:
        raise OperatorError(other_format(meta.format))
    return meta


def check_unused(mirror: Mirror) -> None:
    held = sorted(mirror.values(LEASES))
    if held:
        raise OperatorError(f"a proxy uses the registry in etcd (lease {held[0]}): stop all proxies first, and wait for 10 s")


async def claim(gateway: EtcdGateway, prefix: str, cluster_id: str, *, replaces: bool = False) -> int:
    """Have `meta` say that this cluster is coming, unless another one is there; the revision at which it says so. Others do not
    use what is there then, nor begin a cluster. `replaces`: whatever is there already."""
    mirror = await read_etcd(gateway, prefix)
    revision = mirror.revision_of(META)
    meta = _meta_of(mirror, prefix, replaces)
    if meta is not None and meta.cluster_id == cluster_id and meta.coming:
        return revision
    if meta is not None and not replaces:
        if meta.cluster_id != cluster_id:
            raise OperatorError(
                f"below {prefix} in etcd is a registry already, or what is left of one, of cluster {meta.cluster_id}: take"
                " another prefix (--etcd-prefix)"
            )
        if not meta.moved_to:
            raise OperatorError(f"the registry of this cluster is in etcd below {prefix} already")
    condition = is_of_revision(prefix + META, revision) if revision else is_new(prefix + META)
    coming = msgspec.json.encode(Meta(cluster_id=cluster_id, coming=True))
    answer = await gateway.transact([condition], [put(prefix + META, coming)], [])
    if not answer.succeeded:
        raise OperatorError(f"somebody else has written below {prefix} in etcd meanwhile")
    return answer.revision


def _meta_of(mirror: Mirror, prefix: str, replaces: bool) -> Meta | None:
    """What `meta` says; None: nothing, or if it is to be replaced, nothing that can be understood. OperatorError."""
    try:
        return mirror.meta()
    except ValueError as error:
        if replaces:
            return None
        raise OperatorError(f"what is in etcd below {prefix} cannot be understood: {error}") from error


async def write_to_etcd(gateway: EtcdGateway, prefix: str, state: RegistryState, jobs: Sequence[JobEntry]) -> None:
    """Write a state; that it may be used comes last. Does nothing if that was done before."""
    mirror = await read_etcd(gateway, prefix)
    meta, cluster_id = mirror.meta(), state.map.cluster_id
    if meta is not None and meta.cluster_id == cluster_id and not meta.coming and not meta.moved_to:
        if mirror.state(cluster_id) == state:
            return  # the answer was lost, or the file was not renamed yet
        raise OperatorError(f"the registry of this cluster is in etcd below {prefix} already, and was changed there")
    revision = await claim(gateway, prefix, cluster_id)
    condition = is_of_revision(prefix + META, revision)
    records = [put(prefix + RECORDS + JOBS + each.record.id, msgspec.json.encode(each)) for each in jobs]
    new = [*written(prefix, None, state), *records]
    kept = {each["request_put"]["key"] for each in new}
    old = [delete(prefix + key) for key in sorted(mirror.values("")) if key != META and encoded(prefix + key) not in kept]
    for part in (*_parts([*old, *new]), [put(prefix + META, msgspec.json.encode(Meta(cluster_id=cluster_id)))]):
        answer = await gateway.transact([condition], part, [])
        if not answer.succeeded:
            raise OperatorError(f"somebody else has written below {prefix} in etcd meanwhile")


async def _leave(gateway: EtcdGateway, prefix: str, mirror: Mirror, meta: Meta) -> None:
    """Have `meta` say that the registry was moved, unless somebody has changed it since it was read."""
    compare = [is_of_revision(prefix + key, mirror.revision_of(key)) for key in (META, VERSION)]
    answer = await gateway.transact(compare, [put(prefix + META, msgspec.json.encode(meta))], [])
    if not answer.succeeded:
        raise OperatorError("the registry in etcd was changed meanwhile: stop all proxies first")


def _parts(operations: Sequence[Fields]) -> Iterator[list[Fields]]:
    """Operations as transactions, of which etcd takes only so much."""
    part, size = list[Fields](), 0
    for each in operations:
        length = len(msgspec.json.encode(each))
        if part and (len(part) == TOGETHER_MAX or size + length > BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(each)
        size += length
    if part:
        yield part


# --- A copy of a registry in a file of JSON: everything but the jobs. It is made while proxies go on.

BACKUP_FORMAT: Final = 1


class BackupFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the file. `checksum` is that of the bytes of `registry`, which is a `RegistryState`."""

    format: int
    made: str
    checksum: str
    registry: msgspec.Raw


def write_backup(path: str, state: RegistryState, now_s: float, filesystem: FileSystem) -> None:
    """Write a state to a file, in the place of an older one, readable for its owner alone. Blocking. OSError."""
    encoded = msgspec.json.encode(state)
    backup = BackupFile(
        format=BACKUP_FORMAT, made=timestamp(now_s), checksum=checksum_of(encoded), registry=msgspec.Raw(encoded)
    )
    write_small_file(os.path.abspath(path), msgspec.json.encode(backup) + b"\n", filesystem, 0o600)


def read_backup(path: str) -> RegistryState:
    """Return the state in a file that `write_backup` wrote. Blocking. OperatorError."""
    try:
        data = read_small_file(path, "Take another backup.", CLUSTER_MAP_BYTES_MAX)
        if data is None:
            raise OperatorError(f"there is no file {path}")
        backup = msgspec.json.decode(data, type=BackupFile)
        if backup.format != BACKUP_FORMAT:
            raise OperatorError(
                f"{path} is a backup of format {backup.format}, and this version of DFC reads format {BACKUP_FORMAT}: use the"
                " version that made it"
            )
        if checksum_of(bytes(backup.registry)) != backup.checksum:
            raise OperatorError(f"{path} is damaged: its checksum is another one. Take another backup")
        return msgspec.json.decode(backup.registry, type=RegistryState)
    except SmallFileDamaged:
        raise
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OperatorError(f"{path} is no backup of a registry: {error}") from error


def state_in_file(directory: str) -> RegistryState:
    """Return the state of the registry in a directory, which a proxy may be using. Blocking. OperatorError; DiskRefused for a
    file that cannot be used."""
    path = f"{directory}/{FILE_NAME}"
    if not os.path.exists(path):
        where = "it was moved to etcd (--etcd-urls)" if os.path.exists(f"{directory}/{MOVED_NAME}") else "is it in etcd?"
        raise OperatorError(f"there is no registry in {directory}: {where}")
    return RegistryFile.read(path)[0]


async def read_etcd_state(place: EtcdPlace) -> RegistryState:
    """Return the state of the registry at a place in etcd, which proxies may be using. OperatorError."""
    gateway = EtcdGateway(place.urls, place.access)
    try:
        return await state_in_etcd(gateway, place.below)
    finally:
        await gateway.close()


async def state_in_etcd(gateway: EtcdGateway, prefix: str) -> RegistryState:
    """The same below a prefix. OperatorError."""
    try:
        mirror = await read_etcd(gateway, prefix)
        meta = _known_meta(mirror, prefix)
        if meta.coming or meta.moved_to:
            raise OperatorError("the registry in etcd is not in use: it was moved, or is being written")
        return mirror.state(meta.cluster_id)
    except Unavailable as error:
        raise OperatorError(error.message) from error
    except (LookupError, ValueError) as error:  # what msgspec raises are ValueErrors
        raise OperatorError(f"what is in etcd below {prefix} cannot be understood: {error}") from error


# --- Make a registry anew from what is left of it: a backup, and the maps that targets and their disks have.
#
# What is known may be older than what was lost. So the new map has a version and a step above all that anybody can know, and
# every disk comes back in doubt: it is out of sync with all others and compared with them, as after a power loss that may have
# cost its last rows (`dfc.replication.transitions.bring_up`). Until that is done, objects with several copies are not read; of
# each, the newest that any disk has goes to all. Nothing is ever deleted because this map does not know it.
#
# A registry that is in the way is put aside, and counts as known, if it is that of the cluster. So the same call goes on with
# what was interrupted.

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
    """The same layouts under numbers that none can have had: disks have ranks and hints by their numbers."""

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
    return msgspec.structs.replace(disk, status=status, down_step=step, out_of_sync_with=others, compare=f"{_MARK}-{step}")


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
        if os.path.exists(f"{directory}/{JOURNAL_NAME}"):
            _take_jobs(directory, filesystem, ())  # none goes on: buckets may be others by now
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

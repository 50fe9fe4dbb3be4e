"""Move a registry from the file of a proxy into etcd, and back, while no proxy uses it.

Whatever breaks in the middle, at most one of both can be used, and the same command goes on with it. Into etcd: the key `meta`
says that the registry is coming, the file is renamed, everything is written, each part only if nobody else has touched `meta`,
and last `meta` says that it may be used. Back: `meta` says first which proxy has it, so that nobody changes it, and then the
file is made.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import msgspec

from dfc.errors import OperatorError, Unavailable
from dfc.filesystem import FileSystem, remove_if_there
from dfc.jobs.journal import Journal
from dfc.jobs.journal_file import FILE_NAME as JOURNAL_NAME
from dfc.jobs.records import JobEntry, short, short_spec
from dfc.registry.base import JOBS, JOBS_KEPT_MAX
from dfc.registry.changes import RegistryState
from dfc.registry.etcd.gateway import EtcdGateway, Fields, delete, encoded, is_new, is_of_revision, put
from dfc.registry.etcd.keys import FORMAT, LEASES, META, RECORDS, VERSION, Meta, Mirror, end_of, other_format, written
from dfc.registry.file import FILE_NAME, MOVED_NAME, MOVING_NAME, RegistryFile, filled_with, lock_directory
from dfc.registry.identity import new_node_id, read_node_id, write_node_id
from dfc.registry.place import EtcdPlace

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
        meta = mirror.meta()
        if meta is None:
            raise OperatorError(f"there is no registry in etcd below {prefix}")
        if meta.format != FORMAT:
            raise OperatorError(other_format(meta.format))
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
    journal = Journal(directory, filesystem=filesystem)
    try:
        active, discarding = journal.active(), journal.to_discard()
        ended = [(record, short_spec(journal.spec(record.id))) for record in journal.page(limit=JOBS_KEPT_MAX)]
    finally:
        journal.close()
    if active or discarding:
        raise OperatorError(
            f"{len(active) + len(discarding)} jobs are queued or running, or have staged objects: start the proxy, wait for"
            " them or cancel them, and stop it"
        )
    return [JobEntry(record=short(record), pattern="", is_over=True, spec=spec) for record, spec in ended]


def _take_jobs(directory: str, filesystem: FileSystem, entries: Sequence[JobEntry]) -> None:
    """Have the journal know the jobs that have ended, and none that goes on."""
    journal = Journal(directory, filesystem=filesystem)
    try:
        for record in journal.active():
            journal.drop(record.id)
        for entry in entries:
            journal.adopt(entry.record, entry.spec)
    finally:
        journal.close()


async def read_etcd(gateway: EtcdGateway, prefix: str) -> Mirror:
    mirror = Mirror(prefix)
    mirror.replace(*await gateway.range(prefix, end_of(prefix)))
    return mirror


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
    operations = [*old, *new]
    parts = list(_parts(operations))
    for part in (*parts, [put(prefix + META, msgspec.json.encode(Meta(cluster_id=cluster_id)))]):
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

"""A copy of a registry in a file of JSON: everything but the jobs. It is made while proxies go on."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from dfc.checksum import checksum_of
from dfc.errors import OperatorError, Unavailable
from dfc.filesystem import FileSystem
from dfc.limits import CLUSTER_MAP_BYTES_MAX
from dfc.logs import timestamp
from dfc.registry.changes import RegistryState
from dfc.registry.etcd.gateway import EtcdGateway
from dfc.registry.etcd.keys import FORMAT as ETCD_FORMAT
from dfc.registry.etcd.keys import Mirror, end_of, other_format
from dfc.registry.file import FILE_NAME, MOVED_NAME, RegistryFile
from dfc.registry.place import EtcdPlace
from dfc.smallfile import SmallFileDamaged, read_small_file, write_small_file

FORMAT: Final = 1


class BackupFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the file. `checksum` is that of the bytes of `registry`, which is a `RegistryState`."""

    format: int
    made: str
    checksum: str
    registry: msgspec.Raw


def write_backup(path: str, state: RegistryState, now_s: float, filesystem: FileSystem) -> None:
    """Write a state to a file, in the place of an older one, readable for its owner alone. Blocking. OSError."""
    encoded = msgspec.json.encode(state)
    backup = BackupFile(format=FORMAT, made=timestamp(now_s), checksum=checksum_of(encoded), registry=msgspec.Raw(encoded))
    write_small_file(os.path.abspath(path), msgspec.json.encode(backup) + b"\n", filesystem, 0o600)


def read_backup(path: str) -> RegistryState:
    """Return the state in a file that `write_backup` wrote. Blocking. OperatorError."""
    try:
        data = read_small_file(path, "Take another backup.", CLUSTER_MAP_BYTES_MAX)
        if data is None:
            raise OperatorError(f"there is no file {path}")
        backup = msgspec.json.decode(data, type=BackupFile)
        if backup.format != FORMAT:
            raise OperatorError(
                f"{path} is a backup of format {backup.format}, and this version of DFC reads format {FORMAT}: use the"
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
    mirror = Mirror(prefix)
    try:
        mirror.replace(*await gateway.range(prefix, end_of(prefix)))
    except Unavailable as error:
        raise OperatorError(error.message) from error
    try:
        return _state(mirror, prefix)
    except (LookupError, ValueError) as error:  # what msgspec raises are ValueErrors
        raise OperatorError(f"what is in etcd below {prefix} cannot be understood: {error}") from error


def _state(mirror: Mirror, prefix: str) -> RegistryState:
    meta = mirror.meta()
    if meta is None:
        raise OperatorError(f"there is no registry in etcd below {prefix}")
    if meta.format != ETCD_FORMAT:
        raise OperatorError(other_format(meta.format))
    if meta.coming or meta.moved_to:
        raise OperatorError("the registry in etcd is not in use: it was moved, or is being written")
    return mirror.state(meta.cluster_id)

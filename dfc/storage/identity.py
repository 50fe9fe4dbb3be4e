"""Which disk this is: the lock, the identity file and the catalog's epoch.

`dfc-disk.json` is written last when a disk is formatted and never again. The epoch counts how often the disk was opened,
in the catalog and in a file beside it, so that a catalog restored from an old copy is known as such and refused.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from datetime import UTC, datetime
from typing import Final

import msgspec

from dfc.errors import DiskLocked, DiskRefused
from dfc.storage import layout
from dfc.storage.catalog import Catalog
from dfc.storage.filesystem import FileSystem, remove_if_there, write_all

_EPOCH: Final = re.compile(rb"[0-9]{16}\n")


class DiskIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of `dfc-disk.json`."""

    format: int
    cluster_id: str
    disk_id: str
    created: str


def lock_disk(path: str) -> int:
    """A descriptor that holds the disk for this process until it is closed. Raises DiskLocked or DiskRefused."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise DiskRefused(f"{path}: {error.strerror}; is the file system mounted?") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise DiskLocked(f"{path} is in use by another process; stop that one first") from error
    return fd


def read_identity(path: str) -> DiskIdentity | None:
    """What the disk says it is, None when it does not say; DiskRefused when that cannot be read."""
    file_name = f"{path}/{layout.IDENTITY_FILE}"
    try:
        with open(file_name, "rb") as file:
            identity = msgspec.json.decode(file.read(1 << 16), type=DiskIdentity)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise DiskRefused(f"{file_name} cannot be read ({error}); restore it from a copy or from the cluster's map") from error
    if identity.format != layout.FORMAT_VERSION:
        raise DiskRefused(f"{path} has disk format {identity.format}; this program knows {layout.FORMAT_VERSION}")
    return identity


def require_identity(path: str, cluster_id: str | None) -> DiskIdentity:
    """The identity of a formatted disk of that cluster; DiskRefused otherwise, saying what to do."""
    identity = read_identity(path)
    if identity is None:
        what = "holds blobs but no identity" if has_blobs(path) else "is not formatted"
        raise DiskRefused(f"{path} {what}: there is no {layout.IDENTITY_FILE}. Is it the right directory, and mounted?")
    if cluster_id is not None and identity.cluster_id != cluster_id:
        raise DiskRefused(f"{path} belongs to the cluster {identity.cluster_id}, not to {cluster_id}; use another directory")
    return identity


def format_disk(path: str, cluster_id: str, disk_id: str | None, filesystem: FileSystem) -> DiskIdentity:
    """Make an empty disk of an existing or new directory. A disk of the same identity is left as it is.

    DiskRefused when the directory has another identity, blobs, or a catalog that knows of any. The identity is written
    last: a format that was interrupted is simply done again.
    """
    filesystem.make_directories(path)
    lock = lock_disk(path)
    try:
        identity = read_identity(path)
        if identity is not None:
            if identity.cluster_id != cluster_id or disk_id not in (None, identity.disk_id):
                raise DiskRefused(f"{path} is disk {identity.disk_id} of the cluster {identity.cluster_id} already")
            return identity
        if has_blobs(path) or Catalog.holds_objects(f"{path}/{layout.CATALOG_FILE}"):
            raise DiskRefused(
                f"{path} holds objects but no {layout.IDENTITY_FILE}: restore that file, or use another directory"
            )
        identity = DiskIdentity(
            format=layout.FORMAT_VERSION,
            cluster_id=cluster_id,
            disk_id=disk_id or uuid.uuid4().hex,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        _write_empty_disk(path, identity, filesystem)
        return identity
    finally:
        os.close(lock)


def _write_empty_disk(path: str, identity: DiskIdentity, filesystem: FileSystem) -> None:
    for directory in (layout.OBJECTS, layout.ORPHANS, layout.TEMPORARY):
        try:
            filesystem.make_directory(f"{path}/{directory}")
        except FileExistsError:
            pass
    catalog = f"{path}/{layout.CATALOG_FILE}"
    remove_if_there(filesystem, (catalog, f"{catalog}-wal", f"{catalog}-shm"))
    Catalog.create(catalog, identity.disk_id, filesystem)
    write_epoch(path, 0, filesystem)
    filesystem.sync_directory(path)
    write_identity(path, identity, filesystem)


def write_identity(path: str, identity: DiskIdentity, filesystem: FileSystem) -> None:
    """Write `dfc-disk.json` whole or not at all."""
    temporary = f"{path}/{layout.IDENTITY_FILE}.new"
    remove_if_there(filesystem, (temporary,))
    fd = filesystem.create(temporary)
    try:
        write_all(filesystem, fd, msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n")
        filesystem.fdatasync(fd)
    finally:
        filesystem.close(fd)
    filesystem.rename(temporary, f"{path}/{layout.IDENTITY_FILE}")
    filesystem.sync_directory(path)


def read_epoch(path: str) -> int:
    """How often the disk was opened, as the file says; 0 when the file is missing or unreadable."""
    try:
        with open(f"{path}/{layout.EPOCH_FILE}", "rb") as file:
            text = file.read(64)
    except OSError:
        return 0
    return int(text) if _EPOCH.fullmatch(text) else 0


def write_epoch(path: str, epoch: int, filesystem: FileSystem) -> None:
    """Overwrite the count in place: always the same 17 bytes, in one sector, so that a full disk is no obstacle."""
    file_name = f"{path}/{layout.EPOCH_FILE}"
    try:
        fd = filesystem.open(file_name, write=True)
    except FileNotFoundError:
        fd = filesystem.create(file_name)
    try:
        filesystem.pwrite(fd, b"%016d\n" % epoch, 0)
        filesystem.fdatasync(fd)
    finally:
        filesystem.close(fd)


def has_blobs(path: str) -> bool:
    """Whether any file lies below `objects/`."""
    return any(files for _, _, files in os.walk(f"{path}/{layout.OBJECTS}"))

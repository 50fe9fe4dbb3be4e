"""The identity of a disk: the lock, the identity file and the catalog's epoch.

`dfc-disk.json` is written last when a disk is formatted, and again only when the disk moves to another node.

The epoch says how far the disk has come: it is counted up at each opening, and in the first synced commit after it was last
reported. At an opening it is also written to a file beside the catalog, so that a catalog restored from an old copy is detected
and refused. The coordinator remembers what was reported: so a whole disk that is put back to an earlier state is detected, too.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Annotated, Final, NamedTuple

import msgspec

from dfc.errors import DiskLocked, DiskRefused
from dfc.filesystem import (
    APPLICATION_ID_BEFORE,
    FileSystem,
    SmallFileDamaged,
    make_directories,
    other_format,
    read_header,
    read_small_file,
    remove_if_there,
    write_small_file,
)
from dfc.storage import layout
from dfc.storage.catalog.catalog import Catalog

IDENTITY_FORMAT: Final = 1  # of the whole disk
_BOOT_CHARS: Final = 36  # Linux names boots by UUIDs
_EPOCH: Final = re.compile(rb"([0-9]{16})\n(?:([!-~]{1,36}) *\n)?")


class DiskIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The contents of `dfc-disk.json`.

    `node_id`: the target that the disk belongs to; empty after a release, None if the file does not say.
    """

    format: int
    cluster_id: str
    disk_id: str
    created: str = ""
    node_id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{0,64}$")] | None = None


def lock_disk(path: str) -> int:
    """Lock the disk for this process until the returned descriptor is closed. Raises DiskLocked or DiskRefused."""
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
    """Read the identity file; None if there is none. DiskRefused if it cannot be read."""
    file_name = f"{path}/{layout.IDENTITY_FILE}"
    try:
        data = read_small_file(file_name, "")
        if data is None:
            return None
        identity = msgspec.json.decode(data, type=DiskIdentity)
    except SmallFileDamaged as damage:
        raise DiskRefused(f"{file_name} {damage.what}. {_way_out(path)}") from damage
    except msgspec.DecodeError as error:
        raise DiskRefused(f"{file_name} cannot be read ({error}). {_way_out(path)}") from error
    if identity.format != IDENTITY_FORMAT:
        raise DiskRefused(f"{path} is a disk {other_format(identity.format, IDENTITY_FORMAT)}")
    return identity


def _way_out(path: str) -> str:
    """How to recreate a lost identity file: everything in it is known elsewhere."""
    disk_id = Catalog.disk_id_in(f"{path}/{layout.CATALOG_FILE}") or "(the disk's id, from the cluster map)"
    lost = {"format": IDENTITY_FORMAT, "cluster_id": "(from /v1/cluster)", "disk_id": disk_id}
    return f"Restore it from a copy, or write it again: {msgspec.json.encode(lost).decode()}"


def require_identity(path: str, cluster_id: str | None) -> DiskIdentity:
    """The identity of a formatted disk of this cluster; otherwise DiskRefused, which says what to do."""
    identity = read_identity(path)
    if identity is None:
        what = "holds blobs but no identity" if has_blobs(path) else "is not formatted"
        raise DiskRefused(f"{path} {what}: there is no {layout.IDENTITY_FILE}. Is it the right directory, and mounted?")
    if _is_from_before(path):
        raise DiskRefused(
            f"{path} is a disk of DFC before 0.1.0. Nothing was changed. Run the version of DFC that wrote it, or use another"
            " directory"
        )
    if cluster_id is not None and identity.cluster_id != cluster_id:
        raise DiskRefused(f"{path} belongs to cluster {identity.cluster_id}, not to {cluster_id}; use another directory")
    return identity


def _is_from_before(path: str) -> bool:
    """Whether the catalog is of DFC before 0.1.0, whose formats had these numbers, too. One that cannot be read is not known to
    be: it may be rebuilt."""
    with suppress(OSError):
        header = read_header(f"{path}/{layout.CATALOG_FILE}")
        return header is not None and header.application_id == APPLICATION_ID_BEFORE
    return False


def format_disk(
    path: str, cluster_id: str, disk_id: str | None, filesystem: FileSystem, node_id: str | None = None
) -> DiskIdentity:
    """Turn an existing or new directory into an empty disk. A disk with the same identity is left as it is.

    DiskRefused when the directory has another identity, blobs, or a catalog with objects. The identity is written last, so an
    interrupted format is simply repeated.
    """
    make_directories(path, filesystem)
    lock = lock_disk(path)
    try:
        identity = read_identity(path)
        if identity is not None:
            if identity.cluster_id != cluster_id or disk_id not in (None, identity.disk_id):
                raise DiskRefused(f"{path} is already disk {identity.disk_id} of cluster {identity.cluster_id}")
            return identity
        if has_blobs(path) or Catalog.holds_objects(f"{path}/{layout.CATALOG_FILE}"):
            raise DiskRefused(
                f"{path} holds objects but no {layout.IDENTITY_FILE}: restore that file, or use another directory"
            )
        identity = DiskIdentity(
            format=IDENTITY_FORMAT,
            cluster_id=cluster_id,
            disk_id=disk_id or uuid.uuid4().hex,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            node_id=node_id,
        )
        _write_empty_disk(path, identity, filesystem)
        return identity
    finally:
        os.close(lock)


def _write_empty_disk(path: str, identity: DiskIdentity, filesystem: FileSystem) -> None:
    for directory in (layout.OBJECTS, layout.ORPHANS, layout.TEMPORARY):
        with suppress(FileExistsError):
            filesystem.make_directory(f"{path}/{directory}")
    catalog = f"{path}/{layout.CATALOG_FILE}"
    remove_if_there(filesystem, (catalog, f"{catalog}-wal", f"{catalog}-shm"))
    Catalog.create(catalog, identity.disk_id, filesystem)
    write_opening(path, Opening(), filesystem)
    filesystem.sync_directory(path)
    write_identity(path, identity, filesystem)


def give_to_node(path: str, node_id: str, filesystem: FileSystem) -> str | None:
    """Assign the disk to a node (empty: to none, until one takes it); returns the previous node. DiskLocked if in use."""
    lock = lock_disk(path)
    try:
        identity = require_identity(path, None)
        if identity.node_id != node_id:
            write_identity(path, msgspec.structs.replace(identity, node_id=node_id), filesystem)
        return identity.node_id
    finally:
        os.close(lock)


def accept(path: str, filesystem: FileSystem) -> bool:
    """Accept that a disk has lost rows; returns whether it has. DiskLocked if in use, DiskRefused."""
    lock = lock_disk(path)
    try:
        with closing(Catalog.open(path, require_identity(path, None).disk_id)) as catalog:
            has_lost = catalog.may_have_lost_rows
            if has_lost:
                catalog.accept(filesystem)
        return has_lost
    finally:
        os.close(lock)


def write_identity(path: str, identity: DiskIdentity, filesystem: FileSystem) -> None:
    """Write `dfc-disk.json` atomically."""
    data = msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"
    write_small_file(f"{path}/{layout.IDENTITY_FILE}", data, filesystem)


class Opening(NamedTuple):
    """What is known of the last opening of a disk: its epoch, and the boot of the machine; 0 and empty if it is not."""

    epoch: int = 0
    boot: str = ""


def last_opening(path: str) -> Opening:
    """The last opening, according to the file."""
    try:
        with open(f"{path}/{layout.EPOCH_FILE}", "rb") as file:
            found = _EPOCH.fullmatch(file.read(128))
    except OSError:
        return Opening()
    return Opening(int(found[1]), (found[2] or b"").decode()) if found else Opening()


def write_opening(path: str, opening: Opening, filesystem: FileSystem) -> None:
    """Overwrite the file in place: always the same bytes, in one sector, so that it works on a full disk."""
    file_name = f"{path}/{layout.EPOCH_FILE}"
    is_new = False
    try:
        fd = filesystem.open(file_name, write=True)
    except FileNotFoundError:
        fd, is_new = filesystem.create(file_name), True
    try:
        text = b"%016d\n" % opening.epoch + (f"{opening.boot[:_BOOT_CHARS]:{_BOOT_CHARS}}\n".encode() if opening.boot else b"")
        filesystem.pwrite(fd, text, 0)
        filesystem.fdatasync(fd)
    finally:
        filesystem.close(fd)
    if is_new:
        filesystem.sync_directory(path)


def has_blobs(path: str) -> bool:
    """Whether there is any file below `objects/`."""
    return any(files for _, _, files in os.walk(f"{path}/{layout.OBJECTS}"))

"""What crosses the boundary of the storage engine: rows, results, preconditions and options. Values only, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from dfc.clock import version_us
from dfc.errors import PreconditionFailed
from dfc.limits import GIB, MIB

Durability = Literal["fsync", "relaxed"]

# States of a row. Only GOOD rows, and UNSYNCED ones written since the machine started, are served without a check.
GOOD: Final = 0
UNSYNCED: Final = 1
QUARANTINED: Final = 2


class ObjectRow(msgspec.Struct, frozen=True, gc=False):
    """One object as the catalog knows it. `samples` and `members` are None when it has no tar index; `warnings` say why."""

    bucket_id: str
    name: str
    version: str
    size: int
    checksum: str
    samples: int | None = None
    members: int | None = None
    warnings: tuple[str, ...] = ()
    state: int = GOOD
    attributes: bytes = b""  # `dfc.attributes`, as they came: this engine keeps them and does not look into them
    drawn: str = ""  # the id of its file, where the version came from outside

    @property
    def blob_id(self) -> str:
        """What names its file: the version, or what the disk drew in its place. No two files ever have the same one."""
        return self.drawn or self.version

    @property
    def modified_us(self) -> int:
        """Microseconds since 1970 at which the upload began."""
        return version_us(self.version)

    @property
    def unsynced(self) -> bool:
        return self.state == UNSYNCED

    @property
    def quarantined(self) -> bool:
        return self.state == QUARANTINED


class ListedRow(NamedTuple):
    """The cheap form of a row for listings; the storage engine returns plain tuples of this shape."""

    name: str
    size: int
    checksum: str
    version_us: int
    samples: int | None
    members: int | None


class QuarantinedObject(NamedTuple):
    """An object whose stored bytes are gone or wrong; `found_us` in µs since 1970."""

    bucket_id: str
    name: str
    version: str
    size: int
    reason: str
    found_us: int


class DiskSpace(NamedTuple):
    """Bytes. `free` is what uploads may still use: the reserve is already taken off."""

    capacity: int
    used: int
    free: int
    reserve: int


@dataclass(frozen=True, slots=True)
class Precondition:
    """What must hold inside the transaction. Tags are the hex of a checksum, or "*" for any object at all.

    `guard` runs inside the transaction too; whatever it raises refuses the operation and is raised to the caller. It must
    not touch the disk.
    """

    if_match: str | None = None
    if_none_match: str | None = None
    guard: Callable[[], None] | None = None

    @property
    def names_an_object(self) -> bool:
        return self.if_match is not None or self.if_none_match is not None

    def check(self, checksum: str | None) -> None:
        """Decide against the object that is there (None = there is none); PreconditionFailed, or what the guard raises."""
        if self.guard is not None:
            self.guard()
        if self.if_match is not None and (checksum is None or self.if_match not in ("*", checksum)):
            raise PreconditionFailed("If-Match: the object has changed" if checksum else "If-Match: the object does not exist")
        if self.if_none_match is not None and checksum is not None and self.if_none_match in ("*", checksum):
            raise PreconditionFailed("If-None-Match: the object already exists")


ALWAYS: Final = Precondition()


@dataclass(frozen=True, slots=True)
class Supplied:
    """What an upload brings from outside. `version`: the one that somebody else has given to the object, None to draw a new
    one. `attributes`: as `dfc.attributes` encodes them."""

    version: str | None = None
    attributes: bytes = b""


NOTHING: Final = Supplied()


@dataclass(frozen=True, slots=True)
class PutResult:
    """`replaced` is True when an object of that name was there, or a newer one has come meanwhile."""

    row: ObjectRow
    replaced: bool
    warnings: tuple[str, ...] = ()


class RowChanged(Exception):
    """The row that the caller holds is not the current one any more; `row` is. Start again from it."""

    def __init__(self, row: ObjectRow) -> None:
        super().__init__(f"{row.name} has a newer version {row.version}")
        self.row = row


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """How one disk behaves; every default is meant for production."""

    reserve_bytes: int = 256 * MIB  # kept free of uploads: for the catalog, its log and other users of the file system
    ballast_bytes: int = 8 * MIB  # given up when even the catalog finds no space, so that deletes still work
    error_budget: int = 16  # I/O errors after which a disk takes no more writes until it is opened again
    sync_relaxed_s: float = 30.0  # an object of relaxed durability is on the medium after so long
    orphan_keep_s: float = 86_400.0  # blobs that nothing refers to are kept so long beside the disk's objects
    orphan_alarm: int = 100  # more complete blobs without a row than any crash leaves: the catalog is in doubt
    tombstone_keep_s: float = 7 * 86_400.0  # longer than any upload may last
    object_bytes_max: int = 1024 * GIB
    row_cache_rows: int = 16_384  # about 600 bytes each, and 512 of attributes at most
    open_indexes: int = 64
    writeback_bytes: int = 8 * MIB  # an upload starts writing out pieces of this size while it is received
    maintenance: bool = True  # False: no background thread; tests call what it would call
    boot_id: str | None = None  # None: the kernel's; other values are for tests

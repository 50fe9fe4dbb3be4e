"""The values that the storage engine takes and returns, attributes included. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from dfc.clock import version_us
from dfc.errors import BadRequest, PreconditionFailed, Unavailable
from dfc.limits import ATTRIBUTES_BYTES_MAX, GIB, MIB

Durability = Literal["fsync", "relaxed"]

# States of a row. Only GOOD rows, and UNSYNCED rows written since the machine booted, are served without a check.
GOOD: Final = 0
UNSYNCED: Final = 1
QUARANTINED: Final = 2


class ObjectRow(msgspec.Struct, frozen=True, gc=False):
    """An object's entry in the catalog. `samples` and `members` are None if it has no tar index; `warnings` say why."""

    bucket_id: str
    name: str
    version: str
    size: int
    checksum: str
    samples: int | None = None
    members: int | None = None
    warnings: tuple[str, ...] = ()
    state: int = GOOD
    attributes: bytes = b""  # `Attributes` below, encoded, as received: the storage engine does not interpret them
    drawn: str = ""  # the id of its file, if the version came from outside

    @property
    def blob_id(self) -> str:
        """The id in its file name: the version, or an id drawn by the disk instead. Unique among all files ever."""
        return self.drawn or self.version

    @property
    def modified_us(self) -> int:
        """When the upload began, in microseconds since 1970."""
        return version_us(self.version)

    @property
    def unsynced(self) -> bool:
        return self.state == UNSYNCED

    @property
    def quarantined(self) -> bool:
        return self.state == QUARANTINED


@dataclass(frozen=True, slots=True)
class NameState:
    """What a disk has of a name: an object, or (`row` None) the tombstone of one that was deleted."""

    version: str
    row: ObjectRow | None = None


NO_REPLICA: Final = 255  # the rank of a row on a disk that is no replica of the object


@dataclass(frozen=True, slots=True)
class Standing:
    """How a row is recorded beside its copies. `rank`: which replica of the object this disk is, counted from 0. `pending`: it
    is not yet known that all have it who must. `hints`: ids of disks that lack it. `job`: the one that publishes it, while it
    is pending; else empty."""

    rank: int = 0
    pending: bool = False
    hints: tuple[str, ...] = ()
    job: str = ""


LATER: Final = "+"  # never in the id of a disk


def later(disk: str) -> str:
    """The key of hints about rows that a disk is to have only because objects move to it: apart from others that it lacks,
    since there may be millions of them and nobody waits for them."""
    return disk + LATER


def hinted_disk(hints: str) -> str:
    """The disk of a hint's key."""
    return hints.removesuffix(LATER)


ALONE: Final = Standing()
"""The standing of a row that has no copies."""


class ListedRow(NamedTuple):
    """A reduced row for listings; the storage engine returns plain tuples of this shape."""

    name: str
    size: int
    checksum: str
    version_us: int
    samples: int | None
    members: int | None


class QuarantinedObject(NamedTuple):
    """An object whose stored bytes are gone or damaged; `found_us` in µs since 1970."""

    bucket_id: str
    name: str
    version: str
    size: int
    reason: str
    found_us: int


class DiskSpace(NamedTuple):
    """The space of a disk in bytes. `free` is what uploads may still use: the reserve is already subtracted. `file_system`: its
    id, the same for all disks that share it; empty if that is not known."""

    capacity: int
    used: int
    free: int
    reserve: int
    file_system: str = ""


@dataclass(frozen=True, slots=True)
class Supplied:
    """What an upload supplies besides its bytes. `version`: one assigned elsewhere, None to draw a new one. `attributes`: as
    `Attributes` encodes them."""

    version: str | None = None
    attributes: bytes = b""


NOTHING: Final = Supplied()


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """The result of an upload. `replaced` is True if an object of that name existed, or a newer one has arrived meanwhile;
    `committed` is False in the latter case: nothing of it is to be copied."""

    row: ObjectRow
    replaced: bool
    warnings: tuple[str, ...] = ()
    committed: bool = True


class RowChanged(Exception):
    """The caller's row is no longer the current one; `row` is. Start again from it."""

    def __init__(self, row: ObjectRow) -> None:
        super().__init__(f"{row.name} has a newer version {row.version}")
        self.row = row


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """The options of one disk; every default is meant for production."""

    reserve_bytes: int = 256 * MIB  # not available to uploads: for the catalog, its log and other users of the file system
    ballast_bytes: int = 8 * MIB  # given up when even the catalog runs out of space, so that deletes still work
    error_budget: int = 16  # I/O errors after which a disk accepts no more writes until it is opened again
    sync_relaxed_s: float = 30.0  # objects of relaxed durability are synced within this time
    orphan_keep_s: float = 86_400.0  # how long orphans are kept in `orphans/`
    orphan_alarm: int = 100  # this many complete blobs without a row are more than any crash leaves: the catalog may be wrong
    tombstone_keep_s: float = 7 * 86_400.0  # longer than any upload may last
    object_bytes_max: int = 1024 * GIB
    row_cache_rows: int = 16_384  # about 600 bytes each, plus at most 512 of attributes
    open_indexes: int = 64
    writeback_bytes: int = 8 * MIB  # an upload is written out in pieces of this size while it arrives
    maintenance: bool = True  # False: no background threads; tests call what they would call
    boot_id: str | None = None  # None: the kernel's; set it only in tests


class OtherCondition(Unavailable):
    """What a guard raises if the write may be made under another condition: a finished upload can be committed again."""


@dataclass(frozen=True, slots=True)
class Precondition:
    """A condition that must hold inside the transaction. Tags are a checksum in hex, or "*" for any object.

    `guard` also runs inside the transaction; anything it raises refuses the operation and is raised to the caller. It says how
    the row is recorded; None: as one without copies. It must not touch the disk.
    """

    if_match: str | None = None
    if_none_match: str | None = None
    guard: Callable[[], Standing | None] | None = None

    @property
    def names_an_object(self) -> bool:
        return self.if_match is not None or self.if_none_match is not None

    def check_guard(self) -> Standing:
        """Run the guard, and return how the row is to be recorded. Raises what the guard raises."""
        return (self.guard() if self.guard is not None else None) or ALONE

    def check(self, checksum: str | None) -> Standing:
        """Check against the current object (None: there is none), and return how the new row is to be recorded.

        Raises PreconditionFailed, or what the guard raises.
        """
        standing = ALONE if self.guard is None else self.check_guard()
        if self.if_match is not None and (checksum is None or self.if_match not in ("*", checksum)):
            raise PreconditionFailed("If-Match: the object has changed" if checksum else "If-Match: the object does not exist")
        if self.if_none_match is not None and checksum is not None and self.if_none_match in ("*", checksum):
            raise PreconditionFailed("If-None-Match: the object already exists")
        return standing


ALWAYS: Final = Precondition()


# --- Attributes of an object: content type, user metadata and further digests, encoded as a msgpack map.
#
# The storage engine stores the encoded form without looking into it, and copying an object copies that form. So fields written
# by a newer version of DFC survive in an older one.


class Attributes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The attributes of one object.

    `metadata` maps lower-case names to the user's values. `digests` maps names (`md5`, `crc32c`, `sha256`) to lower-case hex;
    the xxh3-128 is not among them."""

    content_type: str = ""
    metadata: dict[str, str] = {}
    digests: dict[str, str] = {}

    def encode(self) -> bytes:
        """Encode deterministically; no attributes give empty bytes. BadRequest when the result is too long."""
        if self == NO_ATTRIBUTES:
            return b""
        encoded = _ENCODER.encode(self)
        check_attributes(encoded)
        return encoded

    @classmethod
    def decode(cls, encoded: bytes) -> Attributes:
        """Decode the known fields; msgspec.DecodeError when the bytes are not such a map."""
        return _DECODER.decode(encoded) if encoded else NO_ATTRIBUTES


def check_attributes(encoded: bytes) -> None:
    """Raise BadRequest when the encoded attributes are longer than allowed."""
    if len(encoded) > ATTRIBUTES_BYTES_MAX:
        raise BadRequest(
            f"the object's attributes are too large: {len(encoded)} bytes, at most {ATTRIBUTES_BYTES_MAX} are allowed"
        )


NO_ATTRIBUTES: Final = Attributes()
_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: Final = msgspec.msgpack.Decoder(Attributes)

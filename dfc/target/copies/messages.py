"""What targets say to each other about copies, in MessagePack. Every message names its sender and the version of its map."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from dfc.limits import ATTRIBUTES_BYTES_MAX, COPY_ITEMS_MAX, SMALL_BODY_BYTES
from dfc.placement.map import ClusterMap, Durability, Id
from dfc.storage.layout import JOB_ID
from dfc.storage.rows import NameState, ObjectRow

Version = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{18}$")]
JobId = Annotated[str, msgspec.Meta(pattern=f"^({JOB_ID.pattern})?$")]
Kind = Literal["commit", "adopt", "direct", "staged"]
"""`commit`: a write of the sender, the primary; pending until it is confirmed. `adopt`: a row of the primary that counts.
`direct`: a row of any holder, while there is no primary. `staged`: an output of a job, which is no object yet."""
Outcome = Literal["taken", "refused", "newer_map", "unknown"]
"""`taken`: it is there now, or was. `newer_map`: by a newer map, which comes along, the sender is not the primary. `unknown`:
the bytes are wanted. `refused`: something newer is there, or it cannot be stored now."""


class Sender(msgspec.Struct, frozen=True):
    """Who sends a message, and by which map."""

    node: Id
    version: int


class RowState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state of a name as it travels: an object, or (`size` -1) a tombstone."""

    version: Version
    size: Annotated[int, msgspec.Meta(ge=-1)] = -1
    checksum: str = ""
    attributes: Annotated[bytes, msgspec.Meta(max_length=ATTRIBUTES_BYTES_MAX)] = b""

    @property
    def is_tombstone(self) -> bool:
        return self.size < 0


class CopyItem(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A row for the disk `to`, from the disk `of`. `body`: the object's bytes, if they are few."""

    kind: Kind
    of: Id
    to: Id
    bucket_id: Id
    name: str
    state: RowState
    durability: Durability = "fsync"
    is_pending: bool = False  # with "direct"
    job: JobId = ""  # that publishes it, while it is pending, or has staged it
    body: Annotated[bytes, msgspec.Meta(max_length=SMALL_BODY_BYTES)] | None = None

    @property
    def key(self) -> CopyKey:
        return CopyKey(self.to, self.bucket_id, self.name)


class CopyKey(NamedTuple):
    """A name on a disk."""

    disk: str
    bucket_id: str
    name: str


class CopiesSent(msgspec.Struct, frozen=True):
    """Rows for the disks of a target."""

    sender: Sender
    items: Annotated[list[CopyItem], msgspec.Meta(max_length=COPY_ITEMS_MAX)]


class CopiesTaken(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of each row. `map`: the receiver's, where it is newer and that matters."""

    outcomes: list[Outcome]
    map: ClusterMap | None = None


class NamesAsked(msgspec.Struct, frozen=True):
    """A question about names on disks of a target."""

    sender: Sender
    names: Annotated[list[CopyKey], msgspec.Meta(max_length=COPY_ITEMS_MAX)]


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a disk has of a name. `speaks`: as its primary, settled and with nothing on its way, so that this is what counts.
    `is_certain`: no write of the name is on its way here. `is_known` False: the disk is not here. `is_damaged`: its bytes are
    gone or wrong. `decides`: it speaks, or would if no write of the name were on its way, which may be that of this state."""

    state: RowState | None = None
    speaks: bool = False
    is_certain: bool = False
    is_known: bool = True
    is_damaged: bool = False
    decides: bool = False


class StatesTold(msgspec.Struct, frozen=True):
    """The answers, in order."""

    told: list[Told]


class ConfirmedRow(NamedTuple):
    """A row on a disk that counts."""

    disk: str
    bucket_id: str
    name: str
    version: str


class Confirmed(msgspec.Struct, frozen=True):
    """Rows that count."""

    sender: Sender
    rows: Annotated[list[ConfirmedRow], msgspec.Meta(max_length=COPY_ITEMS_MAX)]


class Lacking(msgspec.Struct, frozen=True):
    """For primaries: disks that lack rows of names."""

    sender: Sender
    names: Annotated[list[CopyKey], msgspec.Meta(max_length=COPY_ITEMS_MAX)]


class PendingAsked(msgspec.Struct, frozen=True):
    """For all targets: which pending rows they have of names whose primary the sender is, by this step."""

    sender: Sender
    step: int
    after: PendingPosition | None = None  # None: from the beginning


class PendingPosition(NamedTuple):
    """Where a page of pending rows has ended, for the target that has said so."""

    disk: str
    bucket: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
    name: bytes


class PendingCopy(msgspec.Struct, frozen=True):
    """A pending row on a disk."""

    key: CopyKey
    state: RowState


class Offered(msgspec.Struct, frozen=True):
    """For primaries: pending rows on a disk of the sender that an unfinished job publishes, to be taken unless newer ones are
    there."""

    sender: Sender
    rows: Annotated[list[PendingCopy], msgspec.Meta(max_length=COPY_ITEMS_MAX)]


class PendingTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of the rows, and the `after` of the next one; or a newer map, by which the question has to be asked again."""

    rows: list[PendingCopy]
    map: ClusterMap | None = None
    after: PendingPosition | None = None


class DiskAsked(msgspec.Struct, frozen=True):
    """A question about a disk of a target."""

    sender: Sender
    disk: Id


class DiskTold(msgspec.Struct, frozen=True):
    """The answer."""

    holds: bool


NOBODY: Final = Told(is_known=False)


def state_of(found: NameState) -> RowState:
    """Describe what a disk has."""
    row = found.row
    return RowState(found.version) if row is None else RowState(row.version, row.size, row.checksum, row.attributes)


def row_state(row: ObjectRow) -> RowState:
    """Describe an object."""
    return RowState(row.version, row.size, row.checksum, row.attributes)

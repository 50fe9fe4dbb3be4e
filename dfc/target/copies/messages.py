"""What targets say to each other about copies, and while they compare them, in MessagePack.

Every message names its sender and the version of its map."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from dfc.limits import ATTRIBUTES_BYTES_MAX, CHECKED_BUCKETS_MAX, COPY_ITEMS_MAX, SMALL_BODY_BYTES
from dfc.placement.map import ClusterMap, Durability, Id
from dfc.placement.roles import SLICES
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


class NamesRequest(msgspec.Struct, frozen=True):
    """A question about names on disks of a target."""

    sender: Sender
    names: Annotated[list[CopyKey], msgspec.Meta(max_length=COPY_ITEMS_MAX)]


class NameReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a disk has of a name. `speaks`: as its primary, peered and with nothing on its way, so that this is what counts.
    `is_replicated`: no write of the name is on its way here. `is_known` False: the disk is not here. `is_damaged`: its bytes
    are gone or wrong. `decides`: it speaks, or would if no write of the name were on its way, which may be that of this
    state."""

    state: RowState | None = None
    speaks: bool = False
    is_replicated: bool = False
    is_known: bool = True
    is_damaged: bool = False
    decides: bool = False

    @property
    def knows_nothing(self) -> bool:
        """Whether a primary says for certain that there is nothing of the name."""
        return self.is_known and self.state is None and self.speaks and self.is_replicated


class StatesReply(msgspec.Struct, frozen=True):
    """The answers, in order."""

    replies: list[NameReply]


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


class MissingRows(msgspec.Struct, frozen=True):
    """For primaries: disks that lack rows of names."""

    sender: Sender
    names: Annotated[list[CopyKey], msgspec.Meta(max_length=COPY_ITEMS_MAX)]


class PendingRequest(msgspec.Struct, frozen=True):
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


class PendingReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of the rows, and the `after` of the next one; or a newer map, by which the question has to be asked again."""

    rows: list[PendingCopy]
    map: ClusterMap | None = None
    after: PendingPosition | None = None


class DiskRequest(msgspec.Struct, frozen=True):
    """A question about a disk of a target."""

    sender: Sender
    disk: Id


class DiskReply(msgspec.Struct, frozen=True):
    """The answer."""

    holds: bool


NOBODY: Final = NameReply(is_known=False)


def state_of(found: NameState) -> RowState:
    """Describe what a disk has."""
    row = found.row
    return RowState(found.version) if row is None else RowState(row.version, row.size, row.checksum, row.attributes)


def row_state(row: ObjectRow) -> RowState:
    """Describe an object."""
    return RowState(row.version, row.size, row.checksum, row.attributes)


# --- What a target asks another one while it compares copies, in MessagePack. `dfc.replication.compare` has the rules.

DIGESTS_PATH: Final = "/v1/node/compare/digests"
NAMES_PATH: Final = "/v1/node/compare/names"
LOOKS_PATH: Final = "/v1/node/compare/looks"
ASIDE_PATH: Final = "/v1/node/compare/aside"
_Buckets = Annotated[tuple[Id, ...], msgspec.Meta(max_length=CHECKED_BUCKETS_MAX)]


class PairRequest(msgspec.Struct, frozen=True):
    """The pair that a question is about: the sender's disk, which is the `primary`, and the receiver's. `step`: by which they
    are compared."""

    sender: Sender
    step: int
    primary: Id
    replica: Id


class DigestsRequest(msgspec.Struct, frozen=True):
    """The digests of what the pair shares of these buckets (none: of all), by a walk that has begun at most `age_s` seconds
    ago."""

    pair: PairRequest
    buckets: _Buckets
    age_s: Annotated[float, msgspec.Meta(ge=0)]


class DigestsReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The digests of all slices, once the rows have been read: empty before that. `why`: what keeps the pair from being
    compared; `has_changed`: the step is another one."""

    folds: bytes = b""
    counts: bytes = b""
    why: str = ""
    has_changed: bool = False


class SharedNamesRequest(msgspec.Struct, frozen=True):
    """The names that the pair shares in a bucket, in these slices, after one name and up to another (None: to the end)."""

    pair: PairRequest
    bucket_id: Id
    slices: Annotated[frozenset[Annotated[int, msgspec.Meta(ge=0, lt=SLICES)]], msgspec.Meta(max_length=SLICES)]
    after: str
    upto: str | None


class SharedNamesReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Digests by name, of the rows up to the name `until`; None: all of those that were asked for."""

    digests: dict[str, int] = {}
    until: str | None = None
    why: str = ""
    has_changed: bool = False


class LooksRequest(msgspec.Struct, frozen=True):
    """What the pair's replica has of names."""

    pair: PairRequest
    names: Annotated[list[tuple[Id, str]], msgspec.Meta(max_length=COPY_ITEMS_MAX)]


class LookReply(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """See `dfc.replication.compare.Seen`."""

    version: Version | None = None
    checksum: str = ""
    is_sure: bool = True


class LooksReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answers, in order."""

    looks: list[LookReply] = []
    why: str = ""
    has_changed: bool = False


class UnknownRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of which the primary knows nothing."""

    bucket_id: Id
    name: str
    version: Version

    def key(self, disk: str) -> CopyKey:
        return CopyKey(disk, self.bucket_id, self.name)


class AsideRequest(msgspec.Struct, frozen=True):
    """Rows that the replica sets aside, if its primary has said to it, too, that it knows nothing of them."""

    pair: PairRequest
    rows: Annotated[list[UnknownRow], msgspec.Meta(max_length=COPY_ITEMS_MAX)]


class AsideReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which rows were set aside: bucket id and name."""

    gone: list[tuple[str, str]] = []
    why: str = ""
    has_changed: bool = False

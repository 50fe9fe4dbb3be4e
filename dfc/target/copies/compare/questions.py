"""What a target asks another one while it compares copies, in MessagePack. `dfc.replication.comparing` has the rules."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from dfc.limits import CHECKED_BUCKETS_MAX, COPY_ITEMS_MAX
from dfc.placement.map import Id
from dfc.placement.state import SLICES
from dfc.target.copies.messages import CopyKey, Sender, Version

DIGESTS_PATH: Final = "/v1/node/compare/digests"
NAMES_PATH: Final = "/v1/node/compare/names"
LOOKS_PATH: Final = "/v1/node/compare/looks"
ASIDE_PATH: Final = "/v1/node/compare/aside"
_Buckets = Annotated[tuple[Id, ...], msgspec.Meta(max_length=CHECKED_BUCKETS_MAX)]


class PairAsked(msgspec.Struct, frozen=True):
    """The pair that a question is about: the sender's disk, which is the `primary`, and the receiver's. `step`: by which they
    are compared."""

    sender: Sender
    step: int
    primary: Id
    home: Id


class DigestsAsked(msgspec.Struct, frozen=True):
    """The digests of what the pair shares of these buckets (none: of all), by a walk that has begun at most `age_s` seconds
    ago."""

    pair: PairAsked
    buckets: _Buckets
    age_s: Annotated[float, msgspec.Meta(ge=0)]


class DigestsTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """The digests of all slices, once the rows have been read: empty before that. `why`: what keeps the pair from being
    compared; `has_changed`: the step is another one."""

    folds: bytes = b""
    counts: bytes = b""
    why: str = ""
    has_changed: bool = False


class SharedNamesAsked(msgspec.Struct, frozen=True):
    """The names that the pair shares in a bucket, in these slices, after one name and up to another (None: to the end)."""

    pair: PairAsked
    bucket_id: Id
    slices: Annotated[frozenset[Annotated[int, msgspec.Meta(ge=0, lt=SLICES)]], msgspec.Meta(max_length=SLICES)]
    after: str
    upto: str | None


class SharedNamesTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """Digests by name, of the rows up to the name `until`; None: all of those that were asked for."""

    digests: dict[str, int] = {}
    until: str | None = None
    why: str = ""
    has_changed: bool = False


class LooksAsked(msgspec.Struct, frozen=True):
    """What the pair's home has of names."""

    pair: PairAsked
    names: Annotated[list[tuple[Id, str]], msgspec.Meta(max_length=COPY_ITEMS_MAX)]


class LookTold(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """See `dfc.replication.comparing.Seen`."""

    version: Version | None = None
    checksum: str = ""
    is_sure: bool = True


class LooksTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answers, in order."""

    looks: list[LookTold] = []
    why: str = ""
    has_changed: bool = False


class UnknownRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of which the primary knows nothing."""

    bucket_id: Id
    name: str
    version: Version

    def key(self, disk: str) -> CopyKey:
        return CopyKey(disk, self.bucket_id, self.name)


class AsideAsked(msgspec.Struct, frozen=True):
    """Rows that the home sets aside, if its primary has said to it, too, that it knows nothing of them."""

    pair: PairAsked
    rows: Annotated[list[UnknownRow], msgspec.Meta(max_length=COPY_ITEMS_MAX)]


class AsideTold(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which rows were set aside: bucket id and name."""

    gone: list[tuple[str, str]] = []
    why: str = ""
    has_changed: bool = False

"""The values that the client returns: objects, listings, members and samples as frozen structs."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

from dfc.http.calls.problems import Headers
from dfc.reach.facts import etag_in
from dfc.wire import SAMPLES_HEADER

_COUNT: Final = re.compile(r"[0-9]{1,19}")  # int() refuses thousands of digits


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a PUT. `copies` is how many there are by now, None if the answer was lost. `samples` is None if the object
    is not a shard; if its name says it is, `warnings` say why."""

    bucket: str
    object: str
    size: int
    checksum: str
    version: str = ""
    copies: int | None = None
    copies_wanted: int | None = None
    samples: int | None = None
    members: int | None = None
    warnings: tuple[str, ...] = ()


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An object, from a listing or a HEAD. `etag` is the xxh3-128 in hex, `modified` is RFC 3339 UTC."""

    name: str
    size: int
    etag: str
    modified: str = ""
    samples: int | None = None
    members: int | None = None
    bucket: str = ""
    content_type: str = ""


class ListPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a listing, in byte order of names; `next_token` is None on the last."""

    objects: tuple[ObjectInfo, ...] = ()
    prefixes: tuple[str, ...] = ()
    next_token: str | None = None


class BucketInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket with its settings; counts are None if the answer has none, and estimates unless `exact`.

    Objects have `copies` copies each, and get `copies_wanted`. A write counts with `min_copies` if no more can be had.
    """

    name: str
    created: str = ""
    objects: int | None = None
    bytes: int | None = None
    copies: int = 1
    copies_wanted: int = 1
    min_copies: int = 1
    exact: bool = True
    durability: str = "fsync"


class BucketList(msgspec.Struct, frozen=True, kw_only=True):
    buckets: tuple[BucketInfo, ...] = ()


class MemberInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a shard. `offset` is where its data starts in the uncompressed archive; `key` is None outside of samples."""

    name: str
    offset: int
    size: int
    type: str = "file"
    key: str | None = None
    ext: str | None = None


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    offset: int
    size: int


class SampleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of a shard, with offset and size of each member by extension."""

    key: str
    members: dict[str, Extent]


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sample found by a query over many shards; `members` is None if only keys were asked for."""

    shard: str
    key: str
    members: dict[str, int] | None = None


def object_info(bucket: str, name: str, headers: Headers, size: int) -> ObjectInfo:
    """Make an ObjectInfo from the headers of a GET or HEAD; `size` is the size of the whole object in bytes."""
    samples = headers.get(SAMPLES_HEADER) or ""
    return ObjectInfo(
        samples=int(samples) if _COUNT.fullmatch(samples) else None,
        bucket=bucket,
        name=name,
        size=size,
        etag=etag_in(headers),
        modified=_rfc3339(headers.get("Last-Modified")),
        content_type=headers.get("Content-Type") or "",
    )


def _rfc3339(http_date: str | None) -> str:
    if not http_date:
        return ""
    try:
        return parsedate_to_datetime(http_date).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return ""

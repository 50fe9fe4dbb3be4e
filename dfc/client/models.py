"""What the client hands out: objects, listings, members and samples as frozen structs, decoded straight from the answers."""

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
    """The answer to a PUT. `samples` is None when the object is no shard; `warnings` then say why, if its name says it is."""

    bucket: str
    object: str
    size: int
    checksum: str
    version: str = ""
    samples: int | None = None
    members: int | None = None
    warnings: tuple[str, ...] = ()


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An object as a listing or a HEAD shows it. `etag` is the xxh3-128 in hex, `modified` RFC 3339 UTC."""

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
    """A bucket with its settings; counts are None where the answer has none."""

    name: str
    created: str = ""
    objects: int | None = None
    bytes: int | None = None
    copies: int = 1
    durability: str = "fsync"


class BucketList(msgspec.Struct, frozen=True, kw_only=True):
    buckets: tuple[BucketInfo, ...] = ()


class MemberInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a shard; `offset` is that of its data in the uncompressed archive, `key` None if it belongs to no sample."""

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
    """A sample of a shard: where the data of each extension lies."""

    key: str
    members: dict[str, Extent]


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sample found by a query over many shards; `members` is None when only keys were asked for."""

    shard: str
    key: str
    members: dict[str, int] | None = None


def object_info(bucket: str, name: str, headers: Headers, size: int) -> ObjectInfo:
    """From the headers of a GET or HEAD; `size` is that of the whole object in bytes."""
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

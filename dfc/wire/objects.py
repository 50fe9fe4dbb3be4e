"""Buckets, objects, samples, datasets and operations as nodes tell of them and clients read them (docs/http.md)."""

from __future__ import annotations

from typing import Any

import msgspec


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


class BucketInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket with its settings; counts are None if the answer has none, and estimates unless `exact`.

    Objects have `copies` copies each, and get `copies_wanted`. A write needs `min_copies` of them while targets are down.
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


class SampleMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that was found: its shard, its ordinal there, its key, and the size of each member by extension."""

    shard: str
    number: int
    key: str
    members: dict[str, int]


class UnsearchedShard(msgspec.Struct, frozen=True):
    """A shard that could not be searched, and why: the code and message of an error."""

    shard: str
    code: str
    message: str


class DatasetInfo(msgspec.Struct, frozen=True):
    """Shards whose names differ by a number alone. `pattern` is the name of the only one, or has the numbers as
    `{000000..000146}`. `modified`: when the newest was stored. `missing`: the first numbers between the first and the last that
    are not there, of `missing_count`; none if fewer than half are there, since then the numbers count something else."""

    pattern: str
    shards: int
    samples: int
    bytes: int
    modified: str
    missing: list[str]
    missing_count: int


class SettingNeed(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that must be on for some jobs, `when` says which; `on`: whether it is at the node that answered."""

    name: str
    when: str
    on: bool


class OperationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of jobs. `options` is the JSON Schema of its options, with a description and an example for each."""

    name: str
    summary: str
    description: str
    takes_many: bool
    takes_any_object: bool
    settings: tuple[SettingNeed, ...]
    options: dict[str, Any]


class OperationList(msgspec.Struct, frozen=True):
    """The answer to `GET /v1/operations`."""

    operations: tuple[OperationInfo, ...]

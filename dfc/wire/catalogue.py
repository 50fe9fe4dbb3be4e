"""What a cluster has to offer: the datasets in a bucket, and the operations of jobs."""

from __future__ import annotations

from typing import Any

import msgspec


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

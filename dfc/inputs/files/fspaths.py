"""Paths of the `dfc://` filesystem: `bucket/object`, and `bucket/shard.tar//member` for members of a shard. Pure; no I/O.

Object names have no empty segments, so the first `//` separates the shard from the member.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dfc.errors import (
    BadName,
    BucketNotEmpty,
    DfcError,
    Forbidden,
    NoSpace,
    NotAShard,
    NotFound,
    PreconditionFailed,
    TooLarge,
    Unauthorized,
    Unreachable,
)
from dfc.names import check_bucket_name, check_object_name

MEMBERS = "//"


class FilePlace(NamedTuple):
    """What a path names. Empty `bucket`: the root; empty `name`: a bucket. `member` None: an object; empty: all of a shard."""

    bucket: str
    name: str
    member: str | None

    @property
    def prefix(self) -> str:
        """The prefix of the names of objects in this folder."""
        return f"{self.name}/" if self.name else ""


def strip_protocol(path: str) -> str:
    """`dfc://bucket/folder/` → `bucket/folder`. The `//` that begins the members of a shard stays."""
    path = path.removeprefix("dfc:").lstrip("/")
    head, members, member = path.partition(MEMBERS)
    return head + members + member.rstrip("/") if members else head.rstrip("/")


def place_of(path: str) -> FilePlace:
    """What a path without protocol names. BadName if the path is invalid."""
    head, members, member = path.partition(MEMBERS)
    bucket, _, name = head.partition("/")
    if bucket:
        check_bucket_name(bucket)
    if name:
        check_object_name(name)
    if members and not name:
        raise BadName(f"only shards have members, and {path!r} does not name a shard before `//`")
    return FilePlace(bucket, name, member if members else None)


def parent_of(path: str) -> str:
    """The folder of a path; for a member at the top of a shard, the shard's root; "" for a bucket."""
    head, _, member = path.partition(MEMBERS)
    if member:
        return head + MEMBERS + (member.rpartition("/")[0])
    return head.rpartition("/")[0]


def folders_of(names: Iterable[str], below: str) -> set[str]:
    """All folders below the prefix `below` that these names imply."""
    found: set[str] = set()
    for name in names:
        folder = name.rpartition("/")[0]
        while len(folder) > len(below) and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


@contextmanager
def as_os_errors(path: str) -> Iterator[None]:
    """Convert errors of the cluster to the OSErrors that programs expect of a filesystem; EIO for all others."""
    try:
        yield
    except NotFound as problem:
        raise FileNotFoundError(errno.ENOENT, problem.message, path) from problem
    except NotAShard as problem:
        raise NotADirectoryError(errno.ENOTDIR, problem.message, path) from problem
    except DfcError as problem:
        number = next((number for kind, number in _NUMBERS if isinstance(problem, kind)), errno.EIO)
        raise OSError(number, problem.message or os.strerror(number), path) from problem


_NUMBERS: tuple[tuple[type[DfcError], int], ...] = (
    (BadName, errno.EINVAL),
    (Unauthorized, errno.EACCES),
    (Forbidden, errno.EPERM),
    (BucketNotEmpty, errno.ENOTEMPTY),
    (PreconditionFailed, errno.ESTALE),
    (NoSpace, errno.ENOSPC),
    (TooLarge, errno.EFBIG),
    (Unreachable, errno.ECONNREFUSED),
)

"""What a target answers to tasks when a disk or a replaced object comes in between."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from copied import disk_at
from job_shards import tar_of

from dfc.errors import PreconditionFailed, StorageFailed, Unavailable
from dfc.filesystem import FileSystem
from dfc.storage import Disk
from dfc.target.jobs import _Found, _open_index


class Failing(FileSystem):
    """Opens no index while `error` is set."""

    error: int | None = None

    def open(self, path: str, *, write: bool = False) -> int:
        if self.error is not None and path.endswith(".idx"):
            raise OSError(self.error, os.strerror(self.error), path)
        return super().open(path, write=write)


@pytest.fixture
def filesystem() -> Failing:
    return Failing()


@pytest.fixture
def disk(tmp_path: Path, filesystem: Failing) -> Iterator[Disk]:
    disk = disk_at(tmp_path, filesystem=filesystem)
    yield disk
    disk.close()


def put(disk: Disk) -> _Found:
    row = disk.put_small("b1", "a.tar", tar_of([("a.x", b"")])).row
    return _Found(disk, row, disk.blob_path(row))


def test_an_index_that_cannot_be_opened(disk: Disk, filesystem: Failing) -> None:
    found = put(disk)
    for number, kind, counted in (
        (errno.EIO, StorageFailed, 1),
        (errno.ENOENT, Unavailable, 0),
        (errno.EMFILE, Unavailable, 0),
    ):
        filesystem.error, before = number, disk.stats.io_errors
        with pytest.raises(kind) as refused:
            _open_index(found)
        assert disk.path not in str(refused.value)
        assert disk.stats.io_errors == before + counted
    filesystem.error = None
    os.close(_open_index(found))


def test_an_index_that_has_to_be_made_of_what_was_replaced(disk: Disk) -> None:
    old = put(disk)
    new = put(disk)
    with pytest.raises(PreconditionFailed, match=new.row.version):
        _open_index(old)

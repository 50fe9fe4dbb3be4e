from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from calls import raising
from harness import own_files

from dfc.errors import NotAShard, ObjectCorrupt, ObjectNotFound, StorageFailed, Unavailable
from dfc.storage import Disk, RowChanged


def flip(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes((byte ^ 1,)))


def test_a_reader_with_an_old_row_is_told_the_new_one(disk: Disk) -> None:
    old = disk.put_small("b", "a", b"1").row
    kept = disk.open_blob(old)
    new = disk.put_small("b", "a", b"2").row
    with pytest.raises(RowChanged) as caught:
        disk.open_blob(old)
    assert caught.value.row == new
    with pytest.raises(RowChanged):
        disk.read_small(old)
    assert os.pread(kept, 1, 0) == b"1", "who has the old blob open finishes it"
    os.close(kept)
    disk.delete("b", "a")
    with pytest.raises(ObjectNotFound):
        disk.open_blob(new)


@pytest.mark.parametrize("harm", ["gone", "cut", "grown", "body", "footer"])
def test_damaged_bytes_are_quarantined_and_never_a_404(disk: Disk, harm: str) -> None:
    row = disk.put_small("b", "a", b"hello").row
    path = disk.blob_path(row)
    if harm == "gone":
        os.unlink(path)
    elif harm == "cut":
        os.truncate(path, 4)
    elif harm == "grown":
        os.truncate(path, 500)
    else:
        flip(path, 2 if harm == "body" else 20)
    with pytest.raises(ObjectCorrupt):
        disk.read_small(row)
    with pytest.raises(ObjectCorrupt):
        disk.lookup("b", "a")
    assert disk.lookup_cached("b", "a") is None
    [found] = disk.quarantined()
    assert (found.name, found.version, found.size) == ("a", row.version, 5)
    assert [r.quarantined for r in disk.list("b", limit=5)] == [True]
    assert disk.counts("b") == (1, 5)
    disk.put_small("b", "a", b"again")
    assert disk.quarantined() == []
    assert disk.read_small(disk.lookup("b", "a")) == b"again"


@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_large_read_notices_a_missing_or_short_blob_before_the_first_byte(disk: Disk, harm: str) -> None:
    row = disk.put_small("b", "a", b"hello").row
    if harm == "gone":
        os.unlink(disk.blob_path(row))
    else:
        os.truncate(disk.blob_path(row), 5)
    descriptors = own_files()
    with pytest.raises(ObjectCorrupt):
        disk.open_blob(row)
    assert own_files() == descriptors
    disk.delete("b", "a")
    assert disk.quarantined() == []


@pytest.mark.parametrize("harm", ["gone", "empty", "cut", "flipped", "of another blob"])
def test_an_index_that_is_not_right_is_built_again(disk: Disk, tar_of: Callable[..., bytes], harm: str) -> None:
    row = disk.put_small("b", "s.tar", tar_of(20)).row
    path = disk.index_path(row)
    if harm == "gone":
        os.unlink(path)
    elif harm in ("empty", "cut"):
        os.truncate(path, 0 if harm == "empty" else os.path.getsize(path) // 2)
    elif harm == "flipped":
        flip(path, os.path.getsize(path) - 3)
    else:
        other = disk.put_small("b", "t.tar", tar_of(3)).row
        shutil.copy(disk.index_path(other), path)
    index = disk.open_index(row)
    assert (index.sample_count, index.version) == (20, row.version)
    assert disk.stats.indexes_rebuilt == 1
    assert disk.open_index(row) is index
    again = disk.rebuild_index(row)
    assert again is not index
    assert (again.sample_count, disk.stats.indexes_rebuilt) == (20, 2)
    assert os.listdir(disk.path + "/temporary") == []


def test_an_index_is_built_once_for_all_who_want_it(disk: Disk, tar_of: Callable[..., bytes]) -> None:
    row = disk.put_small("b", "s.tar", tar_of(200)).row
    os.unlink(disk.index_path(row))
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: disk.open_index(row), range(8)))
    assert len(set(map(id, found))) == 1
    assert disk.stats.indexes_rebuilt == 1


def test_readers_of_one_damaged_index_cost_the_disk_nothing(disk: Disk, tar_of: Callable[..., bytes]) -> None:
    """What a power loss brings: an index is torn, and everybody who meets it asks for a new one at the same time."""
    row = disk.put_small("b", "s.tar", tar_of(300)).row
    damaged = disk.open_index(row)
    os.truncate(disk.index_path(row), os.path.getsize(disk.index_path(row)) // 2)
    begin = threading.Barrier(24)

    def ask(number: int) -> Any:
        begin.wait()
        return disk.rebuild_index(row, damaged) if number % 2 else disk.rebuild_index(row)

    with ThreadPoolExecutor(24) as threads:
        assert [index.sample_count for index in threads.map(ask, range(24))] == [300] * 24
    assert (disk.stats.io_errors, disk.state) == (0, "up")
    assert os.listdir(disk.path + "/temporary") == []
    built = disk.stats.indexes_rebuilt
    assert disk.rebuild_index(row, damaged) is disk.open_index(row)  # somebody has done it already
    assert disk.stats.indexes_rebuilt == built


def test_an_error_of_the_medium_under_an_open_index(disk: Disk, tar_of: Callable[..., bytes], monkeypatch: Any) -> None:
    row = disk.put_small("b", "s.tar", tar_of(2000)).row
    index = disk.open_index(row)
    assert index.find_member("0001.bin") is not None
    pread = os.pread
    monkeypatch.setattr(os, "pread", raising(OSError(errno.EIO, "the medium is bad")))
    for ask in (lambda: index.find_member("1999.bin"), lambda: list(index.members()), lambda: index.spans(np.arange(2000))):
        with pytest.raises(StorageFailed):
            ask()
    assert (disk.stats.io_errors, disk.state) == (3, "up")
    monkeypatch.setattr(os, "pread", pread)
    assert index.find_member("1999.bin") is not None
    assert len(list(index.members())) == 2000


def test_a_failed_build_of_an_index_is_tried_again_by_the_next_reader(disk: Disk, tar_of: Callable[..., bytes]) -> None:
    row = disk.put_small("b", "s.tar", tar_of(20)).row
    os.unlink(disk.index_path(row))
    temporary = disk.path + "/temporary"
    os.rename(temporary, temporary + "-away")
    with pytest.raises(Unavailable):
        disk.open_index(row)
    os.rename(temporary + "-away", temporary)
    assert disk.open_index(row).sample_count == 20
    assert (disk.stats.io_errors, disk.state) == (0, "up")


def test_building_an_index_notices_damaged_bytes(disk: Disk, tar_of: Callable[..., bytes]) -> None:
    row = disk.put_small("b", "s.tar", tar_of(20)).row
    os.unlink(disk.index_path(row))
    flip(disk.blob_path(row), 600)
    with pytest.raises(ObjectCorrupt):
        disk.open_index(row)
    assert [found.name for found in disk.quarantined()] == ["s.tar"]
    assert not os.path.exists(disk.index_path(row))


def test_what_is_no_shard_says_so_with_the_reason(disk: Disk) -> None:
    with pytest.raises(NotAShard, match="not an archive"):
        disk.open_index(disk.put_small("b", "a.txt", b"x").row)
    with pytest.raises(NotAShard, match="at offset"):
        disk.open_index(disk.put_small("b", "a.tar", b"x" * 600).row)


def test_indexes_fall_out_when_too_many_are_open(open_disk: Any, tar_of: Callable[..., bytes]) -> None:
    disk = open_disk(open_indexes=2)
    rows = [disk.put_small("b", f"{n}.tar", tar_of(n + 1)).row for n in range(4)]
    descriptors = own_files()
    held = disk.open_index(rows[0])
    assert [disk.open_index(row).sample_count for row in rows] == [1, 2, 3, 4]
    assert [disk.cached_index(disk.blob_path(row)) is not None for row in rows] == [False, False, True, True]
    assert held.sample_count == 1
    assert held.sample_at(0).key == "0000", "an index that fell out still serves who has it"
    del held
    assert own_files() == descriptors + 2
    disk.delete("b", "3.tar")
    assert disk.cached_index(disk.blob_path(rows[3])) is None

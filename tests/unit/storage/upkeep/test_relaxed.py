from __future__ import annotations

import errno
import os
from typing import Any

import pytest
from copying import end_run
from faulty_filesystem import FaultyFileSystem, fail_with

from dfc.errors import ObjectCorrupt
from dfc.storage.rows import Supplied


def spoil(path: str) -> None:
    with open(path, "r+b") as file:
        file.write(b"torn")


def test_a_durable_object_stays_until_the_relaxed_one_that_replaced_it_is_synced(disk: Any, open_disk: Any) -> None:
    disk.put_small("b", "a", b"durable")
    for body in (b"first", b"second"):
        disk.put_small("b", "a", body, durability="relaxed")
    assert len(open_disk.files()) == 2, "the durable one and the newest"
    assert disk.stats.unsynced_rows == 1
    assert disk.lookup("b", "a").unsynced
    assert disk.sync_relaxed() == 1
    assert (disk.stats.unsynced_rows, len(open_disk.files())) == (0, 1)
    assert disk.sync_relaxed() == 0
    disk.parts.cache.clear()
    assert not disk.lookup("b", "a").unsynced


@pytest.mark.parametrize("how", ["put", "delete"])
def test_a_durable_change_needs_no_predecessor(disk: Any, open_disk: Any, how: str) -> None:
    disk.put_small("b", "a", b"durable")
    disk.put_small("b", "a", b"relaxed", durability="relaxed")
    if how == "put":
        disk.put_small("b", "a", b"new")
    else:
        disk.delete("b", "a")
    assert len(open_disk.files()) == (how == "put")
    assert disk.stats.unsynced_rows == 0


def test_a_restart_of_the_process_alone_loses_nothing(disk: Any, open_disk: Any) -> None:
    disk.put_small("b", "a", b"relaxed", durability="relaxed")
    end_run(disk)
    disk = open_disk()
    assert disk.lookup("b", "a").unsynced
    assert disk.sync_relaxed() == 1


def test_after_a_restart_of_the_machine_sound_rows_are_served_once_verified(disk: Any, open_disk: Any) -> None:
    disk.put_small("b", "a", b"durable")
    disk.put_small("b", "a", b"relaxed", durability="relaxed")
    end_run(disk)
    disk = open_disk(boot_id="boot-2")
    assert disk.sync_relaxed() == 0
    assert disk.read_small(disk.lookup("b", "a")) == b"relaxed"
    assert (disk.stats.unsynced_rows, len(open_disk.files())) == (0, 1)


@pytest.mark.parametrize("harm", [spoil, os.unlink])
def test_after_a_restart_of_the_machine_torn_rows_go_back_to_what_they_replaced(disk: Any, open_disk: Any, harm: Any) -> None:
    disk.put_small("b", "a", b"durable", supplied=Supplied(attributes=b"said of the durable one"))
    row = disk.put_small("b", "a", b"relaxed", durability="relaxed").row
    end_run(disk)
    harm(disk.blob_path(row))
    disk = open_disk(boot_id="boot-2")
    assert disk.lookup("b", "a").attributes == b"said of the durable one"
    assert disk.read_small(disk.lookup("b", "a")) == b"durable"
    assert (disk.quarantined(), disk.counts("b"), len(open_disk.files())) == ([], (1, 7), 1)


@pytest.mark.parametrize("harm", [spoil, os.unlink])
def test_a_torn_row_that_replaced_nothing_is_quarantined(disk: Any, open_disk: Any, harm: Any) -> None:
    row = disk.put_small("b", "a", b"relaxed", durability="relaxed").row
    end_run(disk)
    harm(disk.blob_path(row))
    disk = open_disk(boot_id="boot-2")
    with pytest.raises(ObjectCorrupt):
        disk.lookup("b", "a")
    assert [found.name for found in disk.quarantined()] == ["a"]
    assert disk.lookup_cached("b", "a") is None


def test_the_background_verifies_what_nobody_asks_for(disk: Any, open_disk: Any) -> None:
    rows = [disk.put_small("b", f"n{n}", b"relaxed", durability="relaxed").row for n in range(5)]
    end_run(disk)
    spoil(disk.blob_path(rows[3]))
    disk = open_disk(boot_id="boot-2", maintenance=True)
    assert disk.wait_for_opening_work(10)
    assert disk.stats.unsynced_rows == 0
    assert [found.name for found in disk.quarantined()] == ["n3"]


def test_the_background_syncs_in_time(open_disk: Any) -> None:
    disk = open_disk(maintenance=True, sync_relaxed_s=0.03)
    disk.put_small("b", "a", b"relaxed", durability="relaxed")
    for _ in range(10_000):
        if disk.stats.unsynced_rows == 0:
            break
        disk.barrier()
    assert disk.stats.unsynced_rows == 0


def test_many_rows_are_synced_by_one_call(open_disk: Any) -> None:
    filesystem = FaultyFileSystem()
    disk = open_disk(filesystem)
    for number in range(100):
        disk.put_small("b", f"n{number}", b"x", durability="relaxed")
    filesystem.arm()
    assert disk.sync_relaxed() == 100
    assert filesystem.names == ["sync_all", "commit"]


def test_closing_syncs(disk: Any, open_disk: Any) -> None:
    disk.put_small("b", "a", b"relaxed", durability="relaxed")
    assert not open_disk.again(boot_id="boot-2").lookup("b", "a").unsynced


def test_a_failed_sync_is_never_tried_again_and_the_blob_is_looked_at(open_disk: Any) -> None:
    filesystem = FaultyFileSystem(fail_with(errno.EIO))
    disk = open_disk(filesystem)
    disk.put_small("b", "a", b"relaxed", durability="relaxed")
    filesystem.arm(0)
    assert disk.sync_relaxed() == 0
    assert filesystem.names[0] == "fdatasync"
    assert disk.read_small(disk.lookup("b", "a")) == b"relaxed"
    filesystem.arm()
    assert disk.sync_relaxed() == 0
    assert filesystem.names == []
    assert disk.stats.unsynced_rows == 1
    disk = open_disk.again()
    assert disk.read_small(disk.lookup("b", "a")) == b"relaxed", "verified like a row of another run"
    assert disk.stats.unsynced_rows == 0

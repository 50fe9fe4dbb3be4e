from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from dfc.errors import ObjectCorrupt
from dfc.filesystem import FileSystem
from dfc.storage import layout
from dfc.storage.upkeep.scrub import Scrubber


def flip(path: str, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes((byte ^ 1 << bit % 8,)))


def scrubber(disk: Any, **named: Any) -> Scrubber:
    return Scrubber(disk, **{"bytes_per_s": 0, "interval_s": 1e9, **named})


def wait_for(condition: Any, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_every_flipped_bit_of_body_and_footer_is_found(disk: Any) -> None:
    row = disk.put_small("b", "name", b"hello").row
    path = disk.blob_path(row)
    scrub = scrubber(disk)
    for bit in range(layout.blob_bytes(row) * 8):
        flip(path, bit)
        assert scrub.scrub_once().errors == 1, f"bit {bit} was not noticed"
        assert len(disk.quarantined()) == 1
        with pytest.raises(ObjectCorrupt):
            disk.lookup("b", "name")
        flip(path, bit)
        assert scrub.scrub_once().errors == 0
        assert disk.quarantined() == [], "sound again, as after copying it back by hand"
        assert disk.read_small(disk.lookup("b", "name")) == b"hello"


def test_a_pass_reads_everything_and_counts(disk: Any) -> None:
    for number in range(450):
        disk.put_small(f"b{number % 2}", f"n{number}", b"x" * number, durability="relaxed")
    flip(disk.blob_path(disk.lookup("b0", "n100")), 3)
    os.unlink(disk.blob_path(disk.lookup("b1", "n101")))
    progress = scrubber(disk).scrub_once()
    assert (progress.state, progress.objects_done, progress.errors) == ("idle", 450, 2)
    assert progress.bytes_total == sum(range(450))
    assert sorted(found.name for found in disk.quarantined()) == ["n100", "n101"]
    stats = disk.stats
    assert (stats.scrub_errors, stats.scrubbed_objects) == (2, 450)
    assert stats.scrubbed_bytes >= progress.bytes_total - 101
    assert stats.scrub_finished_s > 0


class ReplacedWhileRead(FileSystem):
    """Replaces the object when its blob is read for the first time."""

    disk: Any = None

    def read_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        if self.disk is not None:
            disk, self.disk = self.disk, None
            disk.put_small("b", "a", b"new")
            buffer[:3] = b"bad"
            return 3
        return super().read_into(fd, buffer, offset)


def test_an_object_replaced_while_it_is_read_is_no_error(open_disk: Any) -> None:
    filesystem = ReplacedWhileRead()
    disk = open_disk(filesystem)
    disk.put_small("b", "a", b"old")
    filesystem.disk = disk
    assert scrubber(disk).scrub_once().errors == 0
    assert disk.quarantined() == []
    assert disk.read_small(disk.lookup("b", "a")) == b"new"


def test_the_rate_is_kept(disk: Any) -> None:
    for number in range(20):
        disk.put_small("b", f"n{number}", bytes(10_000), durability="relaxed")
    started = time.monotonic()
    scrubber(disk, bytes_per_s=1_000_000).scrub_once()
    assert 0.1 < time.monotonic() - started < 10


def test_a_pass_begins_when_it_is_due_or_asked_for_and_ends_at_once_when_told(disk: Any) -> None:
    flip(disk.blob_path(disk.put_small("b", "a", bytes(100_000)).row), 9)
    scrub = scrubber(disk)
    scrub.start()
    assert scrub.progress.state == "idle"
    scrub.request_pass()
    wait_for(lambda: disk.quarantined())
    scrub.stop()
    slow = scrubber(disk, bytes_per_s=1)
    slow.start()
    slow.request_pass()
    wait_for(lambda: slow.progress.state == "running")
    started = time.monotonic()
    slow.stop()
    assert time.monotonic() - started < 5
    assert not [thread for thread in threading.enumerate() if "scrub" in thread.name]


def test_a_disk_is_scrubbed_by_itself_at_its_interval(disk: Any) -> None:
    disk.put_small("b", "a", b"x")
    scrub = scrubber(disk, interval_s=0.01)
    scrub.start()
    wait_for(lambda: disk.stats.scrubbed_objects > 3)
    scrub.stop()


def test_a_new_pass_may_be_asked_for_while_one_runs(disk: Any) -> None:
    for number in range(3):
        disk.put_small("b", f"n{number}", bytes(200_000))
    scrub = scrubber(disk, bytes_per_s=300_000)
    scrub.start()
    scrub.request_pass()
    wait_for(lambda: scrub.progress.bytes_done >= 200_000)
    scrub.request_pass()
    wait_for(lambda: disk.stats.scrub_finished_s > 0)
    scrub.stop()
    assert scrub.progress.bytes_done == 600_000
    assert disk.stats.scrubbed_bytes >= 800_000, "the first one had read something already"


def test_a_pass_goes_on_where_the_process_ended(open_disk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfc.storage.upkeep.scrub._SAVE_S", 0.0)
    disk = open_disk()
    for number in range(10):
        disk.put_small("b", f"n{number}", bytes(100_000))
    scrub = scrubber(disk, bytes_per_s=200_000)
    scrub.start()
    scrub.request_pass()
    wait_for(lambda: scrub.progress.objects_done >= 2)
    scrub.stop()
    done = scrub.progress.objects_done
    disk = open_disk.again()
    scrub = scrubber(disk)
    scrub.start()
    wait_for(lambda: disk.stats.scrub_finished_s > 0)
    scrub.stop()
    assert scrub.progress.objects_done == 10
    assert disk.stats.scrubbed_objects == 10 - done


def test_an_index_that_is_not_right_is_built_again(disk: Any, tar_of: Any) -> None:
    row = disk.put_small("b", "s.tar", tar_of(30)).row
    flip(disk.index_path(row), 8 * 300)
    assert (scrubber(disk).scrub_once().errors, disk.stats.indexes_rebuilt, disk.quarantined()) == (0, 1, [])
    assert disk.open_index(row).sample_count == 30
